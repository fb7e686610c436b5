//! Controller that approves and denies certificate requests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc, stream};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    Claim, Clients, Hosts, Kind, ManualRequests, Outstanding, OwnRequests, ReevaluationTriggers, Verdict, index::Index,
    open::Kept, verdict,
};
use crate::{
    caches::{
        unreadable::Unreadable,
        watch::{self, Event},
    },
    runtime::supervision::{Panicked, catch},
};
use wnp_core::csr::{
    hosts_of,
    request::{MAX_BYTES, Request},
};

/// Reason of the `Approved` condition of requests that this operator has approved.
pub(super) const APPROVED_REASON: &str = "WindowsNodePoolApproved";
/// Interval at which an open request is evaluated again, for changes without an event.
const AGAIN: Duration = Duration::from_mins(1);
/// Delay before a request is evaluated again after an API error. A conflict needs no delay, because the watch delivers the change.
const RETRY: Duration = Duration::from_secs(10);
/// Concurrency of the controller: unlimited. With a limit, it would pick requests in no fixed order, and a host whose
/// request is always passed over would time out.
const UNLIMITED: u16 = 0;
/// Maximum number of requests that are decided at once, in order of arrival. Each decision takes about two API calls, and the client limits its rate:
/// more decisions at once would only delay all other calls.
const DECISIONS: usize = 128;
/// Number of objects per page of the list. Each object may be a megabyte large.
const PAGE: u32 = 50;

/// Watches all certificate requests, and approves or denies those of the operator's hosts until `shutdown`.
///
/// - `hosts` returns the claim of a host by node name. Start this function only when the caches behind it are filled.
/// - `revise` returns the verdict to carry out instead: for example, nothing is denied while the other operator may still run.
/// - `on_verdict` is called after an approval or a denial has been written, and, within a rate limit, when a request begins to wait or waits for
///   another reason.
/// - `own` identifies the operator's own requests. [`request_and_sign`](super::request_and_sign) approves those that it is issuing. The approver
///   approves those that were abandoned, for example by an earlier process.
/// - `again` triggers another evaluation of requests, for changes that no request shows.
///
/// Only one replica at a time should run this function. Two replicas would do no harm: each write is bound to the version that was evaluated.
pub async fn run<H: Hosts>(
    clients: impl Into<Clients>,
    hosts: H,
    revise: impl Fn(Verdict) -> Verdict + Send + Sync + 'static,
    on_verdict: impl Fn(&Verdict, &CertificateSigningRequest) + Send + Sync + 'static,
    own: OwnRequests,
    again: ReevaluationTriggers,
    shutdown: CancellationToken,
) {
    let clients = clients.into();
    let kept = Arc::new(Mutex::new(Kept::default()));
    // Unreadable requests are not recorded for pools: the client that posts a request chooses its labels, and with them the pool.
    let (requests, events) = watch::readable(
        clients.watch,
        watcher::Config::default().page_size(PAGE),
        &Unreadable::default(),
        keep_essentials,
        {
            let kept = kept.clone();
            move |csr| kept.lock().keeps(csr)
        },
    );
    let (first, firsts) = mpsc::unbounded();
    let approver = Arc::new(Approver {
        api: Api::all(clients.decide),
        requests: requests.clone(),
        hosts,
        revise: Box::new(revise),
        on_verdict: Box::new(on_verdict),
        index: Mutex::new(Index::new(own.user.clone(), Instant::now())),
        own,
        left: again.left,
        decisions: Semaphore::new(DECISIONS),
        stop: shutdown.clone(),
        first,
    });
    let (observer, waiting) = (approver.clone(), approver.clone());
    let waiting = again.waiting.flat_map(move |()| stream::iter(waiting.index.lock().waiting()));
    // The index is updated before the request is evaluated.
    let events = events.inspect(move |event| {
        match event {
            Event::Init => kept.lock().clear(),
            Event::Delete(csr) => kept.lock().forget(csr),
            Event::Apply(_) | Event::InitApply(_) | Event::InitDone => {}
        }
        observer.observe(event);
    });
    let all = stream::unfold(again.all, |all| async {
        all.notified().await;
        Some(((), all))
    });
    Controller::for_shared_stream(watch::changes(requests.clone(), events), requests)
        .with_config(controller::Config::default().concurrency(UNLIMITED))
        .reconcile_on(firsts.map(|name: String| ObjectRef::new(&name)))
        .reconcile_on(waiting.map(|name| ObjectRef::new(&name)))
        .reconcile_all_on(all)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, error_policy, approver)
        .for_each(|_| async {})
        .await;
}

type Revise<'a> = dyn Fn(Verdict) -> Verdict + Send + Sync + 'a;
type OnVerdict = dyn Fn(&Verdict, &CertificateSigningRequest) + Send + Sync;

