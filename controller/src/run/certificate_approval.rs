//! Certificate approver of the running operator: revises its verdicts for the current state of the cluster, and reports them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::WindowsInstance;
use futures::StreamExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use crate::{
    caches::{
        watch::{Changes, news},
        wicd_rights::RightsProblem,
    },
    cluster,
    context::{Base, Cluster},
    csr, instance,
    runtime::{clock, events::EventReason, metrics::ReasonLabel},
};
use wnp_core::csr::claims;

/// Revises a verdict for the current state. An approval for wicd waits while wicd has no rights. While the legacy operator runs (`is_alone` is
/// false), no request is denied: a request that looks invalid may belong to a node of the legacy operator, which approves it.
fn revise(verdict: csr::Verdict, rights: Option<RightsProblem>, is_alone: bool) -> csr::Verdict {
    match verdict {
        csr::Verdict::Approve(csr::Kind::WicdClient) => {
            rights.map_or(verdict, |problem| csr::Verdict::Wait { message: problem.to_string(), node: None })
        }
        csr::Verdict::Deny { .. } if !is_alone => csr::Verdict::NotOurs,
        verdict => verdict,
    }
}

/// Approves and denies certificate requests until the process stops. Needs no release, so that running nodes can renew their certificates even while
/// the operator has no usable release. `instances` reports new proofs about hosts. A failed query for the operator's user name or the reserved names
/// is repeated after `retry`.
pub(crate) async fn run(cx: Arc<Base>, instances: Changes<WindowsInstance>, retry: Duration) {
    let Cluster { client, config, .. } = &*cx.cluster;
    let mut proofs = news(cx.caches.instances.store(), instances, claims::proofs_differ).map(drop).boxed();
    let (operator, reserved) = loop {
        let user = async { csr::operator_user(client).await.map_err(|error| error.to_string()) };
        let reserved = cluster::reserved(client, config, &cx.process.args);
        let reserved = async { reserved.await.map_err(|error| error.to_string()) };
        match tokio::try_join!(user, reserved) {
            Ok(known) => break known,
            Err(error) => {
                tracing::warn!(
                    error,
                    "failed to get the operator's own user name, or the addresses of the cluster; the operator retries, and approves no certificates of hosts until it has them"
                );
            }
        }
        // Proofs are discarded until then, because no request waits for one yet.
        let begins_again = tokio::time::sleep(retry);
        tokio::select! {
            () = begins_again => {}
            () = async { while proofs.next().await.is_some() {} } => return,
            () = cx.process.stop.cancelled() => return,
        }
    };
    let (revised, shared) = (cx.clone(), cx.clone());
    let revise = move |verdict| revise(verdict, revised.wicd.rights.problem(), revised.other_operator.is_gone());
    let on_verdict = move |verdict: &csr::Verdict, request: &CertificateSigningRequest| {
        let reason = match verdict {
            csr::Verdict::NotOurs | csr::Verdict::Queue { .. } => return,
            csr::Verdict::Wait { message, .. } => {
                shared.events.say(request, EventReason::Waiting, "Approve", message);
                "Wait"
            }
            csr::Verdict::Approve(kind) => {
                if *kind == csr::Kind::WicdClient {
                    shared.wicd.renewals.note(request, clock::now());
                }
                "Approve"
            }
            csr::Verdict::Deny { reason, message } => {
                shared.events.say(request, EventReason::Denied(*reason), "Deny", message);
                reason.as_str()
            }
        };
        shared.process.metrics.csr_verdicts.get_or_create(&ReasonLabel { reason: reason.to_owned() }).inc();
    };
    let hosts = instance::claims::Hosts::new(cx.clone(), reserved);
    let own = csr::OwnRequests { user: operator, issuing: cx.wicd.issuing.clone() };
    let left = cx.wicd.manual_requests.clone();
    let again = csr::ReevaluationTriggers { left, all: cx.wicd.judge_again.clone(), waiting: proofs };
    let clients = csr::Clients { watch: cx.cluster.watch_requests.clone(), decide: cx.cluster.client.clone() };
    let approver = csr::run(clients, hosts, revise, on_verdict, own, again, cx.process.stop.clone());
    tokio::select! {
        () = approver => {}
        () = wake_pools(&cx) => {}
    }
}

/// Reconciles the pools whose certificate requests have started or stopped waiting for users, because their status reports such requests.
async fn wake_pools(cx: &Base) {
    let mut changes = cx.wicd.manual_requests.changes();
    let mut known = cx.wicd.manual_requests.all();
    while changes.changed().await.is_ok() {
        let now = changes.borrow_and_update().clone();
        let changed = known.iter().filter(|p| !now.contains(p)).chain(now.iter().filter(|p| !known.contains(p)));
        let pools =
            changed.map(|p| cx.caches.instances.get(&ObjectRef::new(&p.node)).map(|i| i.spec.pool_ref.name.clone()));
        let pools: BTreeSet<Option<String>> = pools.collect();
        // A Node without an instance may concern any pool, because any pool may plan to adopt it.
        for pool in cx.caches.pools.state() {
            let name = pool.name_any();
            if pools.contains(&None) || pools.contains(&Some(name.clone())) {
                cx.wake.pool(&name);
            }
        }
        known = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        caches::wicd_policy::{Deviation, PolicyFault},
        csr::{Kind, Verdict},
    };

    #[test]
    fn no_request_is_denied_next_to_another_operator() {
        let fault = PolicyFault { kind: "x", name: "x".into(), deviation: Deviation::Missing };
        let problem = || Some(RightsProblem::policy(&fault));
        let approval = Verdict::Approve;
        let denial = || Verdict::Deny { reason: api::Reason::UnknownHost, message: "x".into() };
        let waits = |verdict: Verdict| matches!(verdict, Verdict::Wait { .. });
        for is_alone in [true, false] {
            for kind in Kind::ALL {
                assert_eq!(revise(approval(kind), None, is_alone), approval(kind));
                assert_eq!(waits(revise(approval(kind), problem(), is_alone)), kind == Kind::WicdClient, "{kind:?}");
            }
            assert_eq!(revise(Verdict::NotOurs, None, is_alone), Verdict::NotOurs);
        }
        assert_eq!(revise(denial(), None, true), denial());
        assert_eq!(revise(denial(), None, false), Verdict::NotOurs);
    }
}
