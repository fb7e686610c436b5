//! Pools, hosts and conditions for the tests of a pool's status.

use std::sync::Arc;

use api::{
    Failures, Host, Inventory, Kstatus, Phase, Reason, Rollout, WindowsInstance, WindowsInstanceSpec,
    WindowsInstanceStatus, WindowsNodePoolSpec, conditions::find,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::*;
use crate::rollout::{
    grants::Candidate,
    progress::{BlockedBy, UpdateLimit},
};

pub(super) const VERSION: &str = "1-a";

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

pub(super) fn seconds_ago(seconds: i64) -> Timestamp {
    now() - jiff::SignedDuration::from_secs(seconds)
}

pub(super) fn pool(hosts: usize) -> WindowsNodePool {
    let hosts =
        (0..hosts).map(|n| Host { name: format!("h{n}"), address: format!("10.0.0.{n}"), ..Host::default() }).collect();
    let spec = WindowsNodePoolSpec {
        inventory: Inventory { hosts: Some(hosts), ..Inventory::default() },
        ..WindowsNodePoolSpec::default()
    };
    let mut pool = WindowsNodePool::new("p", spec);
    pool.metadata.generation = Some(7);
    pool
}

pub(super) fn pool_with(hosts: usize, rollout: Rollout) -> WindowsNodePool {
    let mut pool = pool(hosts);
    pool.spec.rollout = Some(rollout);
    pool
}

pub(super) fn paused() -> Rollout {
    Rollout { paused: Some(true), ..Rollout::default() }
}

/// Returns the settings of a pause until this second of Unix time.
pub(super) fn until(second: i64) -> Rollout {
    Rollout { paused_until: Some(Timestamp::from_second(second).unwrap().into()), ..Rollout::default() }
}

pub(super) fn deadline(seconds: i32) -> Rollout {
    Rollout { progress_deadline_seconds: Some(seconds), ..Rollout::default() }
}

pub(super) fn member(name: &str, phase: Phase) -> Member {
    let joined = matches!(phase, Phase::Ready | Phase::NotReady);
    let failures = (phase == Phase::Failed).then(|| Failures {
        count: 1,
        step: "Connect".into(),
        last_reason: "Unreachable".into(),
        last_message: "no answer within 15 s".into(),
        ..Failures::default()
    });
    let status = WindowsInstanceStatus {
        phase: Some(phase),
        current_version: joined.then(|| VERSION.into()),
        failures,
        ..WindowsInstanceStatus::default()
    };
    let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
    instance.metadata.creation_timestamp = Some(Time(seconds_ago(10)));
    instance.status = Some(status);
    let ready = phase == Phase::Ready;
    let leaving = phase == Phase::Removing;
    let candidate = Candidate { name: name.into(), joined, ready, available: ready, leaving, ..Candidate::default() };
    Member { instance: Arc::new(instance), candidate }
}

pub(super) fn ready(name: &str) -> Member {
    member(name, Phase::Ready)
}

pub(super) fn changed(mut member: Member, change: impl FnOnce(&mut Candidate, &mut WindowsInstanceStatus)) -> Member {
    let instance = Arc::get_mut(&mut member.instance).unwrap();
    change(&mut member.candidate, instance.status.as_mut().unwrap());
    member
}

pub(super) fn leaving(member: Member) -> Member {
    changed(member, |candidate, _| candidate.leaving = true)
}

/// Returns a rollout to the version that all nodes follow, held up by `hold`.
pub(super) fn course(hold: BlockedBy) -> Progress {
    Progress { status: None, target: VERSION.into(), gate: UpdateLimit { limit: None, hold }, next: None }
}

pub(super) const OPEN: Windows = Windows { open: true, closes: None, opens: None };

pub(super) fn listed(hosts: usize, problems: &[EntryError]) -> List {
    let hosts = (0..hosts).map(|n| (format!("h{n}"), api::InstanceHost::default())).collect();
    List { hosts, problems: problems.to_vec(), ..List::default() }
}

/// Pool with its observed state.
pub(super) struct Scene {
    pub(super) pool: WindowsNodePool,
    pub(super) list: List,
    pub(super) strays: Vec<String>,
    pub(super) members: Vec<Member>,
    pub(super) decision: Decision,
    pub(super) course: Progress,
    pub(super) window: Result<Windows, WindowError>,
    pub(super) keys: Option<KeyRotationStatus>,
    pub(super) warning: Option<(Reason, String)>,
    pub(super) now: Timestamp,
}

impl Scene {
    /// Creates the scene of a pool in which changes may begin.
    pub(super) fn of(pool: WindowsNodePool, members: impl Into<Vec<Member>>) -> Self {
        let hosts = if pool.metadata.deletion_timestamp.is_some() { 0 } else { pool.spec.hosts().len() };
        Self {
            pool,
            list: listed(hosts, &[]),
            strays: Vec::new(),
            members: members.into(),
            decision: Decision::default(),
            course: course(BlockedBy::None),
            window: Ok(OPEN),
            keys: None,
            warning: None,
            now: now(),
        }
    }

    pub(super) fn status(&self) -> WindowsNodePoolStatus {
        let seen = ObservedPool {
            strays: &self.strays,
            list: &self.list,
            members: &self.members,
            decision: &self.decision,
            course: &self.course,
            changes: "kubelet's settings",
            window: self.window.as_ref(),
            deleting: self.pool.metadata.deletion_timestamp.is_some(),
            orphan: false,
            keys: self.keys.clone(),
        };
        next(&self.pool, &seen, self.warning.as_ref(), self.now)
    }

    pub(super) fn kstatus(&self, status: &WindowsNodePoolStatus) -> String {
        format!("{:?}", Kstatus::of(&self.pool.metadata, status.observed_generation, &status.conditions))
    }
}

pub(super) fn described(pool: WindowsNodePool, members: impl Into<Vec<Member>>) -> WindowsNodePoolStatus {
    Scene::of(pool, members).status()
}

/// Returns the status, reason and message of a condition; all are empty if it is not set.
pub(super) fn condition<'a>(status: &'a WindowsNodePoolStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    find(&status.conditions, type_).map_or(("", "", ""), |c| (&c.status, &c.reason, &c.message))
}

pub(super) fn conflict() -> EntryError {
    EntryError {
        host: "h1".into(),
        reason: Reason::HostConflict,
        message: "host h1: address 10.0.0.0 port 22 already belongs to h0".into(),
    }
}

pub(super) fn trouble_with_the_source(reason: Reason) -> EntryError {
    EntryError { host: String::new(), reason, message: "no answer".into() }
}
