//! Wine for a program that needs no host: no service manager, no separate network.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, anyhow};

use super::{programs, template};

/// Drive `C:` of a Windows that runs one program after another. Has the same requirements as [hosts](super::available).
pub struct Prefix(tempfile::TempDir);

impl Prefix {
    /// Creates a drive with Windows only.
    ///
    /// # Errors
    /// Fails when there is no Wine, or the template cannot be created or copied.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        template::copy(&template::template()?, &dir.path().join("prefix"), str::to_owned)?;
        Ok(Self(dir))
    }

    /// Returns drive `C:`.
    pub fn drive_c(&self) -> PathBuf {
        self.0.path().join("prefix/drive_c")
    }

    /// Returns a command that runs a Windows program.
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
