//! Command `plan`: shows what the operator of this cluster would do for pools in files or in the cluster. It changes nothing. Its only writes are
//! dry runs on the API server, which apply the rules of the CRD and of admission policies.

use std::{collections::BTreeSet, io::Read, path::Path, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use api::{PlannedHost, Reason, WindowsNodePool};
use jiff::Timestamp;
use kube::{Client, Resource, ResourceExt, api::ListParams, runtime::reflector::ObjectRef};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{self, LogFormat, Plan, Run, output},
    caches::{instances::Instances, machines::Machines, unreadable::Unreadable, watch},
    client::api_server,
    cluster,
    context::{Base, Caches, Cluster, Context, Process, WINDOWS_NODES},
    pool::{self, PoolContext},
    runtime::{errors::is_missing_right, telemetry},
};
use wnp_core::{
    inventory::hosts::{Known, PlannedHosts},
    rollout::{
        preview::{is_idle, summary},
        release_file::{self, ReleaseFile, RenderChange},
    },
};

mod documents;
mod release;
mod table;

use documents::{Document, documents};

/// Exit status when something would be done.
const CHANGES: u8 = 2;
/// Exit status when a pool could not be planned, or not all of its hosts.
const FAILED: u8 = 1;

/// Plan of a pool, as it is reported.
#[derive(Serialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// Name of the pool.
    pool: String,
    /// Version that the pool's nodes would follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Summary in a sentence.
    summary: String,
    /// Number of hosts that would stay as they are.
    unchanged: usize,
    /// Planned actions on hosts.
    hosts: Vec<PlannedHost>,
    /// Problems of the pool or of single hosts.
    problems: Vec<PlanProblem>,
    /// Notes, for example on a check that could not be made, on a pause, or on the version of the API server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Problem of a pool or a host.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
struct PlanProblem {
    /// Host that would not be used; `None` if the problem concerns the whole pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    reason: Reason,
    /// Description of the problem.
    message: String,
}

/// Plans the pools, prints the answers, and returns the exit status.
///
/// # Errors
/// Fails when the log or the directory for Git repositories cannot be set up; a file cannot be read, is not valid or has no pool; two pools have the
/// same name; there is no configuration for the API server, or it fails or does not answer; the services of hosts cannot be rendered; or the
/// answer cannot be printed. A pool that cannot be planned is not an error: the exit status reports it.
pub async fn run(args: Plan, cluster: &args::Cluster) -> anyhow::Result<ExitCode> {
    telemetry::init(LogFormat::Text, "warn")?;
    let mut wanted = Vec::new();
    for file in &args.filename {
        let unreadable = || format!("{} cannot be read", file.display());
        let bytes = read(file, usize::MAX).with_context(unreadable)?;
        let found = documents(&api::text::decode(&bytes).with_context(unreadable)?)
            .with_context(|| format!("{} cannot be used", file.display()))?;
        wanted.extend(found);
    }
    documents::distinct(&wanted)?;
    let release = args.release.as_deref().map(read_release).transpose()?;
    // In the operator's pod, only the cache directory is writable.
    let cache = tempfile::tempdir_in(&args.run.cache).or_else(|_| tempfile::tempdir()).with_context(|| {
        format!(
            "neither {} nor the directory for temporary files is writable, and Git repositories need a writable directory: name one with --cache",
            args.run.cache.display()
        )
    })?;
    let cx = context(Run { cache: cache.path().into(), ..args.run }, release.as_ref(), cluster).await?;
    if args.filename.is_empty() {
        wanted = documents::of_cluster(cx.caches.pools.state())?;
    }
    let change = release.as_ref().map(|file| file.render_change(&cx.hosts.release.get().cluster)).transpose()?;

    let (mut answers, mut others) = (Vec::new(), PlannedHosts::default());
    let all = wanted.len();
    for (n, document) in wanted.into_iter().enumerate() {
        output::progress(&format!("[{}/{all}] pool {}", n + 1, document.pool.name_any()));
        let planned = plan_pool(&document, &mut others, change.as_ref(), &cx).await?;
        answers.push(match &release {
            Some(file) => of_release(planned, &file.version),
            None => planned,
        });
    }
    let table = || answers.iter().map(table::text).collect::<Vec<_>>().join("\n");
    output::print(&output::answer(args.output, &answers, table)?).context("cannot print")?;
    Ok(status(&answers).into())
}

