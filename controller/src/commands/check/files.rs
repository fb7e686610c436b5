//! Command `check files`: reports errors in host lists before they are merged. It reads the lists with the code of the operator.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use gitops::{
    File, Limits,
    hosts::{self, Finding},
    shown_size,
};
use serde_json::json;

use crate::args::{CheckFiles, output};

/// Exit status when there are errors. Warnings do not count.
const FINDINGS: u8 = 1;

/// Checks host lists, prints the findings, and returns the exit status.
///
/// # Errors
/// Fails when the findings cannot be printed. Findings are not failures: the exit status reports them.
pub fn run(args: &CheckFiles) -> anyhow::Result<ExitCode> {
    let Found { errors, warnings } = check(&args.path, &Limits::default());
    let object = |severity: &'static str| move |f: &Finding| json!({"file": f.file, "line": f.line, "severity": severity, "message": f.message});
    let all: Vec<_> = errors.iter().map(object("error")).chain(warnings.iter().map(object("warning"))).collect();
    let text = output::answer(args.output, &all, || {
        let errors = errors.iter().map(|f| format!("{f}\n"));
        errors.chain(warnings.iter().map(|f| format!("{f} (warning)\n"))).collect()
    })?;
    output::print(&text).context("cannot print")?;
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { FINDINGS.into() })
}

/// Findings by severity, in the order of the files.
#[derive(Debug, Default)]
struct Found {
    /// Errors for which the operator refuses the list.
    errors: Vec<Finding>,
    /// Entries that the operator accepts, but that are probably mistakes.
    warnings: Vec<Finding>,
}

/// Checks the files and directories.
fn check(paths: &[PathBuf], limits: &Limits) -> Found {
    let mut read = Reading { limits, files: Vec::new(), total: 0, findings: Vec::new() };
    for path in paths {
        read.add(path, true);
    }
    let Reading { files, findings: mut errors, .. } = read;
    let mut warnings = Vec::new();
    match hosts::read(&files) {
        // If no file could be read, the missing hosts are not a further error.
        Err(more) if !files.is_empty() || errors.is_empty() => errors.extend(more),
        Err(_) => {}
        Ok(entries) => warnings = hosts::doubts(&entries),
    }
    errors.sort();
    Found { errors, warnings }
}

/// Files and findings so far.
struct Reading<'a> {
    limits: &'a Limits,
    files: Vec<File>,
    total: u64,
    findings: Vec<Finding>,
}

