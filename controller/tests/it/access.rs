//! Rights of wicd, the operator, kubelets and users, and their limits.

use std::{collections::BTreeSet, fmt::Debug};

use anyhow::Result;
use api::{WindowsInstance, WindowsNodePool};
use controller::cluster::wicd_rbac;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node, Pod, Secret},
    events::v1::Event,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::ControlPlane;

use crate::{
    cluster::{NAMESPACE, OPERATOR, eventually, kubelet, operator, shared, wicd},
    csr::forge::Forged,
};

pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Asserts that the API server has refused a request, with `why` in its message.
#[track_caller]
pub(crate) fn assert_refused<T: Debug>(result: kube::Result<T>, why: &str) {
    match result {
        Err(kube::Error::Api(status)) => {
            assert!(status.message.contains(why), "wanted {why:?}, got {}", status.message);
        }
        other => panic!("wanted a refusal with {why:?}, got {other:?}"),
    }
}

pub(crate) const FORBIDDEN: &str = "is forbidden: User";

pub(crate) async fn create<K>(client: &Client, value: Value) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + Debug,
{
    let value: K = object(value);
    Api::all(client.clone()).create(&PostParams::default(), &value).await
}

pub(crate) async fn merge_patch<K>(api: &Api<K>, name: &str, patch: Value) -> kube::Result<K>
where
    K: DeserializeOwned + Clone + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Gives these users rights in all namespaces, by a ClusterRole and a ClusterRoleBinding of this name.
pub(crate) async fn allow(admin: &Client, name: &str, rules: Value, users: &[&str]) -> Result<()> {
    create::<ClusterRole>(admin, json!({"metadata": {"name": name}, "rules": rules})).await?;
    let group = "rbac.authorization.k8s.io";
    let subjects: Vec<_> = users.iter().map(|user| json!({"apiGroup": group, "kind": "User", "name": user})).collect();
    let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": name});
    let binding = json!({"metadata": {"name": name}, "subjects": subjects, "roleRef": role});
    create::<ClusterRoleBinding>(admin, binding).await?;
    Ok(())
}

/// Creates a Node, and returns the client of its wicd with the rights that the operator gives it.
async fn create_node_and_wicd_client(control_plane: &ControlPlane, node: &str) -> Result<Client> {
    let admin = control_plane.client().await?;
    let labels_and_annotations = json!({"name": node, "annotations": {"note": "else"}, "labels": {"a": "b"}});
    create::<Node>(&admin, json!({"metadata": labels_and_annotations})).await?;
    // The operator makes the binding, because it must be able to grant exactly this role.
    bind_wicd_role(&admin, &operator(control_plane).await?).await?;
    let wicd = wicd(control_plane, node).await?;
    let own = ListParams::default().fields(&format!("metadata.name={node}"));
    eventually(|| async { Api::<Node>::all(wicd.clone()).list(&own).await.is_ok() }).await?;
    Ok(wicd)
}

/// Binds the role that wicd has on all hosts, as the operator does.
pub(crate) async fn bind_wicd_role(admin: &Client, operator: &Client) -> Result<()> {
    let owner = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone()).get(wicd_rbac::OWNER_POLICY).await?;
    let apply = Patch::Apply(wicd_rbac::binding(&owner));
    let params = PatchParams::apply(api::names::MANAGER_POOL).force();
    Api::<ClusterRoleBinding>::all(operator.clone()).patch(wicd_rbac::BINDING, &params, &apply).await?;
    Ok(())
}

