//! Every label, annotation, taint, finalizer, field manager and well-known object name. No other module spells them.
//!
//! The legacy ones are those of the Windows Machine Config Operator (WMCO), so that a cluster can be taken over from it
//! and handed back.

/// API group of all kinds, and prefix of all keys.
pub const GROUP: &str = "windowsmachineconfig.openshift.io";
/// The one version of the group.
pub const VERSION: &str = "v1alpha1";
/// Namespace of Secrets, services ConfigMaps and leases, unless the operator is configured with another.
pub const DEFAULT_NAMESPACE: &str = "openshift-windows-machine-config-operator";

/// Name of the Secret with the SSH private key when a pool names none (WMCO's name).
pub const DEFAULT_KEY_SECRET: &str = "cloud-private-key";
/// Key in that Secret.
pub const DEFAULT_KEY_SECRET_KEY: &str = "private-key.pem";
/// Key in a Secret that a pool's `ssh.knownHostsRef` names.
pub const KNOWN_HOSTS_SECRET_KEY: &str = "known_hosts";
/// Name of the ConfigMap with hosts that WMCO reads, and of the pool that is made for it.
pub const WINDOWS_INSTANCES: &str = "windows-instances";
/// Name of the ConfigMap with the host keys that WMCO has recorded: address to base64 of the SSH wire format.
pub const LEGACY_HOST_KEYS: &str = "windows-ssh-host-keys";
/// Name of the Secret with the script that Machines run at their first start (WMCO's name).
pub const USER_DATA_SECRET: &str = "windows-user-data";
/// Prefix of the names of the services ConfigMaps: `windows-services-<version>`.
pub const SERVICES_CONFIG_MAP_PREFIX: &str = "windows-services-";
/// The version of an adopted node that does not report which version it follows. No real version has this name.
pub const UNKNOWN_VERSION: &str = "unknown";
/// Name of the operator's Lease.
pub const LEASE: &str = "windows-node-pools";
/// Value in a pool's `takeOverFrom` that stands for hosts whose record names no cluster.
pub const UNKNOWN_CLUSTER: &str = "unknown";
/// Name under which events are reported, and the operator's user agent.
pub const COMPONENT: &str = "windows-node-pools";

