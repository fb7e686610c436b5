//! What the operator may write.

use super::policy::{Policy, named};

/// `windows-node-pools-operator-rbac`.
pub(super) const OPERATOR_RBAC: Policy = Policy {
    file: "base/admission-operator.yaml",
    name: "windows-node-pools-operator-rbac",
    about: "The operator must give its hosts' daemons their rights, and RBAC cannot restrict the recipient. This policy does: it lets the \
            operator write one binding, of the role that ships for the hosts' daemons to their group, and one Role, for reading services \
            ConfigMaps.\n\nIt does not make a taken-over operator harmless: see \"If the operator is taken over\" in \
            docs/concept/architecture.md.",
    resources: &[(
        &["rbac.authorization.k8s.io"],
        &["clusterroles", "clusterrolebindings", "roles", "rolebindings"],
        &["CREATE", "UPDATE", "DELETE"],
    )],
    conditions: &[named("the-operator", r#"request.userInfo.username == "$OPERATOR""#)],
    variables: &[named("name", r#"(request.operation == "DELETE" ? oldObject : object).metadata.?name.orValue("")"#)],
    validations: &[
        (
            r#"
                (request.resource.resource == "clusterrolebindings" && variables.name == "windows-node-pools-wicd") ||
                (request.resource.resource == "roles" && variables.name == "windows-node-pools-wicd-services")
            "#,
            "the operator may write the ClusterRoleBinding windows-node-pools-wicd and the Role windows-node-pools-wicd-services and no \
              others",
        ),
        (
            r#"
                request.operation == "DELETE" || request.resource.resource != "clusterrolebindings" ||
                (object.roleRef.kind == "ClusterRole" && object.roleRef.name == "windows-node-pools-wicd" &&
                 object.?subjects.orValue([]).all(subject, subject.kind == "Group" && subject.name == "system:wicd-nodes"))
            "#,
            "the binding gives the role of the hosts' daemons to their group only",
        ),
        (
            r#"
                request.operation == "DELETE" || request.resource.resource != "roles" ||
                object.?rules.orValue([]).all(rule, rule.?resources.orValue([]) == ["configmaps"] &&
                  rule.verbs.all(verb, verb in ["get", "list", "watch"]) && rule.?resourceNames.orValue([]).size() > 0 &&
                  rule.resourceNames.all(name, name.startsWith("windows-services-")))
            "#,
            "wicd may read the services ConfigMaps and no others",
        ),
    ],
};

/// `windows-node-pools-operator-nodes`.
pub(super) const OPERATOR_NODES: Policy = Policy {
    file: "base/admission-operator-nodes.yaml",
    name: "windows-node-pools-operator-nodes",
    about: "Limits of the operator's writes that RBAC cannot express: it changes and deletes Nodes that run Windows, and Machines that \
            do.",
    resources: &[
        (&[""], &["nodes", "nodes/*"], &["CREATE", "UPDATE", "DELETE"]),
        (&["machine.openshift.io", "cluster.x-k8s.io"], &["machines", "machines/*"], &["CREATE", "UPDATE", "DELETE"]),
    ],
    conditions: &[named("the-operator", r#"request.userInfo.username == "$OPERATOR""#)],
    variables: &[],
    validations: &[
        (
            r#"
                request.resource.resource != "nodes" || (request.operation != "CREATE" &&
                  oldObject.metadata.?labels[?"kubernetes.io/os"].orValue("") == "windows")
            "#,
            "the operator may change and delete Nodes that run Windows and no others",
        ),
        (
            r#"
                request.resource.resource != "machines" || (request.operation == "DELETE" &&
                  (oldObject.metadata.?labels[?"machine.openshift.io/os-id"].orValue("") == "Windows" ||
                   (request.resource.group == "cluster.x-k8s.io" &&
                    oldObject.metadata.?labels[?"node.cluster.x-k8s.io/os"].orValue("").lowerAscii() == "windows")))
            "#,
            "the operator may only delete Machines, and only those that run Windows",
        ),
    ],
};

/// `windows-node-pools-operator-approvals`.
pub(super) const OPERATOR_APPROVALS: Policy = Policy {
    file: "base/admission-operator-approvals.yaml",
    name: "windows-node-pools-operator-approvals",
    about: "Limits of the operator's approvals that RBAC cannot express: requesters, purposes and lifetimes. Denials are not \
            limited.\n\nA policy cannot look into the certificate request itself, which is opaque bytes to it: what subject is asked for \
            is the operator's verdict alone, and a taken-over operator can ask for any subject (system:masters apart, which the API \
            server refuses) in its own name and approve that.",
    resources: &[
        (&["certificates.k8s.io"], &["certificatesigningrequests/approval"], &["UPDATE"]),
    ],
    conditions: &[
        named("the-operator", r#"request.userInfo.username == "$OPERATOR""#),
        named("approves",
            r#"
                object.?status.?conditions.orValue([]).exists(c, c.type == "Approved") &&
                !oldObject.?status.?conditions.orValue([]).exists(c, c.type == "Approved")
            "#,
        ),
    ],
    variables: &[
        named("signer", "object.spec.signerName"),
        named("user", r#"object.spec.?username.orValue("")"#),
        named("groups", "object.spec.?groups.orValue([])"),
        named("byOperator", "variables.user == request.userInfo.username"),
        named("byNode",
            r#"variables.user.startsWith("system:node:") && "system:nodes" in variables.groups"#,
        ),
        named("byWicd",
            r#"variables.user.startsWith("system:wicd-node:") && "system:wicd-nodes" in variables.groups"#,
        ),
        named("byLegacyDaemon",
            r#"variables.user == "system:serviceaccount:$NAMESPACE:windows-instance-config-daemon""#,
        ).why("The legacy operator's daemon, once its certificate has expired, on an adopted node that has not been changed yet."),
        named("purpose",
            r#"variables.signer == "kubernetes.io/kubelet-serving" ? "server auth" : "client auth""#,
        ),
    ],
    validations: &[
        (
            r#"
                variables.signer == "kubernetes.io/kube-apiserver-client" ?
                  (variables.byOperator || variables.byWicd || variables.byLegacyDaemon) :
                variables.signer == "kubernetes.io/kube-apiserver-client-kubelet" ?
                  (variables.byOperator || variables.byNode) :
                variables.signer == "kubernetes.io/kubelet-serving" ? variables.byNode : false
            "#,
            "the operator may approve its own requests and those of nodes and their daemons, each for its signer, and no others",
        ),
        (
            r#"
                object.spec.?usages.orValue([]).all(usage, usage in ["digital signature", "key encipherment", variables.purpose])
            "#,
            "the operator may approve no other usages than those of kubelet and wicd",
        ),
        (
            r#"
                variables.signer != "kubernetes.io/kube-apiserver-client" || object.spec.?expirationSeconds.orValue(31536000) <= $WICD_SECONDS
            "#,
            "the operator may approve identities of wicd for a week at most",
        ),
        (
            "!variables.byLegacyDaemon || object.spec.?expirationSeconds.orValue(31536000) <= 3600",
            "the operator may approve identities of the legacy operator's daemon for an hour at most",
        ),
    ],
};
