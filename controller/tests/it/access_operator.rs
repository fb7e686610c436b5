//! Rights of the operator's own account, and their limits: by RBAC, and by the admission policies of `deploy/base`.

use anyhow::Result;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    certificates::v1::CertificateSigningRequest,
    core::v1::{ConfigMap, Namespace, Node, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::deployment::{self, MachineApi};

use controller::{
    caches::wicd_policy::{self, Guard, Observed},
    cluster::wicd_rbac,
};

use crate::{
    access::{FORBIDDEN, allow, assert_refused, bind_wicd_role, create, merge_patch, object},
    cluster::{NAMESPACE, eventually, kubelet, operator, shared},
    csr::forge::Forged,
};

#[tokio::test]
async fn the_operator_gives_the_hosts_daemons_their_role_and_nothing_more() -> Result<()> {
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    bind_wicd_role(&admin, &operator).await?;
    let owner = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone()).get(wicd_rbac::OWNER_POLICY).await?;
    let right = serde_json::to_value(wicd_rbac::binding(&owner))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(operator.clone());
    let apply = async |pointer: &str, value: Value| {
        let mut binding = right.clone();
        *binding.pointer_mut(pointer).unwrap() = value;
        let name = binding["metadata"]["name"].as_str().unwrap().to_owned();
        bindings.patch(&name, &PatchParams::apply("it").force(), &Patch::Apply(binding)).await
    };
    let to_their_group = "to their group only";
    for subject in [
        json!({"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}),
        json!({"kind": "User", "name": "system:wicd-nodes", "apiGroup": "rbac.authorization.k8s.io"}),
        json!({"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}),
        json!({"kind": "ServiceAccount", "name": "windows-node-pools", "namespace": NAMESPACE}),
    ] {
        assert_refused(apply("/subjects/0", subject).await, to_their_group);
    }
    assert_refused(apply("/metadata/name", json!("mine")).await, FORBIDDEN);
    assert_refused(create::<ClusterRoleBinding>(&operator, right.clone()).await, FORBIDDEN);
    for name in ["cluster-admin", "windows-node-pools", "windows-node-pools-wicd"] {
        assert_refused(
            Api::<ClusterRole>::all(operator.clone()).delete(name, &DeleteParams::default()).await,
            FORBIDDEN,
        );
    }
    assert_refused(
        create::<ClusterRole>(&operator, json!({"metadata": {"name": "mine"}, "rules": []})).await,
        FORBIDDEN,
    );
    let wicd_role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]});
    assert_refused(
        merge_patch(&Api::<ClusterRole>::all(operator.clone()), wicd_rbac::BINDING, wicd_role).await,
        FORBIDDEN,
    );

    let roles: Api<Role> = Api::namespaced(operator.clone(), NAMESPACE);
    assert_refused(
        roles.create(&PostParams::default(), &object(json!({"metadata": {"name": "mine"}, "rules": []}))).await,
        FORBIDDEN,
    );
    let secrets = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": wicd_rbac::SERVICES_ROLE},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    });
    let applied =
        roles.patch(wicd_rbac::SERVICES_ROLE, &PatchParams::apply("it").force(), &Patch::Apply(secrets)).await;
    assert_refused(applied, "the services ConfigMaps and no others");
    let bindings: Api<RoleBinding> = Api::namespaced(operator, NAMESPACE);
    assert_refused(bindings.list(&ListParams::default()).await, FORBIDDEN);
    Ok(())
}

#[tokio::test]
async fn installed_policies_are_those_that_the_operator_expects() -> Result<()> {
    let admin = shared().await?.client().await?;
    let mut seen = Vec::new();
    for Guard { name, .. } in wicd_policy::shipped(NAMESPACE) {
        let policy = Observed::There(Box::new(Api::all(admin.clone()).get(&name).await?));
        let binding = Observed::There(Box::new(Api::all(admin.clone()).get(&name).await?));
        seen.push(Guard { name, policy, binding });
    }
    assert_eq!(wicd_policy::fault(&wicd_policy::shipped(NAMESPACE), &seen), None);
    Ok(())
}

#[tokio::test]
async fn policies_limit_an_operator_with_too_many_rights() -> Result<()> {
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    let user = controller::csr::operator_user(&operator).await?;
    // An OLM bundle or a careless administrator may give such rights.
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
    allow(&admin, "it-rbac", rules, &[&user]).await?;
    let group = "rbac.authorization.k8s.io";
    let more = json!({
        "metadata": {"name": "more"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    });
    let others = "and no others";
    let all = ListParams::default();
    eventually(|| async { Api::<ClusterRole>::all(operator.clone()).list(&all).await.is_ok() }).await?;
    assert_refused(create::<ClusterRoleBinding>(&operator, more).await, others);
    assert_refused(create::<ClusterRole>(&operator, json!({"metadata": {"name": "more"}, "rules": []})).await, others);
    let generated = json!({"metadata": {"generateName": "windows-node-pools-wicd"}, "rules": []});
    assert_refused(create::<ClusterRole>(&operator, generated).await, others);
    assert_refused(Api::<ClusterRole>::all(operator.clone()).delete("it-rbac", &DeleteParams::default()).await, others);
    assert_refused(Api::<ClusterRoleBinding>::all(operator).delete("it-rbac", &DeleteParams::default()).await, others);
    Api::<ClusterRoleBinding>::all(admin).delete("it-rbac", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn services_config_maps_are_the_operators_to_write() -> Result<()> {
    let control_plane = shared().await?;
    let admin = control_plane.client().await?;
    // Users who add hosts to the ConfigMap `windows-instances` may have such rights.
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]);
    let wmco = format!("system:serviceaccount:{NAMESPACE}:windows-machine-config-operator");
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let namespaces = "system:serviceaccount:kube-system:namespace-controller";
    allow(&admin, "it-config-maps", rules, &["alice", &wmco, collector, namespaces]).await?;
    let maps = |client: Client| Api::<ConfigMap>::namespaced(client, NAMESPACE);
    let client = async |user: &str| anyhow::Ok(maps(control_plane.client_as(user, &[]).await?));
    let (alice, wmco, collector) = (client("alice").await?, client(&wmco).await?, client(collector).await?);
    let namespaces = client(namespaces).await?;
    let named = |name: &str| object::<ConfigMap>(json!({"metadata": {"name": name}, "data": {"services": "[]"}}));
    let (post, delete) = (PostParams::default(), DeleteParams::default());
    eventually(|| async { alice.create(&post, &named("windows-instances-it")).await.is_ok() }).await?;
    let ours = format!("windows-services-it-{}", "0123456789abcdef".repeat(2));
    let operator = maps(operator(control_plane).await?);
    operator.create(&post, &named(&ours)).await?;

    let missing = format!("windows-services-it-{}", "f".repeat(32));
    let why = "only the operator may write them";
    let change = json!({"data": {"services": "[1]"}});
    for foe in [&alice, &wmco] {
        assert_refused(foe.delete(&ours, &delete).await, why);
        assert_refused(foe.patch(&ours, &PatchParams::default(), &Patch::Merge(change.clone())).await, why);
        assert_refused(foe.create(&post, &named(&missing)).await, why);
    }
    assert_refused(alice.create(&post, &named("windows-services-10.18.0-it")).await, why);
    let generated = object::<ConfigMap>(json!({"metadata": {"generateName": "windows-services-"}}));
    assert_refused(alice.create(&post, &generated).await, why);
    assert_refused(namespaces.create(&post, &named(&missing)).await, why);

    // WMCO may write and delete its own ConfigMaps.
    wmco.create(&post, &named("windows-services-10.18.0-it")).await?;
    assert_refused(alice.delete("windows-services-10.18.0-it", &delete).await, why);
    wmco.delete("windows-services-10.18.0-it", &delete).await?;
    // The garbage collector, the namespace controller and administrators may delete the operator's.
    collector.delete(&ours, &delete).await?;
    operator.create(&post, &named(&ours)).await?;
    namespaces.delete(&ours, &delete).await?;
    operator.create(&post, &named(&ours)).await?;
    maps(admin.clone()).delete(&ours, &delete).await?;
    // The policy does not apply in other namespaces.
    let elsewhere = Api::<ConfigMap>::namespaced(control_plane.client_as("alice", &[]).await?, "default");
    elsewhere.create(&post, &named(&ours)).await?;
    Ok(())
}

/// Checks who may write the ConfigMap `kube-root-ca.crt`, from which hosts get the CA of the API server.
#[tokio::test]
async fn the_ca_of_the_cluster_is_kube_controller_managers_to_write() -> Result<()> {
    const NAME: &str = "kube-root-ca.crt";
    let control_plane = shared().await?;
    let admin = control_plane.client().await?;
    let publisher = "system:serviceaccount:kube-system:root-ca-cert-publisher";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]);
    allow(&admin, "it-root-ca", rules, &["carol", publisher]).await?;
    let maps = |client: Client, namespace: &str| Api::<ConfigMap>::namespaced(client, namespace);
    let carol = control_plane.client_as("carol", &[]).await?;
    let publisher = maps(control_plane.client_as(publisher, &[]).await?, NAMESPACE);
    let (own, elsewhere) = (maps(carol.clone(), NAMESPACE), maps(carol, "default"));
    eventually(|| async { matches!(own.get_opt(NAME).await, Ok(Some(_))) }).await?;

    let why = "kube-controller-manager alone writes it";
    let note = json!({"metadata": {"annotations": {"note": "a"}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(note));
    assert_refused(own.patch(NAME, &params, &patch).await, why);
    assert_refused(own.patch(NAME, &params, &Patch::Merge(json!({"data": {"ca.crt": "mine"}}))).await, why);
    assert_refused(own.delete(NAME, &DeleteParams::default()).await, why);
    assert_refused(
        own.delete_collection(
            &DeleteParams::default(),
            &ListParams::default().fields(&format!("metadata.name={NAME}")),
        )
        .await,
        why,
    );
    own.create(&PostParams::default(), &object(json!({"metadata": {"name": "root-ca-of-carol"}}))).await?;
    own.delete("root-ca-of-carol", &DeleteParams::default()).await?;
    publisher.patch(NAME, &params, &patch).await?;
    maps(admin, NAMESPACE).patch(NAME, &params, &patch).await?;
    // Hosts do not read it in other namespaces.
    eventually(|| async { elsewhere.patch(NAME, &params, &patch).await.is_ok() }).await
}

#[tokio::test]
async fn the_operator_changes_windows_nodes_and_no_others() -> Result<()> {
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    for (name, labels) in [
        ("reach-windows", json!({"kubernetes.io/os": "windows"})),
        ("reach-linux", json!({"kubernetes.io/os": "linux"})),
        ("reach-unknown", json!({})),
    ] {
        create::<Node>(&admin, json!({"metadata": {"name": name, "labels": labels}})).await?;
    }
    let nodes: Api<Node> = Api::all(operator);
    let why = "Nodes that run Windows and no others";
    let to_windows = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
    for other in ["reach-linux", "reach-unknown"] {
        assert_refused(merge_patch(&nodes, other, json!({"spec": {"unschedulable": true}})).await, why);
        assert_refused(merge_patch(&nodes, other, to_windows.clone()).await, why);
        assert_refused(nodes.delete(other, &DeleteParams::default()).await, why);
    }
    merge_patch(&nodes, "reach-windows", json!({"spec": {"unschedulable": true}})).await?;
    nodes.delete("reach-windows", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn the_operator_deletes_windows_machines_and_keeps_user_data_in_two_namespaces() -> Result<()> {
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    for api in [MachineApi::OpenShift, MachineApi::ClusterApi] {
        deployment::install_machines(control_plane, api).await?;
        let (group, version) = match api {
            MachineApi::OpenShift => ("machine.openshift.io", "v1beta1"),
            MachineApi::ClusterApi => ("cluster.x-k8s.io", "v1beta2"),
        };
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "Machine"), "machines");
        let machines =
            |client: &Client| Api::<DynamicObject>::namespaced_with(client.clone(), api.namespace(), &resource);
        let by_operator = machines(&operator);
        let cluster_api = api == MachineApi::ClusterApi;
        for (name, key, value, may) in [
            ("reach-windows", "machine.openshift.io/os-id", "Windows", true),
            ("reach-linux", "machine.openshift.io/os-id", "Linux", false),
            ("reach-cluster-api", "node.cluster.x-k8s.io/os", "Windows", cluster_api),
            ("reach-unknown", "a", "b", false),
        ] {
            let machine = json!({
                "apiVersion": format!("{group}/{version}"), "kind": "Machine",
                "metadata": {"name": name, "labels": {key: value}},
                "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "s"}},
            });
            let machine: DynamicObject = serde_json::from_value(machine)?;
            eventually(|| async { machines(&admin).create(&PostParams::default(), &machine).await.is_ok() }).await?;
            let deleted = by_operator.delete(name, &DeleteParams::default()).await;
            if may {
                deleted?;
            } else {
                assert_refused(deleted, "only those that run Windows");
            }
        }

        let name = api::names::USER_DATA_SECRET;
        let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}));
        let secrets = Api::<Secret>::namespaced(operator.clone(), api.namespace());
        secrets.patch(name, &PatchParams::apply("it"), &apply).await?;
        secrets.get(name).await?;
        assert_refused(secrets.get("other").await, FORBIDDEN);
        assert_refused(secrets.list(&ListParams::default()).await, FORBIDDEN);
    }
    create::<Namespace>(&admin, json!({"metadata": {"name": "reach"}})).await?;
    let elsewhere = Api::<Secret>::namespaced(operator, "reach");
    assert_refused(elsewhere.get(api::names::USER_DATA_SECRET).await, FORBIDDEN);
    Ok(())
}