#[tokio::test]
async fn wicd_writes_five_annotations_of_its_own_node_and_nothing_else() -> Result<()> {
    let control_plane = shared().await?;
    let wicd = create_node_and_wicd_client(control_plane, "access-1").await?;
    create_node_and_wicd_client(control_plane, "access-2").await?;
    let nodes: Api<Node> = Api::all(wicd);
    let annotate = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});

    for (key, value) in [
        (api::names::key::VERSION, json!("1.2.3")),
        (api::names::key::VERSION, json!("1.2.4")),
        (api::names::key::REBOOT_REQUIRED, json!("")),
        (api::names::key::REBOOT_REQUIRED, Value::Null),
        (api::names::key::VERSION, Value::Null),
        (api::names::key::DRIFT, json!("service kubelet: command (left)")),
        (api::names::key::DRIFT, Value::Null),
        (api::names::key::MAINTENANCE_REQUEST, json!("x".repeat(200))),
        (api::names::key::MAINTENANCE_REQUEST, Value::Null),
        (api::names::key::WICD_REPORTED, json!("2027-01-15T02:00:00Z")),
    ] {
        merge_patch(&nodes, "access-1", annotate(key, value)).await?;
    }
    let own = ListParams::default().fields("metadata.name=access-1");
    assert_eq!(nodes.list(&own).await?.items.len(), 1);

    for (key, value) in [
        (api::names::key::DESIRED_VERSION, json!("9")),
        (api::names::key::MAINTENANCE, json!("a user's")),
        (api::names::key::MAINTENANCE_STATE, json!("Drained")),
        (api::names::key::HOLD, json!("true")),
        ("note", json!("me")),
        ("note", Value::Null),
        ("new", json!("x")),
        ("windowsmachineconfig.openshift.io/version2", json!("x")),
    ] {
        assert_refused(merge_patch(&nodes, "access-1", annotate(key, value)).await, "only these annotations");
    }
    for (patch, why) in [
        (json!({"spec": {"unschedulable": true}}), "spec or the status"),
        (json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}), "spec or the status"),
        (json!({"metadata": {"labels": {"a": "c"}}}), "labels"),
        (json!({"metadata": {"labels": {"a": null}}}), "labels"),
        (json!({"metadata": {"labels": {"node-role.kubernetes.io/master": ""}}}), "labels"),
        (json!({"metadata": {"finalizers": ["a.b/c"]}}), "labels, finalizers"),
        (
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "u"}]}}),
            "owners",
        ),
        (json!({"metadata": {"annotations": {api::names::key::VERSION: "1"}, "labels": {"a": "c"}}}), "labels"),
    ] {
        assert_refused(merge_patch(&nodes, "access-1", patch).await, why);
    }
    // All hosts share one role for wicd: only the admission policy protects the Nodes of other hosts.
    let other = "its own Node and no other";
    assert_refused(merge_patch(&nodes, "access-2", annotate(api::names::key::VERSION, json!("1"))).await, other);
    assert_refused(merge_patch(&nodes, "access-2", annotate(api::names::key::DRIFT, Value::Null)).await, other);
    let long = "x".repeat(4096);
    merge_patch(&nodes, "access-1", annotate(api::names::key::DRIFT, json!(long))).await?;
    let longer = annotate(api::names::key::DRIFT, json!(format!("{long}x")));
    assert_refused(merge_patch(&nodes, "access-1", longer).await, "4096 characters at most");
    let reason = annotate(api::names::key::MAINTENANCE_REQUEST, json!("x".repeat(201)));
    assert_refused(merge_patch(&nodes, "access-1", reason).await, "200 characters at most");
    assert_refused(
        merge_patch(&nodes, "access-2", annotate(api::names::key::MAINTENANCE_REQUEST, json!("x"))).await,
        other,
    );
    assert_refused(nodes.delete("access-1", &DeleteParams::default()).await, FORBIDDEN);
    let status = json!({"status": {"phase": "Running"}});
    assert_refused(nodes.patch_status("access-1", &PatchParams::default(), &Patch::Merge(status)).await, FORBIDDEN);
    Ok(())
}

/// Checks that the admission policy protects Nodes even from hosts with the wide rights that WMCO gives them.
#[tokio::test]
async fn the_policy_limits_wicd_despite_wide_roles() -> Result<()> {
    let control_plane = shared().await?;
    let wicd = create_node_and_wicd_client(control_plane, "wide-1").await?;
    create_node_and_wicd_client(control_plane, "wide-2").await?;
    let admin = control_plane.client().await?;
    let rules = json!([{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]}]);
    allow(&admin, "wide", rules, &["system:wicd-node:wide-1"]).await?;
    let nodes: Api<Node> = Api::all(wicd.clone());
    eventually(|| async { nodes.get("wide-2").await.is_ok() }).await?;

    let version = json!({"metadata": {"annotations": {api::names::key::VERSION: "1"}}});
    merge_patch(&nodes, "wide-1", version.clone()).await?;
    assert_refused(merge_patch(&nodes, "wide-2", version).await, "its own Node and no other");
    let nothing_else = "of its own Node only";
    let status = json!({"status": {"phase": "Running"}});
    assert_refused(nodes.patch_status("wide-1", &PatchParams::default(), &Patch::Merge(status)).await, nothing_else);
    assert_refused(nodes.delete("wide-1", &DeleteParams::default()).await, nothing_else);
    assert_refused(create::<Node>(&wicd, json!({"metadata": {"name": "wide-3"}})).await, nothing_else);
    Ok(())
}

