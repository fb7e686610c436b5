//! The payload as a volume: an image of its own, beside an image of the operator without one.

use serde_json::{Value, json};

use super::{object::Patch, object::VERSION};

/// Folder of the component of kustomize.
pub(super) const COMPONENT: &str = "components/payload-volume";
/// Name of the image of the payload.
pub(super) const IMAGE: &str = "windows-node-pools-payload";

/// Where the volume is. The image has the payload in a folder, as the operator's own image has it: the two share that layer.
const MOUNT: &str = "/var/lib/windows-node-pools";

/// Lists of the Deployment, from its pod, and what is added to them for an image.
pub(super) fn additions(image: &str) -> [(&'static str, Value); 3] {
    [
        ("/spec/template/spec/volumes", json!({"name": "payload", "image": {"reference": image}})),
        (
            "/spec/template/spec/containers/0/volumeMounts",
            json!({"name": "payload", "mountPath": MOUNT, "readOnly": true}),
        ),
        ("/spec/template/spec/containers/0/env", json!({"name": "PAYLOAD_DIR", "value": format!("{MOUNT}/payload")})),
    ]
}

/// The same as changes of the Deployment.
pub(super) fn patches(image: &str) -> Vec<Patch> {
    let patch = |(path, value)| Patch { kind: "Deployment", name: None, path: format!("{path}/-"), value };
    additions(image).into_iter().map(patch).collect()
}

/// The image of this version.
pub(super) fn default_image() -> String {
    format!("{IMAGE}:{VERSION}")
}
