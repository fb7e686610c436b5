//! Effective values: the value of the spec, or the documented default. The CRD itself has no defaults, because a GitOps
//! tool would report a value that the API server adds as a permanent difference.

use std::{collections::BTreeMap, time::Duration};

use super::{
    DeletionPolicy, Drain, Effective, FailureAction, GitSource, Host, Inventory, JumpHost, MaintenanceWindow, Mode,
    Remediation, Rollout, RolloutStep, SecretKeyRef, SourceRef, Ssh, Taint, TemplateSpec, WindowsNodePoolSpec,
};
use crate::{IntOrPercent, names};

fn seconds(value: Option<i32>, default: u32) -> Duration {
    Duration::from_secs(u64::from(value.and_then(|v| u32::try_from(v).ok()).unwrap_or(default)))
}

/// Returns the port of an SSH server, 1 to 65535.
fn ssh_port(value: Option<i32>) -> u16 {
    value.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0).unwrap_or(22)
}

impl WindowsNodePoolSpec {
    /// Hosts that the pool lists itself.
    pub fn hosts(&self) -> &[Host] {
        self.inventory.hosts.as_deref().unwrap_or_default()
    }
    /// SSH settings.
    pub fn ssh(&self) -> Ssh {
        self.ssh.clone().unwrap_or_default()
    }
    /// Rollout settings.
    pub fn rollout(&self) -> Rollout {
        self.rollout.clone().unwrap_or_default()
    }
    /// Drain settings.
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }
    /// Remediation settings.
    pub fn remediation(&self) -> Remediation {
        self.remediation.unwrap_or_default()
    }
    /// Settings of the template; empty if the pool has none.
    pub fn template_spec(&self) -> TemplateSpec {
        self.template.as_ref().and_then(|t| t.spec.clone()).unwrap_or_default()
    }
    /// Reports whether the operator only reports what it would do.
    pub fn is_plan(&self) -> bool {
        self.mode == Some(Mode::Plan)
    }
    /// Deletion policy.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or_default()
    }
    /// Number of hosts that may join at once.
    pub fn max_concurrent(&self) -> u32 {
        self.provisioning.as_ref().and_then(|p| p.max_concurrent).and_then(|n| u32::try_from(n).ok()).unwrap_or(10)
    }
    /// Labels of the template.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default()
    }
    /// Annotations of the template.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.annotations.clone()).unwrap_or_default()
    }
    /// Taints of the template, or the default taint if the template sets no taints.
    pub fn taints(&self) -> Vec<Taint> {
        let set = self.template.as_ref().and_then(|t| t.spec.as_ref()).and_then(|s| s.taints.clone());
        set.unwrap_or_else(|| vec![names::default_taint()])
    }
    /// Images that hosts pull before pods need them.
    pub fn pre_pull_images(&self) -> &[String] {
        self.provisioning.as_ref().and_then(|p| p.pre_pull_images.as_deref()).unwrap_or_default()
    }
    /// Returns the effective values that the status shows.
    pub fn effective(&self) -> Effective {
        let (ssh, rollout, drain) = (self.ssh(), self.rollout(), self.drain());
        let remediation = self.remediation();
        let int = |d: Duration| i32::try_from(d.as_secs()).unwrap_or(i32::MAX);
        Effective {
            ssh_port: i32::from(ssh.port()),
            ssh_username: ssh.username().into(),
            host_key_policy: ssh.host_key_policy.unwrap_or_default(),
            jump_host_port: ssh.jump_host.as_ref().map(|j| i32::from(j.port())),
            max_concurrent: i32::try_from(self.max_concurrent()).unwrap_or(i32::MAX),
            max_unavailable: rollout.max_unavailable().to_string(),
            min_ready_seconds: int(rollout.min_ready()),
            progress_deadline_seconds: int(rollout.progress_deadline()),
            ignore_lost_after_seconds: int(rollout.ignore_lost_after().unwrap_or_default()),
            max_failures: rollout.max_failures().to_string(),
            failure_action: rollout.failure_action(),
            remediation_type: remediation.type_.unwrap_or_default(),
            not_ready_seconds: int(remediation.not_ready_after()),
            max_unhealthy: remediation.max_unhealthy().to_string(),
            drift: remediation.drift.unwrap_or_default(),
            drain_timeout_seconds: int(drain.timeout()),
            drain_on_timeout: drain.on_timeout.unwrap_or_default(),
            deletion_policy: self.deletion_policy(),
            taints: self.taints(),
        }
    }
}

