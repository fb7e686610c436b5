//! Wine for a program that needs no host: no service manager, no network of its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, anyhow};

use super::{programs, template};

/// Drive `C:` of a Windows that runs one program after another. Needs what [hosts](super::available) need.
pub struct Prefix(tempfile::TempDir);

impl Prefix {
    /// Makes a drive with Windows alone.
    ///
    /// # Errors
    /// Fails when there is no Wine, or the template cannot be made or copied.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        template::copy(&template::template()?, &dir.path().join("prefix"), str::to_owned)?;
        Ok(Self(dir))
    }

    /// Drive `C:`.
    pub fn drive_c(&self) -> PathBuf {
        self.0.path().join("prefix/drive_c")
    }

    /// Command that runs a program for Windows.
    ///
    /// # Errors
    /// Fails when there is no Wine.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let (wine, _) = programs().map_err(|name| anyhow!("there is no {name}"))?;
        let mut command = Command::new(wine);
        command.arg(program).env("WINEPREFIX", self.0.path().join("prefix")).env("WINEDEBUG", "-all");
        Ok(command)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        if let Ok((_, server)) = programs() {
            let _ = Command::new(server).arg("-k").env("WINEPREFIX", self.0.path().join("prefix")).status();
        }
    }
}
