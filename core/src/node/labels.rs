//! Which labels people may give to a Node, whatever they are written in. Pure.
//!
//! The CRD has the same rules; lists of other sources do not pass through it.

/// Groups whose labels belong to others, with all groups below them.
const RESERVED: [&str; 3] = ["kubernetes.io", "k8s.io", api::names::GROUP];
/// Groups of Kubernetes that a person may use for a Node.
const FREE: [&str; 3] = ["node-role.kubernetes.io", "node.kubernetes.io", "topology.kubernetes.io"];
/// Roles that pods and controllers take for a node of the control plane.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// What is wrong with the key of a label, and what to do.
pub fn key_problem(key: &str) -> Option<&'static str> {
    let (group, name) = key.rsplit_once('/').map_or((None, key), |(group, name)| (Some(group), name));
    if !is_word(name) || !group.is_none_or(is_domain) {
        return Some("use letters, digits, `-`, `_` and `.`, with a domain and `/` before them if it is not your own");
    }
    if CONTROL_PLANE.contains(&key) {
        return Some("a Windows node has no control plane");
    }
    let is_in = |of: &str| group.is_some_and(|g| g == of || g.strip_suffix(of).is_some_and(|rest| rest.ends_with('.')));
    let is_free = group.is_some_and(|g| FREE.contains(&g));
    (!is_free && RESERVED.iter().any(|of| is_in(of))).then_some(
        "labels under kubernetes.io, k8s.io and windowsmachineconfig.openshift.io belong to others; only node-role.kubernetes.io, \
         node.kubernetes.io and topology.kubernetes.io may be set",
    )
}

/// What is wrong with the value of a label, and what to do.
pub fn value_problem(value: &str) -> Option<&'static str> {
    (!value.is_empty() && !is_word(value)).then_some("use at most 63 letters, digits, `-`, `_` and `.`")
}

/// The first problem of these labels, in words.
pub fn problem<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Option<String> {
    labels.into_iter().find_map(|(key, value)| {
        let of_key = key_problem(key).map(|todo| format!("{key:?} is not a valid key of a label: {todo}"));
        of_key.or_else(|| {
            value_problem(value).map(|todo| format!("{value:?} is not a valid value of the label {key}: {todo}"))
        })
    })
}

fn is_domain(text: &str) -> bool {
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 253 && text.split('.').all(|part| is_word(part) && part.chars().all(is_lower))
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

    #[test]
    fn keys() {
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
    fn values() {
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
