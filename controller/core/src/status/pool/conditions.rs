//! The conditions of a pool, one function each.

use std::fmt::Write as _;

use api::{
    Pause, Reason, SignatureCheck, Step, Time, WindowsNodePool,
    conditions::{self, Status, kind},
    names::key,
    services_version::short,
};
use jiff::Timestamp;

use super::{
    super::shown,
    ObservedPool, blocked,
    groups::Groups,
    held::{Held, held, stalled},
    trouble::{Trouble, first_failure, more, worst},
};
use crate::{
    enumeration::{counted, first_names},
    rollout::{image_pull, key_rotation::KeyRotationStatus, member::Member},
};

/// Change to a condition.
pub(super) enum Next {
    /// New status, reason and message.
    Set(Status, Reason, String),
    /// Removal of the condition.
    Remove,
    /// Condition as it was before.
    Keep,
}

impl From<(Status, Reason, String)> for Next {
    fn from((status, reason, message): (Status, Reason, String)) -> Self {
        Self::Set(status, reason, message)
    }
}

fn set(status: Status, reason: Reason, message: impl Into<String>) -> Next {
    Next::Set(status, reason, message.into())
}

/// Inputs of all conditions.
pub(super) struct View<'a> {
    pub pool: &'a WindowsNodePool,
    pub seen: &'a ObservedPool<'a>,
    pub groups: &'a Groups,
    /// Cause, other than their turn, for which nodes that must be changed wait.
    pub held: Option<Held>,
    /// Worst trouble of the pool.
    pub trouble: Option<Trouble>,
    /// Current activity as text; empty if there is none.
    pub act: String,
    pub pause: Option<Pause>,
}

impl<'a> View<'a> {
    pub(super) fn of(
        pool: &'a WindowsNodePool,
        seen: &'a ObservedPool<'a>,
        groups: &'a Groups,
        now: Timestamp,
    ) -> Self {
        let pause = pool.spec.rollout().pause(now);
        let held = held(pool, seen, pause, now);
        let act = act(seen, groups, &to_update(seen, held.as_ref()));
        Self { pool, seen, groups, trouble: worst(pool, pause, seen, groups, now), held, act, pause }
    }

    /// Returns [`kind::INVENTORY_SYNCED`]: True if each entry of the list is used, and the source has no fault.
    pub(super) fn inventory_synced(&self) -> Next {
        let (list, strays) = (self.seen.list, strays_in_words(self.seen.strays));
        match list.problems.first() {
            None => set(Status::True, Reason::Succeeded, format!("{}{strays}", counted(list.hosts.len(), "host"))),
            Some(first) => {
                let mut all = list.problems.iter().map(|p| p.message.as_str()).take(3).collect::<Vec<_>>().join("; ");
                if let Some(more) = list.problems.len().checked_sub(3).filter(|more| *more > 0) {
                    let _ = write!(all, " (and {more} more: see status.refused)");
                }
                set(Status::False, first.reason, all + &strays)
            }
        }
    }

    /// Returns [`kind::SOURCE_VERIFIED`]: True if the signature of the list in use is valid. The message names the signer.
    pub(super) fn source_verified(&self) -> Next {
        if !self.pool.spec.inventory.is_verified() {
            return Next::Remove;
        }
        let Some(status) = self.seen.list.status.as_ref() else { return Next::Keep };
        let revision = status.revision.as_deref().unwrap_or_default();
        match status.verdict {
            SignatureCheck::Verified => {
                let signer = status.signer.as_deref().unwrap_or("a trusted key");
                set(Status::True, Reason::Succeeded, format!("{revision} was signed by {signer}"))
            }
            // See the condition InventorySynced for the newer revision, if it is refused.
            SignatureCheck::NotAsked => {
                let message = format!(
                    "the signature of {revision}, which is in use, was not checked, because the pool did not require signatures when it was read; \
                     see the condition {}",
                    kind::INVENTORY_SYNCED
                );
                set(Status::False, Reason::VerificationError, message)
            }
        }
    }

    /// Returns [`kind::PAUSED`]: True if a user has paused the pool.
    pub(super) fn paused(&self) -> Next {
        pause_in_words(self.pause).into()
    }

