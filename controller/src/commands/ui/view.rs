//! Objects of the page, and what has changed of them. Pure.

use std::collections::BTreeMap;

use api::Phase;
use serde_json::{Value, json, to_value};

use crate::commands::status::{Host, Seen};

/// Objects by key, each as JSON: `cluster`, `pool/NAME` and `host/NAME`.
pub(super) type Snapshot = BTreeMap<String, String>;

/// Returns all objects that the page shows.
pub(super) fn snapshot(cluster: &str, seen: &Seen, warnings: &[String]) -> serde_json::Result<Snapshot> {
    let warnings: Vec<&str> = seen.warning().into_iter().chain(warnings.iter().map(String::as_str)).collect();
    let mut objects = Snapshot::new();
    objects.insert("cluster".into(), json!({"cluster": cluster, "warnings": warnings}).to_string());
    for (rank, pool) in seen.pools.iter().enumerate() {
        for host in &pool.hosts {
            let more = json!({"pool": pool.name, "state": state(host), "news": host.news(pool)});
            objects.insert(format!("host/{}", host.name), with(to_value(host)?, more).to_string());
        }
        objects.insert(
            format!("pool/{}", pool.name),
            with(to_value(pool)?, json!({"rank": rank, "hosts": null})).to_string(),
        );
    }
    Ok(objects)
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// Returns the state by which the page counts a host.
fn state(host: &Host) -> &'static str {
    match host.phase {
        Some(Phase::Failed) => "failed",
        Some(Phase::NotReady) => "not-ready",
        _ if host.next_retry_time.is_some() => "failed",
        None | Some(Phase::Pending) => "new",
        Some(Phase::Ready) if host.step.is_none() && host.is_outdated() => "waiting",
        Some(Phase::Ready) if host.step.is_none() => "done",
        Some(_) => "change",
    }
}

/// Returns the message for a page that has these objects, or has none yet. `None` if nothing has changed.
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
    use api::Step;

    use super::*;

    #[test]
    fn a_page_gets_what_has_changed() {
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

    #[test]
    fn each_host_counts_once() {
        use Phase::{Failed, Joining, Maintenance, NotReady, Pending, Ready, Removing, Updating};
        let old = Some("1.0.0-5c9a1f0e7b64d2380f1ac95be2370d68");
        for (phase, step, retries, version, expected) in [
            (None, None, false, None, "new"),
            (Some(Pending), None, false, None, "new"),
            (Some(Pending), None, true, None, "failed"),
            (Some(Joining), Some(Step::Register), false, None, "change"),
            (Some(Joining), Some(Step::Register), true, None, "failed"),
            (Some(Ready), None, false, None, "done"),
            (Some(Ready), None, false, old, "waiting"),
            (Some(Ready), Some(Step::Check), false, old, "change"),
            (Some(Updating), Some(Step::Drain), false, old, "change"),
            (Some(Maintenance), None, false, None, "change"),
            (Some(Removing), None, false, old, "change"),
            (Some(NotReady), None, true, old, "not-ready"),
            (Some(Failed), None, true, None, "failed"),
        ] {
            let next = retries.then(|| "2027-01-15T02:00:00Z".parse().unwrap());
            let host = Host::example(phase, step, next, version);
            assert_eq!(state(&host), expected, "{phase:?} {step:?} {retries} {version:?}");
        }
    }
}
