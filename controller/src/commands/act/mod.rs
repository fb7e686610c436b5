//! Commands that change objects for users. Each sets the annotation or field that the guide names, with a patch that fails if another client has
//! changed the object since it was read.

use std::{fmt::Debug, process::ExitCode};

use anyhow::{Context as _, bail};
use api::{
    WindowsInstance, WindowsNodePool,
    names::{MANAGER_COMMAND, key},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use self::decide::Decided;
use crate::{
    args::{self, Act, Output, PoolOrHost, output},
    client::api_server::{self, Chosen},
    runtime::errors::plain,
};

mod decide;

/// Maximum number of attempts to change an object that other clients, such as the operator, change at the same time.
const ATTEMPTS: usize = 10;

/// Function that asks the user for confirmation. An error ends the command.
type Ask<'a> = &'a (dyn Fn(&str) -> anyhow::Result<()> + Sync);

/// Changes the objects of the command, and prints what was changed.
///
/// # Errors
/// Fails when there is no configuration for the API server, it refuses a request or does not answer, other clients change an object at every attempt,
/// or a question is not answered with yes.
pub async fn run(args: Act, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let Chosen { config, title } = api_server::choose(cluster).await?;
    let config = api_server::bounded(config, cluster.request_timeout).await?;
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    // Users with several clusters may have another one in mind.
    let ask = |question: &str| output::ask(args.is_confirmed(), &format!("In the {title}:\n{question}"));
    let mut outcomes = Vec::new();
    let performed = Box::pin(perform(&client, &args, &ask, &mut outcomes)).await;
    if outcomes.is_empty() {
        return performed.map(|()| ExitCode::SUCCESS);
    }
    match args.output() {
        machine @ (Output::Json | Output::Yaml) => output::print(&output::answer(machine, &outcomes, String::new)?)?,
        Output::Table => {
            for outcome in &outcomes {
                outcome.warning.iter().for_each(|warning| eprintln!("Warning: {warning}"));
                if outcome.is_refused() {
                    eprintln!("Refused: {}", outcome.message);
                } else {
                    output::print(&format!("{}\n", outcome.message))?;
                }
            }
        }
    }
    performed?;
    let is_refused = outcomes.iter().any(Outcome::is_refused);
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Changes the objects of a command in their order, and adds an outcome for each. After an error, `outcomes` has those of the objects before.
async fn perform(client: &Client, args: &Act, ask: Ask<'_>, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
    let pools: Api<WindowsNodePool> = Api::all(client.clone());
    let instances: Api<WindowsInstance> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    // The annotation of a Node takes precedence over the annotation of the instance.
    let has_own_hold = async |host: &str| -> anyhow::Result<bool> {
        Ok(get(&nodes, host).await?.is_some_and(|node| node.annotations().contains_key(key::HOLD)))
    };
    match args {
        Act::Retry { hosts, .. } => {
            for host in hosts {
                outcomes.push(act(&instances, host, ask, decide::retry).await?);
            }
        }
        Act::Approve { pool, version, removals, .. } => {
            let (members, removals) = (members(&instances, pool).await?, removals.map(usize::from));
            let decide = |object: &_| decide::approve(object, &members, version.as_deref(), removals);
            outcomes.push(act(&pools, pool, ask, decide).await?);
        }
        Act::Pause { what: PoolOrHost { host: Some(host), .. }, .. } => {
            let has_own_hold = has_own_hold(host).await?;
            outcomes.push(act(&instances, host, ask, |instance| Ok(decide::hold(instance))).await?);
            if has_own_hold {
                outcomes.push(act(&nodes, host, ask, |node| Ok(decide::release_node(node))).await?);
            }
        }
        Act::Resume { what: PoolOrHost { host: Some(host), .. }, .. } => {
            if has_own_hold(host).await? {
                outcomes.push(act(&nodes, host, ask, |node| Ok(decide::release_node(node))).await?);
            }
            outcomes.push(act(&instances, host, ask, |instance| Ok(decide::release(instance))).await?);
        }
        Act::Pause { what: PoolOrHost { pool, .. }, until, .. } => {
            let pool = pool.as_deref().context("name a pool or a host")?;
            outcomes.push(act(&pools, pool, ask, |object| decide::pause(object, *until, Timestamp::now())).await?);
        }
        Act::Resume { what: PoolOrHost { pool, .. }, .. } => {
            let pool = pool.as_deref().context("name a pool or a host")?;
            outcomes.push(act(&pools, pool, ask, |object| Ok(decide::resume(object, Timestamp::now()))).await?);
        }
        Act::Abandon { host, .. } => {
            let pool = match get(&instances, host).await? {
                Some(instance) => get(&pools, &instance.spec.pool_ref.name).await?,
                None => None,
            };
            outcomes.push(act(&instances, host, ask, |object| decide::abandon(object, pool.as_ref())).await?);
        }
        Act::TrustHostKey { host, fingerprint, .. } => {
            outcomes.push(act(&instances, host, ask, |object| decide::trust(object, fingerprint)).await?);
        }
    }
    Ok(())
}

/// Outcome of a command for an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    kind: String,
    name: String,
    result: ResultKind,
    /// State before and after, or the reason of a refusal.
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// Kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum ResultKind {
    Changed,
    Unchanged,
    Refused,
}

impl Outcome {
    fn is_refused(&self) -> bool {
        self.result == ResultKind::Refused
    }
}

/// Decides about the object and changes it. After a conflict with another client, reads the object and decides again.
async fn act<K>(api: &Api<K>, name: &str, ask: Ask<'_>, decide: impl Fn(&K) -> Decided) -> anyhow::Result<Outcome>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&()).into_owned();
    let outcome = |result, message: &str, warning| {
        let message = format!("{kind} {name}: {message}");
        Outcome { kind: kind.clone(), name: name.to_owned(), result, message, warning }
    };
    let mut asked = None;
    for _ in 0..ATTEMPTS {
        let Some(object) = get(api, name).await? else {
            let message = format!("it does not exist; see: kubectl get {}", K::plural(&()));
            return Ok(outcome(ResultKind::Refused, &message, None));
        };
        let change = match decide(&object) {
            Ok(change) => change,
            Err(why) => return Ok(outcome(ResultKind::Refused, &why, None)),
        };
        let Some(mut patch) = change.patch else {
            return Ok(outcome(ResultKind::Unchanged, &change.message, change.warning));
        };
        if let Some(question) = change.question.filter(|question| asked.as_ref() != Some(question)) {
            ask(&format!("{kind} {name}: {question}"))?;
            asked = Some(question);
        }
        // With the resource version, the API server refuses the patch if the object has changed since.
        patch["metadata"]["resourceVersion"] = json!(object.resource_version());
        let parameters = PatchParams { field_manager: Some(MANAGER_COMMAND.into()), ..PatchParams::default() };
        match api.patch(name, &parameters, &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(outcome(ResultKind::Changed, &change.message, change.warning)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => bail!("failed to change the {kind} {name}: {}", plain(&error)),
        }
    }
    bail!(
        "other clients changed the {kind} {name} at each of {ATTEMPTS} attempts, so the command did not change it: run the command again"
    )
}

async fn get<K>(api: &Api<K>, name: &str) -> anyhow::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    api.get_opt(name).await.map_err(|error| anyhow::anyhow!("failed to get the {kind} {name}: {}", plain(&error)))
}

/// Reads the names of a pool's instances.
async fn members(instances: &Api<WindowsInstance>, pool: &str) -> anyhow::Result<Vec<String>> {
    let of_pool = ListParams::default().fields(&format!("spec.poolRef.name={pool}"));
    let listed = instances.list(&of_pool).await;
    let listed = listed.map_err(|error| anyhow::anyhow!("failed to list the WindowsInstances: {}", plain(&error)))?;
    Ok(listed.items.iter().filter(|i| i.spec.pool_ref.name == pool).map(ResourceExt::name_any).collect())
}

#[cfg(test)]
mod tests;
