//! Commands that change objects for users. Each sets the annotation or field that the guide names, with a patch that fails if another client has
//! changed the object since it was read.

use std::{fmt::Debug, process::ExitCode};

use anyhow::{Context as _, bail};
use api::{
    WindowsInstance, WindowsNodePool,
    names::{MANAGER_COMMAND, key},
};
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
/// Fails when there is no configuration for the API server, it refuses a request or does not answer, or a question is not answered with yes.
pub async fn run(args: Act, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    let Chosen { config, title } = api_server::choose(cluster).await?;
    let config = api_server::bounded(config, cluster.request_timeout).await?;
    let client = Client::try_from(config).context("cannot make a client for the API server")?;
    // Users with several clusters may have another one in mind.
    let ask = |question: &str| output::ask(args.is_confirmed(), &format!("In the {title}:\n{question}"));
    let outcomes = Box::pin(perform(&client, &args, &ask)).await?;
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
    let is_refused = outcomes.iter().any(Outcome::is_refused);
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Function that decides about an object from its current state.
type Decide<'a, K> = Box<dyn Fn(&K) -> Decided + Send + Sync + 'a>;

/// Step of a command: the name of an object and the decision about it.
enum Step<'a> {
    Pool(&'a str, Decide<'a, WindowsNodePool>),
    Host(&'a str, Decide<'a, WindowsInstance>),
    Node(&'a str, Decide<'a, Node>),
}

/// Other objects that decisions need.
#[derive(Default)]
struct RelatedObjects {
    /// Names of the instances of the pool.
    members: Vec<String>,
    /// Pool of the host.
    pool: Option<WindowsNodePool>,
    /// True if the Node has its own hold annotation, which takes precedence over that of the instance.
    has_own_hold: bool,
}

/// Returns the steps of a command in their order.
fn steps<'a>(args: &'a Act, seen: &'a RelatedObjects) -> Vec<Step<'a>> {
    let of_node =
        |host: &'a str| seen.has_own_hold.then(|| Step::Node(host, Box::new(|node| Ok(decide::release_node(node)))));
    let now = jiff::Timestamp::now;
    match args {
        Act::Retry { hosts, .. } => hosts.iter().map(|host| Step::Host(host, Box::new(decide::retry))).collect(),
        Act::Approve { pool, version, removals, .. } => {
            let removals = removals.map(usize::from);
            let decide = move |object: &_| decide::approve(object, &seen.members, version.as_deref(), removals);
            vec![Step::Pool(pool, Box::new(decide))]
        }
        Act::Pause { what: PoolOrHost { host: Some(host), .. }, .. } => {
            [Step::Host(host, Box::new(|instance| Ok(decide::hold(instance))))]
                .into_iter()
                .chain(of_node(host))
                .collect()
        }
        Act::Resume { what: PoolOrHost { host: Some(host), .. }, .. } => of_node(host)
            .into_iter()
            .chain([Step::Host(host, Box::new(|instance| Ok(decide::release(instance))))])
            .collect(),
        Act::Pause { what: PoolOrHost { pool, .. }, until, .. } => pool
            .iter()
            .map(|pool| Step::Pool(pool, Box::new(move |object| decide::pause(object, *until, now()))))
            .collect(),
        Act::Resume { what: PoolOrHost { pool, .. }, .. } => pool
            .iter()
            .map(|pool| Step::Pool(pool, Box::new(move |object| Ok(decide::resume(object, now())))))
            .collect(),
        Act::Abandon { host, .. } => {
            vec![Step::Host(host, Box::new(|object| decide::abandon(object, seen.pool.as_ref())))]
        }
        Act::TrustHostKey { host, fingerprint, .. } => {
            vec![Step::Host(host, Box::new(move |object| decide::trust(object, fingerprint)))]
        }
    }
}

async fn perform(client: &Client, args: &Act, ask: Ask<'_>) -> anyhow::Result<Vec<Outcome>> {
    let (pools, instances, nodes) = (Api::all(client.clone()), Api::all(client.clone()), Api::all(client.clone()));
    let mut seen = RelatedObjects::default();
    match args {
        Act::Approve { pool, .. } => seen.members = members(&instances, pool).await?,
        Act::Abandon { host, .. } => {
            if let Some(instance) = get(&instances, host).await? {
                seen.pool = get(&pools, &instance.spec.pool_ref.name).await?;
            }
        }
        Act::Pause { what: PoolOrHost { host: Some(host), .. }, .. }
        | Act::Resume { what: PoolOrHost { host: Some(host), .. }, .. } => {
            let node: Option<Node> = get(&nodes, host).await?;
            seen.has_own_hold = node.is_some_and(|node| node.annotations().contains_key(key::HOLD));
        }
        _ => {}
    }
    let mut outcomes = Vec::new();
    for step in steps(args, &seen) {
        outcomes.push(match step {
            Step::Pool(name, decide) => act(&pools, name, ask, &decide).await?,
            Step::Host(name, decide) => act(&instances, name, ask, &decide).await?,
            Step::Node(name, decide) => act(&nodes, name, ask, &decide).await?,
        });
    }
    Ok(outcomes)
}

/// Outcome of a command for an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    kind: String,
    name: String,
    result: Done,
    /// State before and after, or the reason of a refusal.
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// Kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Done {
    Changed,
    Unchanged,
    Refused,
}

impl Outcome {
    fn is_refused(&self) -> bool {
        self.result == Done::Refused
    }
}

/// Decides about the object and changes it. After a conflict with another client, reads the object and decides again.
async fn act<K>(api: &Api<K>, name: &str, ask: Ask<'_>, decide: &Decide<'_, K>) -> anyhow::Result<Outcome>
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
            return Ok(outcome(Done::Refused, &message, None));
        };
        let change = match decide(&object) {
            Ok(change) => change,
            Err(why) => return Ok(outcome(Done::Refused, &why, None)),
        };
        let Some(mut patch) = change.patch else {
            return Ok(outcome(Done::Unchanged, &change.message, change.warning));
        };
        if let Some(question) = change.question.filter(|question| asked.as_ref() != Some(question)) {
            ask(&format!("{kind} {name}: {question}"))?;
            asked = Some(question);
        }
        // With the resource version, the API server refuses the patch if the object has changed since.
        patch["metadata"]["resourceVersion"] = json!(object.resource_version());
        let parameters = PatchParams { field_manager: Some(MANAGER_COMMAND.into()), ..PatchParams::default() };
        match api.patch(name, &parameters, &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(outcome(Done::Changed, &change.message, change.warning)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => bail!("failed to change the {kind} {name}: {}", plain(&error)),
        }
    }
    bail!("{kind} {name} is changed by other clients all the time; nothing was changed: run the command again")
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
