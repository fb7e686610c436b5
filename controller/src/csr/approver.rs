//! The controller that carries out the verdicts.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;
use tokio::{sync::Notify, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Hosts, Kind, Outstanding, Verdict, open::OpenRequests, verdict};
use wnp_core::csr::{hosts_of, is_decided};

/// Approved by this operator; the reason of the `Approved` condition.
pub(super) const APPROVED_REASON: &str = "WindowsNodePoolApproved";
/// Interval at which all open requests are evaluated again, for changes without an event.
const SWEEP: Duration = Duration::from_mins(1);
/// Denials for one requester from one sweep to the next.
const MAX_DENIALS: u32 = 10;
/// Decisions that are written at a time. More would only queue in the API server.
const MAX_WRITES: usize = 16;

/// Watches all requests and approves or denies those of the operator's hosts, until `shutdown`.
///
/// - `hosts` returns the known state of the host of a node name. Start this only when the caches behind it are filled.
/// - `hold` returns why no certificate of a kind may be issued now, if so. Valid requests for it wait.
/// - `on_verdict` is called after an approval or a denial has been written, and when a request begins to wait or waits
///   for another cause.
/// - `operator_user` comes from [`super::operator_user`].
/// - `poke` (by `notify_one`) has everything judged again at once, for when a host has been proven.
///
/// One replica at a time should run this; two would do no harm, since each write is bound to the version that was judged.
pub async fn run<H, W, F>(
    client: Client,
    hosts: H,
    hold: W,
    on_verdict: F,
    operator_user: String,
    poke: Arc<Notify>,
    shutdown: CancellationToken,
) where
    H: Hosts,
    W: Fn(Kind) -> Option<String> + Send + Sync + 'static,
    F: Fn(&Verdict, &CertificateSigningRequest) + Send + Sync + 'static,
{
    // The guard keeps one object that cannot be read from hiding all the others.
    let guarded: Api<DeserializeGuard<CertificateSigningRequest>> = Api::all(client.clone());
    let mut events = watcher(guarded, watcher::Config::default()).default_backoff().boxed();
    let mut approver = Approver {
        api: Api::all(client),
        hosts: Arc::new(hosts),
        hold,
        on_verdict,
        operator_user: operator_user.into(),
        open: OpenRequests::default(),
        outstanding: Outstanding::default(),
        waiting: BTreeMap::new(),
        busy: BTreeSet::new(),
        denials: Denials::default(),
        queue: VecDeque::new(),
        writes: FuturesUnordered::new(),
    };
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut listed = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some((judged, result)) = approver.writes.next() => approver.written(&judged, result),
            event = events.try_next() => match event {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(DeserializeGuard(object)))) => listed.extend(readable(object)),
                Ok(Some(watcher::Event::InitDone)) => approver.replace(std::mem::take(&mut listed)),
                Ok(Some(watcher::Event::Apply(DeserializeGuard(object)))) => {
                    if let Some(csr) = readable(object) {
                        approver.observe(csr);
                    }
                }
                Ok(Some(watcher::Event::Delete(object))) => approver.gone(&object.name_any()),
                // A watcher does not end by itself.
                Ok(None) => return,
                Err(error) => warn!(error = &error as &dyn std::error::Error, "failed to watch certificate requests, retrying"),
            },
            () = poke.notified() => approver.judge_all(),
            _ = sweep.tick() => {
                approver.denials.begin();
                approver.judge_all();
            }
        }
        approver.start_writes();
    }
}

fn readable<T>(object: Result<T, kube::core::error_boundary::InvalidObject>) -> Option<T> {
    object
        .inspect_err(|invalid| {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            warn!(name, error = invalid.error, "ignoring a certificate request that cannot be read");
        })
        .ok()
}

/// Denials of each requester since the last sweep. Each is a write and an event: a requester, which may be a host that was taken over, must not
/// have them made without limit. (Approvals are bounded by themselves: one at a time for each host and kind.)
#[derive(Debug, Default)]
struct Denials(BTreeMap<String, u32>);

impl Denials {
    /// Begins a new sweep.
    fn begin(&mut self) {
        self.0.clear();
    }

