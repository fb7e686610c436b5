//! ServiceAccounts, roles and to whom they are bound.

use std::iter;

use api::names::{GROUP, KEPT_FACTS, LEASE, METRICS_CA, USER_DATA_SECRET, WMCO_LOCK};
use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
};

use super::object::{NAME, Object, Site};

type Words = &'static [&'static str];

const WICD: &str = "windows-node-pools-wicd";
const WICD_SERVICES: &str = "windows-node-pools-wicd-services";
const NODE_MANAGER: &str = "windows-node-pools-node-manager";
const METRICS_READER: &str = "windows-node-pools-metrics-reader";
const RBAC: &str = "rbac.authorization.k8s.io";

/// A rule, and why it is there.
#[derive(Clone, Copy)]
struct Rule {
    why: &'static str,
    groups: Words,
    resources: Words,
    names: Words,
    verbs: Words,
}

const fn rule(groups: Words, resources: Words, verbs: Words) -> Rule {
    Rule { why: "", groups, resources, names: &[], verbs }
}

impl Rule {
    const fn named(self, names: Words) -> Self {
        Self { names, ..self }
    }

    const fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    fn typed(&self) -> PolicyRule {
        let owned = |words: Words| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        PolicyRule {
            api_groups: Some(owned(self.groups)),
            resources: Some(owned(self.resources)),
            resource_names: (!self.names.is_empty()).then(|| owned(self.names)),
            verbs: owned(self.verbs),
            ..PolicyRule::default()
        }
    }
}

/// The policies that the operator watches: all that ship.
const POLICIES: Words = &[
    "windows-node-pools-wicd-nodes",
    "windows-node-pools-wicd-requests",
    "windows-node-pools-wicd-tokens",
    "windows-node-pools-node-manager-nodes",
    "windows-node-pools-instances",
    "windows-node-pools-services",
    "windows-node-pools-operator-rbac",
    "windows-node-pools-operator-nodes",
    "windows-node-pools-operator-approvals",
];