struct Approver<H> {
    api: Api<CertificateSigningRequest>,
    /// Store of the open requests.
    requests: Store<CertificateSigningRequest>,
    hosts: H,
    revise: Box<Revise<'static>>,
    on_verdict: Box<OnVerdict>,
    own: OwnRequests,
    left: ManualRequests,
    index: Mutex<Index>,
    /// Permits for concurrent decisions.
    decisions: Semaphore,
    stop: CancellationToken,
    /// Sender for the names of requests that are now first in their queues.
    first: mpsc::UnboundedSender<String>,
}

async fn reconcile<H: Hosts>(csr: Arc<CertificateSigningRequest>, approver: Arc<Approver<H>>) -> kube::Result<Action> {
    match catch(approver.carry_out(&csr)).await {
        Ok(result) => result?,
        Err(panicked) => error!(name = csr.name_any(), reason = Panicked::REASON.as_str(), "{panicked}"),
    }
    Ok(Action::requeue(AGAIN))
}

fn error_policy<T>(csr: Arc<CertificateSigningRequest>, error: &kube::Error, _: Arc<T>) -> Action {
    let name = csr.name_any();
    match error {
        kube::Error::Api(status) if status.is_conflict() || status.is_not_found() => {
            // The watch delivers the conflicting version, which triggers another evaluation.
            debug!(name, "certificate request has changed, evaluating it again");
            Action::requeue(AGAIN)
        }
        error => {
            let error = error as &dyn std::error::Error;
            warn!(name, error, "failed to approve or deny a certificate request; the operator retries it in 10 s");
            Action::requeue(RETRY)
        }
    }
}

impl<H: Hosts> Approver<H> {
    /// Adds a watch event to the index.
    fn observe(&self, event: &Event<CertificateSigningRequest>) {
        self.with_index(|index, claims| match event {
            Event::Init | Event::InitApply(_) => {}
            Event::InitDone => index.replace(&self.requests.state(), claims),
            Event::Apply(csr) => index.observe([csr], claims),
            Event::Delete(csr) => index.forget(csr),
        });
    }

    /// Evaluates a request on cached state. Confirms an approval or a denial with the API server, and writes it. Reports a verdict that is news.
    async fn carry_out(&self, csr: &CertificateSigningRequest) -> kube::Result<()> {
        let verdict = match self.judge(csr) {
            Verdict::Approve(_) if self.is_being_issued(csr) => return Ok(()),
            judged @ (Verdict::Approve(_) | Verdict::Deny { .. }) => match self.decide_in_turn(csr, &judged).await? {
                Some(verdict) => verdict,
                None => return Ok(()),
            },
            undecided => undecided,
        };
        let is_news = {
            let mut index = self.index.lock();
            let is_open = !matches!(verdict, Verdict::Wait { .. }) || self.is_as_known(csr);
            let is_news = is_open && index.is_news(csr, &verdict, Instant::now());
            self.report_left(&mut index);
            is_news
        };
        if is_news {
            let name = csr.name_any();
            let requester = csr.spec.username.as_deref().unwrap_or_default();
            info!(name, requester, signer = csr.spec.signer_name, ?verdict, "judged a certificate request");
            (self.on_verdict)(&verdict, csr);
        }
        Ok(())
    }

    /// Waits for a permit, evaluates a request again with objects from the API server, and writes the new verdict if it is an approval or a denial.
    /// Returns the new verdict, or `None` if the request is decided or has changed, its host has reached the limit of approvals, or the operator
    /// stops.
    async fn decide_in_turn(&self, csr: &CertificateSigningRequest, judged: &Verdict) -> kube::Result<Option<Verdict>> {
        let Some(_permit) = self.stop.run_until_cancelled(self.decisions.acquire()).await else { return Ok(None) };
        let request = {
            let mut index = self.index.lock();
            let is_allowed = match judged {
                Verdict::Approve(_) => index.allows_approval(csr, Instant::now()),
                _ => true,
            };
            if !is_allowed || !self.is_as_known(csr) || self.has_decided(csr) {
                return Ok(None);
            }
            index.request(csr)
        };
        let revise = |verdict| match (self.revise)(verdict) {
            // If the first verdict was a denial as well, `Index::judge` has counted it.
            Verdict::Deny { .. } if matches!(judged, Verdict::Approve(_)) && !self.admits_denial(csr) => {
                Verdict::NotOurs
            }
            verdict => verdict,
        };
        let verdict = confirm_and_decide(&self.api, &self.hosts, &revise, &self.own.user, csr, &request).await?;
        if let Verdict::Approve(_) | Verdict::Deny { .. } = verdict {
            self.own.issuing.decided(csr.uid().unwrap_or_default(), std::time::Instant::now());
        }
        if let Verdict::Approve(_) = verdict {
            self.index.lock().count_approval(csr, Instant::now());
        }
        Ok(Some(verdict))
    }

