//! Labels, annotations, taints, finalizers, field managers and well-known object names.
//!
//! Legacy names are those of the Windows Machine Config Operator (WMCO), so that a cluster can be taken over from it and handed back.

/// API group of all kinds, and prefix of the operator's own label and annotation keys.
pub const GROUP: &str = "windowsmachineconfig.openshift.io";
/// Only version of the API group.
pub const VERSION: &str = "v1alpha1";
/// Namespace of Secrets, services ConfigMaps and leases, unless the operator is configured with another.
pub const DEFAULT_NAMESPACE: &str = "openshift-windows-machine-config-operator";

/// Name of the Secret with the SSH private key when a pool names none (WMCO's name).
pub const DEFAULT_KEY_SECRET: &str = "cloud-private-key";
/// Key in a Secret with an SSH private key, unless a pool names another key.
pub const DEFAULT_KEY_SECRET_KEY: &str = "private-key.pem";
/// Key in a Secret that a pool's `ssh.knownHostsSecretRef` names.
pub const KNOWN_HOSTS_SECRET_KEY: &str = "known_hosts";
/// Name of the ConfigMap with hosts that WMCO reads, and of the pool that is created for it.
pub const WINDOWS_INSTANCES: &str = "windows-instances";
/// Name of the ConfigMap that WMCO's leader holds as its lock. The leader's Pod is its owner.
pub const WMCO_LOCK: &str = "windows-machine-config-operator-lock";
/// Name of the ConfigMap with the host keys that WMCO has recorded: base64 of the SSH wire format, by address.
pub const LEGACY_HOST_KEYS: &str = "windows-ssh-host-keys";
/// Name of the Secret with the script that Machines run at their first start (WMCO's name).
pub const USER_DATA_SECRET: &str = "windows-user-data";
/// Name of the Secret with the certificate of windows_exporter on hosts (WMCO's name).
pub const EXPORTER_CERTIFICATE: &str = "windows-machine-config-operator-tls";
/// Prefix of the names of the services ConfigMaps: `windows-services-<version>`.
pub const SERVICES_CONFIG_MAP_PREFIX: &str = "windows-services-";
/// Version of an adopted node that does not report which version it follows. No real version has this name.
pub const UNKNOWN_VERSION: &str = "unknown";
/// Name of the operator's Lease.
pub const LEASE: &str = "windows-node-pools";
/// Name of the Service for the operator's metrics. The serving certificate is for this name.
pub const METRICS_SERVICE: &str = "windows-node-pools-metrics";
/// Name of the Secret with the last facts of the cluster, for the next instance of the operator.
pub const KEPT_FACTS: &str = "windows-node-pools-facts";
/// Value in a pool's `takeOverFrom` that stands for hosts whose record names no cluster.
pub const UNKNOWN_CLUSTER: &str = "unknown";
/// Label of the objects that the program `acceptance` creates and of its Node, with the suffix of the run; annotation of the created objects, with
/// the host's address; key of the Node's taint; and field manager of the pool.
pub const ACCEPTANCE: &str = "windows-node-pools-acceptance";
/// Name of the operator: of its Deployment and ServiceAccount, and in its events and the labels of its objects.
pub const COMPONENT: &str = "windows-node-pools";

/// Command of the operator's kubectl plugin, as a user enters it.
pub const PLUGIN: &str = "kubectl windows-node-pools";