    /// Returns [`kind::DEGRADED`]: True if something is wrong.
    pub(super) fn degraded(&self) -> Next {
        let trouble = self.trouble.as_ref().map(|trouble| (trouble.reason, trouble.message.clone()));
        match trouble.or_else(|| self.keys_trouble()) {
            Some((reason, message)) => set(Status::True, reason, message),
            None => set(Status::False, Reason::AsExpected, ""),
        }
    }

    /// Returns [`kind::UPDATED`]: True if every host that stays is a node and needs no change.
    pub(super) fn updated(&self) -> Next {
        let groups = self.groups;
        if !groups.outdated.is_empty() {
            let why = self.held.as_ref().map_or(Reason::Progressing, Held::reason);
            let message = format!(
                "{} of {} nodes are not up to date with version {}: {}",
                groups.outdated.len(),
                self.seen.list.hosts.len(),
                short(&self.seen.course.target),
                first_names(&groups.outdated)
            );
            return set(Status::False, why, message);
        }
        if has_to_join(groups) {
            set(Status::False, Reason::Progressing, "")
        } else {
            set(Status::True, Reason::AsExpected, "")
        }
    }

    /// Returns [`kind::UPDATING`]: True if nodes are being joined, changed or removed, or will be next. The message has the current activity.
    pub(super) fn updating(&self) -> Next {
        if self.act.is_empty() {
            let (why, message) = self.held.as_ref().map_or((Reason::AsExpected, ""), |h| (h.reason(), h.message()));
            return set(Status::False, why, message);
        }
        let groups = self.groups;
        let under_way = [&groups.updating, &groups.staging, &groups.joining, &groups.repairing, &groups.leaving];
        if let Some(pause) = self.pause
            && under_way.iter().all(|names| names.is_empty())
        {
            return set(Status::False, Reason::Paused, format!("{pause}; {}", self.act));
        }
        let rolled_back = self.seen.course.status.as_ref().is_some_and(|r| r.rolled_back);
        let to_update = to_update(self.seen, self.held.as_ref());
        let changes = !(groups.updating.is_empty() && groups.staging.is_empty() && to_update.is_empty());
        let why = if changes && rolled_back { Reason::RollingBack } else { Reason::Progressing };
        set(Status::True, why, &self.act)
    }

    /// Returns [`kind::READY`], which sums up the other conditions for clients that read only one. While the operator makes progress, it is Unknown
    /// instead of False, unless only a user can help, a join or a removal has failed, or the list has a problem. A pool that is being deleted is
    /// always Unknown.
    pub(super) fn ready(&self) -> Next {
        let (groups, act) = (self.groups, &self.act);
        if self.seen.deleting {
            let reason = match (self.pause_of_leaving(), &self.trouble) {
                (Some(_), _) => Reason::Paused,
                (None, Some(trouble)) => trouble.reason,
                (None, None) => Reason::Progressing,
            };
            return set(Status::Unknown, reason, self.deletion());
        }
        let all = self.seen.list.hosts.len();
        let nodes = match groups.outdated.len() {
            0 => format!("{} of {all} nodes Ready", groups.ready.len()),
            _ => format!("{} of {all} nodes Ready, {} updated", groups.ready.len(), groups.updated),
        };
        let with = |message: &str| {
            // A missing Secret makes hosts fail and also blocks the change of keys: its message appears once.
            let asides = self.asides().filter(|aside| !message.contains(aside));
            let parts = [nodes.as_str(), message].into_iter().map(str::to_owned).chain(asides);
            parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
        };
        let hopeful = act.is_empty() || (groups.failing.is_empty() && groups.stuck.is_empty());
        let has_problem = !self.seen.list.problems.is_empty();
        match (&self.trouble, &self.held, act.is_empty()) {
            (trouble, Some(held), _) if held.stalls() => {
                let trouble = trouble.as_ref().map(|t| t.message.as_str()).filter(|t| !t.contains(held.message()));
                let parts = [held.message()].into_iter().chain(trouble);
                set(Status::False, held.reason(), with(&parts.collect::<Vec<_>>().join("; ")))
            }
            (None, Some(held), true) if held.counts_as_progress() => {
                set(Status::Unknown, held.reason(), with(held.message()))
            }
            (None, None, true) => match self.pause {
                Some(pause) => set(Status::True, Reason::Paused, with(&pause.to_string())),
                None if !groups.maintained.is_empty() => set(Status::True, Reason::InMaintenance, with("")),
                None => set(Status::True, Reason::Succeeded, with("")),
            },
            // A pool that is paused before all nodes are updated is not in its desired state.
            (None, Some(held), true) if held.reason() == Reason::Paused => {
                set(Status::Unknown, held.reason(), with(held.message()))
            }
            (None, Some(held), true) => set(Status::True, held.reason(), with(held.message())),
            (Some(Trouble { reason, message }), held, _) if !hopeful || act.is_empty() || has_problem => {
                // One fault must not hide other information.
                let held = held.as_ref().map(Held::message).filter(|held| !message.contains(held));
                let parts = [message.as_str()].into_iter().chain(held);
                set(Status::False, *reason, with(&parts.collect::<Vec<_>>().join("; ")))
            }
            (trouble, ..) => {
                let pause = self.pause.map(|pause| pause.to_string());
                let parts = trouble.iter().map(|t| t.message.as_str()).chain(pause.as_deref()).chain([act.as_str()]);
                let message = with(&parts.collect::<Vec<_>>().join("; "));
                let reason = trouble.as_ref().map_or(Reason::Progressing, |trouble| trouble.reason);
                set(Status::Unknown, if pause.is_some() { Reason::Paused } else { reason }, message)
            }
        }
    }