impl Inventory {
    /// Field that names a source outside of the pool; `None` if the pool lists its hosts itself.
    pub fn source(&self) -> Option<&'static str> {
        [
            (self.config_map_ref.is_some(), "configMapRef"),
            (self.git.is_some(), "git"),
            (self.machine_set_ref.is_some(), "machineSetRef"),
            (self.source_ref.is_some(), "sourceRef"),
        ]
        .into_iter()
        .find_map(|(is_set, field)| is_set.then_some(field))
    }

    /// Number of hosts that one change of the list may remove. `None` if no limit is set and the source is neither Git nor Flux: for a list in the
    /// pool or in a ConfigMap, a change that removes at least three hosts, and at least half of all hosts, then needs a confirmation.
    pub fn max_removals(&self) -> Option<IntOrPercent> {
        let by_default = (self.git.is_some() || self.source_ref.is_some()).then_some(IntOrPercent::Percent(10));
        self.max_removals.or(by_default)
    }

    /// Reports whether revisions must be signed by a trusted key.
    pub fn is_verified(&self) -> bool {
        self.git.as_ref().is_some_and(|g| g.verify.is_some())
            || self.source_ref.as_ref().is_some_and(|s| s.require_verified == Some(true))
    }
}

/// Maximum interval of a Git source. The CRD refuses a longer one; this limit is for stored objects that break the rule of the CRD.
const WEEK: Duration = Duration::from_hours(7 * 24);

impl GitSource {
    /// File or directory with the hosts, relative to the root of the repository. Empty for the whole repository.
    pub fn path(&self) -> &str {
        relative(self.path.as_deref())
    }
    /// Interval between two fetches.
    pub fn interval(&self) -> Duration {
        seconds(self.interval_seconds, 300).clamp(Duration::from_secs(1), WEEK)
    }
}

impl SourceRef {
    /// File or directory with the hosts, relative to the root of the artifact. Empty for the whole artifact.
    pub fn path(&self) -> &str {
        relative(self.path.as_deref())
    }
}

/// Normalizes a path: `./a/b/`, `/a/b` and `a/b` are the same, and `.` is the root.
fn relative(path: Option<&str>) -> &str {
    let mut path = path.unwrap_or_default();
    while let Some(rest) = path.strip_prefix("./").or_else(|| path.strip_prefix('/')) {
        path = rest;
    }
    let path = path.trim_end_matches('/');
    if path == "." { "" } else { path }
}

impl Ssh {
    /// Port of the SSH server, 1 to 65535.
    pub fn port(&self) -> u16 {
        ssh_port(self.port)
    }
    /// User to log in as.
    pub fn username(&self) -> &str {
        self.username.as_deref().unwrap_or("Administrator")
    }
    /// Private keys, in the order in which they are tried.
    pub fn private_keys(&self) -> Vec<SecretKeyRef> {
        self.private_key_secret_refs
            .clone()
            .unwrap_or_else(|| vec![SecretKeyRef { name: names::DEFAULT_KEY_SECRET.into(), key: None }])
    }
}

impl JumpHost {
    /// Port of the SSH server, 1 to 65535.
    pub fn port(&self) -> u16 {
        ssh_port(self.port)
    }
}

impl Rollout {
    /// Number of nodes that may be unavailable at once.
    pub fn max_unavailable(&self) -> IntOrPercent {
        self.max_unavailable.unwrap_or(IntOrPercent::Int(1))
    }
    /// Time until a Ready node counts as available.
    pub fn min_ready(&self) -> Duration {
        seconds(self.min_ready_seconds, 0)
    }
    /// Deadline of one operation.
    pub fn progress_deadline(&self) -> Duration {
        seconds(self.progress_deadline_seconds, 3600)
    }
    /// Time after which the rollout no longer waits for a lost node. `None` if it always waits.
    pub fn ignore_lost_after(&self) -> Option<Duration> {
        Some(seconds(self.ignore_lost_after_seconds, 3600)).filter(|d| !d.is_zero())
    }
    /// Steps of a rollout.
    pub fn steps(&self) -> &[RolloutStep] {
        self.steps.as_deref().unwrap_or_default()
    }
    /// Maintenance windows in which changes may begin. Empty means at any time.
    pub fn windows(&self) -> &[MaintenanceWindow] {
        self.maintenance_windows.as_deref().unwrap_or_default()
    }
    /// Number of failed nodes at which the failure action applies.
    pub fn max_failures(&self) -> IntOrPercent {
        self.max_failures.unwrap_or(IntOrPercent::Int(1))
    }
    /// Reaction when too many nodes have failed.
    pub fn failure_action(&self) -> FailureAction {
        self.on_failure.unwrap_or_default()
    }
}

