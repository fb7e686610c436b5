//! The payload as an image of its own, beside an image of the operator without one: mounted as a volume, or copied by init containers.

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use serde_json::{Value, json};

use super::{
    object::{NAME, Patch, VERSION},
    workload,
};

/// Name of the image of the payload.
pub(super) const IMAGE: &str = "windows-node-pools-payload";

/// Where the payload is in the operator's container. The image has it in a folder, as the operator's own image has it: the two share that layer.
const MOUNT: &str = "/var/lib/windows-node-pools";
/// Where the program is that the image of the payload runs.
const PROGRAM: &str = "/program";

/// How files come from their image to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The image is mounted.
    Volume,
    /// The image runs a program, which the operator's image has brought, and which copies the files.
    InitContainers,
}

impl Form {
    pub(super) const ALL: [Self; 2] = [Self::Volume, Self::InitContainers];

    /// Folder of the component of kustomize.
    pub(super) fn component(self) -> &'static str {
        match self {
            Self::Volume => "components/payload-volume",
            Self::InitContainers => "components/payload-init",
        }
    }

    /// The value `payload.by` of the chart.
    pub(super) fn value(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::InitContainers => "initContainers",
        }
    }

    /// Volumes of the pod.
    pub(super) fn volumes(self, image: &str) -> Vec<Value> {
        match self {
            Self::Volume => vec![json!({"name": "payload", "image": {"reference": image}})],
            Self::InitContainers => vec![
                json!({"name": "program", "emptyDir": {"sizeLimit": "256Mi"}}),
                json!({"name": "payload", "emptyDir": {"sizeLimit": "2Gi"}}),
            ],
        }
    }

    /// The containers that run before the operator's.
    pub(super) fn init_containers(self, operator: &str, image: &str) -> Vec<Container> {
        match self {
            Self::Volume => Vec::new(),
            Self::InitContainers => init_containers(operator, image),
        }
    }

    /// The same as changes of the Deployment.
    pub(super) fn patches(self, operator: &str, image: &str) -> Vec<Patch> {
        let of_pod = "/spec/template/spec";
        let mut patches = Vec::new();
        let mut patch = |path: String, value| patches.push(Patch { kind: "Deployment", name: None, path, value });
        let init_containers = self.init_containers(operator, image);
        if !init_containers.is_empty() {
            patch(format!("{of_pod}/initContainers"), json!(init_containers));
        }
        for volume in self.volumes(image) {
            patch(format!("{of_pod}/volumes/-"), volume);
        }
        patch(format!("{of_pod}/containers/0/volumeMounts/-"), volume_mount());
        patch(format!("{of_pod}/containers/0/env/-"), variable());
        patches
    }
}

/// Where the operator's container has the payload.
pub(super) fn volume_mount() -> Value {
    json!({"name": "payload", "mountPath": MOUNT, "readOnly": true})
}

/// How the operator finds it.
pub(super) fn variable() -> Value {
    json!({"name": "PAYLOAD_DIR", "value": format!("{MOUNT}/payload")})
}

/// The image of the payload has no program, so that nothing in it depends on the operator's version.
fn init_containers(operator: &str, image: &str) -> Vec<Container> {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(true).filter(|_| read_only),
        ..VolumeMount::default()
    };
    let container = |name: &str, image: &str, args: &[&str], mounts| Container {
        name: name.into(),
        image: Some(image.into()),
        args: Some(args.iter().map(ToString::to_string).collect()),
        resources: Some(workload::resources(&[("cpu", "50m"), ("memory", "64Mi")], &[("memory", "256Mi")])),
        security_context: Some(workload::security_context()),
        volume_mounts: Some(mounts),
        ..Container::default()
    };
    let program = container(
        "program",
        operator,
        &["payload", "program", "--to", PROGRAM],
        vec![mount("program", PROGRAM, false)],
    );
    let to = format!("{MOUNT}/payload");
    let files = container(
        "payload",
        image,
        &["payload", "files", "--to", &to],
        vec![mount("program", PROGRAM, true), mount("payload", MOUNT, false)],
    );
    vec![program, Container { command: Some(vec![format!("{PROGRAM}/{NAME}")]), ..files }]
}

/// The image of this version.
pub(super) fn default_image() -> String {
    format!("{IMAGE}:{VERSION}")
}
