//! Tests of `hostkubelet`, the kubelet for Wine hosts.

use std::process::Command;

use anyhow::Result;
use testbed::binaries::{KUBERNETES_VERSION, Platform, host_kubelet};

#[test]
fn host_kubelet_is_the_kubelet_of_its_version() -> Result<()> {
    let output = Command::new(host_kubelet(Platform::Linux)?).arg("--version").output()?;
    assert_eq!(String::from_utf8(output.stdout)?.trim(), format!("Kubernetes {KUBERNETES_VERSION}"));
    Ok(())
}

#[test]
fn host_kubelet_is_built_for_windows() -> Result<()> {
    let exe = std::fs::read(host_kubelet(Platform::Windows)?)?;
    assert_eq!(&exe[..2], b"MZ");
    Ok(())
}
