//! Command `version`: prints the versions of this program and of the operator in the cluster.

use anyhow::Context as _;
use api::names::COMPONENT;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use serde::Serialize;

use crate::{
    args::{self, Version, output},
    client::api_server,
    runtime::operator_namespace,
};

/// Label with the version on the operator's Deployment.
const LABEL: &str = "app.kubernetes.io/version";

/// Versions of this program and the operator. `clientVersion` has the same name as in `kubectl version`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    operator_version: Option<String>,
}

/// Prints the versions.
///
/// # Errors
/// Fails when there is no configuration for the API server, it refuses a request or does not answer, or no operator is installed. The version of this
/// program is printed even then.
pub async fn run(args: &Version, cluster: &args::Cluster) -> anyhow::Result<()> {
    let operator_version = if args.client { None } else { Some(operator(&args.namespace, cluster).await) };
    let (operator_version, error) = match operator_version.transpose() {
        Ok(version) => (version, None),
        Err(error) => (None, Some(error)),
    };
    let versions = Versions { client_version: args::version_text().to_owned(), operator_version };
    output::print(&output::answer(args.output, &versions, || table(&versions))?)?;
    error.map_or(Ok(()), Err)
}

fn table(versions: &Versions) -> String {
    let operator = versions.operator_version.as_ref().map(|version| format!("Operator Version: {version}\n"));
    format!("Client Version: {}\n{}", versions.client_version, operator.unwrap_or_default())
}

async fn operator(namespace: &str, cluster: &args::Cluster) -> anyhow::Result<String> {
    let client = api_server::client(cluster).await?;
    let home = operator_namespace::find(&client, namespace).await;
    let deployment = Api::<Deployment>::namespaced(client, &home.name).get_metadata_opt(COMPONENT).await;
    let deployment = deployment.context("failed to get the operator's Deployment")?;
    let deployment = deployment.with_context(|| {
        format!("there is no Deployment {COMPONENT} in the namespace {}: {}", home.name, home.remedy())
    })?;
    Ok(deployment.labels().get(LABEL).cloned().unwrap_or_else(|| "unknown".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_asked_for_has_no_line() {
        let mut versions = Versions { client_version: "1.0.0".into(), operator_version: None };
        assert_eq!(table(&versions), "Client Version: 1.0.0\n");
        versions.operator_version = Some("0.9.0".into());
        assert_eq!(table(&versions), "Client Version: 1.0.0\nOperator Version: 0.9.0\n");
    }
}