#[tokio::test]
async fn wicd_reads_the_services_in_use_and_no_other_configuration() -> Result<()> {
    let control_plane = shared().await?;
    let wicd = wicd(control_plane, "services-1").await?;
    let admin = Api::<ConfigMap>::namespaced(control_plane.client().await?, NAMESPACE);
    for name in ["windows-services-1", "windows-services-2", "other"] {
        admin.create(&PostParams::default(), &object(json!({"metadata": {"name": name}}))).await?;
    }
    let roles: Api<Role> = Api::namespaced(operator(control_plane).await?, NAMESPACE);
    let permit = async |live: &BTreeSet<String>| {
        let params = PatchParams::apply(api::names::MANAGER_POOL).force();
        roles.patch(wicd_rbac::SERVICES_ROLE, &params, &Patch::Apply(wicd_rbac::services_role(NAMESPACE, live))).await
    };
    permit(&BTreeSet::from(["windows-services-1".to_owned()])).await?;

    let maps: Api<ConfigMap> = Api::namespaced(wicd.clone(), NAMESPACE);
    eventually(|| async { maps.get("windows-services-1").await.is_ok() }).await?;
    let named = ListParams::default().fields("metadata.name=windows-services-1");
    assert_eq!(maps.list(&named).await?.items.len(), 1);
    for name in ["windows-services-2", "other"] {
        assert_refused(maps.get(name).await, FORBIDDEN);
    }
    assert_refused(maps.list(&ListParams::default()).await, FORBIDDEN);
    assert_refused(merge_patch(&maps, "windows-services-1", json!({"data": {"a": "b"}})).await, FORBIDDEN);
    let secrets: Api<Secret> = Api::namespaced(wicd.clone(), NAMESPACE);
    assert_refused(secrets.list(&ListParams::default()).await, FORBIDDEN);
    assert_refused(Api::<Pod>::all(wicd.clone()).list(&ListParams::default()).await, FORBIDDEN);
    assert_refused(Api::<WindowsNodePool>::all(wicd.clone()).list(&ListParams::default()).await, FORBIDDEN);
    assert_refused(Api::<WindowsInstance>::all(wicd).list(&ListParams::default()).await, FORBIDDEN);

    // The operator takes the right away again when nothing is in use.
    permit(&BTreeSet::new()).await?;
    eventually(|| async { maps.get("windows-services-1").await.is_err() }).await?;
    assert_refused(maps.get("other").await, FORBIDDEN);
    Ok(())
}

#[tokio::test]
async fn wicd_requests_certificates_from_one_signer_and_approves_none() -> Result<()> {
    let control_plane = shared().await?;
    let wicd = create_node_and_wicd_client(control_plane, "access-3").await?;
    let request = |name: &str, signer: &str| {
        let pem = Forged::new("system:wicd-node:access-3", &["system:wicd-nodes"]).pem();
        let usage = if signer.ends_with("serving") { "server auth" } else { "client auth" };
        let spec = json!({
            "request": k8s_openapi::ByteString(pem.into()), "signerName": signer,
            "usages": ["digital signature", usage], "expirationSeconds": 3600,
        });
        json!({"metadata": {"name": name}, "spec": spec})
    };
    create::<CertificateSigningRequest>(&wicd, request("access-3", "kubernetes.io/kube-apiserver-client")).await?;
    for signer in ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet", "example.com/signer"]
    {
        let created = create::<CertificateSigningRequest>(&wicd, request("access-3b", signer)).await;
        assert_refused(created, "kubernetes.io/kube-apiserver-client");
    }
    let requests: Api<CertificateSigningRequest> = Api::all(wicd);
    requests.get("access-3").await?;
    assert_refused(requests.list(&ListParams::default()).await, FORBIDDEN);
    assert_refused(requests.delete("access-3", &DeleteParams::default()).await, FORBIDDEN);
    let condition = json!({"type": "Approved", "status": "True", "reason": "Me", "message": ""});
    let approval = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    assert_refused(requests.patch_approval("access-3", &PatchParams::default(), &approval).await, FORBIDDEN);
    Ok(())
}