#[tokio::test]
async fn the_operator_approves_requests_of_nodes_and_daemons_and_no_others() -> Result<()> {
    const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
    const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
    const SERVING: &str = "kubernetes.io/kubelet-serving";
    let control_plane = shared().await?;
    let (admin, operator) = (control_plane.client().await?, operator(control_plane).await?);
    let kubelet = kubelet(control_plane, "approve-1").await?;
    let legacy = format!("system:serviceaccount:{NAMESPACE}:windows-instance-config-daemon");
    let legacy = control_plane.client_as(&legacy, &["system:masters"]).await?;
    let requests: Api<CertificateSigningRequest> = Api::all(operator.clone());
    let (client, server) = ("client auth", "server auth");
    let whose = "each for its signer, and no others";
    // The approver of other tests does not know this node, and leaves its requests alone. (It would decide requests of wicd.)
    let pem = Forged::new("system:node:approve-1", &["system:nodes"]).pem();
    // The user's request does not name a node: kube-controller-manager would itself approve an administrator's request that names one.
    let of_person = Forged::new("approve-1", &["it"]).pem();
    for (what, requester, signer, usage, seconds, refusal) in [
        ("its own, of a wicd", &operator, CLIENT, client, Some(3600), None),
        ("its own, of a kubelet", &operator, KUBELET, client, Some(86400), None),
        ("a kubelet's", &kubelet, KUBELET, client, None, None),
        ("the legacy daemon's", &legacy, CLIENT, client, Some(3600), None),
        ("the legacy daemon's for long", &legacy, CLIENT, client, Some(3601), Some("for an hour at most")),
        ("a kubelet's for serving", &kubelet, SERVING, server, None, None),
        ("a user's", &admin, CLIENT, client, Some(3600), Some(whose)),
        ("a user's for a kubelet", &admin, KUBELET, client, Some(3600), Some(whose)),
        ("a user's for serving", &admin, SERVING, server, Some(3600), Some(whose)),
        ("its own for serving", &operator, SERVING, server, Some(3600), Some(whose)),
        ("a kubelet's of another kind", &kubelet, CLIENT, client, Some(3600), Some(whose)),
        ("for another use", &operator, CLIENT, server, Some(3600), Some("no other usages")),
        ("its own for a week", &operator, CLIENT, client, Some(604_800), None),
        ("for long", &operator, CLIENT, client, Some(604_801), Some("for a week at most")),
        ("for as long as may be", &operator, CLIENT, client, None, Some("for a week at most")),
    ] {
        let pem = if what.starts_with("a user's") { &of_person } else { &pem };
        let spec = json!({
            "request": k8s_openapi::ByteString(pem.clone().into()), "signerName": signer,
            "usages": ["digital signature", usage], "expirationSeconds": seconds,
        });
        let posted = create::<CertificateSigningRequest>(
            requester,
            json!({"metadata": {"generateName": "approve-"}, "spec": spec}),
        );
        let name = posted.await?.name_any();
        let decide = async |type_: &str| {
            let condition = json!({"type": type_, "status": "True", "reason": "It", "message": ""});
            let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
            requests.patch_approval(&name, &PatchParams::default(), &patch).await
        };
        match refusal {
            None => drop(decide("Approved").await.unwrap_or_else(|e| panic!("{what}: {e}"))),
            Some(why) => {
                assert_refused(decide("Approved").await, why);
                // The operator may deny every request, including those that it may not approve.
                decide("Denied").await?;
            }
        }
    }
    Ok(())
}