    /// Returns the pause that keeps leaving hosts, if any.
    fn pause_of_leaving(&self) -> Option<Pause> {
        self.pause.filter(|_| !self.groups.leaving.is_empty())
    }

    /// Returns the message about a pool that is being deleted: the current activity, and the pause or trouble that stops it.
    fn deletion(&self) -> String {
        let trouble = self.trouble.as_ref().map(|t| t.message.clone());
        let pause = self.pause_of_leaving().map(|pause| {
            let (until, off) = match pause.end() {
                Some(end) => (format!(" until {}", Time::from(end)), "null"),
                None => (String::new(), "false"),
            };
            let field = pause.field();
            format!(
                "{field} delays the removal of the nodes{until}: set it to {off} to remove them, or spec.deletionPolicy to Orphan to leave them as they are"
            )
        });
        let act = Some(self.act.clone()).filter(|act| !act.is_empty());
        ["being deleted".to_owned()].into_iter().chain(trouble).chain(pause).chain(act).collect::<Vec<_>>().join("; ")
    }

    /// Returns facts that users must know in any case: a pause, nodes on hold, cordoned nodes, nodes in maintenance, nodes to be restarted, nodes
    /// without reports of wicd, nodes with an unusable gMSA account, and keys that cannot be changed. None of these facts alone makes the pool not
    /// Ready.
    fn asides(&self) -> impl Iterator<Item = String> {
        let members = self.seen.members;
        let is_said = |reason| self.held.as_ref().is_some_and(|held| held.reason() == reason);
        let on_hold = if is_said(Reason::OnHold) { Vec::new() } else { blocked::held(members) };
        let cordoned = if is_said(Reason::BlockedByCordon) { Vec::new() } else { blocked::cordoned(members) };
        let until = self.seen.window.ok().filter(|window| !window.open).map(|window| {
            let opens = window.opens.map(|at| format!("; the next opens at {}", shown(at)));
            format!(" in a maintenance window{}", opens.unwrap_or_default())
        });
        let with = |type_: &str, status: &str| -> Vec<String> {
            let has = |m: &&Member| {
                let conditions = m.instance.status.as_ref().map_or(&[][..], |s| &s.conditions);
                conditions::find(conditions, type_).is_some_and(|c| c.status == status)
            };
            members.iter().filter(has).map(|m| m.candidate.name.clone()).collect()
        };
        let of_nodes = [
            (on_hold, "on hold".to_owned()),
            (cordoned, "cordoned, not by the operator".to_owned()),
            (self.groups.maintained.clone(), "in maintenance".to_owned()),
            (self.groups.to_restart.clone(), format!("to be restarted{}", until.unwrap_or_default())),
            (with(kind::WICD_SILENT, "True"), format!("without reports of wicd ({})", kind::WICD_SILENT)),
            (with(kind::GMSA_READY, "False"), format!("with an unusable gMSA account ({})", kind::GMSA_READY)),
        ];
        let of_nodes = of_nodes.into_iter().filter(|(names, _)| !names.is_empty());
        let of_nodes = of_nodes.map(|(names, what)| format!("{} {what}: {}", names.len(), first_names(&names)));
        let pause = self.pause.map(|pause| pause.to_string());
        pause.into_iter().chain(of_nodes).chain(self.keys_trouble().map(|(_, message)| message))
    }