    fn admits_denial(&self, csr: &CertificateSigningRequest) -> bool {
        self.index.lock().admits_denial(csr, Instant::now())
    }

    /// Reports whether this process has posted the request and approves it in the issuer.
    fn is_being_issued(&self, csr: &CertificateSigningRequest) -> bool {
        csr.spec.username.as_ref() == Some(&self.own.user) && self.own.issuing.contains(&csr.name_any())
    }

    /// Reports whether this process has decided the request, although the watch does not show that yet.
    fn has_decided(&self, csr: &CertificateSigningRequest) -> bool {
        csr.uid().is_some_and(|uid| self.own.issuing.has_decided(&uid, std::time::Instant::now()))
    }

    /// Reports whether the cache holds this version of the request. If so, the index still has it.
    fn is_as_known(&self, csr: &CertificateSigningRequest) -> bool {
        let known = self.requests.get(&ObjectRef::from_obj(csr));
        known.is_some_and(|known| known.resource_version() == csr.resource_version())
    }

    /// Returns the verdict on a request from cached state, within the rate limit of denials and the current restrictions of the operator.
    fn judge(&self, csr: &CertificateSigningRequest) -> Verdict {
        let verdict = self.with_index(|index, claims| {
            if !self.is_as_known(csr) {
                // The request has changed or is gone. A change triggers another evaluation.
                return Verdict::NotOurs;
            }
            index.judge(csr, || self.requests.state(), claims, Instant::now())
        });
        (self.revise)(verdict)
    }

    /// Reports the requests that only users may approve, if they have changed.
    fn report_left(&self, index: &mut Index) {
        if let Some(all) = index.manual_requests() {
            self.left.replace(all);
        }
    }

    fn with_index<T>(&self, with: impl FnOnce(&mut Index, &dyn Fn(&str) -> Option<Claim>) -> T) -> T {
        let mut index = self.index.lock();
        let result = with(&mut index, &|node| self.hosts.lookup(node));
        self.report_left(&mut index);
        for name in index.firsts.drain(..) {
            // At shutdown, nothing listens.
            let _ = self.first.unbounded_send(name);
        }
        result
    }
}

/// Evaluates a request again with the Nodes of the involved hosts read from the API server. Returns the verdict, which is written if it decides the
/// request.
pub(super) async fn confirm_and_decide<H: Hosts>(
    api: &Api<CertificateSigningRequest>,
    hosts: &H,
    revise: &Revise<'_>,
    operator_user: &str,
    csr: &CertificateSigningRequest,
    request: &Request,
) -> kube::Result<Verdict> {
    let kind = Kind::of_signer(&csr.spec.signer_name);
    let mut confirmed = BTreeMap::new();
    for node in hosts_of(&csr.spec, request, &|node| hosts.lookup(node), operator_user) {
        let claim = hosts.confirm(&node, kind).await?;
        confirmed.insert(node, claim);
    }
    let claims = |node: &str| confirmed.get(node).cloned().unwrap_or_else(|| hosts.lookup(node));
    // No queue is passed, because the first evaluation has checked the request's place in its queue.
    let verdict = revise(verdict(csr, request, &claims, &Outstanding::default(), operator_user));
    decide(api, csr, &verdict).await.map(|_| verdict)
}

/// Removes the fields of a request that no decision reads: a requester can fill each of them with a megabyte. Cuts an oversized `spec.request` to a
/// length that still exceeds the limit.
fn keep_essentials(csr: &mut CertificateSigningRequest) {
    let metadata = &mut csr.metadata;
    (metadata.annotations, metadata.labels, metadata.finalizers, metadata.owner_references) = (None, None, None, None);
    csr.spec.extra = None;
    csr.spec.request.0.truncate(MAX_BYTES + 1);
    csr.spec.request.0.shrink_to_fit();
}

/// Writes an approval or a denial to the `approval` subresource, bound to the version that was evaluated, and returns the written object. Returns
/// `csr` unchanged for any other verdict.
pub(super) async fn decide(
    api: &Api<CertificateSigningRequest>,
    csr: &CertificateSigningRequest,
    verdict: &Verdict,
) -> kube::Result<CertificateSigningRequest> {
    let (type_, reason, message) = match verdict {
        Verdict::Approve(_) => (
            "Approved",
            APPROVED_REASON,
            "the request passed all checks of windows-node-pools for the host that it names",
        ),
        Verdict::Deny { reason, message } => ("Denied", reason.as_str(), message.as_str()),
        Verdict::NotOurs | Verdict::Wait { .. } | Verdict::Queue { .. } => return Ok(csr.clone()),
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
#[path = "approver_tests.rs"]
mod tests;
