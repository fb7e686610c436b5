//! `cargo xtask rights`: compares the operator's roles in `deploy/` with its requests to API servers during tests.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use testbed::deployment::{OPERATOR, PROBES};

use crate::deploy;

/// Files of the operator's roles, without the roles of the daemons on hosts.
const ROLES: [&str; 4] = [
    "base/operator.yaml",
    "machine-api/user-data.yaml",
    "cluster-api/user-data.yaml",
    "openshift-config/pull-secret.yaml",
];

/// Rights that no request of a test uses, with the reason for each.
const UNSEEN: &[(&str, &str)] = &[
    (
        "update windowsmachineconfig.openshift.io windowsnodepools/finalizers",
        "needed where OwnerReferencesPermissionEnforcement is on (OpenShift)",
    ),
    (
        "update windowsmachineconfig.openshift.io windowsinstances/finalizers",
        "needed where OwnerReferencesPermissionEnforcement is on (OpenShift)",
    ),
    (
        "get cluster.x-k8s.io machines",
        "used in the same code as the right to Machines of machine.openshift.io, which tests delete and replace",
    ),
    (
        "delete cluster.x-k8s.io machines",
        "used in the same code as the right to Machines of machine.openshift.io, which tests delete and replace",
    ),
    (
        "bind rbac.authorization.k8s.io clusterroles",
        "needed to write the ClusterRoleBinding, but not the verb of a request",
    ),
    ("approve certificates.k8s.io signers", "needed to approve a certificate request, but not the verb of a request"),
];

/// Compares the operator's roles with the audit logs of API servers. A forbidden request that no role allows is an error, and so is a right that no
/// request has used and for which rights.rs states no reason.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the audit logs, which tests write if TESTBED_AUDIT_DIR names it.
    #[arg(long)]
    pub logs: PathBuf,
    /// Report unused rights without failing, because only some tests ran. A forbidden request is still an error.
    #[arg(long)]
    pub partial: bool,
}

/// Runs the comparison.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rights = rights()?;
    let mut seen = Seen::default();
    for entry in fs::read_dir(&args.logs).with_context(|| format!("cannot list {}", args.logs.display()))? {
        let path = entry?.path();
        let file = fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        for line in BufReader::new(file).lines() {
            // The last line of an API server that was killed may be incomplete.
            let Ok(event) = serde_json::from_str::<Event>(&line?) else { continue };
            seen.note(event);
        }
    }
    ensure!(!seen.requests.is_empty(), "{} has no request of the operator", args.logs.display());
    let unused: Vec<&Right> = rights.iter().filter(|right| !seen.uses(right) && !is_listed(right)).collect();
    println!("{} requests of different kinds, {} rights, {} not used", seen.requests.len(), rights.len(), unused.len());
    for right in &unused {
        println!("not used: {right}");
    }
    let refused = seen.refused(&rights);
    for Request { verb, group, resource, namespace, name } in &refused {
        println!("forbidden: {verb} {group:?} {resource} {namespace}/{name}");
    }
    ensure!(refused.is_empty(), "the operator sent requests that its roles in deploy/ do not allow");
    if !unused.is_empty() && !args.partial {
        bail!(
            "roles in deploy/ grant rights that no test uses: remove them, test them, or state the reason in tools/xtask-operator/src/rights.rs"
        );
    }
    Ok(())
}

fn is_listed(right: &Right) -> bool {
    let short = format!("{} {} {}", right.verb, right.group, right.resource);
    UNSEEN.iter().any(|(listed, _)| *listed == short)
}

/// Permission for one verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// Namespace. `None` means all namespaces, or a cluster-scoped resource.
    namespace: Option<String>,
    group: String,
    /// Resource, with its subresource, if any.
    resource: String,
    verb: String,
    /// Names of objects. Empty means all.
    names: Vec<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.verb, self.group, self.resource)?;
        if !self.names.is_empty() {
            write!(f, " named {}", self.names.join(" or "))?;
        }
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

/// Returns the rights of the operator's roles.
fn rights() -> Result<Vec<Right>> {
    let mut rights = Vec::new();
    for object in deploy::objects()? {
        if ROLES.contains(&object.file.as_str()) && ["Role", "ClusterRole"].contains(&object.kind()) {
            let namespace = object.value["metadata"]["namespace"].as_str().map(str::to_owned);
            let rules: Vec<PolicyRule> = serde_json::from_value(object.value["rules"].clone())?;
            rights.extend(rules.iter().flat_map(|rule| rights_of(rule, namespace.as_ref())));
        }
    }
    ensure!(!rights.is_empty(), "the operator has no rights");
    Ok(rights)
}

fn rights_of(rule: &PolicyRule, namespace: Option<&String>) -> Vec<Right> {
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                rights.push(Right {
                    namespace: namespace.cloned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    names: rule.resource_names.clone().unwrap_or_default(),
                });
            }
        }
    }
    rights
}