/// Label of objects that the operator creates, with [`COMPONENT`] as its value.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Label and annotation keys.
pub mod key {
    crate::documented::documented! {
        /// Node annotation: the version that the host must follow, as in `windows-services-<version>`. Written by the operator. Legacy.
        DESIRED_VERSION = "windowsmachineconfig.openshift.io/desired-version";
        /// Node annotation: the version that the host fully follows. Written by wicd. Legacy.
        VERSION = "windowsmachineconfig.openshift.io/version";
        /// Node annotation: present (value empty) while the host needs a restart. Written by wicd, or by a user who requests a restart. Legacy.
        REBOOT_REQUIRED = "windowsmachineconfig.openshift.io/reboot-required";
        /// Node annotation: lower-case hex SHA-256 of the authorized_keys form of the SSH public key. Written by the operator. Legacy.
        PUB_KEY_HASH = "windowsmachineconfig.openshift.io/pub-key-hash";
        /// Node annotation: SSH user, OpenPGP-encrypted with the private key PEM as passphrase. Written by the operator. Legacy.
        USERNAME = "windowsmachineconfig.openshift.io/username";
        /// Node annotation: base64 of the SSH wire format of the host's public key. Written by the operator. Legacy.
        SSH_HOST_KEY = "windowsmachineconfig.openshift.io/ssh-host-key";
        /// Node annotation: type of the host's public key, for example `ssh-ed25519`. Written by the operator. Legacy.
        SSH_HOST_KEY_TYPE = "windowsmachineconfig.openshift.io/ssh-host-key-type";
        /// Node label `true` on nodes that come from a list of hosts, not from a Machine. Written by the operator. Legacy.
        BYOH = "windowsmachineconfig.openshift.io/byoh";
        /// Node label `true` while WMCO upgrades a node. Written by WMCO; the operator removes it. Legacy.
        UPGRADING = "windowsmachineconfig.openshift.io/upgrading";
        /// Node label with an empty value. Written by the operator on nodes from a list of hosts. Legacy.
        WORKER_ROLE = "node-role.kubernetes.io/worker";
        /// Node label `Windows`. Written by kubelet. Legacy.
        OS_ID = "node.openshift.io/os_id";
        /// Instance and node label: the pool's name. Written by the operator.
        POOL = "windowsmachineconfig.openshift.io/pool";
        /// Node label: DNS name of the Active Directory domain of the host, which the host reports. Written by the operator.
        DOMAIN = "windowsmachineconfig.openshift.io/domain";
        /// Node annotation: the operation that cordoned the node. Written by the operator, which lifts no other cordon.
        CORDONED_BY = "windowsmachineconfig.openshift.io/cordoned-by";
        /// Node annotation `true`, written by a user: leave the node cordoned when an operation ends.
        KEEP_CORDONED = "windowsmachineconfig.openshift.io/keep-cordoned";
        /// Node annotation: changes of the host that wicd has detected; the condition `Drifted` of the instance repeats them. Written by wicd.
        DRIFT = "windowsmachineconfig.openshift.io/drift";
        /// Node annotation: time at which wicd last checked the host, by the clock of the host; renewed about every ten minutes while the Node is
        /// Ready. Written by wicd.
        WICD_REPORTED = "windowsmachineconfig.openshift.io/wicd-reported";
        /// Node or instance annotation `true`, written by a user: begin no operation on this host.
        HOLD = "windowsmachineconfig.openshift.io/hold";
        /// Node or instance annotation, written by a user or a program: the reason of a maintenance for which the node is to be drained. Its removal
        /// hands the node back. `false` refuses requests from the host. The annotation of the instance takes precedence over that of the Node.
        MAINTENANCE = "windowsmachineconfig.openshift.io/maintenance";
        /// Node annotation: the reason of a maintenance that an administrator of the host requests with `wicd.exe maintenance`. Written by
        /// wicd.
        MAINTENANCE_REQUEST = "windowsmachineconfig.openshift.io/maintenance-request";
        /// Node annotation: state of a requested maintenance: `Waiting`, `Held`, `Draining`, `Drained` or `Returning`. Written by the operator.
        MAINTENANCE_STATE = "windowsmachineconfig.openshift.io/maintenance-state";
        /// Pool annotation, written by a user: the version that may pass the steps that wait for an approval. Recorded in `status.acts`, so that it
        /// holds until another version is approved; an empty value revokes it.
        APPROVE = "windowsmachineconfig.openshift.io/approve";
        /// Pool annotation, written by a user: the number of hosts that may leave, or the revision of the inventory whose removals are all approved.
        /// Recorded in `status.acts`. The operator removes it once it is used, or if it fits no removal that waits.
        APPROVE_REMOVAL = "windowsmachineconfig.openshift.io/approve-removal";
        /// Pool annotation, written by a user before a change: the number of hosts that the next change removes from the pool's own list, or the
        /// number of nodes that the pool has when it is deleted. The removal guard requires it. The operator removes it after the next change of
        /// the spec.
        ANNOUNCE_REMOVAL = "windowsmachineconfig.openshift.io/announce-removal";
        /// Pool annotation, written by `flux reconcile` and users: any new value makes the operator fetch the source at once. Defined by Flux.
        RECONCILE_REQUESTED = "reconcile.fluxcd.io/requestedAt";
        /// Pod label, written by a user: `skip` leaves the pod where it is in a drain, `wait-completed` lets it run to its end. It takes precedence
        /// over the rules of its pool.
        DRAIN = "windowsmachineconfig.openshift.io/drain";
        /// Machine or ConfigMap label `true`, written by a user: the operator ignores the object. Legacy.
        IGNORE = "windowsmachineconfig.openshift.io/ignore";
        /// Machine label: its operating system, `Windows` exactly. Written by its MachineSet. Legacy.
        MACHINE_OS = "machine.openshift.io/os-id";
        /// Annotation of a services ConfigMap: JSON of everything that hosts get in addition to its data. Written by the operator.
        RENDERED = "windowsmachineconfig.openshift.io/rendered";
        /// Pool or instance annotation, written by a user: settings of the legacy operator that nodes may lose: names separated by commas, or `all`.
        /// The annotation of a pool is recorded in `status.acts`; an empty value revokes it.
        ACCEPT_LOST_SETTINGS = "windowsmachineconfig.openshift.io/accept-lost-settings";
        /// Instance annotation, written by a user: any new value makes the operator retry at once.
        RETRY = "windowsmachineconfig.openshift.io/retry";
        /// Instance annotation `true`, written by a user: abandon the host without a connection to it.
        ABANDON = "windowsmachineconfig.openshift.io/abandon";
        /// Instance annotation, written by a user: `SHA256:…` fingerprint of a new host key to trust instead of the pinned one.
        TRUST_HOST_KEY = "windowsmachineconfig.openshift.io/trust-host-key";
        /// Pool annotation, written by a user: the epoch that its hosts must forget, as the refusal `StaleEpoch` names it. Recorded in `status.acts`.
        VOID_EPOCH = "windowsmachineconfig.openshift.io/void-epoch";
        /// Instance annotation: `SHA256:…` fingerprint of the host key that the host showed at its first contact, before it
        /// had a name and therefore an instance. Written by the pool controller when it creates the instance; the host must
        /// show the same key when it joins.
        FIRST_HOST_KEY = "windowsmachineconfig.openshift.io/first-host-key";
        /// Instance label `true`: the host was abandoned without being deconfigured. Written by the operator.
        UNCLEAN = "windowsmachineconfig.openshift.io/unclean";
    }
}

