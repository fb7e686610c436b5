//! Observed and desired state of a pool, before any change. It is gathered in the same way for a pool that is applied, for a pool in mode Plan, and
//! for the command `plan`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    GrantType, InstanceHost, Pause, PlannedHost, Reason, WindowsInstance, WindowsInstanceSpec, WindowsNodePool,
    names::{UNKNOWN_VERSION, key},
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    Intent, PoolContext, PoolError,
    crd_deletion::deleted_kinds,
    desired_state::{DesiredState, wicd_certificate_end},
    keys,
    list::list,
    timers,
};
use crate::{
    cluster::secrets::SecretError,
    instance::{StepError, trusted_key, wmco_versions::WmcoVersions},
};
use remote::ssh::HostKeyCheck;
use wnp_core::{
    inventory::{
        EntryError,
        hosts::{Known, KnownHosts, PlannedHosts, WithPlanned},
        list::List,
        orphaning::{self, DeletedKinds},
    },
    node::{self, applied::Applied, metadata},
    rollout::{
        grants::{Decision, Limits},
        image_pull,
        key_rotation::Keys,
        maintenance_window::{self, WindowError, Windows},
        member::{Member, soonest_available},
        preview::{Adoption, HostLookups, preview},
    },
    status::pool::next_deadline,
};

/// Observed and desired state of a pool.
pub(super) struct Snapshot {
    /// Instances of the pool.
    pub mine: Vec<Arc<WindowsInstance>>,
    /// Desired hosts of the pool.
    pub list: List,
    /// State of the maintenance windows: whether changes may begin now.
    pub window: Result<Windows, WindowError>,
    /// Desired state of the pool's hosts.
    pub desired: DesiredState,
    /// Members of the pool, derived from its instances.
    pub members: Vec<Member>,
    /// Limits of the pool, without the limit over all pools.
    pub limits: Limits,
    /// Keys that the pool's hosts must accept.
    pub keys: Keys,
    /// Listed hosts without an instance that are already nodes, by name. Only in a dry run.
    adoptable: BTreeMap<String, Adoption>,
}

impl Snapshot {
    /// Observes a pool with these instances. `known` finds the hosts of all pools.
    pub(super) async fn observe(
        pool: &WindowsNodePool,
        mine: Vec<Arc<WindowsInstance>>,
        known: &(dyn KnownHosts + Sync),
        intent: Intent,
        cx: &PoolContext,
        now: Timestamp,
    ) -> Result<Self, PoolError> {
        let list = list(pool, &mine, known, cx).await;
        let rollout = pool.spec.rollout();
        let window = maintenance_window::observe(rollout.windows(), now);
        let desired = DesiredState::of(pool, &mine, cx, now).await?;
        let stays = |name: &str| list.hosts.contains_key(name) || list.moves.contains_key(name);
        let mut members: Vec<Member> = mine.iter().map(|i| desired.member(i, !stays(&i.name_any()), cx, now)).collect();
        let keys = keys::read(&list.hosts, cx).await;
        let deleted =
            if intent == Intent::Apply { deleted_kinds(pool, &mine, cx).await? } else { DeletedKinds::default() };
        for member in &mut members {
            member.candidate.wants_key = keys.wants(&member.instance) && !has_used_its_grant(&member.instance);
            if !has_used_its_grant(&member.instance) {
                image_pull::observe(member, pool.spec.pre_pull_images(), cx.process.args.backoff_max, now);
            }
            member.candidate.vanishing = list.vanishing.contains(&member.candidate.name);
            member.candidate.let_go = orphaning::is_let_go(pool, &member.instance, deleted);
        }
        let remediation = pool.spec.remediation();
        let limits = Limits {
            max_concurrent: pool.spec.max_concurrent(),
            max_unavailable: rollout.max_unavailable(),
            max_pulling: image_pull::MAX_PULLING,
            paused: rollout.pause(now).is_some(),
            orphan: orphaning::orphans_all_hosts(pool, &mine, deleted),
            open: window.as_ref().is_ok_and(|w| w.open),
            ignore_lost_after: rollout.ignore_lost_after(),
            gate: desired.course.gate.clone(),
            remediation: remediation.type_.unwrap_or_default(),
            not_ready_after: remediation.not_ready_after(),
            max_unhealthy: remediation.max_unhealthy(),
            others: None,
            joins: desired.has_version_for_new_hosts(cx),
        };
        let mut adoptable = BTreeMap::new();
        if intent == Intent::DryRun {
            let version = |name: &String| {
                let node = cx.node(name)?;
                let says = node.annotations().get(key::VERSION).cloned();
                says.or_else(|| node::ready(&node).0.then(|| UNKNOWN_VERSION.to_owned()))
            };
            let existing: BTreeSet<String> = mine.iter().map(|i| i.name_any()).collect();
            let is_new = |name: &&String| !existing.contains(*name);
            let nodes: Vec<(String, String)> =
                list.hosts.keys().filter(is_new).filter_map(|n| Some((n.clone(), version(n)?))).collect();
            let versions = nodes.iter().map(|(_, version)| version.clone()).collect();
            let wmco_versions = WmcoVersions::read(versions, pool, cx).await;
            for (name, version) in nodes {
                let withheld = desired.lost_with(&version, &wmco_versions);
                let refusal = refusal(&name, &list, pool, cx).await;
                adoptable.insert(name, Adoption { refusal, withheld });
            }
        }
        Ok(Self { mine, list, window, desired, members, limits, keys, adoptable })
    }

