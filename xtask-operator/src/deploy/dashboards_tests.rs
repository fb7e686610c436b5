//! Queries of the dashboard name only series that there are, and both forms have them.

use serde_json::Value;

use super::{
    alerts_tests::{of_the_operator, series_in},
    dashboards,
    object::Site,
    windows_exporter_series_tests::recorded,
};

#[test]
fn each_query_needs_only_series_that_there_are() {
    let known = of_the_operator();
    assert!(dashboards::queries().count() > 20);
    for query in dashboards::queries() {
        let series = series_in(query);
        assert!(!series.is_empty(), "{query}");
        for name in series {
            assert!(known.contains(&name) || recorded().contains(name.as_str()), "no series {name}: {query}");
        }
    }
}

/// Values of a key, wherever it stands.
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
    let objects = dashboards::objects(&Site::default());
    let dashboards: Vec<Value> = objects
        .iter()
        .map(|object| {
            let data = object.value["data"].as_object().unwrap();
            // The console reads the first entry only.
            assert_eq!(data.len(), 1);
            serde_json::from_str(data.values().next().unwrap().as_str().unwrap()).unwrap()
        })
        .collect();
    let [grafana, console] = dashboards.as_slice() else { panic!("{}", dashboards.len()) };
    let expected: Vec<&str> = dashboards::queries().collect();
    assert_eq!(all(grafana, "expr"), expected);
    assert_eq!(all(console, "expr"), expected);
    let types = ["singlestat", "graph", "table"];
    let panels = console["rows"].as_array().unwrap().iter().flat_map(|row| row["panels"].as_array().unwrap());
    for panel in panels {
        assert!(types.contains(&panel["type"].as_str().unwrap()), "the console does not know {panel}");
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
    assert_eq!(objects[1].value["metadata"]["namespace"], "openshift-config-managed");
    assert_eq!(objects[1].value["metadata"]["labels"]["console.openshift.io/dashboard"], "true");
    assert_eq!(objects[0].value["metadata"]["labels"]["grafana_dashboard"], "1");
}
