//! Registry mirrors in the `hosts.toml` files of hosts, as read by containerd's own code: in the payload's version and in the oldest supported one.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use api::TemplateSpec;
use serde::Deserialize;
use testbed::binaries::{CONTAINERD, OLDEST_CONTAINERD, containerdjudge};
use wnp_core::render::{Cluster, MirrorRule, PullSecret, Settings, fixtures, render};

const DIRECTORY: &str = r"C:\k\containerd\registries\";

/// Registry host that containerd contacts, with its capabilities.
#[derive(Deserialize, Debug)]
struct Host {
    url: String,
    pull: bool,
    resolve: bool,
    header: Option<BTreeMap<String, Vec<String>>>,
}

impl Host {
    /// Returns the host in a form such as `pull+resolve https://mirror/v2 Basic YTpi`.
    fn shown(&self) -> String {
        let rights = [(self.pull, "pull"), (self.resolve, "resolve")];
        let rights: Vec<&str> = rights.into_iter().filter(|(has, _)| *has).map(|(_, right)| right).collect();
        // In another spelling, containerd would send the header in addition to the registry's token.
        let login = self.header.as_ref().map(|header| header["Authorization"].join(", "));
        [Some(rights.join("+")), Some(self.url.clone()), login].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

fn rule(source: &str, mirrors: &[&str]) -> MirrorRule {
    let mirrors = mirrors.iter().map(ToString::to_string).collect();
    MirrorRule {
        origin: "ImageDigestMirrorSet/factory".into(),
        source: source.into(),
        mirrors,
        ..MirrorRule::default()
    }
}

fn never_from_source(rule: MirrorRule) -> MirrorRule {
    MirrorRule { never_source: true, ..rule }
}

fn by_tag(rule: MirrorRule) -> MirrorRule {
    MirrorRule { tags: true, ..rule }
}

/// Writes the files of a host's registry directory below `dir`. On Unix, too, containerd reads the directory names that Windows needs.
fn write(dir: &Path, cluster: &Cluster) -> Result<()> {
    let payload = fixtures::payload(&fixtures::PROGRAMS);
    let rendered = render(cluster, &payload, &Settings::default(), &TemplateSpec::default())?;
    for file in rendered.configs(cluster, &fixtures::host())? {
        let Some(name) = file.path.strip_prefix(DIRECTORY) else { continue };
        let path = dir.join(name.replace('\\', "/"));
        fs::create_dir_all(path.parent().context("the path has no parent")?)?;
        fs::write(path, file.content)?;
    }
    Ok(())
}

#[test]
fn containerd_follows_the_mirror_rules() -> Result<()> {
    let logins = br#"{"auths": {
        "mirror.example.com:5000": {"auth": "YTpi"}, "mirror.example.com:5000/factory": {"auth": "Yzpk"}, "*.plant.example.com": {"auth": "ZTpm"}
    }}"#;
    let cluster = Cluster {
        mirrors: vec![
            rule(
                "registry.example.com:5000/factory",
                &["mirror.example.com:5000/factory", "second.example.com/hub/factory"],
            ),
            rule("quay.io/a", &["m.plant.example.com/a"]),
            rule("quay.io/b", &["mirror.example.com:5000/copy/b"]),
            by_tag(rule("docker.io", &["mirror.example.com:5000/hub"])),
            never_from_source(rule("gcr.io", &["mirror.example.com:5000", "m.plant.example.com:8443"])),
            never_from_source(rule("nowhere.example.com", &[])),
            rule("ghcr.io", &["docker.io"]),
        ],
        pull_secret: PullSecret::parse(logins, "1")?.0,
        ..fixtures::cluster()
    };
    let source = "pull+resolve";
    let expected: [(&str, &[&str]); 8] = [
        (
            "registry.example.com:5000",
            &[
                "pull https://mirror.example.com:5000/v2 Basic Yzpk",
                "pull https://second.example.com/v2/hub",
                &format!("{source} https://registry.example.com:5000/v2"),
            ],
        ),
        (
            "quay.io",
            &[
                "pull https://m.plant.example.com/v2 Basic ZTpm",
                "pull https://mirror.example.com:5000/v2/copy Basic YTpi",
                &format!("{source} https://quay.io/v2"),
            ],
        ),
        (
            "docker.io",
            &[
                "pull+resolve https://mirror.example.com:5000/v2/hub Basic YTpi",
                &format!("{source} https://registry-1.docker.io/v2"),
            ],
        ),
        // The first mirror is repeated in place of the source.
        (
            "gcr.io",
            &[
                "pull https://mirror.example.com:5000/v2 Basic YTpi",
                "pull https://m.plant.example.com:8443/v2",
                "pull https://mirror.example.com:5000/v2 Basic YTpi",
            ],
        ),
        ("nowhere.example.com", &[&format!("{source} https://never-contact-source.invalid/v2")]),
        ("ghcr.io", &["pull https://registry-1.docker.io/v2", &format!("{source} https://ghcr.io/v2")]),
        // A rule does not apply to another port of its host. No rule names the last registry.
        ("registry.example.com", &[&format!("{source} https://registry.example.com/v2")]),
        ("other.example.com:5000", &[&format!("{source} https://other.example.com:5000/v2")]),
    ];
    let dir = tempfile::tempdir()?;
    write(dir.path(), &cluster)?;
    for containerd in [CONTAINERD, OLDEST_CONTAINERD] {
        let registries = expected.iter().map(|(registry, _)| *registry);
        let judge = containerdjudge(&containerd)?;
        let output = Command::new(&judge).arg("hosts").arg(dir.path()).args(registries).output()?;
        // Standard error would have warnings of fields that containerd does not know.
        ensure!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: BTreeMap<String, Vec<Host>> = serde_json::from_slice(&output.stdout)?;
        for (registry, expected) in &expected {
            let found: Vec<String> = read[*registry].iter().map(Host::shown).collect();
            ensure!(found == *expected, "{}: {registry}: {found:#?}, and not {expected:#?}", judge.display());
        }
    }
    Ok(())
}
