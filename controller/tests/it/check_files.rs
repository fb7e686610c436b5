//! The command `check files`, which needs no cluster.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// Runs `check files` in `dir`, and returns its exit status and standard output. Fails if the command writes to standard error.
fn check_files(dir: &Path, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-windows_node_pools"))
        .args(["check", "files"])
        .args(args)
        .current_dir(dir)
        // Makes any request to a cluster fail.
        .env("KUBECONFIG", "/nonexistent")
        .output()?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

#[test]
fn faults_are_reported_by_file_and_line() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
    std::fs::create_dir(dir.path().join("hosts"))?;
    write("hosts/b.yaml", "- name: win-1\n  address: 10.0.0.1\n- name: win-2\n  adress: 10.0.0.2\n")?;
    write("hosts/a.json", "{\"name\": \"win-1\",\n \"address\": \"10.0.0.3\"}\n")?;

    let (status, out) = check_files(dir.path(), &["hosts"])?;
    let lines = [
        "hosts/b.yaml:1: duplicate name `win-1` (first defined at hosts/a.json:1): correct or remove one",
        "hosts/b.yaml:3: a host needs `address`: add it",
        "hosts/b.yaml:4: unknown field `adress`, did you mean `address`?",
    ];
    ensure!(status == Some(1) && out.lines().eq(lines), "{status:?} {out}");

    let (status, out) = check_files(dir.path(), &["--output", "json", "hosts/b.yaml", "hosts/none.yaml"])?;
    let found: Vec<Value> = serde_json::from_str(&out)?;
    ensure!(status == Some(1) && found.len() == 3, "{status:?} {out}");
    ensure!(
        found[1]
            == json!({"file": "hosts/b.yaml", "line": 4, "severity": "error", "message": "unknown field `adress`, did you mean `address`?"}),
        "{out}"
    );
    ensure!(found[2]["file"] == "hosts/none.yaml" && found[2]["line"] == Value::Null, "{out}");
    Ok(())
}

#[test]
fn valid_files_have_no_output() -> Result<()> {
    // Each file is an inventory of its own: together they define the same hosts several times.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/inventory");
    for entry in std::fs::read_dir(&root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let said = check_files(&root, &[&name])?;
        ensure!(said == (Some(0), String::new()), "{name}: {said:?}");
    }
    let said = check_files(&root, &["-o", "json", "list.yaml"])?;
    ensure!(said == (Some(0), "[]\n".into()), "{said:?}");
    let said = check_files(&root, &["."])?;
    ensure!(said.0 == Some(1) && said.1.contains("(first defined at "), "{said:?}");
    Ok(())
}