impl Drain {
    /// Timeout of a drain. Zero means no timeout.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_seconds, 3600)
    }
}

impl Remediation {
    /// Time for which a node may be not Ready before the operator reacts.
    pub fn not_ready_after(&self) -> Duration {
        seconds(self.not_ready_seconds, 600)
    }
    /// Maximum number of nodes that are not Ready. If more are not Ready, no node is repaired.
    pub fn max_unhealthy(&self) -> IntOrPercent {
        self.max_unhealthy.unwrap_or(IntOrPercent::Percent(20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a pool whose renamed fields the API server has dropped. The remaining fields must be readable: while a pool is unreadable, no host of
    /// any pool is removed.
    #[test]
    fn a_pool_with_fields_of_another_version_is_read() {
        let stored = serde_json::json!({
            "apiVersion": "windowsmachineconfig.openshift.io/v1alpha1",
            "kind": "WindowsNodePool",
            "metadata": {"name": "factory"},
            "spec": {
                "inventory": {"git": {"url": "https://git.example.com/hosts"}},
                "ssh": {"hostKeyPolicy": "Strict"},
                "template": {"spec": {"kubelet": {"systemReserved": {"cpu": "1"}, "evictionHard": {"nodefs.available": "10%"}}, "logs": {}}},
                "rollout": {"maintenanceWindows": [{"schedule": "0 22 * * *"}]},
                "remediation": {"type": "Reboot"},
            },
            "status": {
                "readyNodes": 4,
                "rollout": {"toVersion": "1-a", "startTime": "2026-03-01T08:00:00.123456789Z"},
                "uncleanHosts": [{"name": "win-9", "address": "10.0.0.9", "time": "2026-03-01T08:00:00Z"}],
                "effective": {
                    "sshPort": 22, "sshUsername": "Administrator", "hostKeyPolicy": "Strict", "maxConcurrent": 10, "maxUnavailable": "1", "minReadySeconds": 0,
                    "progressDeadlineSeconds": 3600, "ignoreLostAfterSeconds": 3600, "maxFailures": "1",
                    "failureAction": "Pause", "remediationType": "Reboot", "maxUnhealthy": "20%", "drift": "Heal",
                    "drainTimeoutSeconds": 3600, "drainOnTimeout": "Wait", "deletionPolicy": "Deconfigure", "taints": [],
                },
            },
        });
        let pool: crate::WindowsNodePool = serde_json::from_value(stored).unwrap();
        assert_eq!(pool.spec.remediation().not_ready_after(), Duration::from_mins(10));
        assert_eq!(pool.spec.rollout().windows()[0].duration_seconds, None);
        assert!(pool.status.unwrap().rollout.unwrap().start_time.known().is_some());
    }

    #[test]
    fn the_interval_of_fetches_is_limited() {
        let git = |n| GitSource { interval_seconds: n, ..GitSource::default() };
        for (n, interval) in [
            (None, Duration::from_mins(5)),
            (Some(90), Duration::from_secs(90)),
            (Some(0), Duration::from_secs(1)),
            (Some(i32::MAX), WEEK),
        ] {
            assert_eq!(git(n).interval(), interval, "{n:?}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_root() {
        for (text, path) in [("", ""), (".", ""), ("./", ""), ("/", ""), ("./a/b/", "a/b"), ("/a", "a"), ("a.b", "a.b")]
        {
            assert_eq!(relative(Some(text)), path, "{text}");
        }
    }

    #[test]
    fn removals_of_a_git_source_default_to_ten_percent() {
        let git = Inventory { git: Some(GitSource::default()), ..Inventory::default() };
        assert_eq!(git.max_removals(), Some(IntOrPercent::Percent(10)));
        assert_eq!(Inventory::default().max_removals(), None);
    }
}