/// Label and annotation keys.
pub mod key {
    /// Node annotation: which `windows-services-<value>` the host must follow. Written by the operator. Legacy.
    pub const DESIRED_VERSION: &str = "windowsmachineconfig.openshift.io/desired-version";
    /// Node annotation: the version that the host fully follows. Written by wicd. Legacy.
    pub const VERSION: &str = "windowsmachineconfig.openshift.io/version";
    /// Node annotation: present (value empty) while the host needs a restart. Written by wicd. Legacy.
    pub const REBOOT_REQUIRED: &str = "windowsmachineconfig.openshift.io/reboot-required";
    /// Node annotation: lower-case hex SHA-256 of the authorized_keys form of the SSH public key. Legacy.
    pub const PUB_KEY_HASH: &str = "windowsmachineconfig.openshift.io/pub-key-hash";
    /// Node annotation: SSH user, OpenPGP-encrypted with the private key PEM as passphrase. Legacy.
    pub const USERNAME: &str = "windowsmachineconfig.openshift.io/username";
    /// Node annotation: base64 of the SSH wire format of the host's public key. Legacy.
    pub const SSH_HOST_KEY: &str = "windowsmachineconfig.openshift.io/ssh-host-key";
    /// Node annotation: type of that key, as `ssh-ed25519`. Legacy.
    pub const SSH_HOST_KEY_TYPE: &str = "windowsmachineconfig.openshift.io/ssh-host-key-type";
    /// Node label `true` on nodes that come from a list of hosts, not from a Machine. Legacy.
    pub const BYOH: &str = "windowsmachineconfig.openshift.io/byoh";
    /// Node label `true` while a node is being upgraded. Legacy.
    pub const UPGRADING: &str = "windowsmachineconfig.openshift.io/upgrading";
    /// Node label with an empty value. Legacy, on nodes with [`BYOH`].
    pub const WORKER_ROLE: &str = "node-role.kubernetes.io/worker";
    /// Node label that kubelet sets to `Windows`. Legacy.
    pub const OS_ID: &str = "node.openshift.io/os_id";
    /// Label on instances and nodes: the pool's name.
    pub const POOL: &str = "windowsmachineconfig.openshift.io/pool";
    /// Node annotation: the operation that cordoned the node. The operator lifts no other cordon.
    pub const CORDONED_BY: &str = "windowsmachineconfig.openshift.io/cordoned-by";
    /// Node annotation `true`, written by a person: leave the node cordoned when an operation ends.
    pub const KEEP_CORDONED: &str = "windowsmachineconfig.openshift.io/keep-cordoned";
    /// Node annotation: changes of the host that wicd has detected, see `conditions::kind::DRIFTED`. Written by wicd.
    pub const DRIFT: &str = "windowsmachineconfig.openshift.io/drift";
    /// Node or instance annotation `true`, written by a person: begin no operation on this host.
    pub const HOLD: &str = "windowsmachineconfig.openshift.io/hold";
    /// Pool annotation, written by a person: the version that may pass the steps that wait for an approval.
    pub const APPROVE: &str = "windowsmachineconfig.openshift.io/approve";
    /// Pool annotation, written by a person: the number of hosts that may leave, or the revision of the inventory of
    /// which all removals are approved. The operator removes a number once it is used.
    pub const APPROVE_REMOVAL: &str = "windowsmachineconfig.openshift.io/approve-removal";
    /// Pool annotation, written by `flux reconcile` and people: any new value makes the operator fetch the source at
    /// once. Defined by Flux.
    pub const RECONCILE_REQUESTED: &str = "reconcile.fluxcd.io/requestedAt";
    /// Machine label `true`: the operator ignores the Machine. Legacy.
    pub const IGNORE: &str = "windowsmachineconfig.openshift.io/ignore";
    /// Machine label: its operating system. Legacy; `Windows` exactly.
    pub const MACHINE_OS: &str = "machine.openshift.io/os-id";
    /// Annotation of a services ConfigMap: JSON of everything that hosts get beside its data.
    pub const RENDERED: &str = "windowsmachineconfig.openshift.io/rendered";
    /// Pool or instance annotation, written by a person: settings of the legacy operator that nodes may lose: names
    /// separated by commas, or `all`.
    pub const ACCEPT_LOST_SETTINGS: &str = "windowsmachineconfig.openshift.io/accept-lost-settings";
    /// Instance annotation, written by a person: any new value makes the operator retry at once.
    pub const RETRY: &str = "windowsmachineconfig.openshift.io/retry";
    /// Instance annotation `true`, written by a person: give up the host without a connection to it.
    pub const ABANDON: &str = "windowsmachineconfig.openshift.io/abandon";
    /// Instance annotation, written by a person: `SHA256:…` fingerprint of a new host key to trust instead of the pinned one.
    pub const TRUST_HOST_KEY: &str = "windowsmachineconfig.openshift.io/trust-host-key";
    /// Pool annotation, written by a person: the epoch that its hosts must forget, as the refusal `StaleEpoch` names it.
    pub const VOID_EPOCH: &str = "windowsmachineconfig.openshift.io/void-epoch";
    /// Instance annotation: `SHA256:…` fingerprint of the host key that the host showed at its first contact, before it
    /// had a name and therefore an instance. Written by the pool controller when it creates the instance; the host must
    /// show the same key when it joins.
    pub const FIRST_HOST_KEY: &str = "windowsmachineconfig.openshift.io/first-host-key";
    /// Instance label `true`: the host was given up without being deconfigured.
    pub const UNCLEAN: &str = "windowsmachineconfig.openshift.io/unclean";
}

/// Finalizer on an instance: its host must still be deconfigured or released.
pub const FINALIZER_INSTANCE: &str = "windowsmachineconfig.openshift.io/deconfigure";
/// Finalizer on a pool: it still has instances.
pub const FINALIZER_POOL: &str = "windowsmachineconfig.openshift.io/instances";

/// Kubernetes' finalizer on what is deleted with `--cascade=orphan`.
pub const ORPHAN_DEPENDENTS: &str = "orphan";

/// Field manager of the pool controller.
pub const MANAGER_POOL: &str = "windows-node-pools-pool";
/// Field manager of objects for the legacy sources of hosts: pools (only their inventory) and user data.
pub const MANAGER_ADAPTER: &str = "windows-node-pools-adapter";

/// Field manager of the instance controller.
pub const MANAGER_INSTANCE: &str = "windows-node-pools-instance";

/// User names of certificates.
pub mod user {
    /// Common name prefix of a kubelet's certificates.
    pub const NODE_PREFIX: &str = "system:node:";
    /// Organisation of a kubelet's certificates.
    pub const NODES_GROUP: &str = "system:nodes";
    /// Common name prefix of wicd's certificate.
    pub const WICD_PREFIX: &str = "system:wicd-node:";
    /// Organisation of wicd's certificate.
    pub const WICD_GROUP: &str = "system:wicd-nodes";
}

/// The taint that a Windows node has when its pool names no taints: `os=Windows:NoSchedule`.
pub fn default_taint() -> crate::Taint {
    crate::Taint { key: "os".into(), value: Some("Windows".into()), effect: crate::TaintEffect::NoSchedule }
}
