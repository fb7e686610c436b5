//! Fencing of replaced operators: a host refuses requests of an older epoch than the newest one of its cluster that it has seen, unless the request
//! declares the newest one void.

use api::Reason;
use api::host::{Marker, Request, path};

use super::{Failure, state};
use crate::files::{self, Access};
use crate::host::Host;

/// Maximum accepted epoch. Epochs are about the number of seconds since 2020, so that none is larger before 2083. A larger one comes from a
/// damaged Lease, and would lock out all later operators.
const MAX_EPOCH: i64 = 2_000_000_000;

/// Refuses requests of an operator that another one has replaced, and records the epoch of accepted ones.
pub(super) fn check(host: &dyn Host, request: &Request) -> Result<(), Failure> {
    let epoch = request.epoch;
    if !(0..=MAX_EPOCH).contains(&epoch) {
        let message = format!(
            "the request has the epoch {epoch}, which is not between 0 and {MAX_EPOCH}; correct spec.leaseTransitions of the operator's Lease"
        );
        return Err(Failure::new(Reason::StaleEpoch, message));
    }
    let cluster = request.recipient.cluster_id.as_str();
    let remembered = files::read(host, path::EPOCH)?.and_then(|text| parse(&text, cluster));
    let marker = state::marker(host).filter(|m| counts(&m.cluster_id, cluster));
    let seen = remembered.max(marker.as_ref().map(|m| m.epoch));
    match seen {
        Some(seen) if epoch < seen && request.void_epoch != Some(seen) => {
            let message = format!(
                "the request is refused, because it is of an older operator (epoch {epoch}) than one that has already sent requests to the host (epoch {seen}). If no such operator runs any more, for example after the cluster was restored from a backup, annotate the pool with {}={seen}",
                api::names::key::VOID_EPOCH
            );
            return Err(Failure::new(Reason::StaleEpoch, message));
        }
        _ => {}
    }
    if let Some(marker) = marker.filter(|m| m.epoch > epoch) {
        files::write_json(host, path::STATE, &Marker { epoch, ..marker }, Access::Inherited)?;
    }
    Ok(files::write(host, path::EPOCH, format!("{epoch} {cluster}").as_bytes(), Access::Inherited).map(drop)?)
}

/// Parses the epoch in a record, if the record is of this cluster. Each cluster counts its own epochs.
fn parse(text: &[u8], cluster: &str) -> Option<i64> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let epoch = words.next()?.parse().ok()?;
    counts(words.next().unwrap_or_default(), cluster).then_some(epoch)
}

/// Reports whether a recorded epoch counts for a cluster: it is of this cluster, or was recorded without one.
fn counts(recorded: &str, cluster: &str) -> bool {
    recorded.is_empty() || recorded == cluster
}

#[cfg(test)]
mod tests {
    use api::host::{Body, Cleanup};
    use proptest::prelude::*;

    use super::super::tests::{CLUSTER, TestHost, reason, request, wanted};
    use super::*;
    use crate::operation::run;

    fn asked(test_host: &TestHost, epoch: i64, void_epoch: Option<i64>) -> String {
        let request = Request { void_epoch, ..request("x", epoch, Body::Cleanup(Cleanup {})) };
        reason(&run(&test_host.host, &request)).to_string()
    }

    /// A replaced operator stays refused after a cleanup.
    #[test]
    fn a_replaced_operator_is_refused() {
        let test_host = TestHost::new();
        let seen = [3, 5, 5, 4, 6, 5].map(|epoch| asked(&test_host, epoch, None));
        assert_eq!(seen, ["Done", "Done", "Done", "StaleEpoch", "Done", "StaleEpoch"]);
    }

    #[test]
    fn an_invalid_epoch_does_not_lock_out_later_operators() {
        let test_host = TestHost::new();
        for absurd in [i64::from(i32::MAX), i64::MAX, MAX_EPOCH + 1, -1] {
            assert_eq!(asked(&test_host, absurd, None), "StaleEpoch", "{absurd}");
        }
        assert_eq!(asked(&test_host, 3, None), "Done");
    }

    #[test]
    fn only_the_highest_epoch_can_be_voided() {
        let test_host = TestHost::new();
        assert_eq!(asked(&test_host, MAX_EPOCH, None), "Done");
        for (epoch, void, expected) in [
            (7, None, "StaleEpoch"),
            (7, Some(8), "StaleEpoch"),
            (7, Some(MAX_EPOCH), "Done"),
            // A voided epoch admits no operator of a lower epoch than the accepted one.
            (6, Some(MAX_EPOCH), "StaleEpoch"),
            (7, Some(MAX_EPOCH), "Done"),
        ] {
            assert_eq!(asked(&test_host, epoch, void), expected, "{epoch} {void:?}");
        }
    }

    #[test]
    fn a_voided_epoch_is_removed_from_the_marker() {
        let test_host = TestHost::new();
        test_host.join("1");
        let apply = |epoch, void_epoch| {
            let body = Body::Apply(Box::new(wanted("1")));
            let request = Request { void_epoch, ..request("x", epoch, body) };
            reason(&run(&test_host.host, &request)).to_string()
        };
        assert_eq!(apply(MAX_EPOCH, None), "Done");
        assert_eq!(apply(2, None), "StaleEpoch");
        assert_eq!(apply(2, Some(MAX_EPOCH)), "Done");
        assert_eq!(apply(2, None), "Done");
    }

    #[test]
    fn epochs_of_another_cluster_do_not_count() {
        let test_host = TestHost::new();
        test_host.write(path::EPOCH, b"900 8c5d9c5e-0000-4000-8000-00000000ffff");
        assert_eq!(asked(&test_host, 1, None), "Done");
        test_host.write(path::EPOCH, format!("900 {CLUSTER}").as_bytes());
        assert_eq!(asked(&test_host, 1, None), "StaleEpoch");
        test_host.write(path::EPOCH, b"900");
        assert_eq!(asked(&test_host, 1, None), "StaleEpoch", "one that was recorded without a cluster");
    }

    proptest! {
        #[test]
        fn any_record_is_parsed_or_ignored(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse(&bytes, "c");
        }
    }
}
