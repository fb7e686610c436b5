//! State of one host for the decision about grants.

use std::{collections::BTreeSet, time::Duration};

use api::{Disruption, GrantType, IntOrPercent};
use jiff::{SignedDuration, Timestamp};

use crate::node::maintenance::By;

/// State of one host of a pool, as far as it counts for grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent flag")]
pub struct Candidate {
    /// Name of the instance.
    pub name: String,
    /// Zone of the Node; empty if it has none.
    pub zone: String,
    /// Type of the host's grant.
    pub grant: Option<GrantType>,
    /// Version that a grant to stage or update names.
    pub grant_version: Option<String>,
    /// Disruption of the update that was granted. An update of unknown disruption counts as disruptive.
    pub grant_disruption: Option<Disruption>,
    /// True if the grant was given while the node took no pods, and has no place in the budget.
    pub grant_without_place: bool,
    /// True if the change of the host has begun, and may have disturbed the node.
    pub begun: bool,
    /// True if the host's change has changed something on the host, so that its grant is no longer revoked.
    pub past_return: bool,
    /// True if the removal of the host has begun, which may have cordoned its Node.
    pub removing: bool,
    /// True if the operation of the grant is over. Nothing more is done with such a grant.
    pub grant_used: bool,
    /// True if the host is to leave: taken out of the inventory, its pool deleted, or deleted by hand.
    pub leaving: bool,
    /// True if the host is released as it is when it leaves, whatever its pool says.
    pub let_go: bool,
    /// True if the host is being deconfigured: its removal is no longer revoked.
    pub deconfiguring: bool,
    /// True if the host leaves together with its machine. Nothing is done with it, and it counts for nothing.
    pub vanishing: bool,
    /// True if the host has joined and followed its version completely at least once.
    pub joined: bool,
    /// True if the Node is Ready.
    pub ready: bool,
    /// True if the Node is Ready, has been so for long enough, and takes pods.
    pub available: bool,
    /// Time of the retry after a failure. A time in the past means that no attempt has succeeded since.
    pub waits_until: Option<Timestamp>,
    /// True if a user put the host on hold. It counts neither as one of the pool nor as unavailable.
    pub held: bool,
    /// Change that the host needs to follow the target; `None` if it follows it.
    pub change: Option<PendingChange>,
    /// True if the change would lose settings of the legacy operator's, which are not accepted. The adopted node stays unchanged.
    pub withheld: bool,
    /// True if the Node is cordoned, and not by this operator.
    pub cordoned: bool,
    /// True if the host follows a version that is neither the target nor the one that the rollout began with: that of a rollout which was abandoned.
    pub astray: bool,
    /// Version that the host follows, if wicd's certificate there has expired: the host gets another with that version, whatever its change waits
    /// for.
    pub renews: Option<String>,
    /// True if everything that the change needs is on the host.
    pub staged: bool,
    /// True if the host failed to follow the target. It is not retried.
    pub failed: bool,
    /// True if the host asks for a restart.
    pub wants_reboot: bool,
    /// Requester of the node's drain for maintenance.
    pub maintenance: Option<By>,
    /// Time when the last maintenance since the last update was over. The host cannot change it.
    pub maintained_at: Option<Timestamp>,
    /// Time since which the Node is not Ready.
    pub down_since: Option<Timestamp>,
    /// True if a user requests that the node be repaired at once.
    pub repair_requested: bool,
    /// MachineHealthCheck that replaces the host's Machine, so that the operator does not repair the node.
    pub health_check: Option<String>,
    /// True if the host did not answer over SSH when it was last tried.
    pub unreachable: bool,
    /// True if the host accepts another SSH key than the first of its list, or has an old one to remove.
    pub wants_key: bool,
    /// True if the SSH keys of the host are being worked on.
    pub rotating: bool,
    /// Time of the retry after a failed key rotation. A time in the past means that no rotation has succeeded since.
    pub key_waits_until: Option<Timestamp>,
    /// True if the host has not all images that it pulls ahead, or has some to release.
    pub wants_images: bool,
    /// True if the host pulls images.
    pub pulling: bool,
    /// Time of the retry after a failed pull. A time in the past means that no pull has succeeded since.
    pub images_wait_until: Option<Timestamp>,
}

/// Change that a node needs to follow the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingChange {
    /// Target of the change.
    pub version: String,
    /// Disruption by the change.
    pub disruption: Disruption,
    /// Services to restart.
    pub services: Vec<String>,
}

impl Candidate {
    /// Makes the operator bring another certificate for wicd, if the one that ended at `end` is over: the host was off when wicd would have renewed
    /// it. A valid certificate is wicd's own business. No other change is made, and none that waits keeps the node from it.
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

/// Nodes that are no longer waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Names of the lost nodes.
    pub names: BTreeSet<String>,
    /// True if so many nodes are lost that none is written off.
    pub too_many: bool,
}

