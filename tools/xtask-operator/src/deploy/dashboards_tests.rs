//! Tests that dashboard queries use only existing series, and that both forms have the same queries.

use serde_json::Value;

use super::{
    alerts_tests::{of_the_operator, series_in},
    windows_exporter_series_tests::recorded,
};

/// Dashboard of pools in the format of Grafana.
pub(super) const GRAFANA: &str =
    include_str!("../../../../deploy/chart/windows-node-pools/files/dashboards/grafana.json");
/// Dashboard of pools in the older format of OpenShift's console, with the same queries.
const CONSOLE: &str = include_str!("../../../../deploy/chart/windows-node-pools/files/dashboards/openshift.json");

/// Returns the queries of the dashboard's panels. `$pool` is a variable for the selected pools.
fn queries() -> Vec<String> {
    all(&serde_json::from_str::<Value>(GRAFANA).unwrap()["panels"], "expr")
}

#[test]
fn queries_use_only_existing_series() {
    let known = of_the_operator();
    assert!(queries().len() > 20);
    let dashboard: Value = serde_json::from_str(GRAFANA).unwrap();
    let others = [all(&dashboard["annotations"], "expr"), all(&dashboard["templating"], "query")].concat();
    for query in queries().into_iter().chain(others) {
        let series = series_in(&query);
        // Prometheus itself has the series of alerts. `prometheus` is the kind of the data source.
        assert!(!series.is_empty() || query.contains("ALERTS{") || query == "prometheus", "{query}");
        for name in series {
            assert!(known.contains(&name) || recorded().contains(name.as_str()), "no series {name}: {query}");
        }
    }
}

/// Returns the values of a key at all levels.
fn all(value: &Value, key: &str) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map.get(key).and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(map.values().flat_map(|value| all(value, key))).collect()
        }
        Value::Array(items) => items.iter().flat_map(|value| all(value, key)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn grafana_and_the_console_get_the_same_queries_in_their_own_forms() {
    let [grafana, console]: [Value; 2] = [GRAFANA, CONSOLE].map(|text| serde_json::from_str(text).unwrap());
    assert_eq!(all(&console, "expr"), queries());
    let types = ["singlestat", "graph", "table"];
    let panels = console["rows"].as_array().unwrap().iter().flat_map(|row| row["panels"].as_array().unwrap());
    for panel in panels {
        assert!(
            types.contains(&panel["type"].as_str().unwrap()),
            "the console does not support this type of panel: {panel}"
        );
    }
    for row in console["rows"].as_array().unwrap() {
        assert!(row["panels"].as_array().unwrap().iter().all(|panel| panel["span"].as_u64().unwrap() <= 12));
    }
    let mut places = std::collections::BTreeSet::new();
    for panel in grafana["panels"].as_array().unwrap() {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(x < 24 && places.insert((x, y)), "two panels at {x}, {y}: {}", panel["title"]);
        }
    }
    for (label, namespace, text) in [
        ("grafana_dashboard", api::names::DEFAULT_NAMESPACE, GRAFANA),
        ("console.openshift.io/dashboard", "openshift-config-managed", CONSOLE),
    ] {
        let objects = super::objects().unwrap();
        let object = objects.iter().find(|object| object.value["metadata"]["labels"][label].is_string()).unwrap();
        assert_eq!(object.value["metadata"]["namespace"], namespace);
        // The console reads the first entry only.
        let data: Vec<_> = object.value["data"].as_object().unwrap().values().collect();
        assert_eq!(data, [text.trim_end()]);
    }
}