    /// Counts one more, and returns whether it may be written.
    fn admit(&mut self, requester: &str) -> bool {
        let count = self.0.entry(requester.to_owned()).or_default();
        *count = count.saturating_add(1);
        if *count == MAX_DENIALS + 1 {
            warn!(requester, "too many wrong certificate requests; more are denied in a minute");
        }
        *count <= MAX_DENIALS
    }
}

/// The request as it was judged, and what became of writing the verdict.
type Judged = (CertificateSigningRequest, kube::Result<(Verdict, CertificateSigningRequest)>);

struct Approver<H, W, F> {
    api: Api<CertificateSigningRequest>,
    hosts: Arc<H>,
    hold: W,
    on_verdict: F,
    operator_user: Arc<str>,
    open: OpenRequests,
    outstanding: Outstanding,
    /// The last reported cause of each waiting request.
    waiting: BTreeMap<String, Verdict>,
    /// Decisions in `queue` or `writes`.
    busy: BTreeSet<String>,
    denials: Denials,
    queue: VecDeque<CertificateSigningRequest>,
    writes: FuturesUnordered<BoxFuture<'static, Judged>>,
}

impl<H, W, F> Approver<H, W, F>
where
    H: Hosts,
    W: Fn(Kind) -> Option<String> + Send + Sync + 'static,
    F: Fn(&Verdict, &CertificateSigningRequest) + Send + Sync + 'static,
{
    /// Takes in a complete list.
    fn replace(&mut self, all: Vec<CertificateSigningRequest>) {
        self.open = OpenRequests::default();
        for csr in all {
            self.open.insert(csr);
        }
        self.judge_all();
    }

    /// Takes in the new state of one request.
    fn observe(&mut self, csr: CertificateSigningRequest) {
        let name = csr.name_any();
        self.open.insert(csr.clone());
        if !self.open.is_due(&csr) {
            return;
        }
        let next = self.outstanding.observe(&csr, &|node| self.hosts.lookup(node), &self.operator_user);
        if self.open.get(&name).is_some() {
            self.judge(&name);
        } else {
            self.waiting.remove(&name);
        }
        if let Some(next) = next {
            self.judge(&next);
        }
    }

    fn gone(&mut self, name: &str) {
        self.open.remove(name);
        self.waiting.remove(name);
        if let Some(next) = self.outstanding.forget(name) {
            self.judge(&next);
        }
    }

    /// Judges everything that is open with the claims of now.
    fn judge_all(&mut self) {
        self.outstanding = Outstanding::default();
        for csr in self.open.due() {
            self.outstanding.observe(csr, &|node| self.hosts.lookup(node), &self.operator_user);
        }
        self.waiting.retain(|name, _| self.open.get(name).is_some());
        let names: Vec<String> = self.open.due().filter(|csr| !is_decided(csr)).map(ResourceExt::name_any).collect();
        for name in &names {
            self.judge(name);
        }
    }

    fn judge(&mut self, name: &str) {
        let Some(csr) = self.open.get(name).filter(|csr| self.open.is_due(csr)) else { return };
        let verdict = match verdict(csr, &|node| self.hosts.lookup(node), &self.outstanding, &self.operator_user) {
            Verdict::Approve(kind) => {
                (self.hold)(kind).map_or(Verdict::Approve(kind), |message| Verdict::Wait { message })
            }
            other => other,
        };
        match verdict {
            Verdict::NotOurs => drop(self.waiting.remove(name)),
            Verdict::Wait { .. } => self.wait(name, verdict),
            Verdict::Approve(_) | Verdict::Deny { .. } => {
                if self.busy.contains(name) {
                    return;
                }
                // During a flood of wrong requests, the rest waits for the next sweep.
                if matches!(verdict, Verdict::Deny { .. })
                    && !self.denials.admit(csr.spec.username.as_deref().unwrap_or_default())
                {
                    return;
                }
                self.busy.insert(name.to_owned());
                self.queue.push_back(csr.clone());
            }
        }
    }

    fn wait(&mut self, name: &str, verdict: Verdict) {
        if let Some(csr) = self.open.get(name)
            && self.waiting.get(name) != Some(&verdict)
        {
            (self.on_verdict)(&verdict, csr);
            self.waiting.insert(name.to_owned(), verdict);
        }
    }

    fn start_writes(&mut self) {
        while self.writes.len() < MAX_WRITES
            && let Some(csr) = self.queue.pop_front()
        {
            let (api, hosts, operator) = (self.api.clone(), self.hosts.clone(), self.operator_user.clone());
            self.writes.push(Box::pin(async move {
                let written = confirm_and_decide(&api, &*hosts, &operator, &csr).await;
                (csr, written)
            }));
        }
    }

    fn written(
        &mut self,
        judged: &CertificateSigningRequest,
        result: kube::Result<(Verdict, CertificateSigningRequest)>,
    ) {
        let name = judged.name_any();
        self.busy.remove(&name);
        match result {
            // The API server knows more than the caches: the request is left unchanged, and evaluated again with all
            // open ones.
            Ok((Verdict::NotOurs, _)) => {}
            Ok((verdict @ Verdict::Wait { .. }, _)) => self.wait(&name, verdict),
            Ok((verdict, csr)) => {
                self.waiting.remove(&name);
                let requester = csr.spec.username.as_deref().unwrap_or_default();
                info!(name, requester, signer = csr.spec.signer_name, ?verdict, "decided a certificate request");
                (self.on_verdict)(&verdict, &csr);
                // The watch may have been faster and have delivered the certificate already.
                if self.open.get(&name).is_some_and(|known| !is_decided(known)) {
                    self.observe(csr);
                }
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => self.gone(&name),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                debug!(name, "certificate request has changed, evaluating it again");
                // The version that was in the way is either here already or comes by the watch, which has it judged.
                if self.open.get(&name).is_some_and(|known| known.resource_version() != judged.resource_version()) {
                    self.judge(&name);
                }
            }
            Err(error) => {
                warn!(
                    name,
                    error = &error as &dyn std::error::Error,
                    "failed to decide a certificate request, retrying soon"
                );
            }
        }
    }
}

