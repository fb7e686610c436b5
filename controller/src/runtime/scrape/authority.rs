//! The ConfigMap with the authorities of the certificates that the operator makes: those of all processes that run, and those that were
//! served a while ago.

use std::time::Duration;

use api::names::{COMPONENT, MANAGED_BY, METRICS_CA, METRICS_CA_KEY};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use serde_json::json;

/// Number of authorities in the ConfigMap: those of a few processes, and of their restarts.
const MOST: usize = 32;
/// An authority of a process is valid for so long, unless that process is a test's.
const LONGEST: Duration = Duration::from_hours(24);
/// Clocks of processes may differ by so much, in seconds.
const SKEW: i64 = 300;
/// End of each.
const END: &str = "-----END CERTIFICATE-----";

/// Adds authorities to the ConfigMap, and removes those that are over, or that no process has made, whose own are valid for `lifetime`. Writes
/// nothing if that is so already.
pub(super) async fn publish(
    client: &Client,
    namespace: &str,
    mine: &[&str],
    now: Timestamp,
    lifetime: Duration,
) -> kube::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let seen = maps.get_opt(METRICS_CA).await?;
    let before = seen.as_ref().and_then(|map| map.data.as_ref()?.get(METRICS_CA_KEY)).map_or("", String::as_str);
    let text = bundle(before, mine, now, lifetime);
    if text == before {
        return Ok(());
    }
    let Some(mut map) = seen else {
        let metadata =
            json!({"name": METRICS_CA, "labels": {"app.kubernetes.io/part-of": COMPONENT, MANAGED_BY: COMPONENT}});
        let map = json!({"metadata": metadata, "data": {METRICS_CA_KEY: text}});
        let map = serde_json::from_value(map).map_err(kube::Error::SerdeError)?;
        maps.create(&PostParams::default(), &map).await?;
        return Ok(());
    };
    // Stored on what was seen: another process may have added its own meanwhile, and then this one comes again.
    map.data.get_or_insert_default().insert(METRICS_CA_KEY.into(), text);
    maps.replace(METRICS_CA, &PostParams::default(), &map).await?;
    Ok(())
}

/// Those that are there and mine, without those that are over or are no certificates, the last to end first.
///
/// Other clients may be allowed to write the ConfigMap, too. An authority that is valid for longer than one of the operator's is theirs, and would
/// stay for as long. However many they add, mine are among those that are kept.
fn bundle(before: &str, mine: &[&str], now: Timestamp, lifetime: Duration) -> String {
    let mine: Vec<&str> = mine.iter().map(|text| text.trim()).collect();
    let texts = mine.iter().copied().chain(before.split_inclusive(END).map(str::trim));
    let mut all: Vec<(i64, &str)> = texts.filter_map(|text| Some((end(text)?, text))).collect();
    let latest = now.as_second().saturating_add_unsigned(lifetime.max(LONGEST).as_secs()).saturating_add(SKEW);
    all.retain(|(end, text)| *end > now.as_second() && (*end <= latest || mine.contains(text)));
    // Of the same end in the order of their text, so that processes do not write over each other without end.
    all.sort_by_key(|(end, text)| (std::cmp::Reverse(*end), *text));
    all.dedup();
    let mut room = MOST.saturating_sub(mine.len());
    all.retain(|(_, text)| {
        let stays = mine.contains(text) || room > 0;
        room -= usize::from(stays && !mine.contains(text));
        stays
    });
    all.into_iter().flat_map(|(_, text)| [text, "\n"]).collect()
}

/// Until when a certificate is valid, as Unix time; `None` if this is none.
fn end(text: &str) -> Option<i64> {
    let (rest, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).ok()?;
    let is_whole = rest.trim_ascii().is_empty() && text.starts_with("-----BEGIN CERTIFICATE-----");
    is_whole.then_some(pem.parse_x509().ok()?.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::{super::certificate::Pair, *};
    use crate::fake_api::FakeApi;

    const HOUR: Duration = Duration::from_hours(1);
    const DAY: Duration = Duration::from_hours(24);

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap()
    }

    fn authority(hour: i64) -> String {
        Pair::make("a", "cluster.local", at(hour), HOUR).unwrap().authority
    }

    #[test]
    fn authorities_of_all_processes_are_kept_until_they_end() {
        let [old, theirs, mine] = [authority(0), authority(1), authority(2)];
        let has = |text: &str| [&old, &theirs, &mine].map(|one| text.contains(one.trim()));
        for (about, before, now, expected) in [
            ("the first", String::new(), 2, [false, false, true]),
            ("with another's", theirs.clone(), 1, [false, true, true]),
            ("what is over goes", format!("{old}{theirs}"), 1, [false, true, true]),
            ("no end of hours", format!("{theirs}\n\n"), 2, [false, false, true]),
            ("something else goes", format!("hello\n{theirs}more"), 1, [false, false, true]),
        ] {
            let text = bundle(&before, &[&mine], at(now), DAY);
            assert_eq!(has(&text), expected, "{about}: {text}");
            assert_eq!(bundle(&text, &[&mine], at(now), DAY), text, "{about}: nothing is left to write");
        }
        // Two processes that write after each other agree.
        let after = bundle(&bundle("", &[&mine], at(1), DAY), &[&theirs], at(1), DAY);
        assert_eq!(after, bundle(&theirs, &[&mine], at(1), DAY));
    }

    #[test]
    fn what_another_client_adds_neither_stays_for_long_nor_pushes_mine_out() {
        let mine = authority(0);
        let many: Vec<String> = (1..40).map(|hour| authority(hour % 20)).collect();
        let text = bundle(&many.concat(), &[&mine], at(0), DAY);
        assert!(text.contains(mine.trim()) && text.matches(END).count() == MOST);
        assert_eq!(bundle(&text, &[&mine], at(0), DAY), text, "nothing is left to write");
        // One that is valid for years.
        let theirs = Pair::make("a", "cluster.local", at(0), 1000 * DAY).unwrap().authority;
        assert_eq!(bundle(&theirs, &[&mine], at(0), DAY), format!("{}\n", mine.trim()));
        // Mine stays, whatever the clock says now.
        assert_eq!(bundle("", &[&mine], at(-48), DAY).matches(END).count(), 1);
    }

    #[tokio::test]
    async fn nothing_is_written_when_nothing_is_new() {
        let path = "/api/v1/namespaces/a/configmaps";
        let mine = authority(0);
        let map = |text: &str| json!({"metadata": {"name": METRICS_CA, "resourceVersion": "7"}, "data": {METRICS_CA_KEY: text, "other": "x"}});
        let one = format!("{path}/{METRICS_CA}");
        let api = FakeApi::new();
        api.on(
            "GET",
            &one,
            404,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
        );
        api.on("GET", &one, 200, map(&mine));
        api.on("GET", &one, 200, map("old"));
        api.on("POST", path, 201, map(&mine));
        api.on("PUT", &one, 200, map(&mine));
        for _ in 0..3 {
            publish(&api.client(), "a", &[&mine], at(0), DAY).await.unwrap();
        }
        assert_eq!(api.calls("POST", path)[0].body["data"], json!({METRICS_CA_KEY: mine}));
        let written = api.calls("PUT", &one);
        assert_eq!(written.len(), 1, "the second time there is nothing to write");
        assert_eq!(written[0].body["metadata"]["resourceVersion"], "7");
        assert_eq!(written[0].body["data"], json!({METRICS_CA_KEY: mine, "other": "x"}));
    }
}
