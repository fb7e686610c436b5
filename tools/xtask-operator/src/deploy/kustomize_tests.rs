//! Tests of what users do with the kustomize folders, with the kustomize in kubectl.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::binaries;

use crate::yaml::documents;

/// Returns the output of `kubectl kustomize` for a folder.
pub(super) fn build(folder: &Path) -> anyhow::Result<String> {
    devenv::read(Command::new(binaries::control_plane()?.kubectl).arg("kustomize").arg(folder))
}

/// Creates a folder below `target/` with these files and those of `deploy/kustomize`.
pub(super) fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = devenv::workspace_root();
    // `target` does not exist if cargo builds elsewhere.
    fs::create_dir_all(root.join("target")).unwrap();
    let folder = tempfile::tempdir_in(root.join("target")).unwrap();
    for name in ["openapi.json", "name-references.yaml"] {
        fs::copy(root.join("deploy/kustomize").join(name), folder.path().join(name)).unwrap();
    }
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Checks the overlays as a user without a local copy has them: by the URL of a repository.
#[test]
fn an_overlay_in_a_repository_is_the_same() {
    let root = devenv::workspace_root();
    let repository = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        devenv::read(Command::new(program).current_dir(repository.path()).args(args)).unwrap();
    };
    let sources = ["deploy", "crds"].map(|name| root.join(name));
    let [deploy, crds] = sources.each_ref().map(|path| path.to_str().unwrap());
    run("cp", &["-r", deploy, crds, "."]);
    run("git", &["init", "-q", "-b", "main"]);
    run("git", &["add", "-A"]);
    run("git", &["-c", "user.name=it", "-c", "user.email=it@example.com", "commit", "-q", "-m", "A release"]);
    run("git", &["tag", "v0.1.0"]);
    for platform in ["openshift", "kubernetes"] {
        let url = format!("file://{}//deploy/{platform}?ref=v0.1.0", repository.path().display());
        let remote = build(Path::new(&url)).unwrap();
        assert_eq!(remote, build(&root.join("deploy").join(platform)).unwrap());
        // An overlay uses the URL in the same way as a folder.
        let overlay =
            format!("resources:\n- {url}\nimages:\n- name: windows-node-pools\n  newName: registry.example.com/a\n");
        let overlay = folder(&[("kustomization.yaml", &overlay)]);
        assert!(build(overlay.path()).unwrap().contains("image: registry.example.com/a:"));
    }
}

fn pool_of(rendered: &str) -> Value {
    documents(rendered).into_iter().find(|object| object["kind"] == "WindowsNodePool").unwrap()
}

const POOL: &str = "\
apiVersion: windowsmachineconfig.openshift.io/v1alpha1
kind: WindowsNodePool
metadata:
  name: factory
spec:
  ssh:
    privateKeySecretRefs:
    - name: windows-key
  inventory:
    hosts:
    - name: win-1
      address: 10.20.0.11
    - name: win-2
      address: 10.20.0.12
";

#[test]
fn with_the_schema_a_patch_adds_a_host_and_without_it_replaces_the_list() {
    let patch = "\
apiVersion: windowsmachineconfig.openshift.io/v1alpha1
kind: WindowsNodePool
metadata:
  name: factory
spec:
  inventory:
    hosts:
    - name: win-2
      address: 10.20.0.99
    - name: win-3
      address: 10.20.0.13
";
    let kustomization = "resources: [pool.yaml]\npatches: [path: patch.yaml]\n";
    for (schema, expected) in [
        (
            "openapi: {path: openapi.json}\n",
            json!([["win-1", "10.20.0.11"], ["win-2", "10.20.0.99"], ["win-3", "10.20.0.13"]]),
        ),
        ("", json!([["win-2", "10.20.0.99"], ["win-3", "10.20.0.13"]])),
    ] {
        let kustomization = format!("{kustomization}{schema}");
        let folder = folder(&[("kustomization.yaml", &kustomization), ("pool.yaml", POOL), ("patch.yaml", patch)]);
        let pool = pool_of(&build(folder.path()).unwrap());
        let hosts = pool["spec"]["inventory"]["hosts"].as_array().unwrap();
        let mut found: Vec<_> = hosts.iter().map(|host| json!([host["name"], host["address"]])).collect();
        found.sort_by_key(Value::to_string);
        assert_eq!(json!(found), expected, "{schema:?}");
    }
}

#[test]
fn with_the_name_references_a_pool_names_the_secret_that_kustomize_makes() {
    let kustomization = "\
resources: [pool.yaml]
namePrefix: eu-
namespace: openshift-windows-machine-config-operator
secretGenerator:
- name: windows-key
  literals: [private-key.pem=x]
";
    for (more, is_named) in
        [("openapi: {path: openapi.json}\nconfigurations: [name-references.yaml]\n", true), ("", false)]
    {
        let kustomization = format!("{kustomization}{more}");
        let folder = folder(&[("kustomization.yaml", &kustomization), ("pool.yaml", POOL)]);
        let rendered = build(folder.path()).unwrap();
        let pool = pool_of(&rendered);
        let name = pool["spec"]["ssh"]["privateKeySecretRefs"][0]["name"].as_str().unwrap();
        assert_eq!(name.starts_with("eu-windows-key-"), is_named, "{rendered}");
        assert_eq!(rendered.contains(&format!("\n  name: {name}\n")), is_named, "{rendered}");
        // A pool is cluster-scoped, and kustomize must know that.
        assert_eq!(pool["metadata"]["namespace"].is_null(), is_named, "{rendered}");
    }
}