    /// Returns the times at which the observed state changes by itself, also in mode Plan, because its preview and its status follow the clock.
    pub(super) fn times_of_change(
        &self,
        pool: &WindowsNodePool,
        decision: &Decision,
        cx: &PoolContext,
        now: Timestamp,
    ) -> [Option<Timestamp>; 9] {
        let rollout = pool.spec.rollout();
        // An instance that has moved to another pool triggers that pool, and not this one, which only waits for the move. The other pool may also be
        // deleted before it takes the instance.
        let wait = if pool.metadata.deletion_timestamp.is_some() { 1 } else { 30 };
        let certificates = self.members.iter().filter_map(|m| wicd_certificate_end(&m.instance));
        [
            certificates.filter(|at| *at > now).min(),
            // The next read of a Secret with keys.
            self.keys.look_again().and_then(|wait| now.checked_add(wait).ok()),
            // The end of the wait between two steps of a rollout.
            self.desired.course.next,
            self.window.as_ref().ok().and_then(timers::of_windows),
            rollout.pause(now).and_then(Pause::end),
            soonest_available(&self.members, rollout.min_ready(), now, |name| cx.node(name)),
            next_deadline(&self.members, pool, self.desired.course.status.as_ref(), decision, now),
            self.list.next,
            (!self.list.moves.is_empty()).then(|| now + SignedDuration::from_secs(wait)),
        ]
    }

    /// Returns the reason and message of the first host that cannot be adopted.
    pub(super) fn refused(&self) -> Option<(Reason, String)> {
        let (host, (reason, message)) = self.adoptable.iter().find_map(|(h, a)| Some((h, a.refusal.as_ref()?)))?;
        Some((*reason, format!("{host}: {message}")))
    }

    /// Returns the hosts that would be changed, with the changes, and the hosts that are not changed for a reason.
    pub(super) fn preview(&self, pool: &WindowsNodePool, cx: &PoolContext) -> Vec<PlannedHost> {
        let on_node = |m: &Member| {
            let (host, node) = (self.list.hosts.get(&m.candidate.name)?, cx.node(&m.candidate.name)?);
            let status = m.instance.status.as_ref();
            let recorded = status.and_then(|s| s.template_applied.as_ref());
            let wanted = metadata::template(pool, host, status.and_then(|s| s.facts.as_ref()));
            metadata::patch(&node, &wanted, &Applied::on(&node, recorded))
        };
        preview(
            &self.list.hosts,
            &self.members,
            &self.limits,
            &HostLookups {
                why: &|m| self.desired.why(&m.instance),
                adoptable: &self.adoptable,
                beside: &|m, host| {
                    let mut beside = on_node(m).map(|patch| metadata::changed_parts(&patch)).unwrap_or_default();
                    let before = &m.instance.spec.host;
                    let reached =
                        InstanceHost { labels: host.labels.clone(), taints: host.taints.clone(), ..before.clone() };
                    if reached != *host {
                        beside.push("the connection to the host".to_owned());
                    }
                    beside
                },
            },
        )
    }
}

