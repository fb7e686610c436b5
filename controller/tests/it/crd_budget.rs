//! CRDs in the validation code of the oldest and the newest API server, which estimate the cost of CEL rules differently.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;
use testbed::binaries::{KUBERNETES, crdbudget};

/// Oldest and newest supported version of Kubernetes.
const ENDS: [&str; 2] = [KUBERNETES[KUBERNETES.len() - 1], KUBERNETES[0]];

/// Returns the rules that the API server of this version refuses.
fn refused(version: &str, crds: &[CustomResourceDefinition]) -> Result<Vec<String>> {
    let mut program = Command::new(crdbudget(version)?).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = program.stdin.take().context("no input")?;
    for crd in crds {
        writeln!(input, "{}", serde_json::to_string(crd)?)?;
    }
    drop(input);
    let output = program.wait_with_output()?;
    ensure!(output.status.success(), "crdbudget failed");
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

#[test]
fn the_oldest_and_the_newest_api_server_accept_each_crd() -> Result<()> {
    for version in ENDS {
        let refused = refused(version, &api::crds())?;
        assert!(refused.is_empty(), "{version}: {}", refused.join("\n"));
    }
    Ok(())
}

#[test]
fn a_rule_beyond_the_budget_is_found() -> Result<()> {
    let mut crds = api::crds();
    let mut crd = serde_json::to_value(crds.remove(0))?;
    // The field is a list without a maximum number of items, of strings without a maximum length.
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["costly"] = json!({
        "type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self.matches('^(a|b)*$')"}]},
    });
    for version in ENDS {
        let refused = refused(version, &[serde_json::from_value(crd.clone())?])?;
        assert!(
            refused.iter().any(|line| line.contains("[costly]") && line.contains("budget")),
            "{version}: {refused:?}"
        );
    }
    Ok(())
}
