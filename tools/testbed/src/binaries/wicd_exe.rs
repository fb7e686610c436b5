//! `wicd.exe`, cross-built for Windows.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use devenv::{WINDOWS_TARGET as TARGET, forget_caller, has_windows_target};

use super::{Run as _, say, with_progress, workspace_root};

/// Returns a separate target folder: the cargo that started a test may hold the lock of the usual one.
fn target_dir() -> PathBuf {
    let workspace = workspace_root();
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), |dir| workspace.join(dir)).join("windows")
}

/// Profile in which `wicd.exe` is compiled: that of a release, except in debug builds of the test bed.
const PROFILE: &str = if cfg!(debug_assertions) { "wicd-test" } else { "wicd" };

fn exe() -> PathBuf {
    target_dir().join(TARGET).join(PROFILE).join("wicd.exe")
}

/// Reports whether `wicd.exe` is built. It may be out of date.
pub(super) fn is_built() -> bool {
    exe().is_file()
}

/// Builds `wicd.exe` from this workspace and returns its path. Cargo rebuilds it only if necessary; the first
/// build takes minutes. `wicd.exe` needs the GNU linker for Windows (`x86_64-w64-mingw32-gcc`).
///
/// # Errors
/// Fails when cargo fails, or builds no `wicd.exe`.
pub fn wicd_exe() -> Result<PathBuf> {
    let (workspace, target_dir) = (workspace_root(), target_dir());
    say("bringing wicd.exe up to date (minutes the first time)");
    let mut cargo = if has_windows_target() {
        Command::new("cargo")
    } else {
        // Debian's toolchain builds the standard library from its source package.
        let mut cargo = Command::new("/usr/bin/cargo");
        cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_abort");
        cargo
    };
    forget_caller(&mut cargo);
    cargo.current_dir(workspace).env("CARGO_TARGET_DIR", &target_dir).args([
        "build",
        "--locked",
        "-p",
        "wicd",
        "--profile",
        PROFILE,
        "--target",
        TARGET,
    ]);
    with_progress("building wicd.exe", || cargo.run())?;
    let exe = exe();
    fs::metadata(&exe).with_context(|| format!("cargo built no {}", exe.display()))?;
    Ok(exe)
}
