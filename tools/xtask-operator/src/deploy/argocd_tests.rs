//! Tests of the Argo CD scripts, in the format of Argo CD's own tests, with objects of the test bed that are stored beside the scripts.

use std::{fs, path::PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::binaries::run_lua;

use super::argocd::{ALL, Customization, FOLDER};

#[derive(Deserialize)]
struct HealthTests {
    tests: Vec<HealthTest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HealthTest {
    health_status: Value,
    input_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActionTests {
    discovery_tests: Vec<DiscoveryTest>,
    action_tests: Vec<ActionTest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoveryTest {
    input_path: String,
    result: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActionTest {
    action: String,
    input_path: String,
    expected_output_path: String,
}

fn root() -> PathBuf {
    devenv::workspace_root()
}

fn read<T: DeserializeOwned>(path: &str) -> T {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn script(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn health_is_what_the_test_says() {
    for kind in ALL.iter().map(Customization::folder) {
        let tests: HealthTests = read(&format!("{kind}/health_test.yaml"));
        let stored = fs::read_dir(root().join(&kind).join("testdata")).unwrap().count();
        assert_eq!(tests.tests.len(), stored, "{kind}: each stored object has its test");
        for HealthTest { health_status, input_path } in tests.tests {
            let object: Value = read(&format!("{kind}/{input_path}"));
            let health = run_lua(&script(&format!("{kind}/health.lua")), &[object]).unwrap();
            assert_eq!(health, [health_status], "{kind}/{input_path}");
        }
    }
}

#[test]
fn actions_do_what_the_test_says_and_nothing_else() {
    for customization in ALL {
        let folder = format!("{}/actions", customization.folder());
        let ActionTests { discovery_tests, action_tests } = read(&format!("{folder}/action_test.yaml"));
        for DiscoveryTest { input_path, result } in discovery_tests {
            let object: Value = read(&format!("{folder}/{input_path}"));
            let found = run_lua(&script(&format!("{folder}/discovery.lua")), &[object]).unwrap().remove(0);
            let found = found.as_object().unwrap();
            assert_eq!(found.len(), result.len(), "{input_path}");
            for mut expected in result {
                let name = expected.as_object_mut().unwrap().remove("name").unwrap();
                let name = name.as_str().unwrap();
                // Argo CD treats an action as possible unless the script disables it.
                expected.as_object_mut().unwrap().entry("disabled").or_insert(Value::Bool(false));
                assert_eq!(found[name], expected, "{input_path}: {name}");
            }
        }
        for (name, _) in customization.actions {
            assert!(action_tests.iter().any(|test| test.action == *name), "{folder}: {name} has no test");
        }
        for ActionTest { action, input_path, expected_output_path } in action_tests {
            let object: Value = read(&format!("{folder}/{input_path}"));
            let expected: Value = read(&format!("{folder}/{expected_output_path}"));
            let changed = run_lua(&script(&format!("{folder}/{action}/action.lua")), &[object]).unwrap();
            assert_eq!(changed, [expected], "{folder}: {action}");
        }
    }
}

/// Checks that the three forms contain the same scripts.
#[test]
fn forms_agree() {
    let config_map: Value = read(&format!("{FOLDER}/argocd-cm-patch.yaml"));
    let openshift: Value = read(&format!("{FOLDER}/openshift-gitops-patch.yaml"));
    assert_eq!(openshift, json!({"spec": {"extraConfig": config_map["data"]}}));
    assert_eq!(config_map.as_object().unwrap().len(), 1, "a patch cannot be applied");
    let text = |path: String| script(&path).trim_end().to_owned();
    for one in ALL {
        let (kind, folder) = (one.kind, one.folder());
        let key = |what: &str| format!("resource.customizations.{what}.windowsmachineconfig.openshift.io_{kind}");
        let health = text(format!("{folder}/health.lua"));
        assert_eq!(config_map["data"][key("health")], health.as_str());
        let actions = config_map["data"][key("actions")].as_str().unwrap();
        let actions: Value = serde_yaml::from_str(actions).unwrap();
        assert_eq!(actions["discovery.lua"], text(format!("{folder}/actions/discovery.lua")).as_str());
        let definitions = actions["definitions"].as_array().unwrap();
        assert_eq!(definitions.len(), one.actions.len());
        for definition in definitions {
            let name = definition["name"].as_str().unwrap();
            let script = text(format!("{folder}/actions/{name}/action.lua"));
            assert_eq!(definition["action.lua"], script.as_str(), "{name}");
        }
    }
}