const CLUSTER: &[Rule] = &[
    rule(&[GROUP], &["windowsnodepools"], &["create", "delete", "get", "list", "watch", "patch"]).why("Its kinds. A pool is a person's: only its status and finalizers are written. Those for the ConfigMap windows-instances and for \
          MachineSets are made here, and deleted while no person has written to them. Finalizers are in the metadata."),
    rule(&[GROUP], &["windowsnodepools/status"], &["patch"]).why("What it reports of a pool."),
    rule(&[GROUP], &["windowsnodepools/finalizers", "windowsinstances/finalizers"], &["update"]).why("To own what blocks their deletion, where the API server insists on that right."),
    rule(&[GROUP], &["windowsinstances"], &["create", "delete", "get", "list", "patch", "watch"]).why("One for each host of a pool."),
    rule(&[GROUP], &["windowsinstances/status"], &["patch"]).why("The state of each host, which is stored before each step."),
    rule(&[""], &["nodes"], &["get", "list", "watch", "patch", "delete"]).why("Nodes: kubelet creates them."),
    rule(&[""], &["pods"], &["list", "delete"]).why("Drain. Whether the Pod of the Windows Machine Config Operator still works."),
    rule(&[""], &["configmaps"], &["get", "list", "watch"]).named(&[WMCO_LOCK]).why("Whether the Windows Machine Config Operator works. Its own namespace may not be there, so this is in no Role."),
    rule(&["coordination.k8s.io"], &["leases"], &["list"]).named(&[LEASE]).why("Whether another installation of this operator leads, in another namespace."),
    rule(&[""], &["pods/eviction"], &["create"]).why("Drain, within PodDisruptionBudgets."),
    rule(&["apps"], &["daemonsets"], &["get"]).why("Drain: a pod of a DaemonSet that exists stays."),
    rule(&["storage.k8s.io"], &["volumeattachments"], &["list"]).why("Drain: volumes are to be detached before a node changes."),
    rule(&[""], &["persistentvolumeclaims"], &["get"]).why("Which volumes staying pods use."),
    rule(&[""], &["namespaces"], &["get"]).why("Labels that drain.podRules select by, and the id of the cluster, which is that of kube-system."),
    rule(&["config.openshift.io"], &["apiservers", "infrastructures", "networks", "proxies"], &["get"]).named(&["cluster"]).why("What cluster this is."),
    rule(&["operator.openshift.io"], &["networks"], &["get"]).named(&["cluster"]).why("The hybrid overlay of OpenShift."),
    rule(&["config.openshift.io"], &["clusterversions"], &["get"]).named(&["version"]).why("Whether the control plane is being upgraded."),
    rule(&["config.openshift.io"], &["imagedigestmirrorsets", "imagetagmirrorsets"], &["list"]).why("Mirrors of image registries, for hosts."),
    rule(&["operator.openshift.io"], &["imagecontentsourcepolicies"], &["list"]).why("The same, in their older kind."),
    rule(&["machineconfiguration.openshift.io"], &["controllerconfigs"], &["get"]).named(&["machine-config-controller"]).why("Certificates of image registries, for hosts."),
    rule(&["networking.k8s.io"], &["servicecidrs"], &["get"]).named(&["kubernetes"]).why("The service network."),
    rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"], &["get"]).named(&["windowsnodepools.windowsmachineconfig.openshift.io", "windowsinstances.windowsmachineconfig.openshift.io"]).why("Whether both kinds are there, and whether they are being deleted."),
    rule(&["source.toolkit.fluxcd.io"], &["gitrepositories", "ocirepositories", "externalartifacts"], &["get", "list", "watch"]).why("Lists of hosts that Flux fetches."),
    rule(&["machine.openshift.io", "cluster.x-k8s.io"], &["machines"], &["get", "list", "watch", "delete"]).why("Machines, where there are any. One whose host refuses every key is deleted, for its MachineSet to make another."),
    rule(&["machine.openshift.io", "cluster.x-k8s.io"], &["machinesets"], &["list", "watch"]).why("Pools for MachineSets."),
    rule(&["machine.openshift.io", "cluster.x-k8s.io"], &["machinehealthchecks"], &["list", "watch"]).why("Nodes that a MachineHealthCheck replaces are not repaired."),
    rule(&["certificates.k8s.io"], &["certificatesigningrequests"], &["create", "get", "list", "watch"]).why("Certificates."),
    rule(&["certificates.k8s.io"], &["certificatesigningrequests/approval"], &["patch"]).why("Its verdicts on certificate requests."),
    rule(&["certificates.k8s.io"], &["signers"], &["approve"]).named(&["kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"]).why("The API server asks for it of who approves a request to a signer."),
    rule(&["rbac.authorization.k8s.io"], &["clusterroles"], &["bind"]).named(&["windows-node-pools-wicd"]).why("The rights of the hosts' daemons: the operator binds their role, as long as the policies that hold them are there. To whom is \
          held by windows-node-pools-operator-rbac. By name something can only be created with server-side apply, and so it is."),
    rule(&["rbac.authorization.k8s.io"], &["clusterrolebindings"], &["create", "delete", "list", "patch", "watch"]).named(&["windows-node-pools-wicd"]).why("The binding of that role."),
    rule(&["admissionregistration.k8s.io"], &["validatingadmissionpolicies", "validatingadmissionpolicybindings"], &["list", "watch"]).named(POLICIES).why("Whether the policies are in force as they ship."),
    rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]).why("Whose token a request for metrics has, and whether that one may get them."),
    rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]).why("Whether the owner of that token may get metrics."),
    rule(&["events.k8s.io"], &["events"], &["create"]).why("Events of objects without a namespace go to \"default\"."),
];

const OWN_NAMESPACE: &[Rule] = &[
    rule(&[""], &["secrets"], &["get"]).why("SSH keys, credentials for lists of hosts, logins of image registries."),
    rule(&[""], &["secrets"], &["create", "patch"])
        .named(&[KEPT_FACTS])
        .why("The facts of the cluster that are in force, with logins of image registries: the next operator needs those that it cannot read."),
    rule(&[""], &["configmaps"], &["create", "delete", "get", "list", "watch"])
        .why("The services ConfigMaps of versions, and lists of hosts."),
    rule(&[""], &["configmaps"], &["update"])
        .named(&[METRICS_CA])
        .why("The authorities of the certificates for metrics: each process adds its own."),
    rule(&["coordination.k8s.io"], &["leases"], &["create", "get", "update"]).why("Which process leads."),
    rule(&[""], &["serviceaccounts"], &["get"])
        .named(&["windows-node-pools-node-manager"])
        .why("On Azure: whether the identity of the hosts' cloud-node-managers is there."),
    rule(&["rbac.authorization.k8s.io"], &["roles"], &["create", "patch"])
        .named(&["windows-node-pools-wicd-services"])
        .why("Which services ConfigMaps wicd may read: the operator keeps that Role true."),
];