fn instance(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": "pool"}, "host": {"name": name, "address": "10.0.0.1", "port": 22, "username": "Administrator",
            "privateKeys": [{"name": "key", "key": "private-key.pem"}]}},
    })
}

#[tokio::test]
async fn only_the_operator_writes_instances() -> Result<()> {
    let control_plane = shared().await?;
    let operator = operator(control_plane).await?;
    let admin = control_plane.client().await?;
    let why = "edit the spec of the WindowsNodePool instead";
    eventually(|| async { create::<WindowsInstance>(&operator, instance("inst-1")).await.is_ok() }).await?;
    assert_refused(create::<WindowsInstance>(&admin, instance("inst-2")).await, why);

    let instances: Api<WindowsInstance> = Api::all(admin.clone());
    let address = json!({"spec": {"host": {"address": "10.0.0.2"}}});
    assert_refused(merge_patch(&instances, "inst-1", address.clone()).await, why);
    assert_refused(merge_patch(&instances, "inst-1", json!({"spec": {"poolRef": {"name": "other"}}})).await, why);
    merge_patch(&instances, "inst-1", json!({"metadata": {"annotations": {api::names::key::RETRY: "1"}}})).await?;
    merge_patch(&Api::<WindowsInstance>::all(operator.clone()), "inst-1", address).await?;
    // The status of an instance decides for which names its host gets certificates.
    let facts = json!({"status": {"stagedVersion": "1"}});
    let (params, status) = (PatchParams::default(), Patch::Merge(facts));
    assert_refused(instances.patch_status("inst-1", &params, &status).await, why);
    Api::<WindowsInstance>::all(operator.clone()).patch_status("inst-1", &params, &status).await?;
    assert_refused(instances.patch_status("inst-1", &params, &Patch::Merge(json!({"status": null}))).await, why);
    // The status of a pool holds host keys of first contacts and the progress of its rollout.
    let pool = json!({"metadata": {"name": "access-status"}, "spec": {"inventory": {"hosts": []}}});
    create::<WindowsNodePool>(&admin, pool).await?;
    let pools: Api<WindowsNodePool> = Api::all(admin);
    let contact = json!({"address": "10.0.0.9", "port": 22, "dialed": "10.0.0.9", "hostKey": "SHA256:forged"});
    let forged = Patch::Merge(json!({"status": {"contacts": [contact]}}));
    assert_refused(pools.patch_status("access-status", &params, &forged).await, why);
    let progress = Patch::Merge(json!({"status": {"hosts": 1}}));
    Api::<WindowsNodePool>::all(operator).patch_status("access-status", &params, &progress).await?;
    pools.delete("access-status", &DeleteParams::default()).await?;
    instances.delete("inst-1", &DeleteParams::default()).await?;
    Ok(())
}

