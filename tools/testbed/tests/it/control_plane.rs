//! Tests of the control plane.

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use testbed::ControlPlane;

async fn create_namespace(client: Client, name: &str) -> kube::Result<Namespace> {
    let namespace =
        Namespace { metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() }, ..Default::default() };
    Api::all(client).create(&PostParams::default(), &namespace).await
}

#[tokio::test]
async fn a_client_has_the_rights_of_its_user() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    create_namespace(control_plane.client().await?, "it-admin").await?;

    let stranger = control_plane.client_as("stranger", &["others", "strangers"]).await?;
    match create_namespace(stranger, "it-stranger").await {
        Err(kube::Error::Api(status)) => {
            assert!(status.is_forbidden(), "{status:?}");
            assert!(status.message.contains("User \"stranger\" cannot create"), "{}", status.message);
        }
        other => panic!("a stranger was not refused: {other:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn objects_are_applied_and_refused_as_by_kubectl() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let manifest = "{apiVersion: v1, kind: Namespace, metadata: {name: it-applied}}";
    control_plane.apply_yaml(manifest).await?;
    control_plane.apply_yaml(manifest).await?;
    let output = control_plane.kubectl(&["get", "namespace", "it-applied", "-o", "name"]).await?;
    assert_eq!(String::from_utf8(output.stdout)?, "namespace/it-applied\n");
    assert!(!control_plane.kubectl(&["get", "namespace", "it-none"]).await?.status.success());
    assert!(control_plane.apply_yaml("{apiVersion: v1, kind: Nothing, metadata: {name: x}}").await.is_err());

    let version = control_plane.client().await?.apiserver_version().await?;
    assert_eq!(version.git_version, testbed::binaries::KUBERNETES_VERSION);
    Ok(())
}