const OF_PARAMETERS: &str =
    "No object can have this name: the API server asks for the right to it of who creates a policy with parameters.";

const OLM_CLUSTER: &[Rule] = &[
    rule(
        &["admissionregistration.k8s.io"],
        &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        &["create", "get"],
    )
    .why("A bundle cannot hold policies: the operator creates those of its release."),
    rule(&[""], &["configmaps"], &["get"]).named(&["*"]).why(OF_PARAMETERS),
    rule(&["apps"], &["deployments"], &["get"]).named(&["*"]).why(OF_PARAMETERS),
];

const OLM_NAMESPACE: &[Rule] = &[
    rule(&[""], &["configmaps"], &["patch"])
        .named(&["windows-node-pools-release"])
        .why("It names the release whose policies are in force."),
    rule(&["apps"], &["deployments"], &["get"])
        .named(&[NAME])
        .why("The API server asks for it of who creates a policy whose parameter it is."),
];

const ENDPOINTS: &[Rule] = &[rule(&["discovery.k8s.io"], &["endpointslices"], &["get"])
    .named(&["kubernetes"])
    .why("The addresses of the API servers.")];

const AUTHENTICATION: &[Rule] = &[rule(&[""], &["configmaps"], &["get"])
    .named(&["extension-apiserver-authentication"])
    .why("The CA of kubelet's clients.")];

const WICD_RULES: &[Rule] = &[
    rule(&[""], &["nodes"], &["list", "watch", "patch"]).why("To watch its Node, and to annotate it. RBAC cannot express \"its own\": it reads every Node with this, and the policy \
          windows-node-pools-wicd-nodes lets it write its own alone."),
    rule(&["certificates.k8s.io"], &["certificatesigningrequests"], &["create", "get"]).why("To renew its certificate. Which requests are approved is the operator's verdict."),
    rule(&[""], &["serviceaccounts/token"], &["create"]).named(&["windows-node-pools-node-manager"]).why("On Azure, for the cloud-node-manager of its host: the policy windows-node-pools-wicd-tokens binds each token to the host's own \
          Node."),
];

const NODE_MANAGER_RULES: &[Rule] = &[
    rule(&[""], &["nodes"], &["get", "list", "watch", "update", "patch"])
        .why("To initialise its own Node. The policy windows-node-pools-node-manager-nodes lets it write no other."),
    rule(&[""], &["nodes/status"], &["patch"]).why("The addresses of its own Node, held by the same policy."),
];

const USER_DATA: &[Rule] = &[rule(&[""], &["secrets"], &["create", "get", "patch"])
    .named(&[USER_DATA_SECRET])
    .why("The script that Machines run at their first start.")];

const PULL_SECRET: &[Rule] =
    &[rule(&[""], &["secrets"], &["get"]).named(&["pull-secret"]).why("Logins of image registries, for hosts.")];

const PROMETHEUS: &[Rule] = &[
    rule(&[""], &["services", "endpoints", "pods"], &["get", "list", "watch"]).why("To find the Service and its pods."),
    rule(&["discovery.k8s.io"], &["endpointslices"], &["get", "list", "watch"])
        .why("To find the addresses of the pods."),
];

const VIEW: &[Rule] = &[rule(&[GROUP], &["windowsnodepools", "windowsinstances"], &["get", "list", "watch"])
    .why("To read pools and instances.")];

const EDIT: &[Rule] = &[
    rule(&[GROUP], &["windowsnodepools"], &["create", "delete", "get", "list", "patch", "update", "watch"])
        .why("To write pools."),
    rule(&[GROUP], &["windowsinstances"], &["delete", "get", "list", "patch", "update", "watch"])
        .why("Annotations and deletion. The policy windows-node-pools-instances keeps the spec and the status."),
];

/// A role, and a binding of the same name.
struct Grant<'a> {
    file: &'static str,
    about: &'static str,
    /// `None`: in the whole cluster.
    namespace: Option<&'a str>,
    name: &'a str,
    component: &'a str,
    rules: &'static [Rule],
    to: Subject,
}

