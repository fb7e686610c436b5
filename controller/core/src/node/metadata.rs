//! Desired metadata of a Node, and the smallest patch that applies it. Pure.
//!
//! Only metadata of this or the legacy operator is removed; for the metadata of this operator, the instance's status has a record, see
//! [`super::applied`]. Labels, annotations and taints of others stay.

use std::collections::{BTreeMap, BTreeSet};

use api::{HostFacts, InstanceHost, Taint, WindowsNodePool, names::key};
use k8s_openapi::api::core::v1::{Node, Taint as NodeTaint};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    applied::{Applied, taint_id},
    desired_metadata::DesiredNodeMetadata,
};

/// Returns the merge patch that applies the desired metadata, or `None` if nothing changes. `before` is the recorded metadata that may be removed.
/// The patch has a resource version only with the list of taints, which is replaced as a whole, or the provider ID, which is set once. Without a
/// resource version, the patch does not conflict with other writers of the Node.
pub fn patch(node: &Node, wanted: &DesiredNodeMetadata, before: &Applied) -> Option<Value> {
    let mut annotations = wanted.annotations.clone();
    for (k, v) in &wanted.annotations_if_missing {
        if !node.annotations().contains_key(k) {
            annotations.insert(k.clone(), v.clone());
        }
    }

    let mut labels = changes(node.labels(), &wanted.labels, &before.labels);
    let stale = |has: &BTreeMap<String, String>| -> Vec<(String, Value)> {
        let there = wanted.stale.iter().filter(|k| has.contains_key(**k));
        there.map(|k| ((*k).to_string(), Value::Null)).collect()
    };
    labels.extend(stale(node.labels()));
    let mut annotations = changes(node.annotations(), &annotations, &before.annotations);
    annotations.extend(stale(node.annotations()));
    let taints = taints(node, &wanted.taints, &before.taints);
    let has_id = node.spec.as_ref().and_then(|s| s.provider_id.as_ref()).is_some_and(|id| !id.is_empty());
    let provider_id = wanted.provider_id.as_ref().filter(|_| !has_id);
    if labels.is_empty() && annotations.is_empty() && taints.is_none() && provider_id.is_none() {
        return None;
    }
    let mut patch = json!({"metadata": {"uid": node.metadata.uid}});
    if !labels.is_empty() {
        patch["metadata"]["labels"] = Value::Object(labels);
    }
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(annotations);
    }
    if taints.is_some() || provider_id.is_some() {
        patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
    }
    if let Some(taints) = taints {
        patch["spec"]["taints"] = json!(taints);
    }
    if let Some(id) = provider_id {
        patch["spec"]["providerID"] = json!(id);
    }
    Some(patch)
}

fn changes(
    has: &BTreeMap<String, String>,
    wants: &BTreeMap<String, String>,
    had: &BTreeSet<String>,
) -> serde_json::Map<String, Value> {
    let set = wants.iter().filter(|(k, v)| has.get(*k) != Some(v)).map(|(k, v)| (k.clone(), json!(v)));
    let unset =
        had.iter().filter(|k| has.contains_key(*k) && !wants.contains_key(*k)).map(|k| (k.clone(), Value::Null));
    set.chain(unset).collect()
}

fn taints(node: &Node, wants: &[Taint], had: &BTreeSet<String>) -> Option<Vec<NodeTaint>> {
    let has = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let id = |t: &NodeTaint| taint_id(&t.key, &t.effect);
    let wanted: BTreeMap<String, &Taint> = wants.iter().map(|t| (taint_id(&t.key, t.effect.as_str()), t)).collect();
    let mut result: Vec<NodeTaint> =
        has.iter().filter(|t| wanted.contains_key(&id(t)) || !had.contains(&id(t))).cloned().collect();
    for taint in &mut result {
        if let Some(wanted) = wanted.get(&id(taint)) {
            taint.value.clone_from(&wanted.value);
        }
    }
    for (wanted_id, taint) in &wanted {
        if !result.iter().any(|t| id(t) == *wanted_id) {
            result.push(NodeTaint {
                key: taint.key.clone(),
                value: taint.value.clone(),
                effect: taint.effect.as_str().into(),
                time_added: None,
            });
        }
    }
    // An absent value and an empty one count as equal.
    let plain = |list: &[NodeTaint]| -> Vec<(String, String, String)> {
        list.iter().map(|t| (t.key.clone(), t.effect.clone(), t.value.clone().unwrap_or_default())).collect()
    };
    (plain(&result) != plain(&has)).then_some(result)
}

