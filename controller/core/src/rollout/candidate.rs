//! State of a host, as input for decisions about grants.

use std::{collections::BTreeSet, time::Duration};

use api::{Disruption, GrantType, IntOrPercent};
use jiff::{SignedDuration, Timestamp};

use crate::node::maintenance::By;

/// State of a pool's host, as far as decisions about grants depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent flag")]
pub struct Candidate {
    /// Name of the instance.
    pub name: String,
    /// Zone of the Node; empty if it has none.
    pub zone: String,
    /// Type of the host's grant, if it has one.
    pub grant: Option<GrantType>,
    /// Version of the grant, for grants to stage or update.
    pub grant_version: Option<String>,
    /// Disruption of the granted update. An unknown disruption counts as disruptive.
    pub grant_disruption: Option<Disruption>,
    /// True if the grant was given while the node took no pods, so that the grant has no slot in the budget.
    pub grant_without_place: bool,
    /// True if a change of the host has begun, and may have disturbed the node.
    pub begun: bool,
    /// True if the operation has changed something on the host, so that its grant can no longer be revoked.
    pub irrevocable: bool,
    /// True if the removal of the host has begun, and may have cordoned its Node.
    pub removing: bool,
    /// True if the operation of the grant is over. A used grant has no further effect.
    pub grant_used: bool,
    /// True if the host must be removed: it is no longer in the inventory, or its pool or instance is being deleted.
    pub leaving: bool,
    /// True if the host is released without being deconfigured when it is removed, regardless of the deletion policy of its pool.
    pub let_go: bool,
    /// True if the instance is being deleted and the host may be partly deconfigured, so that the removal can no longer be aborted.
    pub deconfiguring: bool,
    /// True if the host is removed together with its machine. Decisions ignore such a host.
    pub vanishing: bool,
    /// True if the host has completely followed a version at least once. A leaving host counts as soon as it has a Node.
    pub joined: bool,
    /// True if the Node is Ready.
    pub ready: bool,
    /// True if the Node is Ready, has been Ready for long enough, and is not cordoned.
    pub available: bool,
    /// Time of the next attempt after a failure. A time in the past means that no attempt has succeeded since.
    pub waits_until: Option<Timestamp>,
    /// True if a user has put the host on hold. The host does not count toward the size of the pool, and counts as unavailable only if an operation
    /// disturbs its node.
    pub held: bool,
    /// Change that the host needs to follow the target; `None` if it follows it.
    pub change: Option<PendingChange>,
    /// True if the change would lose settings of the legacy operator, and no user has accepted that. The adopted node gets no change and no restart.
    pub withheld: bool,
    /// True if the Node is cordoned, but not by this operator.
    pub cordoned: bool,
    /// True if the host follows the version of an abandoned rollout: neither the target nor the version that the rollout began with.
    pub follows_abandoned_version: bool,
    /// Version that the host follows, if the host must get a new certificate for wicd with this version, even while its change waits.
    pub renews: Option<String>,
    /// True if everything that the change needs has been copied to the host.
    pub staged: bool,
    /// True if the host failed to follow the target. It is not retried.
    pub failed: bool,
    /// True if the host requests a restart.
    pub wants_reboot: bool,
    /// Requester of the node's maintenance, if one is requested.
    pub maintenance: Option<By>,
    /// Time when the last maintenance since the last update ended. The host cannot change it.
    pub maintained_at: Option<Timestamp>,
    /// Time when the Node stopped being Ready.
    pub down_since: Option<Timestamp>,
    /// True if a user requests that the node be repaired at once.
    pub repair_requested: bool,
    /// MachineHealthCheck that replaces the host's Machine, so that the operator does not repair the node.
    pub health_check: Option<String>,
    /// True if the host did not answer over SSH at the last attempt, or is not probed.
    pub unreachable: bool,
    /// True if the host accepts another SSH key than the first of its list, or has an old key to remove.
    pub wants_key: bool,
    /// True if the SSH keys of the host are being rotated.
    pub rotating: bool,
    /// Time of the next attempt after a failed key rotation. A time in the past means that no rotation has succeeded since.
    pub key_waits_until: Option<Timestamp>,
    /// True if the host lacks images that it must pull ahead of use, or has pulled images to release.
    pub wants_images: bool,
    /// True if the host is pulling images.
    pub pulling: bool,
    /// Time of the next attempt after a failed pull. A time in the past means that no pull has succeeded since.
    pub images_wait_until: Option<Timestamp>,
}