impl Grant<'_> {
    fn objects(self, site: &Site) -> Vec<Object> {
        let Self { file, about, namespace, name, component, rules, to } = self;
        let role_ref = |kind: &str| RoleRef { api_group: Some(RBAC.into()), kind: kind.into(), name: name.into() };
        let subjects = Some(vec![to]);
        let Some(namespace) = namespace else {
            let metadata = site.meta(name, component);
            let binding = ClusterRoleBinding { metadata, role_ref: role_ref("ClusterRole"), subjects };
            return vec![cluster_role(site, file, about, name, component, rules), Object::new(file, "", &binding)];
        };
        let metadata = site.within(namespace, name, component);
        let typed = rules.iter().map(Rule::typed).collect();
        let role = Role { metadata: metadata.clone(), rules: Some(typed) };
        let binding = RoleBinding { metadata, role_ref: role_ref("Role"), subjects };
        vec![with_whys(Object::new(file, about, &role), rules), Object::new(file, "", &binding)]
    }
}

fn cluster_role(
    site: &Site,
    file: &'static str,
    about: &'static str,
    name: &str,
    component: &str,
    rules: &[Rule],
) -> Object {
    let rules_of = Some(rules.iter().map(Rule::typed).collect());
    let role = ClusterRole { metadata: site.meta(name, component), rules: rules_of, ..ClusterRole::default() };
    with_whys(Object::new(file, about, &role), rules)
}

fn with_whys(object: Object, rules: &[Rule]) -> Object {
    let whys = rules.iter().enumerate().filter(|(_, rule)| !rule.why.is_empty());
    whys.fold(object, |object, (at, rule)| object.why(format!("/rules/{at}"), rule.why))
}

fn account(name: &str, namespace: &str) -> Subject {
    let (kind, namespace) = ("ServiceAccount".into(), Some(namespace.into()));
    Subject { kind, name: name.into(), namespace, ..Subject::default() }
}

/// The identities and rights of the operator and of its hosts' daemons.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    let operator = operator(site).into_iter().chain([metrics_reader(site)]);
    operator.chain(wicd(site)).chain(node_manager(site)).chain(other_namespaces(site)).collect()
}

fn operator(site: &Site) -> Vec<Object> {
    let file = "base/operator.yaml";
    let identity =
        ServiceAccount { metadata: site.namespaced(&site.service_account, "operator"), ..ServiceAccount::default() };
    let about = "Identity and rights of the operator. Its namespace and its user also stand in the admission policies: for another namespace, \
                 install the Helm chart. Each verb in here is used by some test on a real API server, or stands in a list with the reason: \
                 `cargo xtask rights`.";
    let mut objects = vec![Object::new(file, about, &identity)];
    for (about, namespace, rules) in [
        ("", None, CLUSTER),
        ("", Some(site.namespace.as_str()), OWN_NAMESPACE),
        ("Where each API server is: kubelet must not be newer than the oldest.", Some("default"), ENDPOINTS),
        ("The CA of kubelet's clients lies in kube-system.", Some("kube-system"), AUTHENTICATION),
    ] {
        let to = account(&site.service_account, &site.namespace);
        objects.extend(Grant { file, about, namespace, name: NAME, component: "operator", rules, to }.objects(site));
    }
    objects
}

fn wicd(site: &Site) -> Vec<Object> {
    let file = "base/wicd.yaml";
    let about = "What every wicd may do, as long as it is bound: the operator makes the ClusterRoleBinding of this name for the group \
                 system:wicd-nodes when it sees the policies of admission-wicd.yaml in force, and deletes it when they are not. The Role \
                 that the RoleBinding names is made by the operator, too.";
    let role = cluster_role(site, file, about, WICD, "host-daemon", WICD_RULES);
    let group = Subject {
        api_group: Some(RBAC.into()),
        kind: "Group".into(),
        name: "system:wicd-nodes".into(),
        ..Subject::default()
    };
    let binding = RoleBinding {
        metadata: site.namespaced(WICD_SERVICES, "host-daemon"),
        role_ref: RoleRef { api_group: Some(RBAC.into()), kind: "Role".into(), name: WICD_SERVICES.into() },
        subjects: Some(vec![group]),
    };
    vec![role, Object::new(file, "", &binding)]
}