/// Returns the desired metadata of a host's Node, from its pool's template, its inventory entry, and the domain that the host reports.
pub fn template(pool: &WindowsNodePool, host: &InstanceHost, facts: Option<&HostFacts>) -> DesiredNodeMetadata {
    let mut labels = pool.spec.labels();
    labels.extend(host.labels.clone());
    labels.insert(key::POOL.to_string(), pool.name_any());
    labels.extend(facts.and_then(|f| f.domain.clone()).map(|domain| (key::DOMAIN.to_string(), domain)));
    let mut stale = Vec::new();
    if pool.spec.inventory.machine_set_ref.is_some() {
        // The legacy operator deconfigures each node with this label that is missing in its ConfigMap. A Machine's Node gets its role
        // from the Machine.
        labels.remove(key::BYOH);
        stale.push(key::BYOH);
    } else {
        labels.extend([(key::BYOH.to_string(), "true".to_string()), (key::WORKER_ROLE.to_string(), String::new())]);
    }
    DesiredNodeMetadata {
        labels,
        annotations: pool.spec.annotations(),
        taints: template_taints(pool, host),
        stale,
        ..DesiredNodeMetadata::default()
    }
}

/// Returns the taints of a host's Node. Taints of its inventory entry take precedence over the template's.
pub fn template_taints(pool: &WindowsNodePool, host: &InstanceHost) -> Vec<Taint> {
    let all = pool.spec.taints().into_iter().chain(host.taints.iter().cloned());
    let by_id: BTreeMap<String, Taint> = all.map(|t| (taint_id(&t.key, t.effect.as_str()), t)).collect();
    by_id.into_values().collect()
}

