//! Command `explain`: traces a node to its inventory entry, and to the Git commit that last changed the entry.

use anyhow::{Context as _, bail};
use api::{
    InventoryStatus, Origin, SignatureCheck, WindowsInstance, WindowsNodePool,
    conditions::{find, kind},
    services_version::short,
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{
    args::{self, Explain, output},
    client::api_server,
};

/// Prints the chain of facts from the node to the commit.
///
/// # Errors
/// Fails when there is no configuration for the API server, the API server refuses a request or does not answer, or there is no WindowsInstance of
/// this name.
pub async fn run(args: Explain, cluster: &args::Cluster) -> anyhow::Result<()> {
    let client = api_server::client(cluster).await?;
    let name = args.host.to_ascii_lowercase();
    let instance: Option<WindowsInstance> = Api::all(client.clone())
        .get_opt(&name)
        .await
        .with_context(|| format!("failed to get the WindowsInstance {name}"))?;
    let node: Option<Node> =
        Api::all(client.clone()).get_opt(&name).await.with_context(|| format!("failed to get the Node {name}"))?;
    let Some(instance) = instance else {
        match node {
            Some(_) => bail!(
                "the operator does not manage the Node {name}, because there is no WindowsInstance of this name; see: kubectl get windowsinstances"
            ),
            None => bail!("there is neither a Node nor a WindowsInstance {name}; see: kubectl get windowsinstances"),
        }
    };
    let pool = &instance.spec.pool_ref.name;
    let pool: Option<WindowsNodePool> =
        Api::all(client).get_opt(pool).await.with_context(|| format!("failed to get the WindowsNodePool {pool}"))?;
    let chain = chain(&instance, pool.as_ref(), node.as_ref());
    Ok(output::print(&output::answer(args.output, &document(&chain), || text(&chain))?)?)
}

/// Link of the chain: its title and its facts.
type Link = (&'static str, String);

fn chain(instance: &WindowsInstance, pool: Option<&WindowsNodePool>, node: Option<&Node>) -> Vec<Link> {
    let (spec, status) = (&instance.spec, instance.status.clone().unwrap_or_default());
    let mut chain = Vec::new();
    chain.push(("node", node.map_or_else(|| "none".into(), |n| describe_node(n, status.current_version.as_deref()))));
    let ready =
        find(&status.conditions, kind::READY).map(|c| format!(", {}: {}", c.reason, c.message)).unwrap_or_default();
    let host = &spec.host;
    let phase = status.phase.map_or_else(|| "new".into(), |p| format!("{p:?}"));
    chain.push(("instance", format!("{} at {} port {}, {phase}{ready}", instance.name_any(), host.address, host.port)));
    if let Some(facts) = &status.facts {
        chain.push(("host", format!("reports the name {}, {} {}", facts.hostname, facts.os_name, facts.os_build)));
    }
    if let Some(key) = &status.host_key {
        chain.push(("host key", format!("{} {}", key.key_type, key.fingerprint)));
    }
    chain.push((
        "pool",
        pool.map_or_else(|| format!("{}, which no longer exists", spec.pool_ref.name), ResourceExt::name_any),
    ));
    match &spec.origin {
        None => chain.push(("listed in", "the pool's own inventory.hosts".into())),
        Some(origin) => describe_origin(origin, &mut chain),
    }
    if let Some(list) = pool.and_then(|p| p.status.as_ref()?.inventory.as_ref()) {
        describe_list(list, &mut chain);
    }
    chain
}

fn describe_node(node: &Node, version: Option<&str>) -> String {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
    format!(
        "{}, {}{}, {}",
        node.name_any(),
        if ready { "Ready" } else { "not Ready" },
        if cordoned { ", cordoned" } else { "" },
        version.map_or_else(|| "without a version".into(), |v| format!("follows version {}", short(v)))
    )
}

fn describe_origin(origin: &Origin, chain: &mut Vec<Link>) {
    chain.push(("listed in", origin.source.clone()));
    if let Some(machine) = &origin.machine {
        chain.push(("Machine", machine.clone()));
    }
    if let Some(file) = &origin.file {
        chain.push(("file", origin.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))));
    }
    if let Some(revision) = &origin.revision {
        chain.push(("as of", revision.clone()));
    }
    if let Some(commit) = &origin.commit {
        let older = if commit.or_older { ", or an older commit that was not fetched" } else { "" };
        chain.push(("commit", format!("{}{older}", commit.id)));
        chain.push(("author", format!("{}, {}", commit.author, commit.time)));
        chain.push(("subject", commit.subject.clone()));
    } else if let Some(commit) = origin.revision.as_deref().and_then(commit) {
        // The revision is, for example, that of a Flux artifact, which has no history.
        chain.push(("commit", format!("{commit}, or an older one: the commit that changed the entry is not known")));
    }
}

