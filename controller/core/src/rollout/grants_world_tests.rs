//! Simulated pool: hosts that carry out their grants, fail, die and come back.

use api::{Disruption, GrantType};
use jiff::Timestamp;
use proptest::test_runner::TestCaseError;

use super::{
    super::{Candidate, Granting, Limits, PendingChange},
    invariants::check,
};

/// Simulated host, with its observed and its hidden state.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) candidate: Candidate,
    /// Version that the host follows.
    pub(super) follows: String,
    /// Version whose files are on the host.
    pub(super) has: Option<String>,
    /// Version that the host failed to follow.
    pub(super) gave_up: Option<String>,
    /// Disruption of the next change.
    pub(super) disruption: Disruption,
    /// True if every operation on the host fails.
    pub(super) broken: bool,
    /// True if the host requests the next maintenance as soon as one is over.
    pub(super) asks_again: bool,
}

/// Simulated pool.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) target: String,
    pub(super) hosts: Vec<Host>,
    pub(super) limits: Limits,
}

/// Next event on a simulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    GoesOn,
    Fails,
    Dies,
    Recovers,
    Nothing,
}

pub(super) fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Host {
    /// Sets the observed state that follows from the hidden state.
    fn observe(&mut self, target: &str) {
        let wanted =
            || PendingChange { version: target.into(), disruption: self.disruption, services: vec!["kubelet".into()] };
        self.candidate.change = (self.candidate.joined && self.follows != target).then(wanted);
        self.candidate.staged = self.has.as_deref() == Some(target);
        self.candidate.failed = self.gave_up.as_deref() == Some(target);
    }

    fn go_down(&mut self, now: i64) {
        (self.candidate.ready, self.candidate.available) = (false, false);
        self.candidate.down_since = self.candidate.down_since.or(Some(time(now)));
    }

    pub(super) fn come_up(&mut self) {
        (self.candidate.ready, self.candidate.available, self.candidate.unreachable) =
            (self.candidate.joined, self.candidate.joined, false);
        (self.candidate.down_since, self.broken) = (None, false);
    }

    fn disappear(&mut self) {
        self.candidate = Candidate { name: self.candidate.name.clone(), ..Candidate::default() };
    }

    /// Removes the host from the list or adds it again, as a user does.
    pub(super) fn toggle_listing(&mut self) {
        self.candidate.leaving ^= !self.candidate.deconfiguring;
    }

    /// Applies an event to the host. [`Event::GoesOn`] performs the next part of the granted operation.
    pub(super) fn act(&mut self, event: Event, target: &str, now: i64) {
        let waits = self.candidate.waits_until.is_some_and(|until| until > time(now));
        let event = if self.broken && event == Event::GoesOn { Event::Fails } else { event };
        match (event, self.candidate.grant) {
            (Event::Dies, _) if self.candidate.joined => {
                self.go_down(now);
                self.candidate.unreachable = true;
            }
            (Event::Recovers, _) if !self.candidate.begun => self.come_up(),
            (Event::Fails, Some(GrantType::Update)) if self.candidate.begun && !self.broken => {
                // The host has gone back to the previous version.
                (self.candidate.begun, self.candidate.irrevocable) = (false, false);
                self.gave_up.clone_from(&self.candidate.grant_version);
                self.come_up();
            }
            (Event::Fails, Some(GrantType::RotateKey)) => {
                self.candidate.rotating = false;
                self.candidate.key_waits_until = Some(time(now + 60));
            }
            (Event::Fails, Some(GrantType::PullImages)) => {
                self.candidate.pulling = false;
                self.candidate.images_wait_until = Some(time(now + 60));
            }
            (Event::Fails, Some(_)) => {
                self.candidate.waits_until = Some(time(now + 60));
                self.candidate.unreachable = self.broken;
            }
            (Event::GoesOn, _) if self.candidate.vanishing => self.disappear(),
            // A pull ends between two images.
            (Event::GoesOn, None) => self.candidate.pulling = false,
            (Event::GoesOn, Some(grant)) if !waits => self.proceed(grant, target, now),
            _ => {}
        }
    }

    fn proceed(&mut self, grant: GrantType, target: &str, now: i64) {
        self.candidate.unreachable = false;
        match grant {
            GrantType::Provision if !self.candidate.joined => {
                (self.candidate.joined, self.follows) = (true, target.into());
                self.come_up();
            }
            GrantType::Stage => {
                self.has.clone_from(&self.candidate.grant_version);
                self.candidate.waits_until = None;
            }
            GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance
                if !self.candidate.begun =>
            {
                self.candidate.begun = true;
                if self.candidate.grant_disruption.is_none_or(|d| d >= Disruption::Drain) {
                    self.candidate.available = false;
                }
                if grant == GrantType::Reboot || self.candidate.grant_disruption == Some(Disruption::Reboot) {
                    self.go_down(now);
                }
            }
            GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance
                if !self.candidate.irrevocable =>
            {
                self.candidate.irrevocable = true;
            }
            GrantType::Update | GrantType::Reboot | GrantType::Repair | GrantType::Maintenance => {
                (self.candidate.begun, self.candidate.irrevocable) = (false, false);
                self.candidate.waits_until = None;
                if let (GrantType::Update, Some(version)) = (grant, &self.candidate.grant_version) {
                    self.follows.clone_from(version);
                }
                if grant == GrantType::Reboot || self.candidate.grant_disruption == Some(Disruption::Reboot) {
                    self.candidate.wants_reboot = false;
                }
                if grant == GrantType::Maintenance {
                    (self.candidate.maintained_at, self.candidate.grant_used) = (Some(time(now)), true);
                    self.candidate.maintenance = self.candidate.maintenance.filter(|_| self.asks_again);
                } else if grant == GrantType::Update {
                    self.candidate.maintained_at = None;
                }
                self.come_up();
            }
            // Before it is deconfigured, the host is only cordoned and drained.
            GrantType::Remove if self.candidate.available => self.candidate.available = false,
            GrantType::Remove if self.candidate.joined && !self.candidate.deconfiguring => {
                self.candidate.deconfiguring = true;
            }
            GrantType::Remove | GrantType::Orphan => self.disappear(),
            GrantType::RotateKey if !self.candidate.rotating => self.candidate.rotating = self.candidate.joined,
            GrantType::RotateKey => {
                (self.candidate.rotating, self.candidate.wants_key, self.candidate.key_waits_until) =
                    (false, false, None);
            }
            GrantType::PullImages if !self.candidate.pulling => self.candidate.pulling = self.candidate.joined,
            GrantType::PullImages => {
                (self.candidate.pulling, self.candidate.wants_images, self.candidate.images_wait_until) =
                    (false, false, None);
            }
            GrantType::Provision => {}
        }
    }
}