fn node_manager(site: &Site) -> Vec<Object> {
    let file = "azure/node-manager.yaml";
    let identity = ServiceAccount {
        metadata: site.namespaced(NODE_MANAGER, "node-manager"),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let about = "The identity of the cloud-node-managers on hosts. wicd requests tokens of it that are bound to its own Node, and the policy \
                 windows-node-pools-node-manager-nodes of deploy/base lets each write that Node alone. Without the policy no token is \
                 given out any more; one that a host has is valid for an hour at most.";
    let grant = Grant {
        file,
        about: "",
        namespace: None,
        name: NODE_MANAGER,
        component: "node-manager",
        rules: NODE_MANAGER_RULES,
        to: account(NODE_MANAGER, &site.namespace),
    };
    iter::once(Object::new(file, about, &identity)).chain(grant.objects(site)).collect()
}

/// What the operator may read and write where Machines are, and of the configuration of OpenShift.
fn other_namespaces(site: &Site) -> Vec<Object> {
    let user_data = "What new Machines run at their first start. By name it can only be created with server-side apply, and so it is.";
    let pull_secret = "Logins of image registries, which Linux nodes have, too. An operator without this right works as soon as a Secret \
                       `pull-secret` is in its own namespace: it takes that one instead.";
    let grant = |(file, about, namespace, rules)| {
        let to = account(&site.service_account, &site.namespace);
        Grant { file, about, namespace: Some(namespace), name: NAME, component: "operator", rules, to }.objects(site)
    };
    [
        ("machine-api/user-data.yaml", user_data, "openshift-machine-api", USER_DATA),
        ("cluster-api/user-data.yaml", user_data, "openshift-cluster-api", USER_DATA),
        ("openshift-config/pull-secret.yaml", pull_secret, "openshift-config", PULL_SECRET),
    ]
    .into_iter()
    .flat_map(grant)
    .collect()
}

/// What the operator may do in addition where OLM installs it: create its policies, and not change them. Its `OperatorCondition` is OLM's
/// to grant.
pub(crate) fn under_olm(site: &Site) -> Vec<Object> {
    let file = "olm/rights.yaml";
    let to = account(&site.service_account, &site.namespace);
    let about = "Where OLM installs the operator: the ConfigMap that names the release whose policies are in force.";
    let own = Grant {
        file,
        about,
        namespace: Some(&site.namespace),
        name: "windows-node-pools-olm",
        component: "operator",
        rules: OLM_NAMESPACE,
        to,
    };
    let mut objects = own.objects(site);
    objects.push(cluster_role(site, file, "", NAME, "operator", OLM_CLUSTER));
    objects
}

/// The right of a Prometheus to find the operator.
pub(super) fn prometheus(site: &Site, file: &'static str) -> Vec<Object> {
    Grant {
        file,
        about: "The cluster's Prometheus finds what it is to read.",
        namespace: Some(&site.namespace),
        name: "windows-node-pools-prometheus",
        component: "monitoring",
        rules: PROMETHEUS,
        to: account("prometheus-k8s", "openshift-monitoring"),
    }
    .objects(site)
}

/// The right to read the operator's metrics.
fn metrics_reader(site: &Site) -> Object {
    let get = PolicyRule {
        non_resource_urls: Some(vec!["/metrics".into()]),
        verbs: vec!["get".into()],
        ..PolicyRule::default()
    };
    let role = ClusterRole {
        metadata: site.meta(METRICS_READER, "monitoring"),
        rules: Some(vec![get]),
        ..ClusterRole::default()
    };
    let about = "Who is bound to this may read the operator's metrics: bind the ServiceAccount of your Prometheus.";
    Object::new("base/metrics-reader.yaml", about, &role).why("/rules/0", "The path of the operator's metrics.")
}

/// The right of a Prometheus to read the operator's metrics.
pub(super) fn of_prometheus_to_read(site: &Site, file: &'static str) -> Object {
    let binding = ClusterRoleBinding {
        metadata: site.meta(METRICS_READER, "monitoring"),
        role_ref: RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: METRICS_READER.into() },
        subjects: Some(vec![account("prometheus-k8s", "openshift-monitoring")]),
    };
    Object::new(file, "", &binding)
}

/// Roles for people.
pub(super) fn for_people(site: &Site, file: &'static str) -> Vec<Object> {
    let label = |role: &str| (format!("{RBAC}/aggregate-to-{role}"), "true".to_owned());
    let about = "Who may read the objects of a namespace or of the cluster may read pools and instances.";
    let mut view = cluster_role(site, file, about, "windows-node-pools-view", "people", VIEW);
    let labels = [label("view"), label("cluster-reader")];
    for (key, value) in labels {
        view.value["metadata"]["labels"][key] = value.into();
    }
    let about =
        "Part of no other role: who writes a pool can run code on its hosts. Bind it as you bind cluster-admin.";
    vec![view, cluster_role(site, file, about, "windows-node-pools-edit", "people", EDIT)]
}
