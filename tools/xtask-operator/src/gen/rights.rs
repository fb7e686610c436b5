//! Reference page of rights (RBAC): each rule of each role, with the reason.

use anyhow::Result;
use serde_json::Value;

use crate::deploy::{self, Object};

use super::tables::{code, page, section};

/// Returns the page of rights.
pub(super) fn rights() -> Result<String> {
    let about = "Permissions of each role of an installation, and their reasons. RBAC cannot express all limits: admission policies \
                 [narrow](../concept/architecture.md#what-holds-whom) several of these rights. Tests of the audit log compare the operator's rules with what it uses: each \
                 verb is used by some test on a real API server, or is in a list with the reason (`cargo xtask rights`).";
    let mut text = page("Rights", about);
    for role in &deploy::roles()? {
        section(&mut text, &title(role), &about_role(role), &["objects", "verbs", "names", "why"], rows(role));
    }
    Ok(text)
}

fn title(role: &Object) -> String {
    let name = text_of(&role.value["metadata"]["name"]);
    match role.value["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("Role {name} in {namespace}"),
        None => format!("ClusterRole {name}"),
    }
}

fn about_role(role: &Object) -> String {
    format!("In `deploy/{}`. {}", role.file, role.about).trim().to_owned()
}

fn rows(role: &Object) -> Vec<Vec<String>> {
    let rules = role.value["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |(rule, why): (&Value, String)| {
        vec![objects(rule), words(&rule["verbs"], ""), words(&rule["resourceNames"], ""), why]
    };
    rules.iter().zip(role.whys()).map(row).collect()
}

/// Returns the objects of a rule, such as `nodes` or `pods.metrics.k8s.io`.
fn objects(rule: &Value) -> String {
    let groups = rule["apiGroups"].as_array().map_or(&[][..], Vec::as_slice);
    let of_groups = groups.iter().map(|group| words(&rule["resources"], text_of(group)));
    of_groups
        .chain([words(&rule["nonResourceURLs"], "")])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

fn words(list: &Value, group: &str) -> String {
    let full = |word: &str| match word.split_once('/') {
        _ if group.is_empty() => code(word),
        Some((resource, part)) => code(format!("{resource}.{group}/{part}")),
        None => code(format!("{word}.{group}")),
    };
    list.as_array().map_or(&[][..], Vec::as_slice).iter().map(|word| full(text_of(word))).collect::<Vec<_>>().join(", ")
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_says_why() {
        let roles = deploy::roles().unwrap();
        assert!(roles.len() > 10, "{}", roles.len());
        for role in &roles {
            assert_eq!(rows(role).len(), role.value["rules"].as_array().unwrap().len(), "{}", title(role));
            for row in rows(role) {
                assert!(!row[0].is_empty() && !row[1].is_empty(), "{}: {row:?}", title(role));
                assert!(row[3].ends_with('.') && row[3].len() > 5, "{}: no reason: {row:?}", title(role));
            }
        }
    }
}
