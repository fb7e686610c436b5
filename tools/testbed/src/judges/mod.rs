//! Judges: unmodified programs of other projects that work with this operator in a cluster.
//!
//! Each judge is built from a Go module of its own in `tools/testbed/judges/`, with pinned versions and hashes. Kinds and manifests of a project
//! are read from Go's module cache, so that this repository contains no upstream file.

pub mod argocd;
pub mod cluster_api;
pub mod flux;
pub mod machine_api;
pub mod olm;

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    ControlPlane,
    binaries::{Run as _, built_once, cache_dir, go, go_build, key, say},
    children::Daemon,
    deployment::{served, within},
};

/// Time limit for the start of a judge, on a busy machine.
const START: Duration = Duration::from_mins(3);

/// Go module in `tools/testbed/judges/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(pub &'static str);

impl Module {
    fn dir(self) -> PathBuf {
        crate::source_dir().join("judges").join(self.0)
    }

    /// Finds or builds the program of a package, with further flags of `go build`.
    pub(crate) fn program(self, name: &str, package: &str, flags: &[&str], duration: &str) -> Result<PathBuf> {
        let read = |file: &str| fs::read_to_string(self.dir().join(file)).with_context(|| format!("{self:?}: {file}"));
        let inputs = [read("go.mod")?, read("go.sum")?, flags.join(" ")];
        let dir = cache_dir()?.join(format!("judge-{}-{}", self.0, key(&inputs.each_ref().map(String::as_str))));
        built_once(&dir, name, |out| {
            say(&format!("building {name} ({duration}, once)"));
            let mut build = go_build();
            build.current_dir(self.dir()).args(["-ldflags", "-s -w"]).args(flags);
            build.arg("-o").arg(out).arg(package).run()
        })
    }

    /// Returns the folder with the source of a module that this one requires, in the required version.
    pub(crate) fn source(self, required: &str) -> Result<PathBuf> {
        let said = go("mod").current_dir(self.dir()).args(["download", "-json", required]).read()?;
        let said: Value = serde_json::from_str(&said)?;
        Ok(said["Dir"].as_str().with_context(|| format!("{required} has no folder: {said}"))?.into())
    }

    /// Installs the CRDs in a folder of a required module, and waits until they are served.
    pub(crate) async fn install_crds(self, to: &ControlPlane, required: &str, folder: &str) -> Result<()> {
        let client = to.client().await?;
        let dir = self.source(required)?.join(folder);
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "yaml") {
                continue;
            }
            for document in serde_yaml::Deserializer::from_str(&fs::read_to_string(&path)?) {
                let object = Value::deserialize(document)?;
                if object["kind"] == "CustomResourceDefinition" {
                    to.apply_yaml(&object.to_string()).await?;
                    served(&client, object["metadata"]["name"].as_str().context("a CRD has a name")?).await?;
                }
            }
        }
        Ok(())
    }
}

/// Waits until a judge responds with status 200 at a path, over HTTP without TLS.
pub(crate) async fn answers(judge: &Daemon, address: SocketAddr, path: &str) -> Result<()> {
    let ask = async || -> Result<bool> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok(head.ends_with(b" 200"))
    };
    within(START, &format!("http://{address}{path} answers"), || async { ask().await.unwrap_or(false) })
        .await
        .with_context(|| judge.last_lines())
}
