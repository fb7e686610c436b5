//! Reference page of compatible versions, from the data that the code uses.

use std::ops::RangeInclusive;

use controller::OLDEST_KUBERNETES;
use testbed::binaries::{KUBERNETES, KUBERNETES_VERSION};
use wnp_core::{operation::windows_versions::VERSIONS, render::api_servers_of_kubelet};

use crate::deploy;

use super::tables::{code, page, section};

/// File `go.mod` from which the payload's containerd is built.
const CONTAINERD: &str = include_str!("../../../xtask/payload/containerd/go.mod");
/// Module of containerd in that `go.mod`.
const MODULE: &str = "github.com/containerd/containerd/v2 ";
/// File `go.mod` from which the payload's shim is built.
const SHIM: &str = include_str!("../../../xtask/payload/hcsshim/go.mod");

/// Test that runs with each version of Kubernetes.
const SMOKE: &str = "`controller/tests/it/versions.rs`";
/// Test in which programs of nodes read their arguments and files.
const PROGRAMS: &str = "`controller/tests/it/node_programs.rs`";
/// Test of the mirrors of registries.
const HOSTS_TOML: &str = "`controller/tests/it/hosts_toml.rs`";
/// Oldest version of Kubernetes with which each change is tested.
const OLDEST: &str = KUBERNETES[KUBERNETES.len() - 1];
/// Version of Kubernetes and day on which the smoke test last passed with it, one line per version. The test writes the file if `RECORD_VERSIONS`
/// names it, as in the nightly check.
const SEEN: &str = include_str!("versions.tsv");

/// Returns the page of versions.
pub(super) fn versions() -> String {
    let about = "**Tested**: tests run it, and the row or its section names them. **Should work**: nothing is known against it, and no test runs it. **No**: the operator refuses it, or reports \
                 it. Nothing here was run on real Windows or on OpenShift: see [what only real Windows can prove](../concept/windows-only.md). The tests of each change (`make test`) took 26 minutes (1,582 s) in a fresh clone, on 2 cores whose caches are \
                 warm; those of a night (`make nightly`) run in four parts side by side, of which one was measured: with the programs of two versions built before, \
                 each version of Kubernetes (`PART=programs`, its first step) took 20 minutes. For the whole part, 19 GB of free disk were too few.";
    let mut text = page("Versions that work together", about);
    combinations(&mut text);
    clusters(&mut text);
    kubelets(&mut text);
    windows(&mut text);
    others(&mut text);
    text
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(ToOwned::to_owned).to_vec()
}

/// Writes the overview table, with one row for each payload that a release can have.
fn combinations(text: &mut String) {
    let about = "Each row is a release of the operator with one payload, and all that it works with. The sections below name the evidence for each part.";
    let builds = VERSIONS.iter().map(|version| version.build.to_string()).collect::<Vec<_>>().join(", ");
    let rows = KUBERNETES.map(|version| {
        let hosts = match version {
            KUBERNETES_VERSION => "simulated hosts, and on hosts under Wine with a real kubelet",
            _ => "simulated hosts, which run no program of the payload",
        };
        let minor = minor(version);
        let [all, newer] = [minor, minor + 1].map(|first| servers(minor, first).map(|them| range(&them, kubernetes)));
        let others = newer.map_or_else(String::new, |newer| format!("; {newer} should work"));
        row([
            deploy::VERSION,
            &format!("kubelet 1.{minor}, containerd {}", containerd()),
            &all.unwrap_or_default(),
            &builds,
            "OVN-Kubernetes with hybrid overlay, or a network in HostProcess pods",
            &format!("{} with Kubernetes {} on {hosts}{others}", state(version), version.trim_start_matches('v')),
        ])
    });
    let columns = ["operator", "payload", "Kubernetes", "builds of Windows", "network", "state"];
    section(text, "Overview", about, &columns, rows.to_vec());
}

/// Returns the tested minor versions of API servers, from `first` on, that a kubelet works with.
fn servers(kubelet: u32, first: u32) -> Option<RangeInclusive<u32>> {
    let last = minor(KUBERNETES_VERSION).min(*api_servers_of_kubelet(kubelet).end());
    (first <= last).then_some(first..=last)
}

/// Returns a range such as `1.33 to 1.36`.
fn range(minors: &RangeInclusive<u32>, name: impl Fn(u32) -> String) -> String {
    let [first, last] = [minors.start(), minors.end()].map(|minor| name(*minor));
    if first == last { first } else { format!("{first} to {last}") }
}

fn kubernetes(minor: u32) -> String {
    format!("1.{minor}")
}

