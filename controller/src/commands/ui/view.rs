//! Objects of the page, and their updates. Pure functions.

use std::collections::BTreeMap;

use serde_json::{Value, json, to_value};

use api::services_version::short;

use crate::commands::status::ClusterState;

/// Objects by key, each as JSON: `cluster`, `pool/NAME` and `host/NAME`.
pub(super) type Snapshot = BTreeMap<String, String>;

/// Returns all objects that the page shows.
pub(super) fn snapshot(cluster: &str, seen: &ClusterState, warnings: &[String]) -> serde_json::Result<Snapshot> {
    let warnings: Vec<&str> = seen.warning().into_iter().chain(warnings.iter().map(String::as_str)).collect();
    let mut objects = Snapshot::new();
    objects.insert("cluster".into(), json!({"cluster": cluster, "warnings": warnings}).to_string());
    for (rank, pool) in seen.pools.iter().enumerate() {
        for host in &pool.hosts {
            let version = host.version.as_deref().map(short);
            let more = json!({
                "pool": pool.name, "state": host.state(), "news": host.news(pool), "trouble": host.trouble(), "version": version,
            });
            objects.insert(format!("host/{}", host.name), with(to_value(host)?, more).to_string());
        }
        let version = pool.desired_version.as_deref().map(short);
        let more = json!({"rank": rank, "hosts": null, "desiredVersion": version});
        objects.insert(format!("pool/{}", pool.name), with(to_value(pool)?, more).to_string());
    }
    Ok(objects)
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// Returns the update for a page that has the objects `before`, or none yet. `None` if nothing has changed.
pub(super) fn update(before: Option<&Snapshot>, now: &Snapshot) -> Option<String> {
    let is_new = |(key, object): &(&String, &String)| before.is_none_or(|before| before.get(*key) != Some(*object));
    let set: Vec<String> = now.iter().filter(is_new).map(|(key, object)| format!("{}:{object}", json!(key))).collect();
    let gone: Vec<&String> =
        before.into_iter().flat_map(BTreeMap::keys).filter(|key| !now.contains_key(*key)).collect();
    let is_change = before.is_none() || !set.is_empty() || !gone.is_empty();
    is_change.then(|| format!(r#"{{"whole":{},"set":{{{}}},"gone":{}}}"#, before.is_none(), set.join(","), json!(gone)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gets_only_changes() {
        let objects = |objects: &[(&str, &str)]| -> Snapshot {
            objects.iter().map(|(key, object)| ((*key).to_owned(), (*object).to_owned())).collect()
        };
        let before = objects(&[("host/a", "1"), ("host/b", "2")]);
        for (about, before, now, expected) in [
            ("a new page", None, &before, Some(r#"{"whole":true,"set":{"host/a":1,"host/b":2},"gone":[]}"#)),
            ("a new page of an empty cluster", None, &objects(&[]), Some(r#"{"whole":true,"set":{},"gone":[]}"#)),
            ("nothing", Some(&before), &before, None),
            (
                "one changed, one came, one went",
                Some(&before),
                &objects(&[("host/a", "3"), ("host/c", "4")]),
                Some(r#"{"whole":false,"set":{"host/a":3,"host/c":4},"gone":["host/b"]}"#),
            ),
        ] {
            assert_eq!(update(before, now).as_deref(), expected, "{about}");
        }
    }
}