/// Returns the reason and message if the operator trusts no host key of an existing Node's host. May connect to the host to show its key in the
/// message, but does not log in.
async fn refusal(name: &str, list: &List, pool: &WindowsNodePool, cx: &PoolContext) -> Option<(Reason, String)> {
    let host = list.hosts.get(name)?.clone();
    let origin = list.origins.get(name).cloned();
    let spec = WindowsInstanceSpec { host, origin, ..WindowsInstanceSpec::default() };
    let address = spec.host.address.clone();
    match trusted_key(cx, &WindowsInstance::new(name, spec), pool).await {
        Ok(HostKeyCheck::AnyOf(keys)) if keys.is_empty() => {
            let secret = pool.spec.ssh().known_hosts_secret_ref.map(|secret| secret.name).unwrap_or_default();
            let message = format!(
                "the Secret {secret} in ssh.knownHostsSecretRef lists no key of {address}: add the key of the host"
            );
            Some((Reason::HostKeyUnknown, message))
        }
        // A Secret or ConfigMap that cannot be read now, perhaps by the user of a command, is not a refusal.
        Ok(_) | Err(StepError::Api { .. } | StepError::Secret(SecretError::Api { .. })) => None,
        Err(error) => Some((error.reason(), error.to_string())),
    }
}

/// Reports whether the instance has a used grant for a key rotation or an image pull. Such a grant is revoked before another one is given.
fn has_used_its_grant(instance: &WindowsInstance) -> bool {
    let grant = instance.spec.grant.as_ref();
    grant.is_some_and(|g| matches!(g.type_, GrantType::RotateKey | GrantType::PullImages) && instance.has_used(g))
}

/// Returns the name of a host with the services that its pending change restarts, if it has a pending change.
fn restarts(member: &Member) -> Option<(String, BTreeSet<String>)> {
    let change = member.candidate.change.as_ref()?;
    Some((member.candidate.name.clone(), change.services.iter().cloned().collect()))
}

/// Planned work for a pool.
#[derive(Debug)]
pub(crate) struct Planned {
    /// Version that the pool's nodes would follow.
    pub version: String,
    /// Hosts that would be changed, or are not changed for a reason, by name.
    pub list: Vec<PlannedHost>,
    /// Services that a change restarts, by host name.
    pub restarts: BTreeMap<String, BTreeSet<String>>,
    /// Names and addresses of the hosts that the pool would use.
    pub hosts: Vec<Known>,
    /// Entries of the inventory that would not be used.
    pub problems: Vec<EntryError>,
}

/// Returns the operator's plan for a pool, without a write. `others` are the planned hosts of other pools, which have no instances yet.
///
/// # Errors
/// Fails if a request to the API server fails, a stored version cannot be read, or the services of the hosts cannot be rendered.
pub(crate) async fn plan(
    pool: &WindowsNodePool,
    others: &PlannedHosts,
    cx: &PoolContext,
    now: Timestamp,
) -> Result<Planned, PoolError> {
    let name = pool.name_any();
    let mine = cx.caches.instances.of_pool(&name);
    let known = WithPlanned { there: &cx.caches.instances, planned: others };
    let look = Snapshot::observe(pool, mine, &known, Intent::DryRun, cx, now).await?;
    let of = |host: &InstanceHost| Known {
        name: host.name.clone(),
        address: host.address.clone(),
        port: host.port,
        pool: name.clone(),
        is_elsewhere: false,
    };
    Ok(Planned {
        list: look.preview(pool, cx),
        restarts: look.members.iter().filter_map(restarts).collect(),
        version: look.desired.course.target.clone(),
        hosts: look.list.hosts.values().map(of).collect(),
        problems: look.list.problems,
    })
}
