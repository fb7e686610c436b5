//! First build of the demo: cargo and Go work at the same time, because neither keeps all processors busy.

use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use devenv::{cache_dir, execute, forget_caller, workspace_root};

/// Programs of the control plane.
const PROGRAMS: &[&str] = &[
    "go.etcd.io/etcd/server/v3",
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kubectl",
];

/// Builds the demo, and compiles the packages of the control plane meanwhile. Does nothing if a control plane was built before, `KUBEBUILDER_ASSETS`
/// is set, or Go cannot be started.
pub(crate) fn build() -> Result<()> {
    let Some(mut go) = compile_control_plane()? else { return Ok(()) };
    println!("building the demo, and its control plane with Go: about 10 minutes on 2 processors, once");
    let mut cargo = Command::new("cargo");
    forget_caller(&mut cargo);
    cargo.args(["build", "--package", "xtask-operator"]).current_dir(workspace_root());
    let built = execute(&mut cargo);
    if built.is_err() {
        let _ = go.kill();
    }
    // The demo builds what is missing, and reports why that fails.
    let _ = go.wait();
    built
}

/// Starts Go for the newest version of Kubernetes with the build flags of the test bed. The later build of the test bed finds the packages in
/// Go's cache, and only links them. Returns `None` if there is nothing to compile, or Go cannot be started.
fn compile_control_plane() -> Result<Option<Child>> {
    let minor = |folder: &PathBuf| folder.extension().and_then(|minor| minor.to_str()?.parse::<u32>().ok());
    let sets = fs::read_dir(workspace_root().join("tools/xtask/payload")).context("cannot read tools/xtask/payload")?;
    let sets = sets.flatten().map(|entry| entry.path());
    let newest = sets.filter(|folder| minor(folder).is_some()).max_by_key(minor);
    let newest = newest.context("tools/xtask/payload has no Kubernetes")?;
    let built = fs::read_dir(cache_dir()?).into_iter().flatten().flatten();
    if env::var_os("KUBEBUILDER_ASSETS").is_some()
        || built.map(|entry| entry.path().join("kube-controller-manager")).any(|program| program.is_file())
    {
        return Ok(None);
    }
    let mut go = Command::new("go");
    // With `-export`, `go list` compiles packages and links no program.
    go.args(["list", "-export", "-trimpath"]).args(PROGRAMS).current_dir(newest);
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false").stdin(Stdio::null()).stdout(Stdio::null());
    Ok(go.spawn().ok())
}
