//! Command `payload`, which the init containers of the operator's pod run where a pod cannot mount the payload image as a volume.
//!
//! The payload image has no program. So the operator's image first copies its program into a volume, and then the payload image runs that program
//! on its own files.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Subcommand;
use remote::payload::Payload;

/// Files that are copied.
#[derive(Subcommand, Debug)]
pub enum Copy {
    /// Copy this program to a directory.
    #[command(after_help = "Exit status:\n  0  the program is copied\n  1  an error")]
    Program {
        /// Directory, which is created if it does not exist.
        #[arg(long, value_name = "DIRECTORY")]
        to: PathBuf,
    },
    /// Copy a payload to a directory, remove what another payload has left there, and check every file of the copy against the manifest.
    #[command(
        after_help = "Exit status:\n  0  all files are copied and match the manifest\n  1  an error, for example a file that does not match the manifest"
    )]
    Files {
        /// Directory of the payload.
        #[arg(long, value_name = "DIRECTORY", default_value = "/payload")]
        from: PathBuf,
        /// Directory, which is created if it does not exist.
        #[arg(long, value_name = "DIRECTORY")]
        to: PathBuf,
    },
}

/// Copies the files, and prints what was copied.
///
/// # Errors
/// Fails when a file cannot be read or written, or the payload is invalid.
pub fn run(what: &Copy) -> Result<ExitCode> {
    let text = match what {
        Copy::Program { to } => format!("copied the program to {}\n", program(to)?.display()),
        Copy::Files { from, to } => {
            let copy = Payload::copy(from, to)?;
            let files: usize = copy.manifests().map(|manifest| manifest.files.len()).sum();
            format!("copied {files} files to {}, and checked them\n", to.display())
        }
    };
    crate::args::output::print(&text).context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}

fn program(to: &Path) -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find the file of this program")?;
    let name = Path::new("windows-node-pools");
    fs::create_dir_all(to).with_context(|| format!("cannot create the directory {}", to.display()))?;
    let (part, target) = (to.join(name.with_extension("part")), to.join(name));
    // The copy keeps the file mode, so that all users may run it.
    fs::copy(&program, &part).with_context(|| format!("cannot copy {} to {}", program.display(), part.display()))?;
    fs::rename(&part, &target).with_context(|| format!("cannot write {}", target.display()))?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_copy_of_the_program_can_run_and_may_be_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("program");
        for _ in 0..2 {
            run(&Copy::Program { to: to.clone() }).unwrap();
            let copy = fs::metadata(to.join("windows-node-pools")).unwrap();
            assert_eq!(copy.len(), fs::metadata(env::current_exe().unwrap()).unwrap().len());
            assert_eq!(copy.permissions().mode() & 0o111, 0o111);
        }
        assert_eq!(fs::read_dir(to).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_payload_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(&Copy::Files { from: folder.path().join("none"), to: folder.path().into() }).unwrap_err();
        assert!(error.to_string().contains("none/manifest.json"), "{error}");
    }
}