/// Returns the changes of a patch, as text for users.
pub fn changed_parts(patch: &Value) -> Vec<String> {
    let keys = |path: &str| -> Vec<&str> {
        let all = patch.pointer(path).and_then(Value::as_object).into_iter().flatten();
        all.map(|(k, _)| k.as_str()).collect()
    };
    let (labels, annotations) = (keys("/metadata/labels"), keys("/metadata/annotations"));
    let mut parts = Vec::new();
    if !labels.is_empty() {
        parts.push(format!("labels ({})", labels.join(", ")));
    }
    if !annotations.is_empty() {
        parts.push(format!("annotations ({})", annotations.join(", ")));
    }
    if patch.pointer("/spec/taints").is_some() {
        parts.push("taints".to_owned());
    }
    if patch.pointer("/spec/providerID").is_some() {
        parts.push("providerID".to_owned());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::TaintEffect;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }
    fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
    }
    fn taint(key: &str, value: &str) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect: TaintEffect::NoSchedule }
    }
    /// Applies a merge patch as the API server does.
    fn apply(node: &Node, patch: &Value) -> Node {
        fn merge(into: &mut Value, from: &Value) {
            match from {
                Value::Object(map) => {
                    if !into.is_object() {
                        *into = json!({});
                    }
                    for (k, v) in map {
                        if v.is_null() {
                            into.as_object_mut().unwrap().remove(k);
                        } else {
                            merge(&mut into[k], v);
                        }
                    }
                }
                other => *into = other.clone(),
            }
        }
        let mut value = serde_json::to_value(node).unwrap();
        merge(&mut value, patch);
        serde_json::from_value(value).unwrap()
    }

    /// Returns the Node after the patch to the wanted metadata.
    fn mended(node: &Node, wanted: &DesiredNodeMetadata, before: &Applied) -> Node {
        apply(node, &patch(node, wanted, before).unwrap())
    }

    #[test]
    fn what_others_own_stays_and_what_was_ours_goes() {
        let fresh = node(json!({
            "metadata": {"name": "w", "uid": "u", "resourceVersion": "7", "labels": {"a": "theirs"}, "annotations": {"b": "theirs"}},
            "spec": {"taints": [{"key": "os", "value": "Windows", "effect": "NoSchedule"}, {"key": "theirs", "effect": "NoExecute"}]},
        }));
        let first = DesiredNodeMetadata {
            labels: strings(&[("x", "1"), ("y", "1")]),
            annotations: strings(&[("z", "1")]),
            taints: vec![taint("os", "Windows"), taint("hall", "b")],
            ..DesiredNodeMetadata::default()
        };
        let none = Applied::on(&fresh, None);
        let p = patch(&fresh, &first, &none).unwrap();
        assert_eq!((&p["metadata"]["uid"], &p["metadata"]["resourceVersion"]), (&json!("u"), &json!("7")));
        let done = apply(&fresh, &p);
        let had = Applied::of(&first);
        assert_eq!(patch(&done, &first, &had), None, "a second patch changes nothing");
        let labelled = DesiredNodeMetadata { labels: strings(&[("x", "1"), ("y", "2")]), ..first.clone() };
        let p = patch(&done, &labelled, &had).unwrap();
        assert!(
            p["metadata"].get("resourceVersion").is_none(),
            "without a list of taints, the patch needs no resource version: {p}"
        );
        assert_eq!(done.labels(), &strings(&[("a", "theirs"), ("x", "1"), ("y", "1")]));

        let second = DesiredNodeMetadata {
            labels: strings(&[("x", "2")]),
            taints: vec![taint("hall", "c")],
            ..DesiredNodeMetadata::default()
        };
        let done = mended(&done, &second, &had);
        assert_eq!(done.labels(), &strings(&[("a", "theirs"), ("x", "2")]));
        assert!(done.annotations().contains_key("b") && !done.annotations().contains_key("z"));
        let taints: Vec<_> = done.spec.clone().unwrap().taints.unwrap().into_iter().map(|t| (t.key, t.value)).collect();
        assert_eq!(taints, [("theirs".into(), None), ("hall".into(), Some("c".into()))]);
        assert_eq!(patch(&done, &second, &Applied::of(&second)), None);
    }

    #[test]
    fn changes_by_other_clients_are_reverted() {
        let wanted = DesiredNodeMetadata {
            labels: strings(&[("x", "1")]),
            taints: vec![taint("os", "Windows")],
            ..DesiredNodeMetadata::default()
        };
        let fresh = node(json!({"metadata": {"name": "w"}}));
        let none = Applied::default();
        let done = mended(&fresh, &wanted, &none);
        let mut bent = done.clone();
        bent.labels_mut().insert("x".into(), "2".into());
        bent.spec.as_mut().unwrap().taints = None;
        let mended = mended(&bent, &wanted, &none);
        assert_eq!((mended.labels(), &mended.spec), (done.labels(), &done.spec));
    }

    #[test]
    fn what_kubelet_writes_in_an_annotation_removes_nothing() {
        let claim = json!({
            "labels": ["a"], "annotations": ["b"], "taints": ["quarantine:NoExecute", "os:NoSchedule"],
        });
        let annotations =
            json!({"windowsmachineconfig.openshift.io/template-applied": claim.to_string(), "b": "theirs"});
        let mut theirs = node(json!({
            "metadata": {"name": "w", "uid": "u", "labels": {"a": "theirs"}, "annotations": annotations},
            "spec": {"taints": [{"key": "quarantine", "effect": "NoExecute"}, {"key": "os", "value": "Windows", "effect": "NoSchedule"}]},
        }));
        let wanted = DesiredNodeMetadata { labels: strings(&[(key::POOL, "p")]), ..DesiredNodeMetadata::default() };
        let recorded = Applied::of(&wanted).record(Some("u".into()));
        theirs.labels_mut().insert(key::POOL.into(), "p".into());
        for (about, recorded) in [("recorded", Some(&recorded)), ("restored without status", None)] {
            assert_eq!(patch(&theirs, &wanted, &Applied::on(&theirs, recorded)), None, "{about}");
        }
    }

    #[test]
    fn the_taint_of_the_legacy_operator_goes_where_the_pool_has_none() {
        let legacy = node(json!({
            "metadata": {"name": "w"}, "spec": {"taints": [
                {"key": "os", "value": "Windows", "effect": "NoSchedule"}, {"key": "theirs", "effect": "NoSchedule"},
            ]},
        }));
        let none = DesiredNodeMetadata::default();
        let done = mended(&legacy, &none, &Applied::on(&legacy, None));
        let left: Vec<_> = done.spec.unwrap().taints.unwrap().into_iter().map(|t| t.key).collect();
        assert_eq!(left, ["theirs"]);
        let same = DesiredNodeMetadata { taints: vec![taint("os", "Windows")], ..DesiredNodeMetadata::default() };
        assert_eq!(patch(&legacy, &same, &Applied::on(&legacy, None)), None);
    }

    #[test]
    fn what_an_entry_says_wins_over_the_template() {
        let spec = serde_json::from_value(json!({"inventory": {"hosts": []}, "template": {
            "metadata": {"labels": {"x": "1", "y": "1"}, "annotations": {"a": "1"}},
            "spec": {"taints": [
                {"key": "os", "value": "Windows", "effect": "NoSchedule"}, {"key": "hall", "value": "b", "effect": "NoSchedule"},
            ]},
        }}));
        let host = InstanceHost {
            labels: strings(&[("y", "2")]),
            taints: vec![taint("hall", "c"), Taint { effect: TaintEffect::PreferNoSchedule, ..taint("hall", "d") }],
            ..InstanceHost::default()
        };
        let wanted = template(&WindowsNodePool::new("p", spec.unwrap()), &host, None);
        assert_eq!((&*wanted.labels["x"], &*wanted.labels["y"]), ("1", "2"));
        assert_eq!(wanted.annotations, strings(&[("a", "1")]));
        let taints: Vec<_> = wanted.taints.iter().map(|t| (&*t.key, t.value.as_deref(), t.effect.as_str())).collect();
        assert_eq!(
            taints,
            [
                ("hall", Some("c"), "NoSchedule"),
                ("hall", Some("d"), "PreferNoSchedule"),
                ("os", Some("Windows"), "NoSchedule"),
            ]
        );
    }

    #[test]
    fn the_label_of_a_domain_comes_and_goes_with_what_the_host_reports() {
        let spec = serde_json::from_value(json!({"inventory": {"hosts": []}}));
        let pool = WindowsNodePool::new("p", spec.unwrap());
        let of = |domain: Option<&str>| {
            let facts = HostFacts { domain: domain.map(str::to_owned), ..HostFacts::default() };
            template(&pool, &InstanceHost::default(), Some(&facts))
        };
        let fresh = node(json!({"metadata": {"name": "w", "uid": "u"}}));
        let label = |node: &Node| node.labels().get(key::DOMAIN).cloned();
        let first = of(Some("corp.example.com"));
        let joined = mended(&fresh, &first, &Applied::on(&fresh, None));
        assert_eq!(label(&joined).as_deref(), Some("corp.example.com"));
        let recorded = Applied::of(&first).record(Some("u".into()));
        let left = mended(&joined, &of(None), &Applied::on(&joined, Some(&recorded)));
        assert_eq!(label(&left), None);
        assert_eq!(patch(&joined, &first, &Applied::on(&joined, Some(&recorded))), None);
    }

    #[test]
    fn the_node_of_a_machine_does_not_get_the_label_of_listed_hosts() {
        let host = InstanceHost::default();
        let of = |inventory| {
            let spec = serde_json::from_value(json!({
                "inventory": inventory, "template": {"metadata": {"labels": {key::BYOH: "true", "x": "1"}}},
            }));
            WindowsNodePool::new("p", spec.unwrap())
        };
        let listed = template(&of(json!({"hosts": []})), &host, None);
        let legacy = [(key::BYOH, "true"), (key::POOL, "p"), (key::WORKER_ROLE, ""), ("x", "1")];
        assert_eq!((listed.labels, listed.stale), (strings(&legacy), vec![]));
        let machine = template(&of(json!({"machineSetRef": {"name": "s"}})), &host, None);
        assert_eq!(machine.labels, strings(&[(key::POOL, "p"), ("x", "1")]));

        let before = node(json!({"metadata": {"name": "w", "labels": {key::BYOH: "true", key::WORKER_ROLE: ""}}}));
        let done = mended(&before, &machine, &Applied::default());
        assert_eq!(done.labels(), &strings(&[(key::POOL, "p"), (key::WORKER_ROLE, ""), ("x", "1")]));
    }

    #[test]
    fn a_node_without_a_provider_id_gets_that_of_its_machine_and_keeps_it() {
        let of = |spec: Value| node(json!({"metadata": {"name": "w", "resourceVersion": "7"}, "spec": spec}));
        let wanted = |id: Option<&str>| DesiredNodeMetadata {
            provider_id: id.map(Into::into),
            ..DesiredNodeMetadata::default()
        };
        for (about, spec, id, expected) in [
            ("none", json!({}), Some("x://a"), Some("x://a")),
            ("an empty one", json!({"providerID": ""}), Some("x://a"), Some("x://a")),
            ("the same", json!({"providerID": "x://a"}), Some("x://a"), None),
            ("another", json!({"providerID": "x://b"}), Some("x://a"), None),
            ("no Machine", json!({}), None, None),
            ("no Machine any more", json!({"providerID": "x://a"}), None, None),
        ] {
            let patch = patch(&of(spec), &wanted(id), &Applied::default());
            let says = expected
                .map(|id| json!({"spec": {"providerID": id}, "metadata": {"uid": null, "resourceVersion": "7"}}));
            assert_eq!(patch, says, "{about}");
        }
    }

    #[test]
    fn an_encrypted_annotation_is_written_once() {
        let wanted = DesiredNodeMetadata {
            annotations_if_missing: strings(&[("u", "one form")]),
            ..DesiredNodeMetadata::default()
        };
        let fresh = node(json!({"metadata": {"name": "w"}}));
        let none = Applied::default();
        let done = mended(&fresh, &wanted, &none);
        let other = DesiredNodeMetadata {
            annotations_if_missing: strings(&[("u", "another form")]),
            ..DesiredNodeMetadata::default()
        };
        assert_eq!(patch(&done, &other, &none), None);
    }

    #[test]
    fn a_patch_is_described_by_its_changed_parts() {
        for (patch, expected) in [
            (json!({"metadata": {"uid": "u"}}), vec![]),
            (
                json!({"metadata": {"labels": {"x": "1", "y": null}, "annotations": {"z": "1"}}, "spec": {"taints": []}}),
                vec!["labels (x, y)", "annotations (z)", "taints"],
            ),
            (json!({"metadata": {}, "spec": {"providerID": "x://a"}}), vec!["providerID"]),
        ] {
            assert_eq!(changed_parts(&patch), expected, "{patch}");
        }
    }
}
