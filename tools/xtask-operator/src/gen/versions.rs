//! The page of versions that work together, from the data that decides about them.

use controller::OLDEST_KUBERNETES;
use testbed::binaries::KUBERNETES;
use wnp_core::{operation::windows_versions::VERSIONS, render::api_servers_of_kubelet};

use crate::{deploy, payload};

use super::tables::{code, page, section};

/// The `go.mod` from which the payload's containerd is built.
const CONTAINERD: &str = include_str!("../../../xtask/payload/containerd/go.mod");
/// Module of containerd in that `go.mod`.
const MODULE: &str = "github.com/containerd/containerd/v2 ";
/// The `go.mod` from which the payload's shim is built.
const SHIM: &str = include_str!("../../../xtask/payload/hcsshim/go.mod");

/// Test that runs with each version of Kubernetes.
const SMOKE: &str = "`controller/tests/it/versions.rs`";
/// Test in which programs of nodes read what they get.
const PROGRAMS: &str = "`controller/tests/it/node_programs.rs`";
/// Versions of Kubernetes that [`SMOKE`] was seen to pass with, and when. The newest and the oldest, with which each change is tested, need no
/// date.
const SEEN: &[(&str, &str)] = &[("v1.36.3", "2026-11-28"), ("v1.35.4", "2026-11-28"), ("v1.34.4", "2026-11-28")];

/// Returns the page of versions.
pub(super) fn versions() -> String {
    let about = "Each row says what shows it. **Tested**: tests run it. **Should work**: nothing is known against it, and no test runs it. **No**: the operator refuses it, or reports \
                 it. Nothing here was run on real Windows or on OpenShift: see [what only real Windows can prove](windows-only.md).";
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

/// Writes the table of all axes together, one row for each payload that a release can have.
fn combinations(text: &mut String) {
    let about = "Each row is a release of the operator with one payload, and all that it works with. The sections below say what shows each part.";
    let tested = minor(testbed::binaries::KUBERNETES_VERSION);
    let builds = VERSIONS.iter().map(|version| version.build.to_string()).collect::<Vec<_>>().join(", ");
    let rows = payload::KUBERNETES.map(|kubernetes| {
        let servers = api_servers_of_kubelet(minor(kubernetes));
        let (first, last) = (*servers.start(), *servers.end());
        let state = if minor(kubernetes) == tested {
            format!("tested with Kubernetes 1.{tested}, simulated hosts and hosts under Wine; the others should work")
        } else {
            "should work".to_owned()
        };
        row([
            deploy::VERSION,
            &format!("kubelet {kubernetes}, containerd {}", containerd()),
            &format!("1.{first} to 1.{last}"),
            &format!("{} to {}", deploy::openshift(first), deploy::openshift(last)),
            &builds,
            "OVN-Kubernetes with hybrid overlay, or a network in HostProcess pods",
            &state,
        ])
    });
    let columns = ["operator", "payload", "Kubernetes", "OpenShift", "builds of Windows", "network", "state"];
    section(text, "Overview", about, &columns, rows.to_vec());
}

/// The version of containerd in the payload.
fn containerd() -> &'static str {
    version_in(CONTAINERD, MODULE)
}

fn shim() -> &'static str {
    version_in(SHIM, "github.com/Microsoft/hcsshim ")
}

