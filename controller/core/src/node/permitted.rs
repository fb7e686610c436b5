//! Labels, annotations and taints that users may set on Nodes in the template of a pool, or in a list of hosts from any source. Pure.
//!
//! The CRD has the same rules, but lists from other sources bypass it, and so does a pool that an older CRD admitted.

use std::collections::BTreeMap;

use api::{Host, Taint, WindowsNodePoolSpec};

use crate::render::RenderError;

/// Groups whose labels and annotations are reserved, including all groups below them.
const RESERVED: [&str; 3] = ["kubernetes.io", "k8s.io", api::names::GROUP];
/// Reserved groups whose labels users may set on a Node nevertheless.
const FREE: [&str; 3] = ["node-role.kubernetes.io", "node.kubernetes.io", "topology.kubernetes.io"];
/// Roles by which pods and controllers recognise a control plane node.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Returns the fault of a label key, with the remedy.
pub fn key_problem(key: &str) -> Option<&'static str> {
    let (group, is_key) = parts(key);
    if !is_key {
        return Some(INVALID_KEY);
    }
    if CONTROL_PLANE.contains(&key) {
        return Some("this role is for control plane nodes: remove the label");
    }
    let is_free = group.is_some_and(|g| FREE.contains(&g));
    (!is_free && is_reserved(group)).then_some(
        "labels under kubernetes.io, k8s.io and windowsmachineconfig.openshift.io are reserved; of these, only node-role.kubernetes.io, \
         node.kubernetes.io and topology.kubernetes.io may be set",
    )
}

/// Returns the fault of an annotation key, with the remedy.
fn annotation_problem(key: &str) -> Option<&'static str> {
    let (group, is_key) = parts(key);
    if !is_key {
        return Some(INVALID_KEY);
    }
    is_reserved(group)
        .then_some("annotations under kubernetes.io, k8s.io and windowsmachineconfig.openshift.io are reserved: use a domain of your own")
}

/// Returns the fault of a taint, with the remedy.
pub fn taint_problem(taint: &Taint) -> Option<String> {
    let (group, is_key) = parts(&taint.key);
    let of_others = ["node.kubernetes.io", api::names::GROUP];
    if !is_key {
        return Some(format!("{:?} is not a valid key of a taint: {INVALID_KEY}", taint.key));
    }
    if group.is_some_and(|g| of_others.contains(&g)) {
        return Some(format!(
            "{:?} is not a valid key of a taint: taints under node.kubernetes.io and windowsmachineconfig.openshift.io are reserved: use a domain of your own",
            taint.key
        ));
    }
    let value = taint.value.as_deref().unwrap_or_default();
    value_problem(value).map(|todo| format!("{value:?} is not a valid value of the taint {}: {todo}", taint.key))
}

/// Returns the fault of a label value, with the remedy.
pub fn value_problem(value: &str) -> Option<&'static str> {
    (!value.is_empty() && !is_word(value))
        .then_some("it must be at most 63 letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit")
}

/// Returns the field of a host's entry with the first invalid label or taint, and the fault.
pub fn host_problem(host: &Host) -> Option<(&'static str, String)> {
    of(host.labels.as_ref(), None, host.taints.as_deref())
}

/// Checks the metadata that a pool's template sets on each Node.
///
/// # Errors
/// [`RenderError::Metadata`] for the first label, annotation or taint that users must not set.
pub fn check_template(spec: &WindowsNodePoolSpec) -> Result<(), RenderError> {
    let metadata = spec.template.as_ref().and_then(|t| t.metadata.as_ref());
    let (labels, annotations) =
        (metadata.and_then(|m| m.labels.as_ref()), metadata.and_then(|m| m.annotations.as_ref()));
    let Some((field, problem)) = of(labels, annotations, Some(&spec.taints())) else { return Ok(()) };
    let field = match field {
        "labels" => "template.metadata.labels",
        "annotations" => "template.metadata.annotations",
        _ => "template.spec.taints",
    };
    Err(RenderError::Metadata { field, problem })
}

type Pairs = BTreeMap<String, String>;

fn of(labels: Option<&Pairs>, annotations: Option<&Pairs>, taints: Option<&[Taint]>) -> Option<(&'static str, String)> {
    let label = |(key, value): (&String, &String)| {
        let of_key = key_problem(key).map(|todo| format!("{key:?} is not a valid key of a label: {todo}"));
        of_key.or_else(|| {
            value_problem(value).map(|todo| format!("{value:?} is not a valid value of the label {key}: {todo}"))
        })
    };
    let annotation = |key: &String| {
        annotation_problem(key).map(|todo| format!("{key:?} is not a valid key of an annotation: {todo}"))
    };
    let labels = labels.into_iter().flatten().find_map(label).map(|p| ("labels", p));
    let annotations = || annotations?.keys().find_map(annotation).map(|p| ("annotations", p));
    let taints = || taints?.iter().find_map(taint_problem).map(|p| ("taints", p));
    labels.or_else(annotations).or_else(taints)
}