impl World {
    /// Observes all hosts.
    pub(super) fn candidates(&mut self) -> Vec<Candidate> {
        for host in &mut self.hosts {
            host.observe(&self.target);
        }
        self.hosts.iter().map(|h| h.candidate.clone()).collect()
    }

    /// Decides about the grants, checks the decision, and writes it.
    pub(super) fn decide(&mut self) -> Result<(), TestCaseError> {
        let decision = check(&self.candidates(), &self.limits, time(self.now))?;
        for host in &mut self.hosts {
            if let Some(change) = decision.changes.get(&host.candidate.name) {
                let removed = leaves(host.candidate.grant);
                write(&mut host.candidate, change.as_ref());
                // The removal is revoked: the cordon is lifted.
                host.candidate.available |= removed && !leaves(host.candidate.grant) && host.candidate.ready;
            }
        }
        Ok(())
    }

    /// Applies an event to each host.
    pub(super) fn act(&mut self, events: &[Event]) {
        for (host, event) in self.hosts.iter_mut().zip(events) {
            host.act(*event, &self.target, self.now);
        }
    }
}

/// Reports whether a grant removes or releases its host.
pub(super) fn leaves(grant: Option<GrantType>) -> bool {
    matches!(grant, Some(GrantType::Remove | GrantType::Orphan))
}

/// Writes a grant of a decision to a host, or revokes the host's grant.
pub(super) fn write(candidate: &mut Candidate, change: Option<&Granting>) {
    let gives_up = candidate.begun && !candidate.irrevocable && !candidate.leaving;
    if candidate.grant != change.map(|g| g.type_) || gives_up {
        // The cordon is lifted.
        candidate.available |= gives_up && candidate.ready;
        (candidate.begun, candidate.irrevocable) = (false, false);
    }
    candidate.grant = change.map(|g| g.type_);
    candidate.grant_used = false;
    candidate.grant_version = change.and_then(|g| g.version.clone());
    candidate.grant_disruption = change.and_then(|g| g.disruption);
}
