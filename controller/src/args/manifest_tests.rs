//! Tests that the manifests in `deploy/` configure the operator by environment variables, so that `plan` in its pod has the same settings.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use serde_json::Value;

use super::{Operator, Run};

/// Returns the faults of the operator's settings in a manifest.
fn faults(manifest: &Value) -> Vec<String> {
    match manifest["kind"].as_str() {
        Some("Deployment") => containers(manifest).flat_map(of_container).collect(),
        Some("Kustomization") => patches(manifest).iter().flat_map(of_patch).collect(),
        _ => Vec::new(),
    }
}

fn containers(deployment: &Value) -> impl Iterator<Item = &Value> {
    let pod = &deployment["spec"]["template"]["spec"];
    ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten()
}

fn of_container(container: &Value) -> Vec<String> {
    let name = container["name"].as_str().unwrap_or_default();
    let mut faults = Vec::new();
    let args: Vec<&str> = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_subcommand = |word: &str| Operator::command().find_subcommand(word).is_some();
    if !matches!(args.as_slice(), [subcommand] if is_subcommand(subcommand)) || !container["command"].is_null() {
        faults.push(format!(
            "{name}: the container must have one subcommand as its only argument, not {args:?}: set the rest by env"
        ));
    }
    faults.extend(container["env"].as_array().into_iter().flatten().filter_map(|variable| of_variable(name, variable)));
    faults
}

fn of_variable(container: &str, variable: &Value) -> Option<String> {
    let name = variable["name"].as_str().unwrap_or_default();
    let is_setting = Run::command().get_arguments().any(|arg| arg.get_env().is_some_and(|env| env == name));
    (!is_setting).then(|| format!("{container}: the variable {name} is not a setting of the operator"))
}

/// Returns the patch operations of a kustomization, also those that are commented out, because users enable them unchanged.
fn patches(kustomization: &Value) -> Vec<Value> {
    let patches = kustomization["patches"].as_array().into_iter().flatten();
    let operations = |text: &str| {
        let text = text.lines().map(|line| line.replacen("# ", "", 1) + "\n").collect::<String>();
        serde_yaml::from_str::<Vec<Value>>(&text).expect("a list of operations")
    };
    patches.flat_map(|patch| operations(patch["patch"].as_str().expect("a patch in the file"))).collect()
}

fn of_patch(operation: &Value) -> Vec<String> {
    let path = operation["path"].as_str().unwrap_or_default();
    if path.contains("/args") || path.contains("/command") {
        return vec![format!("{path}: the patch sets arguments: set them by env")];
    }
    let is_variable = path.ends_with("/env/-");
    is_variable.then(|| of_variable(path, &operation["value"])).flatten().into_iter().collect()
}

#[test]
fn a_setting_by_an_argument_or_an_unknown_variable_is_a_fault() {
    let deployment = |container: &str| {
        let container: Value = serde_yaml::from_str(container).unwrap();
        serde_json::json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let patch = |operation: &str| serde_json::json!({"kind": "Kustomization", "patches": [{"patch": operation}]});
    for (about, manifest, is_wrong) in [
        ("a subcommand", deployment("args: [run]"), false),
        ("a variable", deployment("{args: [run], env: [{name: LOG_LEVEL, value: debug}]}"), false),
        ("an argument", deployment("args: [run, --log-level=debug]"), true),
        ("no subcommand", deployment("args: [go]"), true),
        ("nothing", deployment("{}"), true),
        ("a command", deployment("{command: [sh], args: [run]}"), true),
        ("an unknown variable", deployment("{args: [run], env: [{name: LOGLEVEL}]}"), true),
        (
            "a patch of a variable",
            patch("- {op: add, path: /spec/containers/0/env/-, value: {name: LOG_LEVEL}}"),
            false,
        ),
        ("a wrong patch variable", patch("- {op: add, path: /spec/containers/0/env/-, value: {name: LOGLEVEL}}"), true),
        ("a patch of arguments", patch("- {op: add, path: /spec/containers/0/args/-, value: --x}"), true),
        ("the same as a comment", patch("# - {op: add, path: /spec/containers/0/args/-, value: --x}"), true),
        ("another patch", patch("- {op: add, path: /spec/priorityClassName, value: x}"), false),
        ("another kind", serde_json::json!({"kind": "Service"}), false),
    ] {
        assert_eq!(!faults(&manifest).is_empty(), is_wrong, "{about}: {:?}", faults(&manifest));
    }
}

/// Returns the files below a folder, except the chart's templates, which are not YAML until Helm has rendered them.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with("templates"))
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[test]
fn shipped_manifests_set_the_operator_by_its_environment() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let mut deployments = 0;
    for file in files(&deploy).iter().filter(|file| file.extension().is_some_and(|e| e == "yaml")) {
        let text = std::fs::read_to_string(file).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let manifest: Value = serde::Deserialize::deserialize(document).unwrap();
            deployments += usize::from(manifest["kind"] == "Deployment");
            assert_eq!(faults(&manifest), Vec::<String>::new(), "{}", file.display());
        }
    }
    assert!(deployments > 0, "no Deployment in {}", deploy.display());
}
