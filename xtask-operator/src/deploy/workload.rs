//! The operator's namespace, Deployment and Services.

use std::collections::BTreeMap;

use api::names::METRICS_TLS_SECRET;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
            Namespace, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements,
            SeccompProfile, SecretVolumeSource, SecurityContext, Service, ServicePort, ServiceSpec, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::object::{NAME, Object, Site, VERSION};

/// The operator's image, where a release names none by its digest.
pub(super) fn default_image() -> String {
    format!("{NAME}:{VERSION}")
}

/// Where kubelet probes.
pub(super) const PROBES: i32 = 9182;
/// Where metrics are.
pub(super) const METRICS: i32 = 9185;
/// Where Git servers report pushes.
pub(super) const WEBHOOK: i32 = 9184;

/// What selects the operator's pods. It must not change: the selector of a Deployment cannot.
pub(super) fn selector() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name".into(), NAME.into())].into()
}

/// All of them.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    vec![namespace(site), deployment(site), metrics_service(site), webhook_service(site)]
}

/// Without labels: the namespace may be that of another operator.
fn namespace(site: &Site) -> Object {
    let metadata = ObjectMeta { name: Some(site.namespace.clone()), ..ObjectMeta::default() };
    let about = "The namespace of the Windows Machine Config Operator, so that its Secrets and ConfigMaps are found where they are.";
    Object::new("base/namespace.yaml", about, &Namespace { metadata, ..Namespace::default() })
}

fn deployment(site: &Site) -> Object {
    let annotations = [("kubectl.kubernetes.io/default-container".into(), "operator".into())];
    let cache = Volume {
        name: "cache".into(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity("2Gi".into())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    let metrics_tls = Volume {
        name: "metrics-tls".into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(METRICS_TLS_SECRET.into()),
            optional: Some(true),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    let pod = PodSpec {
        service_account_name: Some(site.service_account.clone()),
        termination_grace_period_seconds: Some(60),
        node_selector: Some([("kubernetes.io/os".into(), "linux".into())].into()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container()],
        volumes: Some(vec![cache, metrics_tls]),
        ..PodSpec::default()
    };
    let deployment = Deployment {
        metadata: site.namespaced(NAME, "operator"),
        spec: DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector { match_labels: Some(selector()), ..LabelSelector::default() },
            strategy: Some(DeploymentStrategy { type_: Some("RollingUpdate".into()), rolling_update: None }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(selector()),
                    annotations: Some(annotations.into()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    };
    let about = "One replica is enough: hosts and nodes continue without the operator, and a new pod starts in seconds. During a rolling \
                 update two pods run for a moment; the Lease allows one of them to work, and hosts refuse the older one by its epoch.";
    Object::new("base/deployment.yaml", about, &deployment)
        .why(
            "/spec/template/spec/containers/0/ports/2",
            "Open only while the Secret windows-node-pools-webhook has a token.",
        )
        .why("/spec/template/spec/volumes/0", "Git repositories that pools name; fetched again when they are lost.")
        .why(
            "/spec/template/spec/volumes/1",
            "A certificate that another program makes: service-ca of OpenShift, or cert-manager. Without it the operator makes its own.",
        )
}

fn container() -> Container {
    let port = |name: &str, number| ContainerPort {
        name: Some(name.into()),
        container_port: number,
        ..ContainerPort::default()
    };
    Container {
        name: "operator".into(),
        image: Some(default_image()),
        args: Some(vec!["run".into()]),
        env: Some(vec![of_pod("WATCH_NAMESPACE", "metadata.namespace"), of_pod("POD_NAME", "metadata.name")]),
        ports: Some(vec![port("probes", PROBES), port("metrics", METRICS), port("webhook", WEBHOOK)]),
        liveness_probe: Some(probe("/healthz")),
        readiness_probe: Some(probe("/readyz")),
        resources: Some(resources(&[("cpu", "50m"), ("memory", "128Mi")], &[("memory", "1Gi")])),
        security_context: Some(security_context()),
        volume_mounts: Some(vec![
            VolumeMount {
                name: "cache".into(),
                mount_path: "/var/cache/windows-node-pools".into(),
                ..VolumeMount::default()
            },
            VolumeMount {
                name: "metrics-tls".into(),
                mount_path: "/etc/windows-node-pools/metrics-tls".into(),
                read_only: Some(true),
                ..VolumeMount::default()
            },
        ]),
        ..Container::default()
    }
}

/// What a container asks for, and what it may use.
pub(super) fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
    let amounts = |amounts: &[(&str, &str)]| {
        Some(amounts.iter().map(|(name, amount)| ((*name).into(), Quantity((*amount).into()))).collect())
    };
    ResourceRequirements { requests: amounts(requests), limits: amounts(limits), ..ResourceRequirements::default() }
}

/// A container may change nothing but its volumes.
pub(super) fn security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}

/// A variable with a field of the pod.
fn of_pod(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.into(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.into(), value: None, value_from: Some(source) }
}

fn probe(path: &str) -> Probe {
    let port = IntOrString::String("probes".into());
    let get = HTTPGetAction { path: Some(path.into()), port, ..HTTPGetAction::default() };
    Probe { http_get: Some(get), ..Probe::default() }
}

fn service(site: &Site, port: &str, number: i32) -> Service {
    let port_of = ServicePort {
        name: Some(port.into()),
        port: number,
        target_port: Some(IntOrString::String(port.into())),
        ..ServicePort::default()
    };
    Service {
        metadata: site.namespaced(&format!("{NAME}-{port}"), "operator"),
        spec: Some(ServiceSpec { selector: Some(selector()), ports: Some(vec![port_of]), ..ServiceSpec::default() }),
        ..Service::default()
    }
}

fn metrics_service(site: &Site) -> Object {
    let mut service = service(site, "metrics", METRICS);
    let key = "service.beta.openshift.io/serving-cert-secret-name";
    service.metadata.annotations = Some([(key.into(), METRICS_TLS_SECRET.into())].into());
    Object::new("base/service.yaml", "", &service).why(
        "/metadata/annotations",
        "service-ca of OpenShift makes a certificate for it; elsewhere this has no effect.",
    )
}

fn webhook_service(site: &Site) -> Object {
    let about = "Where a Route or an Ingress leads Git servers that report pushes. It has a port of its own, so that metrics and probes \
                 stay inside.";
    Object::new("base/service.yaml", about, &service(site, "webhook", WEBHOOK))
}
