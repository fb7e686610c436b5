//! Series of the payload's windows_exporter, as its source names them: recorded in `windows_exporter_series.txt`, with the version. Set
//! `UPDATE_GOLDENS=1` to record those of another version.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, process::Command};

use devenv::{read, skip, workspace_root};

const MODULE: &str = "github.com/prometheus-community/windows_exporter";
const RECORD: &str = include_str!("windows_exporter_series.txt");
/// Path of the file with the record, from the root of the repository.
const FILE: &str = "tools/xtask-operator/src/deploy/windows_exporter_series.txt";

/// Returns all series of the record.
pub(super) fn recorded() -> BTreeSet<&'static str> {
    RECORD.lines().filter(|line| !line.starts_with('#')).collect()
}

/// Returns the collectors with which hosts run windows_exporter.
fn collectors() -> Vec<String> {
    let golden = fs::read_to_string(workspace_root().join("controller/core/goldens/none.yaml")).unwrap();
    let (_, rest) = golden.split_once("--collectors.enabled").unwrap();
    rest.split_whitespace().find(|word| word.contains(',')).unwrap().split(',').map(str::to_owned).collect()
}

fn head(version: &str) -> String {
    format!("# windows_exporter {version} with the collectors {}", collectors().join(","))
}

/// Returns the names of series in the source of a collector, from calls such as `prometheus.BuildFQName(types.Namespace, Name, "info")`.
fn named(collector: &str, source: &str) -> BTreeSet<String> {
    let calls = source.split("BuildFQName(types.Namespace, ").skip(1);
    let arguments = calls.filter_map(|call| call.split_once(')').map(|(arguments, _)| arguments));
    let word = |argument: &str| match argument.trim() {
        "Name" => collector.to_owned(),
        text => text.trim_matches('"').to_owned(),
    };
    let name = |arguments: &str| {
        let parts = arguments.split(',').map(word).filter(|part| !part.is_empty());
        ["windows".to_owned()].into_iter().chain(parts).collect::<Vec<_>>().join("_")
    };
    arguments.map(name).collect()
}

fn in_source(module: &Path) -> BTreeSet<String> {
    let series = collectors().into_iter().flat_map(|collector| {
        let file = module.join("pkg/collector").join(&collector).join(format!("{collector}.go"));
        named(&collector, &fs::read_to_string(file).unwrap())
    });
    series.collect()
}

/// Returns the version and folder of the module, which is downloaded if necessary.
fn module() -> Option<(String, String)> {
    let go = |args: &[&str]| {
        let folder = workspace_root().join("tools/xtask/payload/windows_exporter");
        read(Command::new("go").args(args).current_dir(folder)).ok()
    };
    go(&["mod", "download", MODULE])?;
    let found = go(&["list", "-m", "-f", "{{.Version}} {{.Dir}}", MODULE])?;
    let (version, folder) = found.split_once(' ')?;
    Some((version.to_owned(), folder.to_owned()))
}

#[test]
fn the_record_is_of_the_version_in_the_payload() {
    let versions = fs::read_to_string(workspace_root().join("tools/xtask/payload/windows_exporter/go.mod")).unwrap();
    let version = versions.lines().find_map(|line| line.trim().strip_prefix(&format!("{MODULE} "))).unwrap();
    let version = version.split(' ').next().unwrap();
    if std::env::var_os("UPDATE_GOLDENS").is_none() {
        assert_eq!(RECORD.lines().next(), Some(head(version).as_str()));
    }
}

#[test]
fn the_record_has_the_series_of_the_source() {
    let Some((version, folder)) = module() else {
        return skip("the source of windows_exporter cannot be fetched").unwrap();
    };
    let mut text = head(&version) + "\n";
    for series in in_source(Path::new(&folder)) {
        writeln!(text, "{series}").unwrap();
    }
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(workspace_root().join(FILE), text).unwrap();
    } else {
        assert_eq!(RECORD, text);
    }
}

#[test]
fn names_are_read_from_calls() {
    for (source, expected) in [
        ("prometheus.BuildFQName(types.Namespace, Name, \"time_total\"),\n", "windows_cpu_time_total"),
        ("prometheus.BuildFQName(types.Namespace, \"\", Name),\n", "windows_cpu"),
    ] {
        assert_eq!(named("cpu", source), BTreeSet::from([expected.to_owned()]));
    }
    assert_eq!(named("cpu", "prometheus.NewDesc(other, Name)"), BTreeSet::new());
}
