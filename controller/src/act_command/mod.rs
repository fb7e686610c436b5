//! Commands that change what people may change: `retry`, `approve`, `pause`, `resume`, `hold`, `release`, `abandon`, `trust-host-key`. Each
//! writes the annotation or field that the guide names, by a patch that fails if another client has changed the object since it was read.

use std::process::ExitCode;

use anyhow::Context as _;
use api::{WindowsInstance, WindowsNodePool};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};

use self::{
    apply::{Agree, Outcome, act},
    decision::{Decided, Refusal},
};
use crate::{
    api_server::{self, Chosen},
    args::{self, Act, Approve, Output},
    errors::plain,
};

mod apply;
mod decision;
mod host;
mod keeper;
mod pool;

/// Changes what is asked for, and prints what was changed.
///
/// # Errors
/// When there is no configuration for the API server, it refuses a request or does not answer, or a question is not answered with yes.
pub async fn run(args: Act, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let Chosen { config, title } = api_server::choose(cluster).await?;
    let config = api_server::bounded(config, cluster.request_timeout).await?;
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    let ask = |danger: &str| crate::output::ask(false, &question(&title, danger));
    let (outcomes, output) = perform(&client, args, &ask).await?;
    match output {
        Output::Json => crate::output::print(&(serde_json::to_string_pretty(&outcomes)? + "\n"))?,
        Output::Table => {
            for outcome in &outcomes {
                outcome.warnings.iter().for_each(|warning| eprintln!("Warning: {warning}"));
                if outcome.is_refused() {
                    eprintln!("Refused: {}", outcome.message);
                } else {
                    crate::output::print(&format!("{}\n", outcome.message))?;
                }
            }
        }
    }
    let is_refused = outcomes.iter().any(Outcome::is_refused);
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What a person confirms. Who has several clusters may have another one in mind.
fn question(cluster: &str, danger: &str) -> String {
    format!("In the {cluster}:\n{danger}")
}

/// In a box: it holds whole pools.
fn perform<'a>(client: &'a Client, args: Act, ask: Agree<'a>) -> BoxFuture<'a, anyhow::Result<(Vec<Outcome>, Output)>> {
    Box::pin(perform_act(client, args, ask))
}

async fn perform_act(client: &Client, args: Act, ask: Agree<'_>) -> anyhow::Result<(Vec<Outcome>, Output)> {
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let instances: Api<WindowsInstance> = Api::all(client.clone());
    let agreed: Agree<'_> = &|_: &str| Ok(());
    Ok(match args {
        Act::Retry { hosts, output } => {
            let mut outcomes = Vec::new();
            for name in hosts {
                outcomes.push(act(&instances, &name, ask, host::retry).await?);
            }
            (outcomes, output)
        }
        Act::Approve(Approve { pool, version, removals, yes, output }) => {
            let ask = if yes { agreed } else { ask };
            let members = members(&instances, &pool).await?;
            let removals = removals.map(usize::from);
            let decide = |object: &WindowsNodePool| pool::approve(object, &members, version.as_deref(), removals);
            (vec![act(&pools, &pool, ask, decide).await?], output)
        }
        Act::Pause { pool, until, output } => {
            let decide = |object: &WindowsNodePool| pool::pause(object, until, jiff::Timestamp::now());
            (vec![act(&pools, &pool, ask, decide).await?], output)
        }
        Act::Resume { pool, output } => {
            let decide = |object: &WindowsNodePool| Ok(pool::resume(object, jiff::Timestamp::now()));
            (vec![act(&pools, &pool, ask, decide).await?], output)
        }
        Act::Hold { host, output } => (hold(client, &instances, &host, ask).await?, output),
        Act::Release { host, output } => (release(client, &instances, &host, ask).await?, output),
        Act::Abandon { host, yes, output } => {
            let ask = if yes { agreed } else { ask };
            let instance = get(&instances, &host).await?;
            let pool = match &instance {
                Some(instance) => get(&pools, &instance.spec.pool_ref.name).await?,
                None => None,
            };
            let decide = |object: &WindowsInstance| host::abandon(object, pool.as_ref());
            (vec![act(&instances, &host, ask, decide).await?], output)
        }
        Act::TrustHostKey { host, fingerprint, output } => {
            let decide = |object: &WindowsInstance| host::trust(object, &fingerprint);
            (vec![act(&instances, &host, ask, decide).await?], output)
        }
    })
}

async fn get<K>(api: &Api<K>, name: &str) -> anyhow::Result<Option<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let kind = K::kind(&());
    api.get_opt(name).await.map_err(|error| anyhow::anyhow!("failed to get the {kind} {name}: {}", plain(&error)))
}

/// Names of the instances of a pool.
async fn members(instances: &Api<WindowsInstance>, pool: &str) -> anyhow::Result<Vec<String>> {
    let of_pool = ListParams::default().fields(&format!("spec.poolRef.name={pool}"));
    let listed = instances.list(&of_pool).await;
    let listed = listed.map_err(|error| anyhow::anyhow!("failed to list the WindowsInstances: {}", plain(&error)))?;
    Ok(listed.items.iter().filter(|i| i.spec.pool_ref.name == pool).map(ResourceExt::name_any).collect())
}

/// The Node of an instance. Another one of its name is none of ours.
async fn own_node(client: &Client, instance: &WindowsInstance) -> anyhow::Result<Option<Node>> {
    let uid = instance.status.as_ref().and_then(|s| s.node_ref.as_ref()).map(|node| &node.uid);
    let node = get(&Api::<Node>::all(client.clone()), &instance.name_any()).await?;
    Ok(node.filter(|node| uid.is_some() && node.metadata.uid.as_ref() == uid))
}

/// Both objects of the host: the annotation of the Node goes before that of the instance, and is one that the host's own kubelet can write, so
/// that it silences no alert about the identity of the host. The instance first: a hold of which the second half fails holds already.
async fn hold(
    client: &Client,
    instances: &Api<WindowsInstance>,
    name: &str,
    ask: Agree<'_>,
) -> anyhow::Result<Vec<Outcome>> {
    let node = match get(instances, name).await? {
        Some(instance) => own_node(client, &instance).await?,
        None => None,
    };
    let mut outcomes = vec![act(instances, name, ask, |instance| Ok(host::hold(instance.annotations()))).await?];
    if node.is_some() {
        let nodes: Api<Node> = Api::all(client.clone());
        outcomes.push(act(&nodes, name, ask, |node: &Node| Ok(host::hold(node.annotations()))).await?);
    }
    Ok(outcomes)
}

/// The annotation may be on both, or on one that a person annotated. The instance last: a release of which the second half fails still holds.
async fn release(
    client: &Client,
    instances: &Api<WindowsInstance>,
    name: &str,
    ask: Agree<'_>,
) -> anyhow::Result<Vec<Outcome>> {
    let Some(instance) = get(instances, name).await? else {
        return Ok(vec![
            act(instances, name, ask, |_| -> Decided {
                Err(Refusal::new("it has just appeared: run the command again"))
            })
            .await?,
        ]);
    };
    let node = own_node(client, &instance).await?;
    let mut outcomes = Vec::new();
    if node.as_ref().is_some_and(|node| host::has_hold(node.annotations())) {
        let nodes: Api<Node> = Api::all(client.clone());
        outcomes.push(act(&nodes, name, ask, |node: &Node| Ok(host::release(node.annotations()))).await?);
    }
    if host::has_hold(instance.annotations()) || outcomes.is_empty() {
        outcomes.push(act(instances, name, ask, |instance| Ok(host::release(instance.annotations()))).await?);
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests;
