//! Desired state of a pool's hosts: the version that the template renders to, the permitted progress of its rollout, and the change that each host
//! needs.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{Disruption, RemediationType, RolloutStatus, WindowsInstance, WindowsNodePool, names::key};
use jiff::Timestamp;
use kube::ResourceExt;

use super::PoolError;
use crate::{
    args,
    context::Context,
    instance::wmco_versions::{WmcoVersions, adopted_version},
};
use wnp_core::{
    acts,
    node::permitted::check_template,
    operation::node_ip::{self, Moved},
    render::{Rendered, Stored, version_for},
    rollout::{
        grants::{Candidate, PendingChange, lost},
        lost_settings::{Loss, message},
        member::{DesiredMember, Member, member},
        progress::{BlockedBy, ObservedNodes, Progress, Settings, course},
        version_diff::{self, Change},
    },
};

/// Desired state of a pool's hosts.
#[derive(Default)]
pub(super) struct DesiredState {
    /// Version that the template of the pool renders to.
    rendered: String,
    /// Rendered configuration of that version. `None` for a pool that is being deleted.
    fresh: Option<Arc<Rendered>>,
    /// Permitted progress of the rollout.
    pub course: Progress,
    /// SHA-256 of the operator's `wicd.exe`.
    wicd: String,
    /// Time for which a node must be Ready to count as available.
    min_ready: Duration,
    /// False if the pool repairs no nodes: then the hosts of nodes that are not Ready count as unreachable, whether they answer or not.
    looks: bool,
    /// Change from each version that a node follows to the target, and whether the host already has all files for it.
    changes: HashMap<String, (Change, bool)>,
    /// Rendered configuration of the version in `course.target`, if the template renders to it or this operator has stored it.
    target: Option<Arc<Rendered>>,
    wmco_versions: WmcoVersions,
    /// Rendered configuration of the version that the rollout began with, if that differs from the target and this operator has stored it.
    from: Option<Arc<Rendered>>,
}

impl DesiredState {
    /// Renders the template of a pool, decides on the progress of its rollout, and finds the changes that its nodes need.
    pub(super) async fn of(
        pool: &WindowsNodePool,
        mine: &[Arc<WindowsInstance>],
        cx: &Context,
        now: Timestamp,
    ) -> Result<Self, PoolError> {
        let before = pool.status.as_ref().and_then(|s| s.rollout.as_ref());
        if pool.metadata.deletion_timestamp.is_some() {
            return Ok(Self::of_nothing(before, cx));
        }
        check_template(&pool.spec)?;
        let fresh = Arc::new(cx.hosts.release.get().render(&pool.spec.template_spec())?);
        let current = match before {
            Some(before) => cx.own_version(&before.to_version).await?.map(|r| (before.to_version.clone(), r)),
            None => None,
        };
        let rendered = version_for(&fresh, args::version(), current.as_ref().map(|(v, r)| (v.as_str(), &**r)));

        let rollout = pool.spec.rollout();
        let approved: Vec<&str> =
            [rollout.approved_version.as_deref(), acts::in_force(pool, key::APPROVE)].into_iter().flatten().collect();
        let settings = Settings {
            steps: rollout.steps(),
            approved: &approved,
            max_failures: rollout.max_failures(),
            action: rollout.failure_action(),
        };
        let remediation = pool.spec.remediation();
        let looks = remediation.type_ != Some(RemediationType::None);
        let wish = DesiredMember {
            version: &rendered,
            min_ready: rollout.min_ready(),
            looks,
            backoff_max: cx.process.args.backoff_max,
        };
        let adopted = mine.iter().filter_map(|i| adopted_version(i).cloned()).collect();
        let wmco_versions = WmcoVersions::read(adopted, pool, cx).await;
        let bare = |i| {
            let mut member = member(i, false, cx.node(&i.name_any()).as_deref(), &wish, None, now);
            member.candidate.withheld = !wmco_versions.losses_of(i, &fresh.services).is_empty();
            member
        };
        let members: Vec<Member> = mine.iter().map(bare).collect();
        let candidates: Vec<Candidate> = members.iter().map(|m| m.candidate.clone()).collect();
        let lost = lost(&candidates, rollout.ignore_lost_after(), remediation.max_unhealthy(), now);
        let mut seen = seen(&members, &rendered, &lost.names);
        if let Some(current) = &seen.current {
            seen.foreign = cx.own_version(current).await.ok().flatten().is_none();
        }
        let course = course(before, &rendered, &seen, settings, now);

        let target =
            if course.target == rendered { Some(fresh.clone()) } else { cx.own_version(&course.target).await? };
        let from = course.status.as_ref().and_then(|s| s.from_version.clone()).filter(|from| *from != course.target);
        let from = match from {
            Some(from) => cx.own_version(&from).await?,
            None => None,
        };
        let mut changes = HashMap::new();
        for version in mine.iter().filter_map(|i| i.status.as_ref()?.current_version.clone()) {
            if version == course.target || changes.contains_key(&version) {
                continue;
            }
            let found = if version == rendered {
                Some(Arc::new(Stored::Ours((*fresh).clone())))
            } else {
                cx.hosts.versions.get(&version).await.ok().flatten()
            };
            let change = match (found.as_deref(), &target) {
                (Some(from), Some(to)) => (version_diff::change(from, to), has_all(from, to)),
                _ => (version_diff::unknown(), false),
            };
            changes.insert(version, change);
        }
        let wicd = cx.hosts.release.get().wicd.sha256.clone();
        Ok(Self {
            rendered,
            fresh: Some(fresh),
            course,
            wicd,
            min_ready: rollout.min_ready(),
            looks,
            changes,
            target,
            wmco_versions,
            from,
        })
    }

