//! Detection of another installation of this operator, in another namespace. Each installation has its own Lease, so both would change the same
//! hosts.

use std::time::Duration;

use api::{Reason, names::LEASE};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

/// Reason in the readiness probe, the metric and the log.
pub(crate) const REASON: Reason = crate::wmco::lock::REASON;
/// Interval of checks: Leases of other namespaces are polled, because a watch may be forbidden.
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

/// Another installation, which holds its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherInstallation {
    namespace: String,
    holder: String,
    /// Time when the holder acquired the Lease.
    since: Option<Timestamp>,
}

impl OtherInstallation {
    /// Returns the fault, with its remedy.
    pub(crate) fn message(&self) -> String {
        let Self { namespace, holder, .. } = self;
        format!(
            "another installation of this operator leads: {holder} holds the Lease {namespace}/{LEASE}, and two installations must not change the same hosts. \
             This one begins nothing until that Lease is free: uninstall one of the two"
        )
    }

    /// Reports whether the other installation takes precedence: it has led for longer than the installation in the namespace `ours`, which has led
    /// since `since`. If both times are equal, the first namespace by name takes precedence.
    pub(crate) fn goes_first(&self, ours: &str, since: Option<Timestamp>) -> bool {
        (self.since, self.namespace.as_str()) < (since, ours)
    }
}

/// Returns the installation that holds this Lease, unless the Lease has expired at the time `now`.
fn held(lease: &Lease, now: Timestamp) -> Option<OtherInstallation> {
    let LeaseSpec { holder_identity, lease_duration_seconds, renew_time, acquire_time, .. } = lease.spec.clone()?;
    let holder = holder_identity.filter(|holder| !holder.is_empty())?;
    let lasts = SignedDuration::from_secs(lease_duration_seconds.unwrap_or_default().into());
    let is_held = now.duration_since(renew_time?.0) <= lasts;
    is_held.then_some(OtherInstallation { namespace: lease.namespace()?, holder, since: acquire_time.map(|t| t.0) })
}

/// Returns the other installation that leads, if any, and the time when this installation acquired its Lease. Without permission to list Leases,
/// returns neither.
pub(crate) async fn leads(
    client: &Client,
    ours: &str,
    now: Timestamp,
) -> kube::Result<(Option<OtherInstallation>, Option<Timestamp>)> {
    let named = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let leases = match Api::<Lease>::all(client.clone()).list(&named).await {
        Ok(leases) => leases.items,
        Err(kube::Error::Api(status)) if status.is_forbidden() => return Ok((None, None)),
        Err(error) => return Err(error),
    };
    let (own, others): (Vec<_>, Vec<_>) =
        leases.iter().filter_map(|lease| held(lease, now)).partition(|held| held.namespace == ours);
    Ok((others.into_iter().min_by_key(|held| held.since), own.first().and_then(|held| held.since)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    const PATH: &str = "/apis/coordination.k8s.io/v1/leases?&fieldSelector=metadata.name%3Dwindows-node-pools";

    fn lease(namespace: &str, holder: &str, acquired: &str, renewed: &str) -> Value {
        json!({"metadata": {"name": LEASE, "namespace": namespace}, "spec": {"holderIdentity": holder,
            "leaseDurationSeconds": 15, "acquireTime": acquired, "renewTime": renewed}})
    }

    #[tokio::test]
    async fn an_installation_that_leads_in_another_namespace_is_found() {
        let (early, late) = ("2027-01-01T10:00:00.000000Z", "2027-01-01T11:00:00.000000Z");
        let (fresh, old) = ("2027-01-01T11:59:50.000000Z", "2027-01-01T11:59:00.000000Z");
        let now = "2027-01-01T12:00:00Z".parse().unwrap();
        let ours = lease("ours", "me", late, fresh);
        for (about, leases, expected) in [
            ("none", json!([ours]), None),
            ("one that leads", json!([ours, lease("second", "it", early, fresh)]), Some(("second", true))),
            (
                "one that leads for a shorter time",
                json!([ours, lease("third", "it", fresh, fresh)]),
                Some(("third", false)),
            ),
            ("one that is gone", json!([ours, lease("second", "it", early, old)]), None),
            ("one that was given back", json!([ours, lease("second", "", early, fresh)]), None),
        ] {
            let api = FakeApi::new();
            api.on("GET", PATH, 200, json!({"metadata": {}, "items": leases}));
            let (found, since) = leads(&api.client(), "ours", now).await.unwrap();
            let found = found.map(|found| (found.namespace.clone(), found.goes_first("ours", since)));
            let expected = expected.map(|(namespace, first): (&str, bool)| (namespace.to_owned(), first));
            assert_eq!(found, expected, "{about}");
        }
        let api = FakeApi::new();
        api.fail("GET", PATH, 403, "Forbidden", "you may not list leases", Value::Null);
        assert_eq!(leads(&api.client(), "ours", now).await.unwrap().0, None);
    }
}
