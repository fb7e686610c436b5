//! Controller that approves and denies certificate requests, as the verdicts say.

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
    Again, Claim, Clients, Hosts, Kind, LeftToPeople, Outstanding, Own, Verdict, index::Index, open::Kept, verdict,
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
/// Time after which an open request is evaluated again, for changes without an event.
const AGAIN: Duration = Duration::from_mins(1);
/// Time after which a request is evaluated again that the API server could not answer for.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum number of requests that the controller handles at once: no limit. Beyond a limit, it would take them in no order, and one that is always
/// passed over would wait until its host gives up.
const UNLIMITED: u16 = 0;
/// Requests that are decided at a time, in the order in which they came. Each takes two requests to the API server, and the client sends few at a
/// time: more at once would only hold up everything else.
const DECISIONS: usize = 128;
/// Objects of a page of the list. They may have a megabyte each.
const PAGE: u32 = 50;

/// Watches all requests and approves or denies those of the operator's hosts, until `shutdown`.
///
/// - `hosts` returns the known state of the host of a node name. Start this only when the caches behind it are filled.
/// - `revise` returns the verdict to carry out: the circumstances may forbid an approval or a denial.
/// - `on_verdict` is called after an approval or a denial has been written, and when a request begins to wait or waits
///   for another cause.
/// - `own` names the operator's own requests. Those that this process is issuing are approved where they are issued; those that a process left when
///   it died are approved here.
/// - `again` has requests judged again, for changes that no request shows.
///
/// One replica at a time should run this; two would do no harm, since each write is bound to the version that was judged.
pub async fn run<H: Hosts>(
    clients: impl Into<Clients>,
    hosts: H,
    revise: impl Fn(Verdict) -> Verdict + Send + Sync + 'static,
    on_verdict: impl Fn(&Verdict, &CertificateSigningRequest) + Send + Sync + 'static,
    own: Own,
    again: Again,
    shutdown: CancellationToken,
) {
    let clients = clients.into();
    let kept = Arc::new(Mutex::new(Kept::default()));
    // No pool waits for what cannot be read here: those who post a request choose its labels.
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
    // The index has a change before the request is judged.
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
    /// Open requests.
    requests: Store<CertificateSigningRequest>,
    hosts: H,
    revise: Box<Revise<'static>>,
    on_verdict: Box<OnVerdict>,
    own: Own,
    left: LeftToPeople,
    index: Mutex<Index>,
    /// Permits for decisions that are made at a time.
    decisions: Semaphore,
    stop: CancellationToken,
    /// Sender for the names of requests that have become the first in their queues.
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
            // The watch brings the version that was in the way, and has it judged.
            debug!(name, "certificate request has changed, evaluating it again");
            Action::requeue(AGAIN)
        }
        error => {
            let error = error as &dyn std::error::Error;
            warn!(name, error, "failed to decide a certificate request, retrying soon");
            Action::requeue(RETRY)
        }
    }
}

impl<H: Hosts> Approver<H> {
    /// Adds an event of the watch to the index.
    fn observe(&self, event: &Event<CertificateSigningRequest>) {
        self.with_index(|index, claims| match event {
            Event::Init | Event::InitApply(_) => {}
            Event::InitDone => index.replace(&self.requests.state(), claims),
            Event::Apply(csr) => index.observe([csr], claims),
            Event::Delete(csr) => index.forget(csr),
        });
    }

    /// Judges a request on what is known, confirms that with the API server, and writes the verdict.
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

    /// Decides a request when it is its turn. Returns the verdict that was written, or another one that the API server's objects lead to; nothing if
    /// the request is decided or has changed meanwhile, or its host has had too many approved.
    async fn decide_in_turn(&self, csr: &CertificateSigningRequest, judged: &Verdict) -> kube::Result<Option<Verdict>> {
        let Some(_place) = self.stop.run_until_cancelled(self.decisions.acquire()).await else { return Ok(None) };
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
            // The other denials are counted already.
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

    /// Reports whether this process has posted the request, and is about to approve it itself.
    fn is_being_issued(&self, csr: &CertificateSigningRequest) -> bool {
        csr.spec.username.as_ref() == Some(&self.own.user) && self.own.issuing.contains(&csr.name_any())
    }

    /// Reports whether this process has decided the request, and the watch has not shown that yet.
    fn has_decided(&self, csr: &CertificateSigningRequest) -> bool {
        csr.uid().is_some_and(|uid| self.own.issuing.has_decided(&uid, std::time::Instant::now()))
    }

    /// Reports whether the cache has the request in this version. If so, the index forgets it only later.
    fn is_as_known(&self, csr: &CertificateSigningRequest) -> bool {
        let known = self.requests.get(&ObjectRef::from_obj(csr));
        known.is_some_and(|known| known.resource_version() == csr.resource_version())
    }

    /// Judges a request on what is known, and on what may be written now.
    fn judge(&self, csr: &CertificateSigningRequest) -> Verdict {
        let verdict = self.with_index(|index, claims| {
            if !self.is_as_known(csr) {
                // The index knows more. The change has the request judged again.
                return Verdict::NotOurs;
            }
            index.judge(csr, || self.requests.state(), claims, Instant::now())
        });
        (self.revise)(verdict)
    }

    /// Reports the requests that are left to users, if they have changed.
    fn report_left(&self, index: &mut Index) {
        if let Some(all) = index.left_to_people() {
            self.left.replace(all);
        }
    }

    fn with_index<T>(&self, with: impl FnOnce(&mut Index, &dyn Fn(&str) -> Option<Claim>) -> T) -> T {
        let mut index = self.index.lock();
        let result = with(&mut index, &|node| self.hosts.lookup(node));
        self.report_left(&mut index);
        for name in index.firsts.drain(..) {
            // At the end nothing listens.
            let _ = self.first.unbounded_send(name);
        }
        result
    }
}

/// Judges a request once more, with the API server asked for the Nodes of the hosts that the verdict depends on, and writes that verdict.
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
    // The first of several was chosen before.
    let verdict = revise(verdict(csr, request, &claims, &Outstanding::default(), operator_user));
    decide(api, csr, &verdict).await.map(|_| verdict)
}

/// Removes from a request all that no decision reads. A requester can fill each of these fields with a megabyte. A `spec.request` that is too long is
/// cut to a length that still shows that.
fn keep_essentials(csr: &mut CertificateSigningRequest) {
    let metadata = &mut csr.metadata;
    (metadata.annotations, metadata.labels, metadata.finalizers, metadata.owner_references) = (None, None, None, None);
    csr.spec.extra = None;
    csr.spec.request.0.truncate(MAX_BYTES + 1);
    csr.spec.request.0.shrink_to_fit();
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