/// Checks that another namespace and other names are refused: policies contain the operator's namespace in expressions, and roles must stay in
/// the namespaces of their objects.
#[test]
fn another_namespace_and_other_names_are_refused() {
    for overlay in ["openshift", "kubernetes"] {
        let kustomization = format!("resources: [../../deploy/{overlay}]\nnamespace: elsewhere\n");
        let folder = folder(&[("kustomization.yaml", &kustomization)]);
        let error = build(folder.path()).unwrap_err().to_string();
        assert!(error.contains("conflict"), "{error}");
        for renamed in ["namePrefix: a-", "nameSuffix: -a"] {
            let kustomization = format!("resources: [../../deploy/{overlay}]\n{renamed}\n");
            let folder = self::folder(&[("kustomization.yaml", &kustomization)]);
            let error = build(folder.path()).unwrap_err().to_string();
            assert!(error.contains("namePrefix and nameSuffix are not possible"), "{error}");
        }
    }
}

/// Returns the objects of the overlay for Kubernetes with a component, and with the patches that a page of the guide shows.
fn patched_as_the_guide_shows(component: &str, page: &str, patches: &str) -> Vec<Value> {
    let guide = devenv::workspace_root().join("docs/guide").join(page);
    assert!(fs::read_to_string(guide).unwrap().contains(patches), "{page} does not show these patches");
    let kustomization =
        format!("resources: [../../deploy/kubernetes]\ncomponents: [../../deploy/components/{component}]\n{patches}");
    let folder = folder(&[("kustomization.yaml", &kustomization)]);
    documents(&build(folder.path()).unwrap())
}

/// Checks the overlays of the installation page, which users put beside `deploy/openshift` and `deploy/kubernetes`.
#[test]
fn the_overlays_of_the_guide_set_image_and_api_server() {
    let text = include_str!("../../../../docs/guide/install.md");
    let mut blocks = text.split("```yaml\n# deploy/mine/kustomization.yaml\n").skip(1);
    for (platform, has_api_server) in [("openshift", false), ("kubernetes", true)] {
        let (kustomization, _) = blocks.next().unwrap().split_once("```").unwrap();
        let there = format!("- ../{platform}\n");
        assert!(kustomization.contains(&there), "{kustomization}");
        let kustomization = kustomization.replace(&there, &format!("- ../../deploy/{platform}\n"));
        let objects = documents(&build(folder(&[("kustomization.yaml", &kustomization)]).path()).unwrap());
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example.com/you/windows-node-pools:0.1.0");
        let url = json!({"name": "WINDOWS_NODE_POOLS_API_SERVER", "value": "https://api.example.com:6443"});
        assert_eq!(container["env"].as_array().unwrap().contains(&url), has_api_server, "{platform}");
    }
}

/// Checks that the page of ports lists the ports of the pod, and that the network policy allows as many.
#[test]
fn the_page_of_ports_has_the_ports_of_the_pod() {
    let text = include_str!("../../../../docs/concept/ports-and-flows.md");
    let (_, section) = text.split_once("## To the operator's pod\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut shown: Vec<String> = section
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?.split(" | ").take(2).map(ToOwned::to_owned).reduce(|a, b| a + " " + &b)
        })
        .filter(|row| row.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    shown.sort();
    let objects = super::objects().unwrap();
    let of_kind = |kind: &str| objects.iter().find(|object| object.kind() == kind).unwrap().value.clone();
    let deployment = of_kind("Deployment");
    let ports = deployment["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
    let mut expected: Vec<String> =
        ports.iter().map(|port| format!("{} `{}`", port["containerPort"], port["name"].as_str().unwrap())).collect();
    expected.sort();
    assert_eq!(shown, expected);
    let admitted = of_kind("NetworkPolicy")["spec"]["ingress"][0]["ports"].as_array().unwrap().len();
    assert_eq!(admitted, expected.len());
}

#[test]
fn guards_can_be_made_to_warn() {
    let patches = "\
patches:
- target: {kind: ValidatingAdmissionPolicyBinding, name: windows-node-pools-guard-.*}
  patch: |-
    - {op: replace, path: /spec/validationActions, value: [Warn, Audit]}
";
    let objects = patched_as_the_guide_shows("guards", "removal.md", patches);
    let of_kind = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding");
    let is_guard =
        |object: &&Value| object["metadata"]["name"].as_str().unwrap().starts_with("windows-node-pools-guard-");
    let (guards, others): (Vec<_>, Vec<_>) = of_kind.partition(is_guard);
    let actions =
        |objects: &[&Value]| objects.iter().map(|o| o["spec"]["validationActions"].clone()).collect::<Vec<_>>();
    assert_eq!(actions(&guards), [json!(["Warn", "Audit"]), json!(["Warn", "Audit"])]);
    assert!(!others.is_empty() && actions(&others).iter().all(|actions| *actions == json!(["Deny"])));
}

#[test]
fn another_prometheus_can_be_named() {
    let patches = "\
patches:
- target: {kind: .*RoleBinding, name: windows-node-pools-(prometheus|metrics-reader)}
  patch: |-
    - {op: replace, path: /subjects/0/name, value: prometheus}
    - {op: replace, path: /subjects/0/namespace, value: monitoring}
";
    let objects = patched_as_the_guide_shows("monitoring", "metrics.md", patches);
    let theirs = json!([{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}]);
    let named: Vec<_> = objects.iter().filter(|object| object["subjects"] == theirs).map(|o| &o["kind"]).collect();
    assert_eq!(named.len(), 2, "{named:?}");
}