const INVALID_KEY: &str = "it must be a name of at most 63 letters, digits, `-`, `_` and `.` that begins and ends with a letter or digit, optionally after a lower-case domain and `/`, for example example.com/line";

/// Returns the group of a key, and whether the key is valid.
fn parts(key: &str) -> (Option<&str>, bool) {
    let (group, name) = key.rsplit_once('/').map_or((None, key), |(group, name)| (Some(group), name));
    (group, is_word(name) && group.is_none_or(is_domain))
}

fn is_reserved(group: Option<&str>) -> bool {
    let is_in = |of: &str| group.is_some_and(|g| g == of || g.strip_suffix(of).is_some_and(|rest| rest.ends_with('.')));
    RESERVED.iter().any(|of| is_in(of))
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Reports whether a text is a lower-case DNS label, as in the names of Kubernetes objects.
pub(crate) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_word(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reserved_and_malformed_label_keys_are_refused() {
        for (key, is_taken) in [
            ("line", true),
            ("example.com/line", true),
            ("node-role.kubernetes.io/factory", true),
            ("node.kubernetes.io/instance-type", true),
            ("topology.kubernetes.io/zone", true),
            ("mykubernetes.io/a", true),
            ("", false),
            ("a b", false),
            ("-a", false),
            ("example.com/", false),
            ("/a", false),
            ("a/b/c", false),
            ("Example.com/a", false),
            ("fd00::1/a", false),
            ("a..b/c", false),
            ("a-.b/c", false),
            ("a_b/c", false),
            ("kubernetes.io/os", false),
            ("beta.kubernetes.io/os", false),
            ("x.topology.kubernetes.io/zone", false),
            ("x.k8s.io/a", false),
            ("windowsmachineconfig.openshift.io/pool", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-role.kubernetes.io/master", false),
        ] {
            assert_eq!(key_problem(key).is_none(), is_taken, "{key}: {:?}", key_problem(key));
        }
    }

    #[test]
    fn reserved_and_malformed_annotation_keys_are_refused() {
        for (key, is_taken) in [
            ("owner", true),
            ("example.com/owner", true),
            ("a b", false),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", false),
            ("node.kubernetes.io/x", false),
            ("windowsmachineconfig.openshift.io/version", false),
        ] {
            assert_eq!(annotation_problem(key).is_none(), is_taken, "{key}");
        }
    }

    #[test]
    fn reserved_and_malformed_taints_are_refused() {
        let taint = |key: &str, value: &str| Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: api::TaintEffect::NoSchedule,
        };
        for (key, value, is_taken) in [
            ("hall", "b", true),
            ("example.com/hall", "", true),
            ("os", "a b", false),
            ("a b", "", false),
            ("node.kubernetes.io/not-ready", "", false),
            ("windowsmachineconfig.openshift.io/x", "", false),
        ] {
            assert_eq!(taint_problem(&taint(key, value)).is_none(), is_taken, "{key}={value}");
        }
    }

    #[test]
    fn a_template_that_an_older_crd_has_admitted_is_checked() {
        for (template, field) in [
            (json!({"metadata": {"labels": {"example.com/a": "b"}}}), None),
            (json!({"metadata": {"labels": {"node-role.kubernetes.io/master": ""}}}), Some("template.metadata.labels")),
            (json!({"metadata": {"annotations": {"k8s.io/a": ""}}}), Some("template.metadata.annotations")),
            (
                json!({"spec": {"taints": [{"key": "node.kubernetes.io/a", "effect": "NoExecute"}]}}),
                Some("template.spec.taints"),
            ),
        ] {
            let spec = serde_json::from_value(json!({"inventory": {}, "template": template})).unwrap();
            let found = check_template(&spec).err().map(|e| (e.reason(), e.to_string()));
            match field {
                None => assert_eq!(found, None, "{template}"),
                Some(field) => {
                    let (reason, message) = found.unwrap();
                    assert!(reason == "SpecInvalid" && message.contains(field), "{message}");
                }
            }
        }
    }

    #[test]
    fn malformed_label_values_are_refused() {
        let long = |n| "a".repeat(n);
        for (value, is_taken) in [
            ("", true),
            ("7", true),
            ("a_b.C-d", true),
            (&*long(63), true),
            (&*long(64), false),
            ("x y", false),
            ("a-", false),
        ] {
            assert_eq!(value_problem(value).is_none(), is_taken, "{value}");
        }
    }
}