/// Version of a module that a `go.mod` requires.
fn version_in(go_mod: &'static str, module: &str) -> &'static str {
    let required = |line: &'static str| line.trim().trim_start_matches("require ").strip_prefix(module);
    let version = go_mod.lines().find_map(|line| required(line)?.split(' ').next());
    version.unwrap_or("unknown").trim_start_matches('v')
}

fn clusters(text: &mut String) {
    let versions = KUBERNETES.map(|version| version.trim_start_matches('v'));
    let oldest = OLDEST_KUBERNETES;
    let tested = versions.map(|version| {
        let way = "hosts join, follow a change with a drain, are taken over and are removed";
        let (state, shown) = if version == versions[0] {
            ("tested".to_owned(), "all tests with a real API server (`controller/tests/it`) run it".to_owned())
        } else if version == versions[versions.len() - 1] {
            ("tested".to_owned(), format!("{SMOKE}: {way}"))
        } else {
            (seen(version), format!("{SMOKE}, by night: {way}"))
        };
        row([&format!("Kubernetes {version}"), &state, &shown])
    });
    let others = [
        row([
            &format!("Kubernetes 1.{oldest} or newer, other than these"),
            "should work",
            "the operator reports nothing against them, and the chart takes them",
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

/// State of a version that only tests of the night run.
fn seen(version: &str) -> String {
    match SEEN.iter().find(|(of, _)| of.trim_start_matches('v') == version) {
        Some((_, date)) => format!("tested by night, last noted on {date}"),
        None => "should work; its test has not been run yet".to_owned(),
    }
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

fn kubelets(text: &mut String) {
    let about = &format!(
        "A payload has the kubelet of one minor version. It must not be newer than the oldest API server, and not more than three minor versions older: \
                 the operator refuses another one with `KubeletVersionSkew` (test `kubelet_is_at_most_as_new_as_the_api_server_and_at_most_three_minors_older`). \
                 `cargo xtask payload --kubernetes` [builds](../guide/payload.md#one-payload-for-each-version-of-kubernetes) those of the table; a kubelet of your own must keep to the same rule. \
                 What is built has the version and the `godebug` settings of upstream's release, and no Git commit, which Go's module proxy does not tell: the User-Agent ends with `kubernetes/unknown`. \
                 The code of kubelet and kube-proxy of each, built for Windows, takes the arguments and files of nodes under Wine, also of random pools that the API server takes \
                 ({PROGRAMS}: the oldest and the newest with each change, all by night; last noted for all on 2026-11-28)."
    );
    let rows = payload::KUBERNETES.map(|kubernetes| {
        let servers = api_servers_of_kubelet(minor(kubernetes));
        let (first, last) = (*servers.start(), *servers.end());
        row([
            kubernetes,
            &format!("1.{first} to 1.{last}"),
            &format!("{} to {}", deploy::openshift(first), deploy::openshift(last)),
        ])
    });
    section(text, "Kubelets", about, &["kubelet of the payload", "API servers", "OpenShift"], rows.to_vec());
}

fn windows(text: &mut String) {
    let about = "The operator takes hosts of these builds and refuses others with `WindowsNotSupported` (test `versions_of_hosts`). Tests run hosts under Wine and simulated \
                 hosts, which report such a build. More about them: [platforms](platforms.md#versions-of-windows).";
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
                "the payload is built with it, and it reads its configuration under Wine without a key that it ignores ({PROGRAMS}); no container was run"
            ),
        ]),
        row([
            "containerd 2.1 or newer, your own",
            "should work",
            &format!("`cargo xtask payload` takes it; 2.1.0 reads its configuration in the same way ({PROGRAMS})"),
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
            "every pool reports that pods on Windows would have no network ([networks](../guide/networks.md))",
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
    fn rows_follow_from_the_data() {
        let text = versions();
        for row in [
            "| 0.1.0 | kubelet 1.37, containerd 2.",
            " | 1.35 to 1.38 | 4.22 to 5.2 | 17763, 20348, 26100 | OVN-Kubernetes with hybrid overlay, or a network in HostProcess pods | should work |",
            "| Kubernetes 1.37.2 | tested |",
            "| Kubernetes 1.34.4 | tested by night, last noted on 2026-11-28 |",
            "| Kubernetes 1.33.13 | tested |",
            "| 1.37 | 1.37 to 1.40 | 5.1 to 5.4 |",
            "| 1.33 | 1.33 to 1.36 | 4.20 to 5.0 |",
            "| Windows Server 2022 | 20348 | `ltsc2022` |",
            "| containerd 2.",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }

    #[test]
    fn what_was_seen_is_of_versions_that_there_are() {
        for (version, date) in SEEN {
            assert!(KUBERNETES.contains(version), "{version}");
            assert!(date.parse::<jiff::civil::Date>().is_ok(), "{date}");
        }
        let oldest = KUBERNETES[KUBERNETES.len() - 1];
        assert_eq!(minor(oldest), OLDEST_KUBERNETES, "the oldest that is claimed is tested");
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
