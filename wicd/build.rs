//! Build script: gives `wicd.exe` a version and a manifest, with which Windows, administrators and application control identify it.

use std::{env, error::Error, path::PathBuf, process::Command};

/// Resource compiler, which comes with the linker.
const WINDRES: &str = "x86_64-w64-mingw32-windres";

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "wicd.rc", "wicd.manifest"] {
        println!("cargo::rerun-if-changed={file}");
    }
    if env::var("CARGO_CFG_TARGET_OS")? != "windows" {
        return Ok(());
    }
    let part = |name: &str| env::var(format!("CARGO_PKG_VERSION_{name}"));
    let numbers = format!("{},{},{},0", part("MAJOR")?, part("MINOR")?, part("PATCH")?);
    let object = PathBuf::from(env::var("OUT_DIR")?).join("wicd.res.o");
    let status = Command::new(WINDRES)
        .arg(format!("-DVERSION_NUMBERS={numbers}"))
        .arg(format!(r#"-DVERSION_TEXT=\"{}\""#, env::var("CARGO_PKG_VERSION")?))
        .args(["--input=wicd.rc", "--output-format=coff"])
        .arg(format!("--output={}", object.display()))
        .status()
        .map_err(|e| format!("cannot run {WINDRES}, which comes with gcc-mingw-w64: {e}"))?;
    if !status.success() {
        return Err(format!("{WINDRES} cannot compile wicd.rc").into());
    }
    println!("cargo::rustc-link-arg-bins={}", object.display());
    Ok(())
}
