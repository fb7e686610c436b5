//! The controller that carries out the verdicts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc, stream};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{ObjectRef, Store},
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{Claim, Hosts, Kind, Outstanding, Own, Verdict, index::Index, verdict};
use crate::{
    supervision::{Panicked, catch},
    unreadable::Unreadable,
    watch::{self, Event},
};
use wnp_core::csr::{hosts_of, is_finished};

/// Approved by this operator; the reason of the `Approved` condition.
pub(super) const APPROVED_REASON: &str = "WindowsNodePoolApproved";
/// Time after which an open request is evaluated again, for changes without an event.
const AGAIN: Duration = Duration::from_mins(1);
/// Time after which a request is evaluated again that the API server could not answer for.
const RETRY: Duration = Duration::from_secs(10);
/// No limit to the requests that are evaluated at a time. The client limits what it sends, those first that came first. A limit here would have the
/// others wait in no order, so that one that is always passed over waits until its host gives up.
const UNLIMITED: u16 = 0;

/// Watches all requests and approves or denies those of the operator's hosts, until `shutdown`.
///
/// - `hosts` returns the known state of the host of a node name. Start this only when the caches behind it are filled.
/// - `revise` returns what becomes of a verdict under the circumstances, which may forbid an approval or a denial.
/// - `on_verdict` is called after an approval or a denial has been written, and when a request begins to wait or waits
///   for another cause.
/// - `own` names the operator's own requests. Those that this process is issuing are approved where they are issued; those that a process left when it
///   died are approved here.
/// - `poke` (by `notify_one`) has everything judged again at once, for when a host has been proven.
///
/// One replica at a time should run this; two would do no harm, since each write is bound to the version that was judged.
pub async fn run<H: Hosts>(
    client: Client,
    hosts: H,
    revise: impl Fn(Verdict) -> Verdict + Send + Sync + 'static,
    on_verdict: impl Fn(&Verdict, &CertificateSigningRequest) + Send + Sync + 'static,
    own: Own,
    poke: Arc<Notify>,
    shutdown: CancellationToken,
) {
    // No pool waits for what cannot be read here: those who post a request choose its labels.
    let (requests, events) =
        watch::readable(client.clone(), None, &Unreadable::default(), |_| (), |csr| !is_finished(csr));
    let (first, firsts) = mpsc::unbounded();
    let approver = Arc::new(Approver {
        api: Api::all(client),
        requests: requests.clone(),
        hosts,
        revise: Box::new(revise),
        on_verdict: Box::new(on_verdict),
        index: Mutex::new(Index::new(own.user.clone(), Instant::now())),
        own,
        first,
    });
    let observer = approver.clone();
    // The index has a change before the request is judged.
    let events = events.inspect(move |event| observer.observe(event));
    let pokes = stream::unfold(poke, |poke| async {
        poke.notified().await;
        Some(((), poke))
    });
    Controller::for_shared_stream(watch::changes(requests.clone(), events), requests)
        .with_config(controller::Config::default().concurrency(UNLIMITED))
        .reconcile_on(firsts.map(|name: String| ObjectRef::new(&name)))
        .reconcile_all_on(pokes)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, error_policy, approver)
        .for_each(|_| async {})
        .await;
}

type Revise = dyn Fn(Verdict) -> Verdict + Send + Sync;
type OnVerdict = dyn Fn(&Verdict, &CertificateSigningRequest) + Send + Sync;

struct Approver<H> {
    api: Api<CertificateSigningRequest>,
    /// The open ones.
    requests: Store<CertificateSigningRequest>,
    hosts: H,
    revise: Box<Revise>,
    on_verdict: Box<OnVerdict>,
    own: Own,
    index: Mutex<Index>,
    /// Takes the names of requests that have become the first in their queues.
    first: mpsc::UnboundedSender<String>,
}

async fn reconcile<H: Hosts>(csr: Arc<CertificateSigningRequest>, approver: Arc<Approver<H>>) -> kube::Result<Action> {
    match catch(approver.carry_out(&csr)).await {
        Ok(result) => result?,
        Err(panicked) => error!(name = csr.name_any(), reason = Panicked::REASON, "{panicked}"),
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
    /// Takes in what the watch shows.
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
        let (verdict, csr) = match self.judge(csr) {
            Verdict::Approve(_) if self.is_being_issued(csr) => return Ok(()),
            Verdict::Approve(_) | Verdict::Deny { .. } if self.has_decided(csr) => return Ok(()),
            Verdict::Approve(_) | Verdict::Deny { .. } => {
                let decided = confirm_and_decide(&self.api, &self.hosts, &self.revise, &self.own.user, csr).await?;
                if matches!(decided.0, Verdict::Approve(_) | Verdict::Deny { .. }) {
                    self.own.issuing.decided(csr.uid().unwrap_or_default(), std::time::Instant::now());
                }
                decided
            }
            undecided => (undecided, csr.clone()),
        };
        let name = csr.name_any();
        if self.with_index(|index, _| index.is_news(&name, &verdict)) {
            let requester = csr.spec.username.as_deref().unwrap_or_default();
            info!(name, requester, signer = csr.spec.signer_name, ?verdict, "judged a certificate request");
            (self.on_verdict)(&verdict, &csr);
        }
        Ok(())
    }

    /// Whether this process has posted it, and is about to approve it itself.
    fn is_being_issued(&self, csr: &CertificateSigningRequest) -> bool {
        csr.spec.username.as_ref() == Some(&self.own.user) && self.own.issuing.contains(&csr.name_any())
    }

    /// Whether this process has decided it, and the watch has not shown that yet.
    fn has_decided(&self, csr: &CertificateSigningRequest) -> bool {
        csr.uid().is_some_and(|uid| self.own.issuing.has_decided(&uid, std::time::Instant::now()))
    }

    /// The verdict on what is known, and on what may be written now.
    fn judge(&self, csr: &CertificateSigningRequest) -> Verdict {
        let verdict = self.with_index(|index, claims| {
            let known = self.requests.get(&ObjectRef::from_obj(csr));
            if known.is_none_or(|known| known.resource_version() != csr.resource_version()) {
                // The index knows more. The change has the request judged again.
                return Verdict::NotOurs;
            }
            index.judge(csr, || self.requests.state(), claims, Instant::now())
        });
        (self.revise)(verdict)
    }

    fn with_index<T>(&self, with: impl FnOnce(&mut Index, &dyn Fn(&str) -> Option<Claim>) -> T) -> T {
        let mut index = self.index.lock();
        let result = with(&mut index, &|node| self.hosts.lookup(node));
        for name in index.firsts.drain(..) {
            // Only at the end nothing listens any more.
            let _ = self.first.unbounded_send(name);
        }
        result
    }
}

/// Judges once more, with the API server asked for the Nodes of the hosts that the verdict depends on, and writes that verdict.
pub(super) async fn confirm_and_decide<H: Hosts>(
    api: &Api<CertificateSigningRequest>,
    hosts: &H,
    revise: &Revise,
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
    let verdict = revise(verdict(csr, &claims, &Outstanding::default(), operator_user));
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
#[path = "approver_tests.rs"]
mod tests;