fn status(answers: &[Answer]) -> u8 {
    if answers.iter().any(|a| !a.problems.is_empty()) {
        FAILED
    } else if answers.iter().all(|a| is_idle(&a.hosts)) {
        0
    } else {
        CHANGES
    }
}

/// Reads the pools of a text, and discards them.
#[cfg(test)]
pub(crate) fn read_pools(text: &str) {
    drop(documents(text));
}

/// Reads a file, or standard input for `-`. Reads at most `most` + 1 bytes, so that the caller can recognise a file that is too long.
fn read(file: &Path, most: usize) -> anyhow::Result<Vec<u8>> {
    let source: Box<dyn Read> =
        if file == Path::new("-") { Box::new(std::io::stdin().lock()) } else { Box::new(std::fs::File::open(file)?) };
    let mut bytes = Vec::new();
    source.take(u64::try_from(most)?.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a release file.
fn read_release(path: &Path) -> anyhow::Result<ReleaseFile> {
    let bytes = read(path, release_file::MAX_BYTES).with_context(|| format!("{} cannot be read", path.display()))?;
    ReleaseFile::parse(&bytes).with_context(|| format!("{} cannot be used", path.display()))
}

/// Returns the answer with the release in its summary and without the services version, which only the release itself can determine.
fn of_release(answer: Answer, version: &str) -> Answer {
    let summary = format!("release {version}: {}", answer.summary);
    Answer { version: None, summary, ..answer }
}

/// Returns the context that the controllers would have now, but without a cache of Machines. The configuration for hosts comes from `release`, or
/// else from this program's own release.
async fn context(args: Run, release: Option<&ReleaseFile>, cluster: &args::Cluster) -> anyhow::Result<PoolContext> {
    let config = api_server::bounded_config(cluster).await?;
    output::progress("reading pools, hosts and nodes");
    let cluster = Cluster::new(config, &Arc::default()).context("cannot make a client for the API server")?;
    let client = cluster.client.clone();
    let all = ListParams::default();
    let windows = ListParams::default().labels(WINDOWS_NODES);
    let unreadable = Unreadable::default();
    let (pools, instances, nodes) = tokio::try_join!(
        async { watch::list(client.clone(), &all, &unreadable).await.context("failed to list the WindowsNodePools") },
        async { watch::list(client.clone(), &all, &unreadable).await.context("failed to list the WindowsInstances") },
        async { watch::list(client.clone(), &windows, &unreadable).await.context("failed to list the Nodes") },
    )?;
    let version = client.apiserver_version().await.context("failed to get the version of the API server")?;
    let warning = cluster::version_warning(&version.major, &version.minor);
    let cluster_id =
        cluster.id().await.context("cannot read the UID of the Namespace kube-system, which identifies the cluster")?;
    output::progress("determining the configuration that hosts get");
    let release = match release {
        Some(file) => cluster.announced(&args, file).await,
        None => cluster.release(&args).await,
    };
    let release = release.context("cannot determine the configuration that hosts get")?;
    let process = Process {
        args,
        identity: "plan".to_owned(),
        epoch: 0,
        metrics: Arc::default(),
        stop: CancellationToken::new(),
        is_one_shot: true,
    };
    let instances = Instances::new(instances);
    let caches = Caches { pools, instances, nodes, machines: Machines::default(), unreadable };
    let shared = Arc::new(Context::new(Arc::new(Base::new(process, cluster, cluster_id, caches)), release));
    Ok(PoolContext::new(shared, warning))
}

/// Plans a pool, and adds its hosts to `others`.
async fn plan_pool(
    document: &Document,
    others: &mut PlannedHosts,
    release: Option<&RenderChange>,
    cx: &PoolContext,
) -> anyhow::Result<Answer> {
    let there = cx.caches.pools.get(&ObjectRef::from_obj(&document.pool));
    let mut answer = Answer { pool: document.pool.name_any(), ..Answer::default() };
    let refuse = |mut answer: Answer, reason: Reason, message: String| {
        answer.problems.push(PlanProblem { host: None, reason, message });
        "the pool cannot be planned".clone_into(&mut answer.summary);
        Ok(answer)
    };
    if let Some(message) = cx.caches.unreadable.of_pool(&answer.pool) {
        return refuse(answer, Reason::ObjectUnreadable, message);
    }
    match dry_run(&cx.cluster.client, document, there.is_some()).await? {
        DryRunResult::Taken => {}
        DryRunResult::Refused(message) => return refuse(answer, Reason::SpecInvalid, message),
        DryRunResult::NotAsked(message) => {
            answer.notes.push(format!(
                "the API server did not validate the pool, because you may not create or change pools: {message}"
            ));
        }
    }
    let pool = merged(&document.pool, there.as_deref());
    let now = Timestamp::now();
    answer.notes.extend(note_of_pause(&pool, now));
    answer.notes.extend(cx.warning().map(|(_, message)| message));
    let mut planned = match pool::plan(&pool, others, cx, now).await {
        Ok(planned) => planned,
        Err(error) => return refuse(answer, error.reason(), error.to_string()),
    };
    if let Some(RenderChange { change, unknown }) = release {
        let nodes = nodes(&planned.hosts, cx);
        release::with_change(&mut planned.list, &nodes, change);
        for node in nodes {
            planned.restarts.entry(node).or_default().extend(change.services.iter().cloned());
        }
        release::with_services(&mut planned.list, &planned.restarts);
        answer.notes.extend(unknown.clone());
    }
    let touched = |host: &Known| planned.list.iter().any(|p| p.host == host.name && !is_idle(std::slice::from_ref(p)));
    answer.unchanged = planned.hosts.iter().filter(|h| !touched(h)).count();
    answer.summary = summary(&planned.list, planned.hosts.len());
    answer.version = Some(planned.version);
    answer.hosts = planned.list;
    answer.problems = planned
        .problems
        .into_iter()
        .map(|p| PlanProblem { host: Some(p.host), reason: p.reason, message: p.message })
        .collect();
    others.extend(planned.hosts);
    Ok(answer)
}

/// Returns the names of the hosts that have joined.
fn nodes(hosts: &[Known], cx: &PoolContext) -> BTreeSet<String> {
    let follows = |name: &str| {
        let instance = cx.caches.instances.get(&ObjectRef::new(name));
        instance.is_some_and(|i| i.status.as_ref().is_some_and(|s| s.current_version.is_some()))
    };
    hosts.iter().filter(|host| follows(&host.name)).map(|host| host.name.clone()).collect()
}

/// Returns a note if the pool is paused.
fn note_of_pause(pool: &WindowsNodePool, now: Timestamp) -> Option<String> {
    let pause = pool.spec.rollout().pause(now)?;
    Some(format!("the pool is {pause} ({}): no operation begins before the pause is over", pause.field()))
}

/// Returns the pool as it would be in the cluster: with the spec of the file, the annotations of both, and the status and the other metadata of the
/// cluster.
fn merged(wanted: &WindowsNodePool, there: Option<&WindowsNodePool>) -> WindowsNodePool {
    let mut pool = wanted.clone();
    pool.status = None;
    if let Some(there) = there {
        pool.status.clone_from(&there.status);
        pool.metadata = there.metadata.clone();
        let annotations = wanted.annotations().iter().map(|(k, v)| (k.clone(), v.clone()));
        pool.annotations_mut().extend(annotations);
    }
    pool
}

/// Answer of the API server to a dry run.
#[derive(Debug, PartialEq, Eq)]
enum DryRunResult {
    /// The API server would accept the pool.
    Taken,
    /// The API server would refuse the pool.
    Refused(String),
    /// The user lacks the right to the dry run, so the API server did not validate the pool.
    NotAsked(String),
}

/// Asks the API server whether it would accept the spec of a pool. Unknown fields are sent, too; labels, annotations and finalizers are not.
async fn dry_run(client: &Client, document: &Document, exists: bool) -> anyhow::Result<DryRunResult> {
    const HOW: &str = "dryRun=All&fieldValidation=Strict";
    let (url, spec) = (WindowsNodePool::url_path(&(), None), &document.spec);
    let request = if exists {
        let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
        let to = format!("{url}/{}?{HOW}", document.pool.name_any());
        http::Request::patch(to).header("content-type", "application/json-patch+json").body(patch.to_string())
    } else {
        let body = json!({
            "apiVersion": WindowsNodePool::api_version(&()),
            "kind": WindowsNodePool::kind(&()),
            "metadata": {"name": document.pool.name_any()},
            "spec": spec,
        });
        http::Request::post(format!("{url}?{HOW}")).header("content-type", "application/json").body(body.to_string())
    };
    match client.request::<Value>(request?.map(String::into_bytes)).await {
        Ok(_) => Ok(DryRunResult::Taken),
        Err(kube::Error::Api(status)) if is_missing_right(&status) => {
            Ok(DryRunResult::NotAsked(status.message.clone()))
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 400..=499) => {
            Ok(DryRunResult::Refused(without_object(&status.message).to_owned()))
        }
        Err(error) => Err(error).with_context(|| {
            format!("failed to validate the WindowsNodePool {} at the API server", document.pool.name_any())
        }),
    }
}

/// Removes the copy of the object with which the refusal of an unknown field begins.
fn without_object(message: &str) -> &str {
    message.rfind("strict decoding error: ").map_or(message, |at| &message[at..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::ObjectMeta;

    fn answer(actions: &[&str], problems: usize) -> Answer {
        let host = |action: &&str| PlannedHost { action: (*action).to_owned(), ..PlannedHost::default() };
        let problem = PlanProblem { host: None, reason: Reason::HostConflict, message: String::new() };
        Answer { hosts: actions.iter().map(host).collect(), problems: vec![problem; problems], ..Answer::default() }
    }

    #[test]
    fn the_exit_status_is_that_of_the_worst_plan() {
        for (about, answers, expected) in [
            ("nothing to do", vec![answer(&[], 0)], 0),
            ("nothing, and why", vec![answer(&["Nothing"], 0)], 0),
            ("something", vec![answer(&[], 0), answer(&["Nothing", "Join"], 0)], CHANGES),
            ("a problem counts more", vec![answer(&["Join"], 0), answer(&[], 1)], FAILED),
        ] {
            assert_eq!(status(&answers), expected, "{about}");
        }
    }

    #[test]
    fn a_refusal_fits_on_a_screen() {
        let object = "x".repeat(6_700);
        let strict = format!(
            "\"\" is invalid: patch: Invalid value: \"{{{object}}}\": strict decoding error: unknown field \"spec.templat\""
        );
        assert_eq!(without_object(&strict), "strict decoding error: unknown field \"spec.templat\"");
        assert_eq!(without_object("spec.rollout: Invalid value"), "spec.rollout: Invalid value");
    }

    #[test]
    fn a_planned_pool_has_the_status_of_the_stored_one() {
        let pool = |rollout: &str, annotation: &str| {
            let mut pool = WindowsNodePool::new("p", api::WindowsNodePoolSpec::default());
            pool.spec.rollout = Some(serde_json::from_str(rollout).unwrap());
            pool.annotations_mut().insert(annotation.into(), "x".into());
            pool
        };
        let (wanted, mut there) = (pool(r#"{"paused": true}"#, "new"), pool("{}", "old"));
        there.metadata.uid = Some("u".into());
        there.status = Some(api::WindowsNodePoolStatus::default());
        let merged = merged(&wanted, Some(&there));
        assert_eq!((merged.spec, merged.status), (wanted.spec.clone(), there.status));
        let ObjectMeta { uid, annotations, .. } = merged.metadata;
        assert_eq!(uid.as_deref(), Some("u"));
        assert_eq!(annotations.unwrap().into_keys().collect::<Vec<_>>(), ["new", "old"]);
        assert_eq!(super::merged(&wanted, None), wanted);
    }

    #[test]
    fn a_plan_notes_the_pause() {
        let now = "2027-01-01T12:00:00Z".parse().unwrap();
        for (rollout, expected) in [
            ("{}", None),
            (r#"{"pausedUntil": "2027-01-01T12:00:00Z"}"#, None),
            (
                r#"{"paused": true}"#,
                Some("the pool is paused (rollout.paused): no operation begins before the pause is over"),
            ),
            (
                r#"{"pausedUntil": "2027-01-01T13:00:00Z"}"#,
                Some(
                    "the pool is paused until 2027-01-01T13:00:00Z (rollout.pausedUntil): no operation begins before the pause is over",
                ),
            ),
        ] {
            let mut pool = WindowsNodePool::new("p", api::WindowsNodePoolSpec::default());
            pool.spec.rollout = Some(serde_json::from_str(rollout).unwrap());
            assert_eq!(note_of_pause(&pool, now).as_deref(), expected, "{rollout}");
        }
    }
}