/// Finalizer on an instance whose host must still be deconfigured or released.
pub const FINALIZER_INSTANCE: &str = "windowsmachineconfig.openshift.io/deconfigure";
/// Finalizer of a pool. The operator removes it once the pool is deleted and has no instances.
pub const FINALIZER_POOL: &str = "windowsmachineconfig.openshift.io/instances";

/// Kubernetes' finalizer on objects that are deleted with `--cascade=orphan`.
pub const ORPHAN_DEPENDENTS: &str = "orphan";

/// Field manager of the pool controller.
pub const MANAGER_POOL: &str = "windows-node-pools-pool";
/// Field manager of objects for the legacy sources of hosts: pools (their inventory, and mode Plan until the operator gives that field up) and user
/// data.
pub const MANAGER_ADAPTER: &str = "windows-node-pools-adapter";

/// Field manager of the instance controller.
pub const MANAGER_INSTANCE: &str = "windows-node-pools-instance";

/// Field manager of the plugin's commands. Its name must not begin with `kubectl`, because Flux reverts changes by such managers.
pub const MANAGER_COMMAND: &str = "windows-node-pools-command";

/// User names and groups in certificates.
pub mod user {
    /// Common name prefix of a kubelet's certificates.
    pub const NODE_PREFIX: &str = "system:node:";
    /// Organisation of a kubelet's certificates.
    pub const NODES_GROUP: &str = "system:nodes";
    /// Common name prefix of wicd's certificate.
    pub const WICD_PREFIX: &str = "system:wicd-node:";
    /// Organisation of wicd's certificate.
    pub const WICD_GROUP: &str = "system:wicd-nodes";
    /// Name of the ServiceAccount of the cloud-node-managers on hosts, in the operator's namespace.
    pub const NODE_MANAGER: &str = "windows-node-pools-node-manager";
}

/// Taint of a Windows node whose pool sets no taints: `os=Windows:NoSchedule`.
pub fn default_taint() -> crate::Taint {
    crate::Taint { key: "os".into(), value: Some("Windows".into()), effect: crate::TaintEffect::NoSchedule }
}
