//! Group Managed Service Accounts: a host's report about its domain and the accounts of its pool, and what users see of it.

use anyhow::{Result, ensure};
use api::{conditions::kind, host::AccountState, names::key};
use serde_json::json;
use testbed::sim::SimOptions;

use crate::fleet::{World, has, is_ready, pool_status, spec_with, status};

#[tokio::test(flavor = "multi_thread")]
async fn hosts_join_and_report_whether_they_can_use_the_accounts_of_their_pool() -> Result<()> {
    let world = World::new(SimOptions::default(), &[]).await?;
    let hosts = world.hosts("win", 2).await?;
    let (member, outsider) = (&hosts[0], &hosts[1]);
    member.windows().state().machine.domain = Some("Corp.Example.com".to_owned());
    member.windows().state().service_accounts.insert("web".to_owned(), AccountState::Usable);
    let with = |accounts: &[&str]| spec_with(&hosts, json!({"template": {"spec": {"gmsa": {"accounts": accounts}}}}));
    let reports = async |name: &str, is_so: &str, why: &str| {
        let found = |i: &api::WindowsInstance| has(&status(i).conditions, kind::GMSA_READY, is_so, why);
        world.until_instance(name, &format!("GMSAReady is {is_so}: {why}"), found).await
    };
    world.join("factory", &with(&["web"])).await?;
    reports(member.name(), "True", "Succeeded").await?;
    reports(outsider.name(), "False", "AccountNotUsable").await?;
    let message = format!("1 with an unusable gMSA account (GMSAReady): {}", outsider.name());
    let is_named = |p: &api::WindowsNodePool| {
        let ready = pool_status(p).conditions.into_iter().find(|c| c.type_ == kind::READY);
        ready.is_some_and(|c| c.message.contains(&message))
    };
    world.until("factory", "it names the host", is_named).await?;
    let label = async |name: &str| {
        anyhow::Ok(world.node(name).await?.and_then(|n| n.metadata.labels?.get(key::DOMAIN).cloned()))
    };
    ensure!(label(member.name()).await?.as_deref() == Some("corp.example.com"), "the label is missing");
    ensure!(label(outsider.name()).await?.is_none(), "a host in no domain has the label of one");

    // A new account is checked on the nodes, and disturbs none.
    member.windows().state().service_accounts.insert("db".to_owned(), AccountState::NotAllowed);
    let starts = member.kubelet_starts();
    world.apply("factory", &with(&["web", "db"])).await?;
    reports(member.name(), "False", "AccountNotUsable").await?;
    world.until("factory", "it is Ready", is_ready).await?;
    ensure!(member.kubelet_starts() == starts, "the node was disturbed");

    // A plugin that the payload lacks makes the spec invalid, and disturbs no node.
    let plugin = json!({"file": "absent.dll", "clsid": "{CCC2A336-D7F3-4818-A213-272B7924213E}"});
    let with_plugin = json!({"template": {"spec": {"gmsa": {"accounts": ["web"], "plugin": plugin}}}});
    world.apply("factory", &spec_with(&hosts, with_plugin)).await?;
    let is_refused = |p: &api::WindowsNodePool| {
        pool_status(p).conditions.iter().any(|c| c.reason == "SpecInvalid" && c.message.contains("absent.dll"))
    };
    world.until("factory", "it says that the payload has no such plugin", is_refused).await?;
    ensure!(member.kubelet_starts() == starts, "the node was disturbed");
    Ok(())
}