/// Returns the version of containerd in the payload.
fn containerd() -> &'static str {
    version_in(CONTAINERD, MODULE)
}

fn shim() -> &'static str {
    version_in(SHIM, "github.com/Microsoft/hcsshim ")
}

/// Returns the version of a module that a `go.mod` requires.
fn version_in(go_mod: &'static str, module: &str) -> &'static str {
    let required = |line: &'static str| line.trim().trim_start_matches("require ").strip_prefix(module);
    let version = go_mod.lines().find_map(|line| required(line)?.split(' ').next());
    version.unwrap_or("unknown").trim_start_matches('v')
}

fn clusters(text: &mut String) {
    let oldest = OLDEST_KUBERNETES;
    let tested = KUBERNETES.map(|version| {
        let way = "hosts join, follow a change with a drain, are taken over and are removed";
        let shown = match version {
            KUBERNETES_VERSION => {
                format!("all tests with a real API server (`controller/tests/it`) run it; by night {SMOKE}, too")
            }
            OLDEST => format!("{SMOKE}: {way}"),
            _ => format!("{SMOKE}, by night: {way}"),
        };
        row([&format!("Kubernetes {}", version.trim_start_matches('v')), &state(version), &shown])
    });
    let others = [
        row([
            "other patch versions of these",
            "should work",
            "the operator reports nothing against them, and the chart takes them",
        ]),
        row([
            &format!("Kubernetes newer than 1.{}", minor(KUBERNETES_VERSION)),
            "not tested",
            "the operator reports only a kubelet that is too old for it, and the chart takes it",
        ]),
        row([
            &format!("Kubernetes before 1.{oldest}"),
            "no",
            "every pool reports `ApiServerTooOld`; the chart refuses the installation",
        ]),
        row([
            &format!("OpenShift {} or newer", deploy::openshift(oldest)),
            "should work",
            "tests create objects of OpenShift's kinds on the API server; no test runs OpenShift",
        ]),
    ];
    let rows: Vec<_> = tested.into_iter().chain(others).collect();
    section(text, "Clusters", "", &["cluster", "state", "shown by"], rows);
}

/// Returns the test state of a version of Kubernetes.
fn state(version: &str) -> String {
    let by = if [KUBERNETES_VERSION, OLDEST].contains(&version) { "tested" } else { "tested by night" };
    seen(version).map_or_else(|| by.to_owned(), |day| format!("{by} ({day})"))
}

/// Returns the day on which a version last passed.
fn seen(version: &str) -> Option<&'static str> {
    SEEN.lines().find_map(|line| line.strip_prefix(version)?.strip_prefix('\t'))
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

fn kubelets(text: &mut String) {
    let about = &format!(
        "A payload has the kubelet of one minor version. It must not be newer than the oldest API server, and not more than three minor versions older: \
                 the operator refuses another one with `KubeletVersionSkew` (test `kubelet_is_at_most_as_new_as_the_api_server_and_at_most_three_minors_older`). \
                 `cargo xtask payload --kubernetes` [builds](../guide/upgrade.md#one-payload-for-each-version-of-kubernetes) those of the table; a kubelet of your own must keep to the same rule. \
                 What is built has the `godebug` settings of upstream's release (test `each_set_has_the_settings_of_go_of_its_programs`), its version, and an empty Git commit, which Go's module proxy does not provide for Kubernetes: the User-Agent ends with `kubernetes/unknown`. \
                 The code of kubelet and kube-proxy of each, built for Windows, takes the arguments and files of nodes under Wine: of each platform (`controller/core/goldens`), and of random pools that the API server takes \
                 ({PROGRAMS}: the oldest and the newest with each change, all by night), and the programs themselves start with them as far as they go without a node."
    );
    let rows = KUBERNETES.iter().filter_map(|version| {
        let kubelet = minor(version);
        let servers = servers(kubelet, kubelet)?;
        Some(row([&kubernetes(kubelet), &range(&servers, kubernetes), &range(&servers, deploy::openshift)]))
    });
    let columns = ["kubelet of the payload", "API servers", "OpenShift with these"];
    section(text, "Kubelets", about, &columns, rows.collect::<Vec<_>>());
}

fn windows(text: &mut String) {
    let about = "The operator takes hosts of these builds and refuses others with `WindowsNotSupported` (test `versions_of_hosts`). Tests run hosts under Wine and simulated \
                 hosts, which report such a build. More about them: [platforms](limits.md#versions-of-windows).";
    let rows = VERSIONS.iter().map(|version| {
        let selector = format!("node.kubernetes.io/windows-build: 10.0.{}", version.build);
        vec![
            version.name.to_owned(),
            version.build.to_string(),
            code(version.image),
            code(selector),
            "should work".to_owned(),
        ]
    });
    let columns = ["Windows", "build", "base images", "label of its Nodes", "state"];
    section(text, "Windows", about, &columns, rows.collect::<Vec<_>>());
}

fn others(text: &mut String) {
    let rows = vec![
        row([
            &format!("containerd {}", containerd()),
            "should work",
            &format!(
                "the payload is built with it; it reads its configuration under Wine without a key that it ignores, loads the network ({PROGRAMS}), and asks registries as \
                 `hosts.toml` says ({HOSTS_TOML}); no container was run"
            ),
        ]),
        row([
            "containerd 2.1 or newer, your own",
            "should work",
            "`cargo xtask payload` takes it; 2.1.0 reads all of this in the same way (the same tests)",
        ]),
        row([
            &format!("shim {} (hcsshim)", shim()),
            "should work",
            "built; the one that containerd names needs a module that the module proxy does not serve (test `the_shim_is_the_one_of_containerd_unless_that_cannot_be_built`)",
        ]),
        row(["containerd 1", "no", "`cargo xtask payload` refuses it (test `major_versions_of_containerd`)"]),
    ];
    section(text, "Container runtime", "", &["runtime", "state", "shown by"], rows);
    let rows = vec![
        row([
            "OVN-Kubernetes with hybrid overlay",
            "should work",
            "`controller/tests/it/wine_overlay.rs`: the way of a node, with programs of the test bed in place of those of Windows and of OVN",
        ]),
        row([
            "OVN-Kubernetes without hybrid overlay",
            "no",
            "every pool reports that pods on Windows would have no network ([networks](../guide/cluster-facts.md#networks))",
        ]),
        row([
            "Calico, Flannel and others in HostProcess pods",
            "should work",
            "tests compare containerd's configuration with their directories; no such network was run",
        ]),
    ];
    section(text, "Networks", "", &["network", "state", "shown by"], rows);
    let rows = vec![
        row([
            "an upgrade to the next release",
            "tested with CRDs of an older one",
            "`controller/tests/it/upgrade.rs`: `nodes_stay_with_the_next_release_and_back_by_one`, from CRDs that lack fields to this program and another payload",
        ]),
        row([
            "a downgrade by one release",
            "tested in part",
            "the same test, back to the previous payload, with the newer CRDs and with this program: there is no release yet whose program could be run. What an older program does with \
             values that it does not know, `controller/tests/it/newer.rs` shows with values that this one does not know",
        ]),
        row([
            "a CRD of another release",
            "tested",
            "`controller/tests/it/newer.rs`: what cannot be read is reported and changes no host",
        ]),
    ];
    section(text, "Releases of the operator", "", &["step", "state", "shown by"], rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_the_day_on_which_it_passed() {
        for version in KUBERNETES {
            let Some(day) = seen(version) else {
                panic!(
                    "{version} has no line: run `RECORD_VERSIONS=… cargo test -p controller --test it -- versions:: --include-ignored`"
                );
            };
            assert!(day.parse::<jiff::civil::Date>().is_ok(), "{version}: {day}");
        }
        assert_eq!(
            SEEN.lines().count(),
            KUBERNETES.len(),
            "versions.tsv does not have exactly one line for each version"
        );
        assert_eq!(minor(OLDEST), OLDEST_KUBERNETES, "the oldest version that the operator accepts is not tested");
    }

    #[test]
    fn tests_that_are_named_exist() {
        let root = devenv::workspace_root();
        for (file, name) in [
            (
                "controller/core/src/render/prerequisites.rs",
                "kubelet_is_at_most_as_new_as_the_api_server_and_at_most_three_minors_older",
            ),
            ("controller/core/src/operation/windows_versions.rs", "versions_of_hosts"),
            ("tools/xtask-operator/src/payload/given.rs", "major_versions_of_containerd"),
            ("controller/tests/it/upgrade.rs", "nodes_stay_with_the_next_release_and_back_by_one"),
            ("controller/tests/it/versions.rs", "hosts_go_the_whole_way_with_1_33"),
            ("controller/tests/it/node_programs.rs", "each_kubelet_takes_what_the_api_server_takes"),
            ("controller/tests/it/newer.rs", "what_cannot_be_read_is_reported_and_touches_nobody"),
        ] {
            assert!(std::fs::read_to_string(root.join(file)).unwrap().contains(name), "{file} has no {name}");
        }
    }
}
