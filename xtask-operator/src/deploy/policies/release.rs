//! Policies of an operator that creates its policies itself. They keep the ConfigMap that names the release whose policies are in force.

use api::names::key;
use serde_json::json;

use super::{
    super::object::{NAME, Object, Site},
    policy::{Policy, named},
};

/// The file into which they are generated, and which is compiled into the operator.
pub(crate) const FILE: &str = "olm/lasting-policies.yaml";

/// `windows-node-pools-release`.
const RELEASE: Policy = Policy {
    file: FILE,
    name: "windows-node-pools-release",
    about: "Compiled into the operator, which creates these policies where OLM installs it. They hold in all releases; all others hold while \
            the ConfigMap windows-node-pools-release names theirs.\n\nOnly the operator writes the ConfigMap, and it can write only the release \
            that its Deployment names, which it has no right to change. Who may change the Deployment is the operator anyway.",
    resources: &[(&[""], &["configmaps"], &["CREATE", "UPDATE"])],
    conditions: &[],
    variables: &[named("release", r#"object.?data[?"policies"].orValue("")"#)],
    validations: &[
        (
            r#"
                request.userInfo.username == "$OPERATOR" ||
                authorizer.group("admissionregistration.k8s.io").resource("validatingadmissionpolicies").check("update").allowed()
            "#,
            "the operator alone says which release's admission policies are in force",
        ),
        (
            r#"
                (request.operation == "UPDATE" && oldObject.?data[?"policies"].orValue("") == variables.release) ||
                params.spec.template.?metadata.?annotations[?"$ANNOTATION"].orValue("") == variables.release
            "#,
            "the release that the Deployment windows-node-pools names can be put in force, and no other",
        ),
        (
            "!has(object.metadata.ownerReferences) && !has(object.metadata.finalizers) && !object.?immutable.orValue(false)",
            "the ConfigMap has no owner, with which it would be deleted, no finalizer, and can be changed by the next release",
        ),
    ],
};

/// `windows-node-pools-release-kept`.
const KEPT: Policy = Policy {
    file: FILE,
    name: "windows-node-pools-release-kept",
    about: "Without the ConfigMap no policy of a release holds. It goes with its namespace. The name is compared in a condition: a request that \
            deletes a collection has none.",
    resources: &[(&[""], &["configmaps"], &["DELETE"])],
    conditions: &[named("the-release", r#"oldObject.metadata.name == "windows-node-pools-release""#)],
    variables: &[],
    validations: &[(
        r#"
                request.userInfo.username == "system:serviceaccount:kube-system:namespace-controller" ||
                (!request.userInfo.username.startsWith("system:serviceaccount:kube-system:") &&
                 authorizer.group("admissionregistration.k8s.io").resource("validatingadmissionpolicies").check("update").allowed())
            "#,
        "the ConfigMap says which release's admission policies are in force, and stays",
    )],
};

/// Both, for this one ConfigMap: a policy that lacks its parameter refuses all that it is asked for.
pub(crate) fn objects(site: &Site) -> Vec<Object> {
    let mut objects: Vec<_> = [RELEASE, KEPT].iter().flat_map(|policy| policy.objects(site)).collect();
    for object in &mut objects {
        let spec = &mut object.value["spec"];
        if let Some(rule) = spec.pointer_mut("/matchConstraints/resourceRules/0") {
            if rule["operations"] != json!(["DELETE"]) {
                rule["resourceNames"] = json!([controller::release_policies::MARKER]);
            }
            spec["matchConstraints"]["namespaceSelector"] =
                json!({"matchLabels": {"kubernetes.io/metadata.name": site.namespace}});
        }
    }
    // Parameters: the Deployment.
    objects[0].value["spec"]["paramKind"] = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
    objects[1].value["spec"]["paramRef"] =
        json!({"name": NAME, "namespace": site.namespace, "parameterNotFoundAction": "Deny"});
    for validation in objects[0].value["spec"]["validations"].as_array_mut().into_iter().flatten() {
        if let Some(expression) = validation["expression"].as_str() {
            validation["expression"] = expression.replace("$ANNOTATION", key::POLICIES).into();
        }
    }
    objects
}