/// Change that a node needs to follow the target version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingChange {
    /// Target version of the change.
    pub version: String,
    /// Disruption that the change causes.
    pub disruption: Disruption,
    /// Names of the services to restart.
    pub services: Vec<String>,
}

impl Candidate {
    /// Returns the reason why the node must not be repaired if it is not Ready: a user or another program works on it, or it must not get the target
    /// version, which a repair would install.
    pub fn no_repair(&self) -> Option<String> {
        if let Some(by) = self.health_check.as_deref() {
            return Some(format!("left to {by}, which replaces its Machine"));
        }
        let why = match self {
            Self { held: true, .. } => "it is on hold",
            Self { withheld: true, .. } => "the change of this adopted node is not accepted yet",
            Self { maintenance: Some(_), .. } => "its maintenance is requested",
            _ => return None,
        };
        Some(format!("not repaired: {why}"))
    }

    /// Plans the renewal of wicd's certificate if the node is Ready and the certificate has expired. `end` is the expiry, if it is known. wicd renews
    /// a valid certificate by itself; one that has expired means that the host was off at that time. The renewal changes nothing else, and does not
    /// wait for another change. A host that requests a restart gets the certificate with the restart.
    pub fn renew_certificate(&mut self, end: Option<Timestamp>, follows: Option<&str>, target: &str, now: Timestamp) {
        if !self.ready || end.is_none_or(|end| end > now) {
            return;
        }
        self.renews = follows.filter(|_| !self.wants_reboot).map(Into::into);
        if self.change.is_none() {
            let disruption = if self.wants_reboot { Disruption::Reboot } else { Disruption::None };
            self.change = Some(PendingChange { version: target.into(), disruption, services: Vec::new() });
            self.staged = true;
        }
    }
}

/// Lost nodes, for which a rollout does not wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Names of the lost nodes.
    pub names: BTreeSet<String>,
    /// True if so many nodes that stay in the pool are lost that none counts as lost.
    pub too_many: bool,
}

/// Returns the lost nodes: not Ready for longer than `after`, on hosts that do not answer either. If there are more than `max_unhealthy`, none counts
/// as lost.
pub fn lost(candidates: &[Candidate], after: Option<Duration>, max_unhealthy: IntOrPercent, now: Timestamp) -> Lost {
    let gone = |s: &Candidate| is_silent(s) && later(s.down_since, after).is_some_and(|at| at <= now);
    let max = max_unhealthy.of(count(candidates, |s| s.joined && !s.held));
    if count(candidates, gone) > max {
        let too_many = count(candidates, |s| gone(s) && !s.leaving) > max;
        return Lost { names: BTreeSet::new(), too_many };
    }
    Lost { names: candidates.iter().filter(|s| gone(s)).map(|s| s.name.clone()).collect(), too_many: false }
}

/// Reports whether a grant makes an available node unavailable, or may do so.
pub(super) fn disturbs(grant: Option<GrantType>, disruption: Option<Disruption>) -> bool {
    match grant {
        Some(GrantType::Update) => disruption.is_none_or(|d| d >= Disruption::Restart),
        Some(GrantType::Reboot | GrantType::Remove | GrantType::Repair | GrantType::Maintenance) => true,
        None
        | Some(
            GrantType::Provision | GrantType::Stage | GrantType::Orphan | GrantType::RotateKey | GrantType::PullImages,
        ) => false,
    }
}

