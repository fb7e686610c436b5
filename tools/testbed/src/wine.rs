//! Windows hosts: Wine's service manager, registry and certificate store behind a real OpenSSH server. Each host has its own
//! network, process table and host name. Needs root on Linux; see [`available`].
//!
//! Not available, and therefore testable only on real Windows: PowerShell, HCS, Defender, AF_UNIX sockets, symbolic
//! links, gRPC over named pipes, recovery of failed services. InitiateShutdownW and InitiateSystemShutdownExW do nothing:
//! a program that restarts a host here must call ExitWindowsEx or `shutdown.exe /r`. A library of the test bed
//! (`tools/testbed/wine/dismapi.c`) simulates Windows' features: all of them are disabled at first, and enabling one requires a
//! restart. Another one (`tools/testbed/wine/vmcompute.c`) simulates HNS.

mod host;
mod prefix;
mod template;

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::binaries::{Run as _, find};
pub use crate::host_network::HostNetwork;

pub use host::{Process, Service, Shell, WineHost, WineOptions};
pub use prefix::Prefix;

/// Checks that Wine hosts can run on this machine.
///
/// # Errors
/// Fails when this process is not root, a program is missing, or namespaces are not available. The text names the reason.
pub fn available() -> Result<(), String> {
    if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Err("Wine hosts need root, for network namespaces and mounts".to_owned());
    }
    let missing: Vec<&str> = ["unshare", "nsenter", "setpriv", "ip", "sshd", "ssh-keygen", "x86_64-w64-mingw32-gcc"]
        .into_iter()
        .filter(|name| find(name).is_none())
        .chain(programs().err())
        .collect();
    if !missing.is_empty() {
        return Err(format!("Wine hosts need {}: run `cargo xtask setup`", missing.join(", ")));
    }
    Command::new("unshare")
        .args(NAMESPACES)
        .arg("true")
        .run()
        .map_err(|error| format!("Wine hosts need namespaces, which this machine does not allow: {error:#}"))
}

/// Flags of `unshare` for a machine with its own namespaces, which ends with the process that started it.
const NAMESPACES: [&str; 7] = ["--net", "--mount", "--propagation=private", "--pid", "--uts", "--fork", "--kill-child"];

/// Returns the paths of `wine64` and `wineserver`; the error names the missing one. Debian's `wine` itself is a script that
/// prints a message about 32-bit programs on every call.
fn programs() -> Result<(PathBuf, PathBuf), &'static str> {
    let program =
        |name| Some(Path::new("/usr/lib/wine").join(name)).filter(|path| path.is_file()).or_else(|| find(name));
    Ok((program("wine64").ok_or("wine64")?, program("wineserver").ok_or("wineserver")?))
}

/// Returns the folder with the scripts and C sources of Wine hosts.
fn scripts() -> PathBuf {
    crate::source_dir().join("wine")
}