impl Reading<'_> {
    fn record(&mut self, path: &Path, message: String) {
        self.findings.push(Finding { file: path.to_string_lossy().into_owned(), line: None, message });
    }

    /// Adds a file, or the files below a directory. A file that is named explicitly is read whatever its extension.
    fn add(&mut self, path: &Path, is_named: bool) {
        let kind = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) => return self.record(path, format!("cannot be read: {error}")),
        };
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let is_inventory = is_named || ["yaml", "yml", "json"].contains(&extension);
        if kind.is_dir() {
            self.add_directory(path);
        } else if kind.is_symlink() {
            if is_inventory {
                self.record(
                    path,
                    "a symbolic link is not followed: replace it with the file itself, or remove it".into(),
                );
            }
        } else if is_inventory && kind.is_file() {
            self.add_file(path);
        } else if is_named {
            self.record(path, "this is neither a file nor a directory".into());
        }
    }

    fn add_directory(&mut self, path: &Path) {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        match entries {
            Err(error) => self.record(path, format!("cannot be read: {error}")),
            Ok(mut entries) => {
                entries.sort_by_key(fs::DirEntry::file_name);
                for entry in entries.into_iter().filter(|e| e.file_name() != ".git") {
                    self.add(&entry.path(), false);
                }
            }
        }
    }

    /// Adds a file, unless it exceeds one of the operator's limits: the size of a file, the number of files, or their total size.
    fn add_file(&mut self, path: &Path) {
        let mut bytes = Vec::new();
        let read = fs::File::open(path).and_then(|file| file.take(self.limits.file + 1).read_to_end(&mut bytes));
        if let Err(error) = read {
            return self.record(path, format!("cannot be read: {error}"));
        }
        let length = bytes.len() as u64;
        if length > self.limits.file {
            self.record(path, format!("the file has more than {}: split it", shown_size(self.limits.file)));
        } else if self.files.len() >= self.limits.files {
            self.record(path, format!("there are more than {} files: use several pools", self.limits.files));
        } else if self.total + length > self.limits.total {
            self.record(
                path,
                format!("the files have more than {} in total: use several pools", shown_size(self.limits.total)),
            );
        } else {
            self.total += length;
            self.files.push(File { path: path.to_string_lossy().into_owned(), bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the errors in these files, with `.` in place of the temporary directory.
    fn found(files: &[(&str, &str)], limits: &Limits) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = root.path();
        check(&[root.to_owned()], limits)
            .errors
            .iter()
            .map(|f| f.to_string().replace(&root.display().to_string(), "."))
            .collect()
    }

    #[test]
    fn errors_in_files_are_found() {
        let limits = Limits { files: 2, file: 60, total: 80, ..Limits::default() };
        let a = ("a.yaml", "name: a\naddress: a\n");
        for (about, files, lines) in [
            ("nothing wrong", vec![a, ("README.md", "x"), (".git/x.yaml", "x")], vec![]),
            (
                "a directory below",
                vec![a, ("d/e/b.yml", "x")],
                vec![
                    "./d/e/b.yml:1: this is text, not a host list: write `hosts:` with a list, or remove the file from this directory",
                ],
            ),
            (
                "a large file",
                vec![a, ("b.json", &"x".repeat(61))],
                vec!["./b.json: the file has more than 60 bytes: split it"],
            ),
            (
                "a large file, which leaves room for others",
                vec![("a.yaml", &"x".repeat(70)), ("b.yaml", a.1)],
                vec!["./a.yaml: the file has more than 60 bytes: split it"],
            ),
            (
                "too many files",
                vec![a, ("b.yaml", "name: b\naddress: b\n# 34567890\n"), ("c.yaml", &"x".repeat(60))],
                vec!["./c.yaml: there are more than 2 files: use several pools"],
            ),
            (
                "large together",
                vec![("b.yaml", "name: b\naddress: b\n# 34567890\n"), ("c.yaml", &"x".repeat(60))],
                vec!["./c.yaml: the files have more than 80 bytes in total: use several pools"],
            ),
            (
                "nothing there",
                vec![("README.md", "x")],
                vec!["there is no *.yaml, *.yml or *.json file: for an empty inventory, write `hosts: []`"],
            ),
        ] {
            assert_eq!(found(&files, &limits), lines, "{about}");
        }
    }

    #[test]
    fn a_probable_mistake_is_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.yaml");
        let map = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata:\n  10.0.0.1: 'username=Administrator # the admin'\n";
        fs::write(&path, map).unwrap();
        let Found { errors, warnings } = check(&[path], &Limits::default());
        assert!(errors.is_empty(), "{errors:?}");
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.line == Some(5) && warning.message.contains("not a comment"), "{warning}");
    }

    #[test]
    fn symbolic_links_and_missing_files_are_errors() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("a.yaml"), "hosts: []\n").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", path("b.yaml")).unwrap();
        std::os::unix::fs::symlink("/etc", path("c")).unwrap();
        let messages = |paths: &[PathBuf]| {
            check(paths, &Limits::default()).errors.into_iter().map(|f| f.message).collect::<Vec<_>>()
        };
        assert_eq!(
            messages(&[root.path().to_owned()]),
            ["a symbolic link is not followed: replace it with the file itself, or remove it"]
        );
        assert_eq!(
            messages(&[path("c")]),
            ["a symbolic link is not followed: replace it with the file itself, or remove it"]
        );
        assert!(messages(&[path("d.yaml")])[0].starts_with("cannot be read: "));
        fs::rename(path("a.yaml"), path("hosts")).unwrap();
        assert!(messages(&[path("hosts")]).is_empty());
    }
}