/// Lost nodes: not Ready, on hosts that do not answer either, for longer than `after`.
pub fn lost(candidates: &[Candidate], after: Option<Duration>, max_unhealthy: IntOrPercent, now: Timestamp) -> Lost {
    let gone = |s: &Candidate| is_silent(s) && later(s.down_since, after).is_some_and(|at| at <= now);
    let names: BTreeSet<String> = candidates.iter().filter(|s| gone(s)).map(|s| s.name.clone()).collect();
    let too_many = count(candidates, gone) > max_unhealthy.of(count(candidates, |s| s.joined && !s.held));
    Lost { names: if too_many { BTreeSet::new() } else { names }, too_many }
}

/// Reports whether a grant makes an available node unavailable, or may.
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

/// Reports whether the operator disturbs a node, or may at any moment. The change of a host that leaves is not continued without a grant: what it
/// left behind is seen in the node, and must not keep the host and its neighbours from their removal.
pub(super) fn is_disturbed(candidate: &Candidate) -> bool {
    let goes_on = candidate.begun && !(candidate.leaving && candidate.grant.is_none());
    goes_on || candidate.removing || disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a node uses up a place in the budget of unavailable nodes.
pub(super) fn is_busy(candidate: &Candidate) -> bool {
    !candidate.available || is_disturbed(candidate)
}

/// Reports whether the pods of a node depend on what the operator does with it. A node that is not Ready, or that a user has cordoned, has none to
/// lose.
pub(super) fn has_pods(candidate: &Candidate) -> bool {
    candidate.joined && candidate.ready && !candidate.cordoned
}

/// Reports whether the operator disturbs a node, and can still leave off and lift the cordon.
pub(super) fn is_revocable(candidate: &Candidate) -> bool {
    match candidate.grant {
        Some(GrantType::Remove) => candidate.leaving && !candidate.deconfiguring,
        Some(GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance) => {
            !candidate.past_return && disturbs(candidate.grant, candidate.grant_disruption)
        }
        _ => false,
    }
}

/// Reports whether an available node is disturbed only by a grant that has not begun, which can be replaced.
pub(super) fn is_reserved(candidate: &Candidate) -> bool {
    candidate.available
        && !candidate.begun
        && !candidate.removing
        && candidate.grant != Some(GrantType::Remove)
        && is_busy(candidate)
}

/// Reports whether a node is being changed without being disturbed.
pub(super) fn is_changed_without_disruption(candidate: &Candidate) -> bool {
    candidate.grant == Some(GrantType::Update) && !disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a node is being changed while it is unavailable.
pub(super) fn is_changed_while_unavailable(candidate: &Candidate) -> bool {
    let changes = matches!(candidate.grant, Some(GrantType::Update | GrantType::Reboot | GrantType::Maintenance));
    candidate.joined && !candidate.available && changes && disturbs(candidate.grant, candidate.grant_disruption)
}

/// Reports whether a host waits after a failure.
pub(super) fn waits(candidate: &Candidate, now: Timestamp) -> bool {
    candidate.waits_until.is_some_and(|until| until > now)
}

/// Reports whether neither the Node nor the host is heard of. Of a node that is to stay in maintenance that is expected.
pub(super) fn is_silent(candidate: &Candidate) -> bool {
    let is_expected = is_maintained(candidate) && candidate.maintenance.is_some();
    candidate.joined
        && !candidate.held
        && !candidate.ready
        && !candidate.available
        && candidate.unreachable
        && !is_expected
}

/// Reports whether a node is drained for maintenance, or is about to be.
pub(super) fn is_maintained(candidate: &Candidate) -> bool {
    candidate.grant == Some(GrantType::Maintenance)
}

/// Reports whether a node has the grant for maintenance, and has not used it.
pub(super) fn has_its_maintenance(candidate: &Candidate) -> bool {
    is_maintained(candidate) && !candidate.grant_used
}

/// Reports whether a host requests its maintenance again since its last update. A user may do so as often as they like.
pub(super) fn is_repeated(candidate: &Candidate) -> bool {
    candidate.maintained_at.is_some() && candidate.maintenance.is_some_and(|by| by != By::Person)
}

/// Reports whether the maintenance of a node has gone so far that users work on the host, and not the operator.
pub(super) fn is_drained(candidate: &Candidate) -> bool {
    is_maintained(candidate) && candidate.past_return
}

/// Reports whether a host has a grant of this type for the wanted version.
pub(super) fn has(candidate: &Candidate, type_: GrantType, wanted: &PendingChange) -> bool {
    candidate.grant == Some(type_) && candidate.grant_version.as_ref() == Some(&wanted.version)
}

/// Reports whether a host has the grant for the wanted change.
pub(super) fn is_granted(candidate: &Candidate, wanted: &PendingChange) -> bool {
    has(candidate, GrantType::Update, wanted) && candidate.grant_disruption.is_none_or(|d| d == wanted.disruption)
}

/// Time `by` later than `since`; `None`: never.
pub(super) fn later(since: Option<Timestamp>, by: Option<Duration>) -> Option<Timestamp> {
    since?.checked_add(SignedDuration::try_from(by?).ok()?).ok()
}

/// Number of candidates that match the predicate.
pub(super) fn count(candidates: &[Candidate], which: impl Fn(&Candidate) -> bool) -> u32 {
    u32::try_from(candidates.iter().filter(|s| which(s)).count()).unwrap_or(u32::MAX)
}
