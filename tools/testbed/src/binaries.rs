//! Programs of the test bed, found or built once and kept.
//!
//! Programs are built in the cache (`$XDG_CACHE_HOME` or `~/.cache`, then `windows-node-pools/`) if they are not there. Programs of the
//! default control plane are first looked for in `$KUBEBUILDER_ASSETS`. The name of a cache folder contains a hash of the inputs, so
//! that a change of version or source never uses an old build.

mod argocd;
mod hostkubelet;
mod modules;
mod node_programs;
mod promtool;
mod wicd_exe;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

pub use argocd::run_lua;
pub use devenv::cache_dir;
pub(crate) use devenv::{find, with_progress, workspace_root};
pub use hostkubelet::{Platform, host_kubelet};
pub(crate) use modules::{Module, host_node_manager, host_overlay, host_proxy, log_runner};
pub use modules::{crane, helm, host_containerd, kstatus};
pub use node_programs::{
    CONTAINERD, HOST_LOCAL, NodeProgram, OLDEST_CONTAINERD, WIN_OVERLAY, WINDOWS_EXPORTER, containerdjudge, crdbudget,
    node_program, nodejudge, of_kubernetes,
};
pub use promtool::{prometheus, promtool};
pub use wicd_exe::wicd_exe;

/// Version for each minor version of Kubernetes whose programs can be built, the newest first. The Go modules of the payload require the same.
pub const KUBERNETES: [&str; 5] = ["v1.37.2", "v1.36.3", "v1.35.4", "v1.34.4", "v1.33.13"];
/// Default version of Kubernetes, which `tools/testbed/go/go.mod` requires, too.
pub const KUBERNETES_VERSION: &str = KUBERNETES[0];

const GO_MOD: &str = include_str!("../go/go.mod");
const GO_SUM: &str = include_str!("../go/go.sum");

/// Programs of a control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneBinaries {
    /// Path of `etcd`.
    pub etcd: PathBuf,
    /// Path of `kube-apiserver`.
    pub apiserver: PathBuf,
    /// Path of `kube-controller-manager`.
    pub controller_manager: PathBuf,
    /// Path of `kubectl`.
    pub kubectl: PathBuf,
}

/// Finds or builds the programs of a control plane of [`KUBERNETES_VERSION`]. The first build takes minutes, and reports that on standard error.
///
/// # Errors
/// Fails when a program is missing and cannot be built, or the cache cannot be written.
pub fn control_plane() -> Result<ControlPlaneBinaries> {
    control_plane_of(KUBERNETES_VERSION)
}

/// Finds or builds the programs of a control plane whose API server and controller manager have one of the versions [`KUBERNETES`]. etcd and
/// kubectl have the newest version. Programs in the folder `KUBEBUILDER_ASSETS` take the place of those of the newest version.
///
/// # Errors
/// Fails when a program is missing and cannot be built, or the cache cannot be written.
pub fn control_plane_of(version: &str) -> Result<ControlPlaneBinaries> {
    Ok(ControlPlaneBinaries {
        etcd: tool(KUBERNETES_VERSION, "etcd", "go.etcd.io/etcd/server/v3", "half a minute")?,
        apiserver: tool(version, "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "about 4 minutes")?,
        controller_manager: tool(
            version,
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "about 2 minutes",
        )?,
        kubectl: tool(KUBERNETES_VERSION, "kubectl", "k8s.io/kubernetes/cmd/kubectl", "about 1 minute")?,
    })
}

fn tool(version: &str, name: &str, package: &str, duration: &str) -> Result<PathBuf> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|_| version == KUBERNETES_VERSION) {
        let path = Path::new(&assets).join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let set = Set::of(version)?;
    let dir = cache_dir()?.join(format!("kubernetes-{version}-{}", set.key));
    built_once(&dir, name, |out| {
        let what = if name == "etcd" { name.to_owned() } else { format!("{name} {version}") };
        say(&format!("building {what} ({duration}, once)"));
        let start = Instant::now();
        set.build(out, &[Path::new(package)], "linux")?;
        say(&format!("built {what} in {} s", start.elapsed().as_secs()));
        Ok(())
    })
}

/// Go modules of a version of Kubernetes, from which the payload is built, too.
pub(crate) struct Set {
    version: String,
    dir: PathBuf,
    /// Hash of the pinned versions.
    pub(crate) key: String,
}

impl Set {
    /// Finds the set of one of the versions [`KUBERNETES`].
    pub(crate) fn of(version: &str) -> Result<Self> {
        let minor: Vec<&str> = version.trim_start_matches('v').split('.').take(2).collect();
        let module = Module::new(&format!("tools/xtask/payload/kubernetes-{}", minor.join(".")), &[])?;
        let is_of_version = module.inputs[0].contains(&format!("\tk8s.io/kubernetes {version} "));
        ensure!(is_of_version, "{} is not of {version}", module.folder.display());
        Ok(Self { version: version.to_owned(), key: module.key(), dir: module.folder })
    }

    /// Builds a package of the set, or source files with the modules of the set, for `goos`.
    pub(crate) fn build(&self, out: &Path, what: &[&Path], goos: &str) -> Result<()> {
        let mut build = go_build();
        build.env("GOOS", goos);
        build.current_dir(&self.dir).args(["-ldflags", &ldflags(&self.version)]).arg("-o").arg(out).args(what).run()
    }