    /// Returns the desired state of a pool that is being deleted: it requests no changes, and its template may be invalid.
    fn of_nothing(before: Option<&RolloutStatus>, cx: &Context) -> Self {
        let rendered = before.map(|b| b.to_version.clone()).unwrap_or_default();
        let course = Progress { status: before.cloned(), target: rendered.clone(), ..Progress::default() };
        let wicd = cx.hosts.release.get().wicd.sha256.clone();
        Self { rendered, course, wicd, looks: true, ..Self::default() }
    }

    /// Stores the version that the template renders to, unless it is stored: hosts get only stored versions.
    pub(super) async fn publish(&self, cx: &Context) -> Result<(), PoolError> {
        match &self.fresh {
            Some(fresh) => Ok(cx.hosts.versions.publish(&self.rendered, fresh).await?),
            None => Ok(()),
        }
    }

    /// Returns the version that hosts join with: the version in force, unless this operator no longer has its files. `open` is true if changes may
    /// begin now.
    pub(super) fn for_new_hosts(&self, open: bool, cx: &Context) -> String {
        let in_force = self.course.in_force(open);
        let has =
            |rendered: &Option<Arc<Rendered>>| rendered.as_ref().is_some_and(|r| cx.hosts.release.get().has(r.files()));
        if in_force != self.course.target && has(&self.from) {
            in_force.to_owned()
        } else if has(&self.target) {
            self.course.target.clone()
        } else {
            self.rendered.clone()
        }
    }

    /// Reports whether hosts may join. They may not if the new version has failed and this operator does not have the files of the old version.
    pub(super) fn has_version_for_new_hosts(&self, cx: &Context) -> bool {
        let has_failed = matches!(self.course.gate.hold, BlockedBy::FailureLimit { rolled_back: false, .. });
        let is_there = |rendered: &Arc<Rendered>| cx.hosts.release.get().has(rendered.files());
        !has_failed || self.from.as_ref().is_some_and(is_there)
    }

    /// Returns the observed state of one host. `unwanted` is true if the pool does not keep the host.
    pub(super) fn member(
        &self,
        instance: &Arc<WindowsInstance>,
        unwanted: bool,
        cx: &Context,
        now: Timestamp,
    ) -> Member {
        let wish = DesiredMember {
            version: &self.course.target,
            min_ready: self.min_ready,
            looks: self.looks,
            backoff_max: cx.process.args.backoff_max,
        };
        let node = cx.node(&instance.name_any());
        let mut member = member(instance, unwanted, node.as_deref(), &wish, self.change(instance), now);
        let follows = instance.status.as_ref().and_then(|s| s.current_version.as_deref());
        let candidate = &mut member.candidate;
        candidate.renew_certificate(wicd_certificate_end(instance), follows, &self.course.target, now);
        if candidate.down_since.is_some() {
            let machine = instance.spec.origin.as_ref().and_then(|o| o.machine.as_deref());
            candidate.health_check = machine.and_then(|m| cx.caches.machines.health_check(m, node.as_deref()));
        }
        candidate.follows_abandoned_version = follows.is_some_and(|version| self.course.is_astray(version));
        candidate.withheld = !self.losses(instance).is_empty();
        member
    }

