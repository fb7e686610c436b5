//! Judges: unmodified programs of other projects that work with this operator in a cluster.
//!
//! Each judge is built from a Go module of its own in `tools/testbed/judges/`, with pinned versions and hashes. Kinds and manifests of a project
//! are read from Go's module cache, so that this repository contains no upstream file.

pub mod argocd;
pub mod cluster_api;
pub mod flux;
pub mod machine_api;
pub mod olm;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    ControlPlane,
    binaries::{self, Run as _, go},
    children::Daemon,
    deployment::{self, within},
    http,
    pki::Authority,
};

/// Time limit for the start of a judge, on a busy machine.
const START: Duration = Duration::from_mins(3);

/// Go module in `tools/testbed/judges/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(pub &'static str);

impl Module {
    fn module(self) -> Result<binaries::Module> {
        binaries::Module::new(&format!("tools/testbed/judges/{}", self.0), &[])
    }

    /// Finds or builds the program of a package, with further flags of `go build`.
    pub(crate) fn program(self, name: &str, package: &str, flags: &[&str], duration: &str) -> Result<PathBuf> {
        let mut module = self.module()?;
        module.inputs.push(flags.join(" "));
        module.program(&format!("judge-{}", self.0), name, &[flags, &[package]].concat(), duration)
    }

    /// Returns the folder with the source of a module that this one requires, in the required version.
    pub(crate) fn source(self, required: &str) -> Result<PathBuf> {
        let said = go("mod").current_dir(self.module()?.folder).args(["download", "-json", required]).read()?;
        let said: Value = serde_json::from_str(&said)?;
        Ok(said["Dir"].as_str().with_context(|| format!("{required} has no folder: {said}"))?.into())
    }

    /// Installs the CRDs in a folder of a required module, and waits until they are served.
    pub(crate) async fn install_crds(self, to: &ControlPlane, required: &str, folder: &str) -> Result<()> {
        let dir = self.source(required)?.join(folder);
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "yaml") {
                continue;
            }
            for document in serde_yaml::Deserializer::from_str(&fs::read_to_string(&path)?) {
                let object = Value::deserialize(document)?;
                if object["kind"] == "CustomResourceDefinition" {
                    deployment::apply_crds(to, &object.to_string()).await?;
                }
            }
        }
        Ok(())
    }
}

/// Returns a folder with a certificate for `localhost`, as `tls.crt` and `tls.key`.
pub(crate) fn serving_certificate(authority: &Authority) -> Result<TempDir> {
    let own = authority.server("localhost", &[Ipv4Addr::LOCALHOST.into()], &["localhost"])?;
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("tls.crt"), own.certificate)?;
    fs::write(folder.path().join("tls.key"), own.key)?;
    Ok(folder)
}

/// Waits up to 3 minutes until a judge responds with status 200 at a path, over HTTP without TLS.
pub(crate) async fn answers(judge: &Daemon, address: SocketAddr, path: &str) -> Result<()> {
    let ask = || async { http::request(address, "GET", path, "").await.is_ok_and(|(status, _)| status == 200) };
    within(START, &format!("http://{address}{path} answers"), ask).await.with_context(|| judge.last_lines())
}