    /// Returns the reason and the message if the SSH keys of hosts cannot be changed.
    fn keys_trouble(&self) -> Option<(Reason, String)> {
        let keys = self.seen.keys.as_ref().filter(|keys| keys.problem.is_some() || !keys.failed.is_empty())?;
        let (_, why, message) = keys_in_words(keys, self.pause.is_some());
        Some((why, message))
    }

    /// Returns [`kind::STALLED`]: True if only a user can help, or an operation has lasted for too long or has failed for too long or too often. An
    /// operation that has lasted for too long does not count while [`kind::READY`] has the reason Paused: kstatus would call the pool failed.
    pub(super) fn stalled(&self) -> Next {
        let limit = self.pool.spec.rollout().progress_deadline().as_secs();
        let overdue = || {
            let names = &self.groups.overdue;
            let message = || {
                format!(
                    "an operation exceeds rollout.progressDeadlineSeconds ({limit} s): {}",
                    failure_or_names(names, self.seen)
                )
            };
            let is_paused = matches!(self.ready(), Next::Set(_, why, _) if why == Reason::Paused);
            (!names.is_empty() && !is_paused).then(|| (Reason::ProgressDeadlineExceeded, message()))
        };
        let failing = || {
            let names = &self.groups.lasting;
            (!names.is_empty()).then(|| (Reason::NodesFailed, failure_or_names(names, self.seen)))
        };
        match stalled(self.pool, self.seen, self.groups, self.held.as_ref()).or_else(overdue).or_else(failing) {
            Some((why, message)) => set(Status::True, why, message),
            None => Next::Remove,
        }
    }

    /// Returns [`kind::RECONCILING`]: True if the operator makes progress, in the terms of kstatus. It is never set together with Stalled.
    pub(super) fn reconciling(&self) -> Next {
        if matches!(self.stalled(), Next::Set(..)) {
            return Next::Remove;
        }
        // The source is read again even if the pool is paused.
        let list = self.seen.list;
        let asked_again =
            list.problems.first().filter(|p| p.host.is_empty() && list.is_transient).map(|p| p.message.as_str());
        let waits_for = self.held.as_ref().filter(|h| h.counts_as_progress()).map(Held::message);
        let act = (!self.act.is_empty()).then_some(self.act.as_str()).or(waits_for).filter(|_| self.pause.is_none());
        let Some(message) = asked_again.or(act) else { return Next::Remove };
        let is_first = self.groups.failed.is_empty() && self.groups.stuck.is_empty() && asked_again.is_none();
        let why = if is_first { Reason::Progressing } else { Reason::ProgressingWithRetry };
        set(Status::True, why, message)
    }

    /// Returns [`kind::KEYS_CURRENT`]: True if every node accepts the first key of its list, and has no old key to give up.
    pub(super) fn keys_current(&self) -> Next {
        let keys = self.seen.keys.as_ref().filter(|keys| keys.total > 0 || keys.problem.is_some());
        let Some(keys) = keys else { return Next::Remove };
        keys_in_words(keys, self.pause.is_some()).into()
    }

    /// Returns [`kind::IMAGES_PULLED`]: True if every node that stays has the images that are pulled in advance.
    pub(super) fn images_pulled(&self) -> Next {
        let Some(images) = image_pull::standing(self.pool.spec.pre_pull_images(), self.seen.members) else {
            return Next::Remove;
        };
        let (is_so, why) = match (images.complete == images.total, images.failed.is_empty()) {
            (true, _) => (Status::True, Reason::AsExpected),
            (false, true) if self.pause.is_some() => (Status::False, Reason::Paused),
            (false, true) => (Status::False, Reason::Progressing),
            (false, false) => (Status::False, Reason::PrePullFailed),
        };
        set(is_so, why, images.message())
    }
}

/// Reports whether hosts of the list are not nodes yet.
fn has_to_join(groups: &Groups) -> bool {
    !(groups.joining.is_empty() && groups.failing.is_empty() && groups.waiting.is_empty() && groups.new == 0)
}