/// Returns the commit hash in a revision such as `main@sha1:…`.
fn commit(revision: &str) -> Option<&str> {
    let (_, id) = revision.rsplit_once("sha1:")?;
    (id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

fn describe_list(list: &InventoryStatus, chain: &mut Vec<Link>) {
    if let Some(revision) = &list.revision {
        let by = list.author.as_ref().map(|a| format!(" by {a}")).unwrap_or_default();
        chain.push(("list now", format!("{revision}{by}")));
    }
    match (list.verdict, &list.signer) {
        (SignatureCheck::Verified, Some(signer)) => chain.push(("signed by", signer.clone())),
        (SignatureCheck::NotAsked, _) => {
            chain.push(("signed by", "not checked: the pool requires no signature".into()));
        }
        (SignatureCheck::Verified, None) => {}
    }
    if let Some(refused) = &list.refused_revision {
        chain.push(("not used", format!("{refused}; see the pool's condition InventorySynced")));
    }
}

fn text(chain: &[Link]) -> String {
    let width = chain.iter().map(|(what, _)| what.len()).max().unwrap_or_default();
    let lines: Vec<String> = chain.iter().map(|(what, said)| format!("{what:width$}  {said}")).collect();
    lines.join("\n") + "\n"
}

fn document(chain: &[Link]) -> Value {
    chain.iter().map(|(what, said)| ((*what).to_owned(), json!(said))).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Commit, InstanceHost, PoolRef, WindowsInstanceSpec, WindowsNodePoolSpec, WindowsNodePoolStatus};

    #[test]
    fn the_chain_leads_from_the_node_to_the_commit() {
        let origin = Origin {
            source: "git https://git.example.com/hosts".into(),
            revision: Some("main@sha1:0a".into()),
            file: Some("hall-b.yaml".into()),
            line: Some(7),
            commit: Some(Commit {
                id: "0a".into(),
                author: "Ada <ada@example.com>".into(),
                time: "2026-03-01T08:00:00Z".parse().unwrap(),
                subject: "Add win-1".into(),
                or_older: false,
            }),
            machine: None,
            provider_id: None,
        };
        let host =
            InstanceHost { name: "win-1".into(), address: "10.0.0.1".into(), port: 22, ..InstanceHost::default() };
        let pool_ref = PoolRef { name: "p".into() };
        let spec = WindowsInstanceSpec { host, pool_ref, origin: Some(origin), ..WindowsInstanceSpec::default() };
        let instance = WindowsInstance::new("win-1", spec);
        let mut pool = WindowsNodePool::new("p", WindowsNodePoolSpec::default());
        let list = InventoryStatus {
            revision: Some("main@sha1:0b".into()),
            author: Some("Bob <bob@example.com>".into()),
            signer: Some("SSH SHA256:x".into()),
            verdict: SignatureCheck::Verified,
            refused_revision: Some("main@sha1:0c".into()),
            ..InventoryStatus::default()
        };
        pool.status = Some(WindowsNodePoolStatus { inventory: Some(list), ..WindowsNodePoolStatus::default() });
        let text = text(&chain(&instance, Some(&pool), None));
        let expected = "\
node       none
instance   win-1 at 10.0.0.1 port 22, new
pool       p
listed in  git https://git.example.com/hosts
file       hall-b.yaml:7
as of      main@sha1:0a
commit     0a
author     Ada <ada@example.com>, 2026-03-01T08:00:00Z
subject    Add win-1
list now   main@sha1:0b by Bob <bob@example.com>
signed by  SSH SHA256:x
not used   main@sha1:0c; see the pool's condition InventorySynced
";
        assert_eq!(text, expected);
        let id = "0123456789abcdef0123456789abcdef01234567";
        for (revision, expected) in [
            (format!("main@sha1:{id}"), Some(id)),
            (format!("sha1:{id}"), Some(id)),
            (format!("latest@sha256:{id}"), None),
            ("main@sha1:0a".into(), None),
            ("generation-1".into(), None),
        ] {
            assert_eq!(commit(&revision), expected, "{revision}");
        }
        let own = WindowsInstance::new("w", WindowsInstanceSpec::default());
        let said = super::text(&chain(&own, None, None));
        assert!(said.contains("the pool's own inventory.hosts") && said.contains("which no longer exists"), "{said}");
    }
}