    /// Reads a file of the module `k8s.io/kubernetes`.
    fn read(&self, file: &str) -> Result<String> {
        let module = "k8s.io/kubernetes";
        go("mod").args(["download", module]).current_dir(&self.dir).run()?;
        let folder = go("list").args(["-m", "-f", "{{.Dir}}", module]).current_dir(&self.dir).read()?;
        let file = Path::new(&folder).join(file);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }
}

/// Reports whether `wicd.exe` and `hostkubelet.exe`, the programs of Wine hosts that take longest to build, exist. They may be out of date.
pub fn wine_programs_are_built() -> bool {
    let entries = cache_dir().and_then(|dir| Ok(fs::read_dir(dir)?)).into_iter().flatten().flatten();
    let has_kubelet = entries.map(|entry| entry.path().join("hostkubelet.exe")).any(|program| program.is_file());
    wicd_exe::is_built() && has_kubelet
}

/// Builds `name` in `dir` with `build`, unless it exists. If several processes need it, one of them builds, and the others
/// wait. An interrupted build leaves nothing that could be mistaken for the result.
pub(crate) fn built_once(dir: &Path, name: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = dir.join(name);
    if path.is_file() {
        return Ok(path);
    }
    let _lock = lock(&dir.join(format!(".{name}.lock")))?;
    if !path.is_file() {
        let unfinished = dir.join(format!(".{name}.new"));
        with_progress(&format!("building {name}"), || build(&unfinished)).with_context(|| format!("build {name}"))?;
        fs::rename(&unfinished, &path).with_context(|| format!("move {name} to {}", dir.display()))?;
    }
    Ok(path)
}

/// Waits for the lock on the file `path`. The lock is released when the file is dropped or the process ends.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = lock_file(path)?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Opens the lock file `path`, and creates its folder.
pub(crate) fn lock_file(path: &Path) -> Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    File::create(path).with_context(|| format!("open {}", path.display()))
}

/// Returns the first 6 bytes of a SHA-256 over all inputs, in hex: enough to distinguish builds.
pub(crate) fn key(inputs: &[&str]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        hash.update((input.len() as u64).to_le_bytes());
        hash.update(input);
    }
    hex::encode(&hash.finalize()[..6])
}

/// Linker flags with the version stamp of a Kubernetes release, except for the Git commit, which the module proxy does not provide (the `.info`
/// file of a version has no `Origin`): it is empty, and User-Agents end with `kubernetes/unknown`.
pub const KUBERNETES_STAMP: &str = "-X k8s.io/component-base/version.gitVersion={version} \
     -X k8s.io/component-base/version.gitMajor={major} -X k8s.io/component-base/version.gitMinor={minor} \
     -X k8s.io/component-base/version.gitCommit= \
     -X k8s.io/client-go/pkg/version.gitVersion={version} -X k8s.io/client-go/pkg/version.gitMajor={major} \
     -X k8s.io/client-go/pkg/version.gitMinor={minor} -X k8s.io/client-go/pkg/version.gitCommit=";

/// Inserts a version into linker flags such as [`KUBERNETES_STAMP`].
pub fn stamp(flags: &str, version: &str) -> String {
    let bare = version.trim_start_matches('v');
    let mut numbers = bare.split(['.', '-', '+']);
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    flags.replace("{version}", version).replace("{bare}", bare).replace("{major}", major).replace("{minor}", minor)
}

/// Returns the linker flags of a program of Kubernetes.
fn ldflags(kubernetes: &str) -> String {
    format!("-s -w {}", stamp(KUBERNETES_STAMP, kubernetes))
}

/// Returns a `go` command in `tools/testbed/go`, without cgo and without the state of the Git work tree in programs.
pub(crate) fn go(command: &str) -> Command {
    let mut go = Command::new("go");
    go.current_dir(go_dir()).env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false").arg(command);
    go
}

pub(crate) fn go_build() -> Command {
    let mut go = go("build");
    go.arg("-trimpath");
    go
}

fn go_dir() -> PathBuf {
    crate::source_dir().join("go")
}

pub(crate) fn say(message: &str) {
    eprintln!("testbed: {message}");
}

/// Extension of commands that runs them to the end. The error of a failed command contains its standard error.
pub(crate) trait Run {
    /// Runs the command with no standard input.
    fn run(&mut self) -> Result<()> {
        self.read().map(drop)
    }
    /// Runs the command with no standard input and returns standard output without white space around it.
    fn read(&mut self) -> Result<String>;
}

impl Run for Command {
    fn read(&mut self) -> Result<String> {
        devenv::read(self)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn versions_are_those_that_go_mod_requires() {
        assert!(GO_MOD.contains(&format!("k8s.io/kubernetes {KUBERNETES_VERSION}\n")));
        for version in KUBERNETES {
            Set::of(version).unwrap();
        }
    }

    #[test]
    fn versions_are_filled_in() {
        assert_eq!(stamp("a={version} b={bare} c={major}.{minor}", "v1.36.3"), "a=v1.36.3 b=1.36.3 c=1.36");
        assert_eq!(stamp("{major} {minor}", "v2.4.0-rc.1"), "2 4");
    }

    #[test]
    fn key_tells_where_one_input_ends() {
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
    }

    #[test]
    fn a_failed_build_leaves_nothing_and_the_next_one_is_tried() {
        let dir = tempfile::tempdir().unwrap();
        let failed = built_once(dir.path(), "x", |out| {
            fs::write(out, "half")?;
            bail!("broken off")
        });
        assert!(failed.is_err());
        assert!(!dir.path().join("x").exists());
        let path = built_once(dir.path(), "x", |out| Ok(fs::write(out, "whole")?)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(built_once(dir.path(), "x", |_| bail!("built twice")).unwrap(), path);
    }
}