/// Reports whether the operator disturbs a node, or may do so at any moment. Without a grant, the change of a leaving host does not continue, and
/// does not count here: a cordon that the change has left must not delay removals.
pub(super) fn is_disturbed(candidate: &Candidate) -> bool {
    let goes_on = candidate.begun && !(candidate.leaving && candidate.grant.is_none());
    goes_on || candidate.removing || disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a node counts against the budget of unavailable nodes.
pub(super) fn is_busy(candidate: &Candidate) -> bool {
    !candidate.available || is_disturbed(candidate)
}

/// Reports whether operations on a node can disturb pods. A node that is not Ready, or that a user has cordoned, has no pods to lose.
pub(super) fn has_pods(candidate: &Candidate) -> bool {
    candidate.joined && candidate.ready && !candidate.cordoned
}

/// Reports whether the operator disturbs a node, but can still abort and lift the cordon.
pub(super) fn is_revocable(candidate: &Candidate) -> bool {
    match candidate.grant {
        Some(GrantType::Remove) => candidate.leaving && !candidate.deconfiguring,
        Some(GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance) => {
            !candidate.irrevocable && disturbs(candidate.grant, candidate.grant_disruption)
        }
        _ => false,
    }
}

/// Reports whether an available node counts as disturbed only because of a grant whose operation has not begun, so that another grant can replace it.
pub(super) fn is_reserved(candidate: &Candidate) -> bool {
    candidate.available
        && !candidate.begun
        && !candidate.removing
        && candidate.grant != Some(GrantType::Remove)
        && is_busy(candidate)
}

/// Reports whether a node is being changed without a disruption.
pub(super) fn is_changed_without_disruption(candidate: &Candidate) -> bool {
    candidate.grant == Some(GrantType::Update) && !disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a node is being changed while it is unavailable.
pub(super) fn is_changed_while_unavailable(candidate: &Candidate) -> bool {
    let changes = matches!(candidate.grant, Some(GrantType::Update | GrantType::Reboot | GrantType::Maintenance));
    candidate.joined && !candidate.available && changes && disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a host is in backoff after a failure.
pub(super) fn waits(candidate: &Candidate, now: Timestamp) -> bool {
    candidate.waits_until.is_some_and(|until| until > now)
}

/// Reports whether neither the Node nor the host responds, although they should. A node on hold, or in maintenance that is still requested, may be
/// off.
pub(super) fn is_silent(candidate: &Candidate) -> bool {
    let is_expected = is_maintained(candidate) && candidate.maintenance.is_some();
    candidate.joined
        && !candidate.held
        && !candidate.ready
        && !candidate.available
        && candidate.unreachable
        && !is_expected
}

/// Reports whether a node has a grant for maintenance, used or not.
pub(super) fn is_maintained(candidate: &Candidate) -> bool {
    candidate.grant == Some(GrantType::Maintenance)
}

/// Reports whether a node has an unused grant for maintenance.
pub(super) fn has_unused_maintenance(candidate: &Candidate) -> bool {
    is_maintained(candidate) && !candidate.grant_used
}

/// Reports whether a host, or a client of its Node, requests maintenance again although one has ended since the last update. Requests on the instance
/// do not count as repeated.
pub(super) fn is_repeated(candidate: &Candidate) -> bool {
    candidate.maintained_at.is_some() && candidate.maintenance.is_some_and(|by| by != By::Person)
}

/// Reports whether the maintenance of a node has gone so far that users may work on the host.
pub(super) fn is_drained(candidate: &Candidate) -> bool {
    is_maintained(candidate) && candidate.irrevocable
}

/// Reports whether a host has a grant of this type for the version of the change.
pub(super) fn has(candidate: &Candidate, type_: GrantType, wanted: &PendingChange) -> bool {
    candidate.grant == Some(type_) && candidate.grant_version.as_ref() == Some(&wanted.version)
}

/// Reports whether a host has a grant to update for the change, with the same disruption or an unknown one.
pub(super) fn is_granted(candidate: &Candidate, wanted: &PendingChange) -> bool {
    has(candidate, GrantType::Update, wanted) && candidate.grant_disruption.is_none_or(|d| d == wanted.disruption)
}

/// Returns the time that is `by` after `since`. `None` means never.
pub(super) fn later(since: Option<Timestamp>, by: Option<Duration>) -> Option<Timestamp> {
    since?.checked_add(SignedDuration::try_from(by?).ok()?).ok()
}

/// Returns the number of candidates that match the predicate.
pub(super) fn count(candidates: &[Candidate], which: impl Fn(&Candidate) -> bool) -> u32 {
    number(candidates.iter().filter(|s| which(s)))
}

/// Returns the number of items.
pub(super) fn number<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