/// Returns the names of the nodes that must be updated; empty if a longer wait holds them.
fn to_update(seen: &ObservedPool<'_>, held: Option<&Held>) -> Vec<String> {
    match held {
        Some(held) if !held.passes() => Vec::new(),
        _ => seen.decision.waiting.clone(),
    }
}

/// Returns a text in brackets, with a space before; empty for an empty text.
pub(super) fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// Returns the current activity of the operator as text; empty if there is none.
fn act(seen: &ObservedPool<'_>, groups: &Groups, to_update: &[String]) -> String {
    let first = groups.updating.first().or(groups.repairing.first()).and_then(|first| step_of(seen.members, first));
    let mut doing: Vec<String> = first.into_iter().collect();
    let changes = in_brackets(seen.changes);
    for (names, verb, changes) in [
        (&groups.updating[..], "updating", ""),
        (&groups.repairing, "being repaired", ""),
        (&groups.staging, "staging", ""),
        (to_update, "to be updated", &changes),
        (&groups.joining, "joining", ""),
        (&groups.leaving, "leaving", ""),
        (&groups.failing, "waiting to retry", ""),
        (&groups.waiting, "waiting to join", ""),
    ] {
        if !names.is_empty() {
            doing.push(format!("{} {verb}: {}{changes}", names.len(), first_names(names)));
        }
    }
    if groups.new > 0 {
        doing.push(format!("{} new", groups.new));
    }
    doing.join("; ")
}

fn failure_or_names(names: &[String], seen: &ObservedPool<'_>) -> String {
    let failure = first_failure(names, seen);
    if failure.is_empty() { first_names(names) } else { failure }
}

/// Returns a note about Nodes that no list names, and that the legacy operator would deconfigure.
fn strays_in_words(strays: &[String]) -> String {
    match strays.len() {
        0 => String::new(),
        n => format!(
            "; {} with the label {} and in no list: {}. The operator ignores {}: list the {}, or remove the label",
            counted(n, "node"),
            key::BYOH,
            first_names(strays),
            if n == 1 { "it" } else { "them" },
            if n == 1 { "host" } else { "hosts" }
        ),
    }
}

/// Returns the status, reason and message of [`kind::PAUSED`]: True while a user has paused the pool.
pub(super) fn pause_in_words(pause: Option<Pause>) -> (Status, Reason, String) {
    match pause {
        Some(pause) => (Status::True, Reason::Paused, pause.to_string()),
        None => (Status::False, Reason::AsExpected, String::new()),
    }
}

/// Returns the status, reason and message of [`kind::KEYS_CURRENT`]: the hosts that still accept an old key, and the cause. A node works with an old
/// key, too.
fn keys_in_words(keys: &KeyRotationStatus, paused: bool) -> (Status, Reason, String) {
    let of = format!("{} of {} hosts accept an old key: {}", keys.old.len(), keys.total, first_names(&keys.old));
    match (keys.old.is_empty(), keys.failed.first(), &keys.problem) {
        (_, _, Some(problem)) => (Status::Unknown, Reason::CredentialsUnavailable, problem.clone()),
        (true, ..) => {
            let verb = if keys.total == 1 { "accepts" } else { "accept" };
            let hosts = counted(keys.total, "host");
            (Status::True, Reason::AsExpected, format!("{hosts} {verb} the first key of the list"))
        }
        (false, Some((name, why)), _) => {
            (Status::False, Reason::KeyRotationFailed, format!("{of}; {name}: {why}{}", more(keys.failed.len())))
        }
        (false, None, _) if paused => (Status::False, Reason::Paused, of),
        (false, None, _) => (Status::False, Reason::Progressing, of),
    }
}

/// Returns the current step of a node's operation, as text.
fn step_of(members: &[Member], name: &str) -> Option<String> {
    let status = members.iter().find(|m| m.candidate.name == name)?.instance.status.as_ref()?;
    let operation = status.operation.as_ref().filter(|o| o.type_.is_change())?;
    let draining = operation.drain.as_ref().filter(|_| operation.step == Step::Drain);
    let pods = draining.map(|d| format!(", {} left", counted(usize::try_from(d.remaining).unwrap_or_default(), "pod")));
    Some(format!("{name}: {}{}", operation.step, pods.unwrap_or_default()))
}
