//! Programs of Go modules in this repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{KUBERNETES_VERSION, Run as _, built_once, cache_dir, go_build, key, ldflags, say, workspace_root};

/// Go module with pinned versions.
pub(crate) struct Module {
    pub(crate) folder: PathBuf,
    /// Contents on which a build depends.
    pub(crate) inputs: Vec<String>,
}

impl Module {
    /// Reads the module in a folder of the repository, and its source files with these names.
    pub(crate) fn new(folder: &str, sources: &[&str]) -> Result<Self> {
        let folder = workspace_root().join(folder);
        let read = |name: &&str| {
            fs::read_to_string(folder.join(name)).with_context(|| format!("read {name} of {}", folder.display()))
        };
        let inputs = ["go.mod", "go.sum"].iter().chain(sources).map(read).collect::<Result<_>>()?;
        Ok(Self { folder, inputs })
    }

    /// Returns a hash of the contents on which a build depends.
    pub(crate) fn key(&self) -> String {
        key(&self.inputs.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Finds or builds a program in the folder `cache-KEY` of the cache. `args` are arguments of `go build`, the package last. A program whose name
    /// ends in `.exe` is built for Windows.
    pub(crate) fn program(&self, cache: &str, name: &str, args: &[&str], duration: &str) -> Result<PathBuf> {
        let dir = cache_dir()?.join(format!("{cache}-{}", self.key()));
        built_once(&dir, name, |out| {
            say(&format!("building {name} ({duration}, once)"));
            let mut build = go_build();
            if Path::new(name).extension().is_some_and(|extension| extension == "exe") {
                build.env("GOOS", "windows");
            }
            build.current_dir(&self.folder).args(["-ldflags", "-s -w"]).arg("-o").arg(out).args(args).run()
        })
    }
}

/// Finds or builds crane, which copies images between registries, and serves one in memory.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn crane() -> Result<PathBuf> {
    let package = "github.com/google/go-containerregistry/cmd/crane";
    Module::new("tools/testbed/crane", &[])?.program("crane", "crane", &[package], "half a minute")
}

/// Finds or builds Helm, which renders and installs the chart.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn helm() -> Result<PathBuf> {
    Module::new("tools/testbed/helm", &[])?.program("helm", "helm", &["helm.sh/helm/v4/cmd/helm"], "about 6 minutes")
}

/// Finds or builds kstatus, which computes the status of objects with the library that Flux and others use for waiting.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn kstatus() -> Result<PathBuf> {
    Module::new("tools/testbed/kstatus", &["main.go"])?.program("kstatus", "kstatus", &["."], "seconds")
}

/// Finds or builds a Windows service of the test bed (`tools/testbed/go`).
fn service(name: &str) -> Result<PathBuf> {
    let module = Module::new("tools/testbed/go", &["winservice/winservice.go", &format!("{name}/main.go")])?;
    let args = ["-ldflags", &ldflags(KUBERNETES_VERSION), &format!("./{name}")];
    module.program(name, &format!("{name}.exe"), &args, "up to a minute")
}

/// Finds or builds hostcontainerd, which replaces containerd.
///
/// # Errors
/// Fails when it is missing and cannot be built, or the cache cannot be written.
pub fn host_containerd() -> Result<PathBuf> {
    service("hostcontainerd")
}

/// Finds or builds hostoverlay, which replaces hybrid-overlay-node.
pub(crate) fn host_overlay() -> Result<PathBuf> {
    service("hostoverlay")
}

/// Finds or builds hostproxy, which replaces kube-proxy.
pub(crate) fn host_proxy() -> Result<PathBuf> {
    service("hostproxy")
}

/// Finds or builds the real kube-log-runner.
pub(crate) fn log_runner() -> Result<PathBuf> {
    let args = ["-ldflags", &ldflags(KUBERNETES_VERSION), "k8s.io/component-base/logs/kube-log-runner"];
    let cache = format!("kube-log-runner-{KUBERNETES_VERSION}");
    Module::new("tools/testbed/go", &[])?.program(&cache, "kube-log-runner.exe", &args, "seconds")
}

/// Finds or builds hostnodemanager, which replaces azure-cloud-node-manager.
pub(crate) fn host_node_manager() -> Result<PathBuf> {
    let module = Module::new("tools/testbed/hostnodemanager", &["main.go"])?;
    module.program("hostnodemanager", "hostnodemanager.exe", &["."], "about 2 minutes")
}