/// Checks who may write the labels, owners and finalizers of an instance: a label names the pool, and the finalizer keeps the instance until the
/// host is deconfigured.
#[tokio::test]
async fn users_write_no_labels_owners_or_finalizers_of_instances() -> Result<()> {
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let rules = json!([{"apiGroups": [api::names::GROUP], "resources": ["windowsinstances"], "verbs": ["*"]}]);
    allow(&admin, "it-instances", rules, &["bob", collector]).await?;
    let api = |client: Client| Api::<WindowsInstance>::all(client);
    let bob = api(control_plane.client_as("bob", &[]).await?);
    let collector = api(control_plane.client_as(collector, &[]).await?);
    eventually(|| async { bob.list(&ListParams::default()).await.is_ok() }).await?;

    let owner = Api::<Namespace>::all(admin.clone()).get("default").await?.metadata.uid;
    let owner = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": owner}]);
    let mut object = instance("inst-meta");
    object["metadata"]["labels"] = json!({api::names::key::POOL: "a"});
    object["metadata"]["finalizers"] = json!(["example.com/host"]);
    object["metadata"]["ownerReferences"] = owner.clone();
    eventually(|| async { create::<WindowsInstance>(&operator, object.clone()).await.is_ok() }).await?;
    let label = json!({"labels": {api::names::key::POOL: "b"}});
    for (who, metadata, allowed) in [
        (&bob, label.clone(), false),
        (&bob, json!({"labels": {"mine": "x"}}), false),
        (&bob, json!({"finalizers": null}), false),
        (&bob, json!({"finalizers": ["example.com/host", "example.com/mine"]}), false),
        (&bob, json!({"ownerReferences": null}), false),
        (&bob, json!({"annotations": {api::names::key::RETRY: "1"}}), true),
        (&collector, json!({"ownerReferences": null}), true),
        (&api(operator.clone()), json!({"ownerReferences": owner}), true),
        (&api(operator.clone()), label, true),
    ] {
        let result = merge_patch(who, "inst-meta", json!({"metadata": metadata})).await;
        if allowed {
            result?;
        } else {
            assert_refused(result, "only the operator writes labels, owners and finalizers of a WindowsInstance");
        }
    }
    // A user may delete an instance, also in the foreground, but may not remove its finalizers. An administrator, who may change the policy, may
    // remove them.
    bob.delete("inst-meta", &DeleteParams::foreground()).await?;
    assert_refused(merge_patch(&bob, "inst-meta", json!({"metadata": {"finalizers": null}})).await, "finalizers");
    let kept = bob.get("inst-meta").await?.metadata.finalizers.unwrap_or_default();
    assert!(kept.iter().any(|finalizer| finalizer == "example.com/host"), "{kept:?}");
    merge_patch(&api(admin), "inst-meta", json!({"metadata": {"finalizers": null}})).await?;
    eventually(|| async { matches!(bob.get_opt("inst-meta").await, Ok(None)) }).await
}

#[tokio::test]
async fn the_operator_has_only_the_rights_that_it_needs() -> Result<()> {
    let control_plane = shared().await?;
    let client = operator(control_plane).await?;
    assert_eq!(controller::csr::operator_user(&client).await?, OPERATOR);
    let all = ListParams::default();
    Api::<WindowsNodePool>::all(client.clone()).list(&all).await?;
    Api::<Node>::all(client.clone()).list(&all).await?;
    Api::<Pod>::all(client.clone()).list(&all).await?;
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    assert!(secrets.get_opt("any").await?.is_none());
    assert_refused(secrets.list(&all).await, FORBIDDEN);
    Api::<ConfigMap>::namespaced(client.clone(), "kube-system").get("extension-apiserver-authentication").await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    leases.create(&PostParams::default(), &object(json!({"metadata": {"name": "access"}, "spec": {}}))).await?;
    let event = json!({
        "metadata": {"name": "access", "namespace": "default"}, "type": "Normal", "reason": "A", "action": "B", "note": "c",
        "eventTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string(),
        "reportingController": "it", "reportingInstance": "it",
        "regarding": {"kind": "WindowsNodePool", "name": "x"},
    });
    Api::<Event>::default_namespaced(client.clone()).create(&PostParams::default(), &object(event)).await?;

    assert_refused(Api::<Secret>::namespaced(client.clone(), "kube-system").list(&all).await, FORBIDDEN);
    assert_refused(Api::<Secret>::all(client.clone()).list(&all).await, FORBIDDEN);
    assert_refused(Api::<ConfigMap>::namespaced(client.clone(), "default").list(&all).await, FORBIDDEN);
    assert_refused(create::<Node>(&client, json!({"metadata": {"name": "access-new"}})).await, FORBIDDEN);
    let pod = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_refused(
        Api::<Pod>::default_namespaced(client).create(&PostParams::default(), &object(pod)).await,
        FORBIDDEN,
    );
    // A kubelet may not read pools either.
    let kubelet = kubelet(control_plane, "access-1").await?;
    assert_refused(Api::<WindowsNodePool>::all(kubelet).list(&all).await, FORBIDDEN);
    Ok(())
}
