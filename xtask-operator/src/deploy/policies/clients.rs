//! What other clients than the operator may write.

use api::names::GROUP;

use super::policy::{Policy, named};

/// `windows-node-pools-instances`.
pub(super) const INSTANCES: Policy = Policy {
    file: "base/admission-instances.yaml",
    name: "windows-node-pools-instances",
    about: "A WindowsInstance determines what the operator does with a host, with rights that the pool's owner granted, and what it knows \
            of the host: only the operator writes its spec and status. Annotations are for people (to try again, to give a host up), and \
            so is deleting one. The status of a WindowsNodePool has the keys of hosts at first contact, the revision of the list and the \
            progress of the rollout: only the operator writes it.",
    resources: &[(
        &[GROUP],
        &["windowsinstances", "windowsinstances/status", "windowsnodepools/status"],
        &["CREATE", "UPDATE"],
    )],
    conditions: &[named("not-the-operator", r#"request.userInfo.username != "$OPERATOR""#)],
    variables: &[],
    validations: &[(
        r#"
                request.operation == "UPDATE" && object.?spec == oldObject.?spec && object.?status == oldObject.?status
            "#,
        "a WindowsInstance and the status of a WindowsNodePool are written by the operator alone, edit the spec of the \
              WindowsNodePool instead",
    )],
};

/// `windows-node-pools-services`.
pub(super) const SERVICES: Policy = Policy {
    file: "base/admission-services.yaml",
    name: "windows-node-pools-services",
    about: "A services ConfigMap determines what hosts run as SYSTEM. \"immutable\" does not prevent a client from deleting one and \
            creating another of the same name, and the right to write ConfigMaps is given away lightly: only the operator writes those of \
            this prefix. Their names carry a digest of what is in them, which operator and hosts check at each read, so that this policy \
            is the second lock and not the only one.\n\nNot held: the Windows Machine Config Operator at its own ConfigMaps, which have \
            no digest in their names; the controllers that delete what is left of a namespace or an owner; and clients that may change \
            this policy.",
    resources: &[(&[""], &["configmaps"], &["CREATE", "UPDATE", "DELETE"])],
    conditions: &[
        named("of-the-operators-namespace", r#"request.namespace == "$NAMESPACE""#),
        named(
            "services",
            r#"
                (request.operation == "DELETE" ? oldObject : object).metadata.?name.orValue("").startsWith("windows-services-") ||
                (request.operation == "CREATE" && object.metadata.?generateName.orValue("").startsWith("windows-services"))
            "#,
        ),
        named("not-the-operator", r#"request.userInfo.username != "$OPERATOR""#),
    ],
    variables: &[],
    validations: &[(
        r#"
                (request.operation == "DELETE" && request.userInfo.username in [
                  "system:serviceaccount:kube-system:namespace-controller",
                  "system:serviceaccount:kube-system:generic-garbage-collector"]) ||
                (request.userInfo.username ==
                  "system:serviceaccount:$NAMESPACE:windows-machine-config-operator" &&
                 !(request.operation == "DELETE" ? oldObject : object).metadata.name.matches("-[0-9a-f]{32}$")) ||
                authorizer.group("admissionregistration.k8s.io").resource("validatingadmissionpolicies")
                  .name("windows-node-pools-services").check("update").allowed()
            "#,
        "services ConfigMaps determine what hosts run, and only the operator may write them",
    )],
};
