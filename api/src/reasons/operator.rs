//! Reasons that concern the operator as a whole, or a whole pool.

use super::{Section, row};

pub(super) const OPERATOR: Section = Section {
    title: "The operator",
    place: "When the operator cannot work at all, every pool has `Ready=False`, `Degraded=True` and `Stalled=True` with one of these. The \
            operator retries every 30 s. A fault that only the operation of one host meets appears on its instance.",
    reasons: &[
        row(
            "PayloadInvalid",
            "The payload in the operator's image is incomplete.",
            "[Build the payload](../guide/payload.md) again; the message names the file.",
        ),
        row(
            "KubeletVersionSkew",
            "The kubelet of the payload is newer than the API server, or more than three minor versions older.",
            "[Build a payload](../guide/payload.md) for the version of the cluster.",
        ),
        row(
            "ClusterUnknown",
            "The API server, the service network or a certificate authority cannot be detected.",
            "Set the flag that the message names.",
        ),
        row(
            "AnotherOperator",
            "The Windows Machine Config Operator runs, too. Operations in progress end; no other begins. Certificates of nodes are still renewed.",
            "Remove it as in [coming from WMCO](../guide/from-wmco.md); the message names its Pod.",
        ),
        row(
            "ClusterFactsInvalid",
            "A [fact of the cluster](../guide/cluster-facts.md#a-fact-that-cannot-be-used) cannot be used as it is. What was in force before stays so.",
            "Correct what the message names, or set the flag for it.",
        ),
        row(
            "ApiServerSilent",
            "The API servers that answer have a new version of Kubernetes, and one that is listed does not answer. Nodes keep their version.",
            "No action is needed while it restarts. Otherwise see [the version of the API servers](../guide/cluster-facts.md#the-version-of-the-api-servers).",
        ),
        row(
            "ControlPlaneUpgrading",
            "The API servers have a new version of Kubernetes, and the upgrade of the control plane is not done. Nodes keep their version.",
            "No action is needed, unless the upgrade does not end: see `oc get clusterversion`.",
        ),
        row(
            "ClusterFactsPartlyUsed",
            "A part of a [fact of the cluster](../guide/cluster-facts.md#images) cannot be used on Windows, or has a wider effect there. The rest is used.",
            "Correct what the message names, if Windows nodes need it.",
        ),
        row(
            "CertificateRequestsWait",
            "A node of the pool asks for a certificate with an address or a name that nothing proves to be its own, so that the operator neither approves nor denies it.",
            "[Check the request, and approve it](../guide/troubleshooting.md#certificate-requests-that-wait), before the certificate of the node ends.",
        ),
        row(
            "SettingsInvalid",
            "A [setting](settings.md) of the operator cannot be used.",
            "Correct its argument or environment variable.",
        ),
        row(
            "LogSettingsInvalid",
            "A [setting](settings.md) for the logs of services cannot be used.",
            "Correct the environment variable that the message names.",
        ),
        row(
            "ApiError",
            "The operator cannot store the services ConfigMap, an instance or its role.",
            "Check the API server and the operator's rights. If the API server refuses the request, the message names why: a quota, a policy or a webhook.",
        ),
    ],
};

pub(super) const POOL: Section = Section {
    title: "One pool",
    place: "The same conditions on one pool.",
    reasons: &[
        row(
            "InternalError",
            "The operator has an internal fault that this object triggers; all others continue.",
            "Report it with the operator's log.",
        ),
        row(
            "InstanceUnreadable",
            "A WindowsInstance of the pool has a value that this operator does not know, most often after an older version was installed \
             again. The operator begins no operation in the pool.",
            "Install the newer version again.",
        ),
        row(
            "PoolUnreadable",
            "The pool has a value that this operator does not know, most often after an older version was installed again. The operator \
             does nothing for it.",
            "Install the newer version again.",
        ),
    ],
};

pub(super) const POLICIES: Section = Section {
    title: "Policies",
    place: "They appear in `PoliciesInForce=False` of every pool, with it in `Ready`, `Degraded` and `Stalled`, and as reasons of [a host](#a-host) \
            that needs a certificate. See [PoliciesInForce is False](../guide/troubleshooting.md#policiesinforce-is-false).",
    reasons: &[
        row(
            "PolicyMissing",
            "An admission policy that holds the hosts' daemons is missing, or differs from the one of this release.",
            "Install this release again with the tool that installed it. Where OLM installs the operator, delete a changed policy: the operator creates it again.",
        ),
        row(
            "PoliciesMissing",
            "An admission policy that limits the operator or other clients is missing, or differs from the one of this release. Nothing \
             stops. The metric `windows_node_pool_policy_in_force` names each.",
            "Install this release again with the tool that installed it. Where OLM installs the operator, delete a changed policy: the operator creates it again.",
        ),
        row(
            "PolicyUnknown",
            "The operator has not read the policies yet.",
            "Check the API server and the operator's rights if it stays so.",
        ),
        row(
            "RightsNotStored",
            "The operator cannot write the ClusterRoleBinding of the hosts' daemons, for example because its own role is of an older release.",
            "Apply `deploy/base` of this release again.",
        ),
    ],
};

pub(super) const NOTES: Section = Section {
    title: "Notes",
    place: "They appear in the condition `Warning=True` of the pool and stop no operation.",
    reasons: &[
        row("ApiServerTooOld", "The API server is older than what is tested.", "Upgrade the cluster."),
        row(
            "ApiServerVersionUnknown",
            "The API server does not report a version that can be read.",
            "Check the API server.",
        ),
    ],
};

pub(super) const METRICS: Section = Section {
    title: "Metrics",
    place: "In the operator's log. They change nothing on hosts. See [metrics](../guide/metrics.md).",
    reasons: &[
        row(
            "MetricsCertificateInvalid",
            "The files with the certificate for `/metrics` cannot be used. What was served before stays.",
            "Replace the Secret `windows-node-pools-metrics-tls`; the message names the file.",
        ),
        row(
            "ReviewSlow",
            "The API server did not review the sender of a request for `/metrics` in time. The request got 503.",
            "Check the API server. If it is well, look for a client that sends wrong tokens without end.",
        ),
    ],
};

pub(super) const UPGRADEABLE: Section = Section {
    title: "OperatorCondition",
    place: "They appear in the condition `Upgradeable` of the `OperatorCondition` that the Operator Lifecycle Manager makes for the operator \
            ([install with OLM](../guide/install-olm.md)).",
    reasons: &[
        row(
            "NoOperation",
            "No host joins, is updated or is removed: the operator may be upgraded.",
            "No action is needed.",
        ),
        row(
            "CannotWork",
            "The operator cannot use its payload or a fact of the cluster, so that it changes no host: it may be upgraded.",
            "Upgrade it, or see the conditions of the pools.",
        ),
        row(
            "HostsChange",
            "Hosts join, are updated or are removed. The message has the pools and the numbers of hosts.",
            "Wait until they are Ready, or pause the pools.",
        ),
    ],
};
