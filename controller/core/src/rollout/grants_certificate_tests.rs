//! Tests of grants that renew wicd's certificate.

use jiff::SignedDuration;

use super::*;

/// Covers a host that was off for four days, after its certificate had the maximum age on a running host: 67 of 168 hours, with the default lifetime.
/// wicd renews the certificate by itself if the host is back before the expiry.
#[test]
fn a_host_that_comes_back_with_a_valid_certificate_is_left_alone() {
    let issued = Timestamp::UNIX_EPOCH;
    let end = issued.checked_add(SignedDuration::try_from(api::host::WICD_CERTIFICATE_LIFE).unwrap()).unwrap();
    let restart = |candidate: Candidate| Candidate { wants_reboot: true, ..candidate };
    for (hours, candidate, expected) in [
        (67 + 96, node("a"), None),
        (167, node("a"), None),
        (168, node("a"), Some((GrantType::Update, Some(Disruption::None)))),
        (67 + 96, restart(node("a")), Some((GrantType::Reboot, None))),
        // A repair replaces the certificate, too.
        (200, dead("a"), Some((GrantType::Repair, None))),
    ] {
        let now = issued.checked_add(SignedDuration::from_hours(hours)).unwrap();
        let mut candidate = candidate;
        candidate.renew_certificate(Some(end), Some(V2), V2, now);
        let granted = decide(&[candidate.clone()], &limits(), now).changes.remove("a").flatten();
        assert_eq!(granted.map(|g| (g.type_, g.disruption)), expected, "{hours} h: {candidate:?}");
    }
    let mut unknown = node("a");
    unknown.renew_certificate(None, Some(V2), V2, NOW);
    assert_eq!(unknown, node("a"), "an unknown expiry is not in the past");
}

/// Covers an expired certificate, without which wicd can neither follow another version nor report.
#[test]
fn a_renewal_does_not_wait_for_a_rollout() {
    let expired = |candidate: Candidate| Candidate { renews: Some("1-a".into()), ..candidate };
    let renewing = |candidate: Candidate| Candidate {
        grant_version: Some("1-a".into()),
        grant_disruption: Some(Disruption::None),
        ..begun(granted(expired(candidate), GrantType::Update))
    };
    let failed = |candidate: Candidate| Candidate { failed: true, ..candidate };
    let renewed = |candidate: Candidate, limits: &Limits| {
        let given = decide(&[candidate], limits, NOW).changes.remove("a").flatten();
        given.map(|g| (g.type_, g.version, g.disruption))
    };
    let renewal = Some((GrantType::Update, Some("1-a".to_owned()), Some(Disruption::None)));
    for (name, candidate, limits, expected) in [
        ("the window is closed", expired(ready_to_go("a")), closed(), &renewal),
        ("the step waits for its approval", expired(ready_to_go("a")), gated(0), &renewal),
        ("the node failed to follow the version", expired(failed(ready_to_go("a"))), limits(), &renewal),
        ("the renewal comes before the change", expired(ready_to_go("a")), limits(), &renewal),
        ("it follows the target", expired(node("a")), limits(), &renewal),
        ("the pool is paused", expired(ready_to_go("a")), paused(), &None),
        ("the node is on hold", held(expired(ready_to_go("a"))), limits(), &None),
    ] {
        assert_eq!(&renewed(candidate, &limits), expected, "{name}");
    }
    check! {
        "a begun renewal continues in a closed window": [renewing(ready_to_go("a"))], &closed() => "",
        "a hold aborts a begun renewal": [held(renewing(ready_to_go("a")))], &closed() => "a -",
    }
}
