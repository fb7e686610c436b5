//! Query for the owner of a Node. The decision is in [`owner`](wnp_core::node::owner).

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use wnp_core::node::owner::{Evidence, NodeOwner, whose};

/// Reads from the API server the Node that the evidence names, and decides who owns it.
pub(crate) async fn ask(client: &Client, evidence: &Evidence) -> kube::Result<(Option<Node>, NodeOwner)> {
    let node = Api::<Node>::all(client.clone()).get_opt(&evidence.name).await?;
    let whose = whose(node.as_ref(), evidence);
    Ok((node, whose))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_api_server_is_asked_for_nodes_of_any_system() {
        let node = json!({"metadata": {"name": "w", "labels": {"kubernetes.io/os": "linux"}}});
        let api = crate::fake_api::FakeApi::new();
        api.on("GET", "/api/v1/nodes/w", 200, node);
        let evidence = Evidence { name: "w".into(), proven: vec![IpAddr::from([10, 0, 0, 1])], ..Evidence::default() };
        let (_, whose) = ask(&api.client(), &evidence).await.unwrap();
        let NodeOwner::Others(why) = whose else { panic!("{whose:?}") };
        assert!(
            why.to_string().contains("kubernetes.io/os=linux") && why.to_string().contains("another name"),
            "{why}"
        );
    }
}