    /// Returns the settings that an adopted node would lose with its change to the target version, and whose loss is not accepted.
    fn losses(&self, instance: &WindowsInstance) -> Vec<Loss> {
        self.target.as_ref().map(|to| self.wmco_versions.losses_of(instance, &to.services)).unwrap_or_default()
    }

    /// Returns a message about the settings that a host adopted with this version would lose with its next change, if any.
    pub(super) fn lost_with(&self, version: &str, wmco_versions: &WmcoVersions) -> Option<String> {
        message(&wmco_versions.losses(version, None, &self.target.as_ref()?.services))
    }

    /// Returns the pending change of a node, and whether the host already has everything for it.
    fn change(&self, instance: &WindowsInstance) -> Option<(PendingChange, bool)> {
        let status = instance.status.as_ref()?;
        let current = status.current_version.as_ref()?;
        let version = self.course.target.clone();
        if *current == version {
            if moved(instance).is_some() {
                return Some((PendingChange { version, disruption: Disruption::Restart, services: Vec::new() }, true));
            }
            // wicd is replaced while all other services continue to run.
            let other = status.wicd.as_ref() != Some(&self.wicd);
            return other.then(|| (PendingChange { version, ..PendingChange::default() }, true));
        }
        let (change, sent) = self.changes.get(current)?;
        let services = change.services.iter().cloned().collect();
        // kubelet gets a new address together with the version.
        let least = moved(instance).map_or(Disruption::None, |_| Disruption::Restart);
        Some((PendingChange { version, disruption: change.disruption.max(least), services }, *sent))
    }

    /// Returns the most disruptive change to the desired version, in words: the nodes may follow several versions.
    pub(super) fn changes(&self) -> String {
        let changes = self.changes.values().map(|(change, _)| change);
        changes.max_by_key(|change| (change.disruption, &change.why)).map(|c| c.why.join(", ")).unwrap_or_default()
    }

    /// Returns the reason why a node has to change, or why its change is withheld, in words.
    pub(super) fn why(&self, instance: &WindowsInstance) -> String {
        if let Some(message) = message(&self.losses(instance)) {
            return message;
        }
        let current = instance.status.as_ref().and_then(|s| s.current_version.as_ref());
        let moved = moved(instance).map(|moved| moved.to_string());
        match current.and_then(|c| self.changes.get(c)) {
            Some((change, _)) => change.why.iter().cloned().chain(moved).collect::<Vec<_>>().join(", "),
            None if moved.is_some() => moved.unwrap_or_default(),
            None if instance.status.as_ref().is_some_and(|s| s.wicd.as_ref() == Some(&self.wicd)) => {
                "wicd's certificate has expired".into()
            }
            None => "another wicd.exe".into(),
        }
    }
}

/// Returns the address change of a host, if its Node needs another address than kubelet was given.
fn moved(instance: &WindowsInstance) -> Option<Moved> {
    node_ip::moved(&instance.spec.host.address, instance.status.as_ref()?)
}

/// Returns the expiry of wicd's certificate, if it is known.
pub(super) fn wicd_certificate_end(instance: &WindowsInstance) -> Option<Timestamp> {
    instance.status.as_ref()?.wicd_certificate_expires?.known()
}

/// Reports whether a host that follows one version has all files of another. Returns false for a legacy version.
fn has_all(from: &Stored, to: &Rendered) -> bool {
    let Stored::Ours(from) = from else { return false };
    to.files().iter().all(|f| from.files().iter().any(|had| had.sha256 == f.sha256))
}

/// Counts the nodes of the pool by their progress towards a version, and finds the version that most of them follow.
fn seen(members: &[Member], version: &str, lost: &BTreeSet<String>) -> ObservedNodes {
    let mut seen = ObservedNodes::default();
    let mut versions: HashMap<String, u32> = HashMap::new();
    for Member { instance, candidate } in members {
        let current = instance.status.as_ref().and_then(|s| s.current_version.as_ref());
        let Some(current) = current.filter(|_| !candidate.leaving) else { continue };
        *versions.entry(current.clone()).or_default() += 1;
        if candidate.held || candidate.withheld || lost.contains(&candidate.name) {
            continue;
        }
        let follows = current == version;
        // A node that a user has cordoned counts like any other.
        let works = candidate.ready && !candidate.begun;
        seen.total += 1;
        seen.failed += u32::from(candidate.failed);
        seen.following += u32::from(follows);
        seen.changed += u32::from(follows && works);
    }
    seen.current = versions.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0))).map(|(v, _)| v);
    seen
}
