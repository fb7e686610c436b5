//! Signing of the programs for hosts, by a command of the user.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// Signer of programs.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Signer {
    /// Signing program. It is run with the path of each .exe and .dll for hosts, before the hash is taken, and signs the file in place.
    #[arg(long = "sign", value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

impl Signer {
    /// Signs a copy of a program for hosts, and returns its path. Returns the file itself if the copy is not named as a program, or no signer is
    /// set.
    pub(crate) fn signed(&self, file: PathBuf, copy: PathBuf) -> Result<PathBuf> {
        let is_program =
            copy.extension().is_some_and(|kind| ["exe", "dll"].iter().any(|k| kind.eq_ignore_ascii_case(k)));
        let Some(signer) = self.program.as_ref().filter(|_| is_program) else { return Ok(file) };
        let folder = copy.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::copy(&file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
        let status = Command::new(signer).arg(&copy).status();
        let status = status.with_context(|| format!("cannot run {}", signer.display()))?;
        ensure!(status.success(), "{} did not sign {}: {status}", signer.display(), copy.display());
        Ok(copy)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Returns a signer that appends a word.
    pub(crate) fn fake(folder: &Path) -> Signer {
        let program = folder.join("sign");
        fs::write(&program, "#!/bin/sh\nprintf ' signed' >> \"$1\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Signer { program: Some(program) }
    }

    #[test]
    fn programs_are_signed_in_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        for (name, signs, expected) in [
            ("wicd.exe", true, "content signed"),
            ("plugin.DLL", true, "content signed"),
            ("containerd_conf.toml", true, "content"),
            ("kubelet.exe", false, "content"),
        ] {
            let file = dir.path().join(name);
            fs::write(&file, "content").unwrap();
            let signer = if signs { fake(dir.path()) } else { Signer::default() };
            let signed = signer.signed(file.clone(), dir.path().join("signed").join(name)).unwrap();
            assert_eq!(fs::read_to_string(signed).unwrap(), expected, "{name}");
            assert_eq!(fs::read_to_string(file).unwrap(), "content", "{name}: the original stays");
        }
        let failing = Signer { program: Some("/bin/false".into()) };
        let error = failing.signed(dir.path().join("wicd.exe"), dir.path().join("copy.exe")).unwrap_err();
        assert!(error.to_string().contains("did not sign"), "{error}");
    }
}
