//! The pod of `helm test`: the operator's, but with a command that checks and ends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::super::object::{NAME, Object, Site};

const ABOUT: &str = "`helm test` runs it with the image, the settings and the rights of the operator. Its name label is another one, so that no Service leads to it.";

/// Makes it from the pod of the Deployment.
pub(crate) fn pod(site: &Site, of_operator: &Value) -> Object {
    let name = format!("{NAME}-test");
    let ObjectMeta { mut labels, namespace, .. } = site.namespaced(&name, "test");
    labels.get_or_insert_default().insert("app.kubernetes.io/name".into(), name.clone());
    let mut spec = of_operator.clone();
    spec["restartPolicy"] = json!("Never");
    let container = &mut spec["containers"][0];
    container["name"] = json!("check");
    container["args"] = json!(["check"]);
    for field in ["livenessProbe", "ports", "readinessProbe"] {
        container.as_object_mut().map(|container| container.remove(field));
    }
    let hook = json!({"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": hook},
    });
    Object::new("test.yaml", ABOUT, &pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::{objects, workload::selector};

    #[test]
    fn no_service_and_no_deployment_selects_it() {
        let objects = objects(&Site::default());
        let deployment = objects.iter().find(|object| object.kind() == "Deployment").unwrap();
        let pod = pod(&Site::default(), &deployment.value["spec"]["template"]["spec"]).value;
        assert!(selector().iter().any(|(key, value)| pod["metadata"]["labels"][key] != json!(value)));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], deployment.value["spec"]["template"]["spec"]["containers"][0]["image"]);
        assert_eq!(pod["spec"]["serviceAccountName"], "windows-node-pools");
    }
}
