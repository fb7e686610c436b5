//! What hosts may write: wicd, and the cloud-node-manager.

use super::policy::{Policy, named};

/// `windows-node-pools-wicd-nodes`.
pub(super) const WICD_NODES: Policy = Policy {
    file: "base/admission-wicd.yaml",
    name: "windows-node-pools-wicd-nodes",
    about: "What a Windows host may write, whatever RBAC grants it: the role of all hosts' daemons, and those of the Windows Machine \
            Config Operator, which may be there too, let any host patch any Node. The operator compares the policies with those that it \
            was built with, and takes the rights of the hosts' daemons away while one is missing, changed, or does not deny.",
    resources: &[(&[""], &["nodes", "nodes/*"], &["CREATE", "UPDATE", "DELETE"])],
    conditions: &[named("wicd", r#""system:wicd-nodes" in request.userInfo.groups"#)],
    variables: &[
        named("update", r#"request.operation == "UPDATE" && request.?subResource.orValue("") == """#),
        named(
            "allowed",
            r#"
                ["windowsmachineconfig.openshift.io/version", "windowsmachineconfig.openshift.io/reboot-required",
                 "windowsmachineconfig.openshift.io/drift", "windowsmachineconfig.openshift.io/maintenance-request",
                 "windowsmachineconfig.openshift.io/wicd-reported"]
            "#,
        ),
        named("before", "oldObject.metadata.?annotations.orValue({})"),
        named("after", "object.metadata.?annotations.orValue({})"),
    ],
    validations: &[
        ("variables.update", "wicd may change annotations of its own Node only"),
        (
            r#"!variables.update || request.userInfo.username == "system:wicd-node:" + object.metadata.name"#,
            "wicd may change its own Node and no other",
        ),
        (
            r"
                !variables.update ||
                (variables.after.all(key, key in variables.allowed ||
                  (key in variables.before && variables.before[key] == variables.after[key])) &&
                 variables.before.all(key, key in variables.allowed || key in variables.after))
            ",
            "of the annotations of its Node, wicd may change windowsmachineconfig.openshift.io/version, \
              windowsmachineconfig.openshift.io/reboot-required, windowsmachineconfig.openshift.io/drift, \
              windowsmachineconfig.openshift.io/maintenance-request and windowsmachineconfig.openshift.io/wicd-reported alone",
        ),
        (
            r#"
                !variables.update || variables.allowed.all(key, variables.after[?key].orValue("").size() <= 4096 ||
                  variables.after[?key] == variables.before[?key])
            "#,
            "an annotation of wicd may have 4096 characters at most",
        ),
        (
            r#"
                !variables.update ||
                variables.after[?"windowsmachineconfig.openshift.io/maintenance-request"].orValue("").size() <= 200 ||
                variables.after[?"windowsmachineconfig.openshift.io/maintenance-request"] ==
                  variables.before[?"windowsmachineconfig.openshift.io/maintenance-request"]
            "#,
            "the reason of a maintenance may have 200 characters at most",
        ),
        (
            "!variables.update || (object.?spec == oldObject.?spec && object.?status == oldObject.?status)",
            "wicd may not change the spec or the status of its Node",
        ),
        (
            r"
                !variables.update ||
                (object.metadata.?labels == oldObject.metadata.?labels &&
                 object.metadata.?finalizers == oldObject.metadata.?finalizers &&
                 object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)
            ",
            "wicd may not change the labels, finalizers or owners of its Node",
        ),
    ],
};

/// `windows-node-pools-wicd-requests`.
pub(super) const WICD_REQUESTS: Policy = Policy {
    file: "base/admission-wicd.yaml",
    name: "windows-node-pools-wicd-requests",
    about: "",
    resources: &[(
        &["certificates.k8s.io"],
        &["certificatesigningrequests", "certificatesigningrequests/*"],
        &["CREATE", "UPDATE", "DELETE"],
    )],
    conditions: &[named("wicd", r#""system:wicd-nodes" in request.userInfo.groups"#)],
    variables: &[],
    validations: &[(
        r#"
                request.operation == "CREATE" && object.spec.signerName == "kubernetes.io/kube-apiserver-client"
            "#,
        "wicd may ask signer kubernetes.io/kube-apiserver-client for certificates only",
    )],
};

/// `windows-node-pools-wicd-tokens`.
pub(super) const WICD_TOKENS: Policy = Policy {
    file: "base/admission-wicd.yaml",
    name: "windows-node-pools-wicd-tokens",
    about: "On Azure: a token of the cloud-node-manager's identity, for its own Node alone.",
    resources: &[(&[""], &["serviceaccounts/token"], &["CREATE"])],
    conditions: &[named("wicd", r#""system:wicd-nodes" in request.userInfo.groups"#)],
    variables: &[],
    validations: &[
        (
            r#"
                request.name == "windows-node-pools-node-manager" &&
                request.namespace == "$NAMESPACE"
            "#,
            "wicd may request tokens of the ServiceAccount windows-node-pools-node-manager only",
        ),
        (
            r#"
                object.spec.?boundObjectRef.?kind.orValue("") == "Node" &&
                request.userInfo.username == "system:wicd-node:" + object.spec.?boundObjectRef.?name.orValue("")
            "#,
            "wicd may request tokens that are bound to its own Node only",
        ),
        ("object.spec.?expirationSeconds.orValue(3600) <= 3600", "a token may be valid for an hour at most"),
    ],
};

/// `windows-node-pools-node-manager-nodes`.
pub(super) const NODE_MANAGER_NODES: Policy = Policy {
    file: "base/admission-wicd.yaml",
    name: "windows-node-pools-node-manager-nodes",
    about: "The cloud-node-manager on a host initialises its Node: it sets what the cloud knows of the machine, and takes one taint away.",
    resources: &[(&[""], &["nodes", "nodes/*"], &["CREATE", "UPDATE", "DELETE"])],
    conditions: &[named(
        "node-manager",
        r#"
                request.userInfo.username.startsWith("system:serviceaccount:") &&
                request.userInfo.username.endsWith(":windows-node-pools-node-manager")
            "#,
    )],
    variables: &[
        named("main", r#"request.operation == "UPDATE" && request.?subResource.orValue("") == """#),
        named("status", r#"request.operation == "UPDATE" && request.?subResource.orValue("") == "status""#),
        named("nodes", r#"request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([])"#)
            .why("Of the Node that the token is bound to."),
        named("taint", r#""node.cloudprovider.kubernetes.io/uninitialized""#),
        named("taintsBefore", "oldObject.spec.?taints.orValue([])"),
        named("taintsAfter", "object.spec.?taints.orValue([])"),
        named("labelsBefore", "oldObject.metadata.?labels.orValue({})"),
        named("labelsAfter", "object.metadata.?labels.orValue({})"),
        named(
            "labels",
            r#"
                ["topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type",
                 "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region", "beta.kubernetes.io/instance-type",
                 "node.kubernetes.io/exclude-from-external-load-balancers", "kubernetes.azure.com/managed",
                 "topology.kubernetes.azure.com/sub-fault-domain", "topology.kubernetes.azure.com/interconnect-group"]
            "#,
        ),
    ],
    validations: &[
        ("variables.main || variables.status", "a cloud-node-manager may change its own Node only"),
        (
            "!(variables.main || variables.status) || variables.nodes == [object.metadata.name]",
            "a cloud-node-manager may change the Node of its own host and no other",
        ),
        (
            r#"
                !variables.main ||
                (object.spec.?unschedulable == oldObject.spec.?unschedulable && object.spec.?podCIDR == oldObject.spec.?podCIDR &&
                 object.spec.?podCIDRs == oldObject.spec.?podCIDRs && object.spec.?configSource == oldObject.spec.?configSource &&
                 (object.spec.?providerID == oldObject.spec.?providerID || oldObject.spec.?providerID.orValue("") == ""))
            "#,
            "a cloud-node-manager may set an empty providerID and change nothing more of the spec but a taint",
        ),
        (
            r"
                !variables.main ||
                (variables.taintsAfter.all(taint, taint in variables.taintsBefore) &&
                 variables.taintsBefore.all(taint, taint.key == variables.taint || taint in variables.taintsAfter))
            ",
            "a cloud-node-manager may take the taint node.cloudprovider.kubernetes.io/uninitialized away and change no other",
        ),
        (
            r"
                !(variables.main || variables.status) ||
                (variables.labelsAfter.all(key, key in variables.labels ||
                   (key in variables.labelsBefore && variables.labelsBefore[key] == variables.labelsAfter[key])) &&
                 variables.labelsBefore.all(key, key in variables.labels || key in variables.labelsAfter))
            ",
            "a cloud-node-manager may change labels of zone, region and type alone",
        ),
        (
            r"
                !(variables.main || variables.status) ||
                (object.metadata.?annotations == oldObject.metadata.?annotations &&
                 object.metadata.?finalizers == oldObject.metadata.?finalizers &&
                 object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)
            ",
            "a cloud-node-manager may not change annotations, finalizers or owners",
        ),
        (
            r"
                !variables.status ||
                (object.status.?conditions == oldObject.status.?conditions && object.status.?capacity == oldObject.status.?capacity &&
                 object.status.?allocatable == oldObject.status.?allocatable && object.status.?nodeInfo == oldObject.status.?nodeInfo &&
                 object.status.?daemonEndpoints == oldObject.status.?daemonEndpoints)
            ",
            "of the status a cloud-node-manager may change the addresses alone",
        ),
    ],
};
