//! Tests of the Argo CD scripts, in the format of Argo CD's own tests, with objects of the test bed that are stored beside the scripts.

use std::fs;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use testbed::binaries::run_lua;

use super::argocd::ALL;

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

fn read<T: DeserializeOwned>(path: &str) -> T {
    let text =
        fs::read_to_string(devenv::workspace_root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn health_scripts_pass_the_tests_beside_them() {
    for customization in ALL {
        let kind = customization.folder();
        let tests: HealthTests = read(&format!("{kind}/health_test.yaml"));
        let stored = fs::read_dir(devenv::workspace_root().join(&kind).join("testdata")).unwrap().count();
        assert_eq!(tests.tests.len(), stored, "{kind}: the number of stored objects differs from that of tests");
        for HealthTest { health_status, input_path } in tests.tests {
            let object: Value = read(&format!("{kind}/{input_path}"));
            let health = run_lua(&customization.script("health.lua").unwrap(), &[object]).unwrap();
            assert_eq!(health, [health_status], "{kind}/{input_path}");
        }
    }
}

#[test]
fn actions_pass_the_tests_beside_them() {
    for customization in ALL {
        let folder = format!("{}/actions", customization.folder());
        let ActionTests { discovery_tests, action_tests } = read(&format!("{folder}/action_test.yaml"));
        for DiscoveryTest { input_path, result } in discovery_tests {
            let object: Value = read(&format!("{folder}/{input_path}"));
            let found = run_lua(&customization.script("actions/discovery.lua").unwrap(), &[object]).unwrap().remove(0);
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
        for name in customization.actions {
            assert!(action_tests.iter().any(|test| test.action == *name), "{folder}: {name} has no test");
        }
        for ActionTest { action, input_path, expected_output_path } in action_tests {
            let object: Value = read(&format!("{folder}/{input_path}"));
            let expected: Value = read(&format!("{folder}/{expected_output_path}"));
            let changed =
                run_lua(&customization.script(&format!("actions/{action}/action.lua")).unwrap(), &[object]).unwrap();
            assert_eq!(changed, [expected], "{folder}: {action}");
        }
    }
}
