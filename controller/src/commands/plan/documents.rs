//! Pools from YAML files or from the cluster. Pure functions.

use std::{collections::BTreeSet, fmt::Display, sync::Arc};

use anyhow::{anyhow, bail, ensure};
use api::WindowsNodePool;
use kube::{Resource, ResourceExt};
use serde::Deserialize as _;
use serde_json::Value;

/// Pool from a file or from the cluster.
#[derive(Clone, Debug)]
pub(super) struct Document {
    /// Parsed pool, without unknown fields.
    pub pool: WindowsNodePool,
    /// Spec as it was written, including unknown fields. For a pool from the cluster, only the known fields.
    pub spec: Value,
}

/// Reads all pools in a text of YAML documents. Other kinds are ignored, so that the whole output of kustomize or Helm can be used.
pub(super) fn documents(text: &str) -> anyhow::Result<Vec<Document>> {
    wnp_core::yaml::check(text).map_err(|(line, fault)| anyhow!("line {line}: {fault}"))?;
    let mut found = Vec::new();
    // The text is parsed twice, because only errors of typed parsing name the line and the field.
    let typed = serde_yaml::Deserializer::from_str(text);
    for (at, (raw, typed)) in serde_yaml::Deserializer::from_str(text).zip(typed).enumerate() {
        let number = at + 1;
        let value = Value::deserialize(raw).map_err(|error| anyhow!("document {number} is not YAML: {error}"))?;
        if is_pool(&value) {
            let pool = WindowsNodePool::deserialize(typed)
                .map_err(|error| invalid(number, with_remedy(&error.to_string())))?;
            found.push(document(pool, value, number)?);
        } else if let Some(items) = value.get("items").and_then(Value::as_array) {
            for item in items.iter().filter(|i| is_pool(i)) {
                let pool = serde_json::from_value(item.clone()).map_err(|error| invalid(number, error))?;
                found.push(document(pool, item.clone(), number)?);
            }
        }
    }
    ensure!(!found.is_empty(), "it has no WindowsNodePool");
    Ok(found)
}

fn invalid(number: usize, problem: impl Display) -> anyhow::Error {
    anyhow!("document {number} is not a valid WindowsNodePool: {problem}")
}

/// Returns the problem, with the remedy if a number was read as text because it begins with 0.
fn with_remedy(problem: &str) -> String {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    match problem.split_once("invalid type: string \"0").filter(|(_, rest)| is_number(rest)) {
        Some(_) => format!(
            "{problem}; write the number without leading zeros, because kubectl reads a number with a leading zero as octal"
        ),
        None => problem.to_owned(),
    }
}

/// Returns the pools of the cluster in their current state.
pub(super) fn of_cluster(mut pools: Vec<Arc<WindowsNodePool>>) -> Result<Vec<Document>, serde_json::Error> {
    pools.sort_by_key(|pool| pool.name_any());
    let document =
        |pool: &Arc<WindowsNodePool>| Ok(Document { pool: (**pool).clone(), spec: serde_json::to_value(&pool.spec)? });
    pools.iter().map(document).collect()
}

/// Fails if two pools have the same name, because one pool would have two plans.
pub(super) fn distinct(documents: &[Document]) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    match documents.iter().map(|document| document.pool.name_any()).find(|name| !names.insert(name.clone())) {
        Some(name) => bail!("the WindowsNodePool {name} is defined twice: rename or remove one of the definitions"),
        None => Ok(()),
    }
}

fn is_pool(value: &Value) -> bool {
    let is = |key: &str, wanted: &str| value.get(key).and_then(Value::as_str) == Some(wanted);
    is("kind", &WindowsNodePool::kind(&())) && is("apiVersion", &WindowsNodePool::api_version(&()))
}

fn document(pool: WindowsNodePool, mut value: Value, number: usize) -> anyhow::Result<Document> {
    let name = pool.name_any();
    // The name becomes part of a URL.
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if name.is_empty() || !name.chars().all(fits) {
        return Err(invalid(
            number,
            format!("metadata.name {name:?} is not a valid name: use lower-case letters, digits, `-` and `.`"),
        ));
    }
    Ok(Document { pool, spec: value.get_mut("spec").map(Value::take).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: &str = "apiVersion: windowsmachineconfig.openshift.io/v1alpha1\nkind: WindowsNodePool\nmetadata: {name: NAME}\nspec: {inventory: {hosts: [{name: a, address: 10.0.0.1}]}}\n";

    fn pool(name: &str) -> String {
        POOL.replace("NAME", name)
    }

    #[test]
    fn pools_are_found_or_the_text_is_refused() {
        let list = format!(
            "kind: List\napiVersion: v1\nitems:\n- kind: Pod\n- {}",
            pool("c").trim_end().replace('\n', "\n  ")
        );
        for (about, text, expected) in [
            ("one", pool("a"), Ok(vec!["a"])),
            (
                "two, and a comment after them",
                format!("{}---\n{}---\n# end\n", pool("a"), pool("b")),
                Ok(vec!["a", "b"]),
            ),
            ("another kind", format!("kind: Secret\napiVersion: v1\n---\n{}", pool("a")), Ok(vec!["a"])),
            ("a list", list, Ok(vec!["c"])),
            ("nothing", String::new(), Err("it has no WindowsNodePool")),
            ("another kind alone", "kind: Secret".to_owned(), Err("it has no WindowsNodePool")),
            ("another version", pool("a").replace("v1alpha1", "v9"), Err("it has no WindowsNodePool")),
            ("not YAML", "a: [".to_owned(), Err("document 1 is not YAML")),
            ("no name", pool("''"), Err("metadata.name \"\" is not a valid name")),
            ("a name that does not fit into a URL", pool("a/b"), Err("metadata.name \"a/b\" is not a valid name")),
            (
                "a field is missing",
                pool("a").replace(", address: 10.0.0.1", ""),
                Err("spec.inventory.hosts[0]: missing field `address` at line 4"),
            ),
            ("a field of the wrong type", pool("a").replace("10.0.0.1", "[]"), Err("spec.inventory.hosts[0].address")),
            ("an octal number", pool("a").replace("10.0.0.1", "a, port: 022"), Err("without leading zeros")),
        ] {
            let found = documents(&text).map_err(|e| e.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found.iter().map(|d| d.pool.name_any()).collect::<Vec<_>>(), expected, "{about}");
                }
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{about}: {error}"),
                (found, _) => panic!("{about}: {found:?}"),
            }
        }
    }

    #[test]
    fn unknown_fields_are_kept_for_the_api_server() {
        let found = documents(&pool("a").replace("inventory", "inwentory: {}, inventory")).unwrap();
        assert!(found[0].spec.get("inwentory").is_some(), "{:?}", found[0].spec);
    }

    #[test]
    fn two_pools_with_one_name_are_refused() {
        let two = |b: &str| documents(&format!("{}---\n{}", pool("a"), pool(b))).unwrap();
        assert!(distinct(&two("b")).is_ok());
        assert_eq!(
            distinct(&two("a")).unwrap_err().to_string(),
            "the WindowsNodePool a is defined twice: rename or remove one of the definitions"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = documents(&text);
        }
    }
}