/// Line of an audit log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Response,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct User {
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    api_group: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Response {
    code: u16,
}

/// Request of the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
}

#[derive(Default)]
struct Seen {
    requests: BTreeSet<Request>,
    forbidden: BTreeSet<Request>,
}

impl Seen {
    fn note(&mut self, event: Event) {
        let User { username, groups } = event.user;
        // Probes that only try out the operator's rights do not show what the operator does.
        if username != OPERATOR || groups.iter().any(|g| g == PROBES) || event.object_ref.resource.is_empty() {
            return;
        }
        let Object { resource, subresource, namespace, name, api_group: group } = event.object_ref;
        let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
        let verb = event.verb;
        let request = Request { namespace, group, resource, verb, name };
        if event.annotations.get("authorization.k8s.io/decision").is_some_and(|d| d == "forbid") {
            self.forbidden.insert(request);
            return;
        }
        // An apply that creates the object needs both rights.
        if request.verb == "patch" && event.response_status.code == 201 {
            self.requests.insert(Request { verb: "create".into(), ..request.clone() });
        }
        self.requests.insert(request);
    }

    fn uses(&self, right: &Right) -> bool {
        self.requests.iter().any(|request| right.covers(request))
    }

    /// Returns the forbidden requests that no right covers. An API server that is starting has not read its roles yet, and forbids everything.
    fn refused(&self, rights: &[Right]) -> Vec<&Request> {
        self.forbidden.iter().filter(|request| !rights.iter().any(|right| right.covers(request))).collect()
    }
}

impl Right {
    fn covers(&self, request: &Request) -> bool {
        (&request.group, &request.resource, &request.verb) == (&self.group, &self.resource, &self.verb)
            && self.namespace.as_ref().is_none_or(|n| *n == request.namespace)
            && (self.names.is_empty() || self.names.contains(&request.name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(verb: &str, object: Value, code: u16, decision: &str, group: &str) -> Event {
        serde_json::from_value(json!({
            "verb": verb, "user": {"username": OPERATOR, "groups": ["system:serviceaccounts", group]},
            "objectRef": object, "responseStatus": {"code": code},
            "annotations": {"authorization.k8s.io/decision": decision},
        }))
        .unwrap()
    }

    fn right(verb: &str, resource: &str, namespace: Option<&str>, names: &[&str]) -> Right {
        Right {
            namespace: namespace.map(str::to_owned),
            group: String::new(),
            resource: resource.into(),
            verb: verb.into(),
            names: names.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_right_is_used_by_a_request_that_it_allows() {
        let mut seen = Seen::default();
        seen.note(event("patch", json!({"resource": "secrets", "namespace": "a", "name": "x"}), 201, "allow", "g"));
        seen.note(event("get", json!({"resource": "pods", "subresource": "log", "namespace": "a"}), 200, "allow", "g"));
        for (right, used) in [
            (right("patch", "secrets", Some("a"), &["x"]), true),
            (right("create", "secrets", Some("a"), &["x"]), true),
            (right("patch", "secrets", None, &[]), true),
            (right("patch", "secrets", Some("b"), &["x"]), false),
            (right("patch", "secrets", Some("a"), &["y"]), false),
            (right("get", "pods", None, &[]), false),
            (right("get", "pods/log", None, &[]), true),
        ] {
            assert_eq!(seen.uses(&right), used, "{right}");
        }
        assert!(seen.forbidden.is_empty());
    }

    #[test]
    fn forbidden_requests_are_reported_except_those_of_probes() {
        let mut seen = Seen::default();
        seen.note(event("list", json!({"resource": "secrets"}), 403, "forbid", PROBES));
        assert!(seen.forbidden.is_empty());
        // Admission also refuses with 403.
        seen.note(event("patch", json!({"resource": "nodes"}), 403, "allow", "g"));
        assert!(seen.forbidden.is_empty());
        seen.note(event("list", json!({"resource": "secrets"}), 403, "forbid", "g"));
        assert_eq!(seen.forbidden.len(), 1);
        assert_eq!(seen.requests.len(), 1);
        assert_eq!(seen.refused(&[right("list", "nodes", None, &[])]).len(), 1);
        assert!(
            seen.refused(&[right("list", "secrets", None, &[])]).is_empty(),
            "a request that a role allows is reported"
        );
    }

    #[test]
    fn rights_that_are_listed_as_unseen_are_granted() {
        let rights = rights().unwrap();
        for (listed, why) in UNSEEN {
            let granted = rights.iter().any(|r| format!("{} {} {}", r.verb, r.group, r.resource) == *listed);
            assert!(granted, "{listed} ({why}) is granted by no role");
        }
    }
}