/// Judges once more, with the API server asked for the Nodes of the hosts that the verdict depends on, and writes that verdict.
pub(super) async fn confirm_and_decide<H: Hosts>(
    api: &Api<CertificateSigningRequest>,
    hosts: &H,
    operator_user: &str,
    csr: &CertificateSigningRequest,
) -> kube::Result<(Verdict, CertificateSigningRequest)> {
    let kind = Kind::of_signer(&csr.spec.signer_name);
    let mut confirmed = BTreeMap::new();
    for node in hosts_of(&csr.spec, &|node| hosts.lookup(node), operator_user) {
        let claim = hosts.confirm(&node, kind).await?;
        confirmed.insert(node, claim);
    }
    let claims = |node: &str| confirmed.get(node).cloned().unwrap_or_else(|| hosts.lookup(node));
    // Which of several is first was decided before.
    let verdict = verdict(csr, &claims, &Outstanding::default(), operator_user);
    decide(api, csr, &verdict).await.map(|written| (verdict, written))
}

/// Writes a verdict to the `approval` subresource of exactly the version that was judged.
///
/// A verdict that decides nothing writes nothing.
pub(super) async fn decide(
    api: &Api<CertificateSigningRequest>,
    csr: &CertificateSigningRequest,
    verdict: &Verdict,
) -> kube::Result<CertificateSigningRequest> {
    let (type_, reason, message) = match verdict {
        Verdict::Approve(_) => {
            ("Approved", APPROVED_REASON, "valid in every check for a proven host of a WindowsNodePool")
        }
        Verdict::Deny { reason, message } => ("Denied", *reason, message.as_str()),
        Verdict::NotOurs | Verdict::Wait { .. } => return Ok(csr.clone()),
    };
    let mut conditions = csr.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        ..Default::default()
    });
    let patch = json!({
        "metadata": { "resourceVersion": csr.metadata.resource_version, "uid": csr.metadata.uid },
        "status": { "conditions": conditions },
    });
    api.patch_approval(&csr.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_requester_is_not_denied_without_limit() {
        let mut denials = Denials::default();
        let admitted = (0..1000).filter(|_| denials.admit("system:wicd-node:a")).count();
        assert_eq!(admitted, MAX_DENIALS as usize);
        assert!(denials.admit("system:wicd-node:b"), "another one is not held up");
        denials.begin();
        assert!(denials.admit("system:wicd-node:a"));
    }
}
