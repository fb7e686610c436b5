//! Alerts about the operator and its pools, as rules of Prometheus. Each is silent while its cause is what people want: a pool that is paused
//! or in mode Plan, a node that a person holds or maintains, changes that wait for a window or an approval. None is critical: nodes work on
//! without the operator.

use serde_json::{Value, json};

use super::object::{NAME, Object, Site};

/// As OpenShift's guidelines for alerts mean them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// A person must act in the next hours.
    Warning,
    /// No person needs to act.
    Info,
}

impl Severity {
    /// Value of the label `severity`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// An alert.
#[derive(Debug)]
pub(crate) struct Alert {
    /// Name.
    pub name: &'static str,
    /// Expression, with `$NAMESPACE` for that of the operator.
    pub expr: String,
    /// How long the expression must hold.
    pub lasts: Option<&'static str>,
    /// Severity.
    pub severity: Severity,
    /// What is wrong, in a line.
    pub summary: &'static str,
    /// What is wrong with what, and what to do; a template of Prometheus.
    pub description: &'static str,
}

impl Alert {
    /// URL of its runbook, which has the name of the alert: a page of the site.
    fn runbook(&self, site: &Site) -> String {
        format!("{}/{}.html", site.runbooks, self.name)
    }

    fn rule(&self, site: &Site) -> Value {
        let mut rule = json!({
            "alert": self.name,
            "expr": site.fill(&self.expr),
            "labels": {"severity": self.severity.as_str(), "namespace": site.namespace},
            "annotations": {
                "summary": self.summary,
                "description": site.fill(self.description),
                "runbook_url": self.runbook(site),
            },
        });
        if let Some(lasts) = self.lasts {
            rule["for"] = lasts.into();
        }
        rule
    }
}

/// Reasons of pools that have an alert of their own.
const OF_OTHER_ALERTS: &str = "DrainBlocked|MassRemovalBlocked|InventoryEmpty|NamesUnknown|PolicyMissing|PolicyUnknown|RightsNotStored|AnotherOperator";

/// Of a gauge of pools: one sample a pool, whichever process and Pod it is from.
fn of_pool(gauge: &str) -> String {
    format!("max by (namespace, pool) (windows_node_pool_{gauge})")
}

/// A condition of pools that is true, by its reason.
fn is_true(condition: &str, reasons: &str) -> String {
    format!(
        r#"max by (namespace, pool, reason) (windows_node_pool_status_reason{{type="{condition}",status="true",reason{reasons}}})"#
    )
}

fn unless_idle() -> String {
    format!("unless on (namespace, pool) ({} == 1)", of_pool("idle"))
}

fn unless_source_is_down() -> String {
    format!("unless on (namespace, pool) ({} == 0)", of_pool("source_up"))
}

fn warning(
    name: &'static str,
    expr: String,
    lasts: Option<&'static str>,
    summary: &'static str,
    description: &'static str,
) -> Alert {
    Alert { name, expr, lasts, severity: Severity::Warning, summary, description }
}

/// All of them.
pub(crate) fn alerts() -> Vec<Alert> {
    of_conditions().into_iter().chain(of_hosts()).chain(of_operator()).collect()
}

/// What the conditions of pools say.
fn of_conditions() -> Vec<Alert> {
    vec![
        warning(
            "WindowsNodePoolDegraded",
            format!(
                "{} unless on (namespace, pool, reason) {} {} {} unless on (namespace, pool, reason) ({} and on (namespace, pool) ({} == 0))",
                is_true("Degraded", &format!("!~\"{OF_OTHER_ALERTS}\"")),
                is_true("Stalled", "!=\"NodesFailed\""),
                unless_source_is_down(),
                unless_idle(),
                is_true("Degraded", "=~\"NodesNotReady|NodesLost\""),
                of_pool("nodes_unavailable"),
            ),
            Some("15m"),
            "A pool of Windows nodes has a fault.",
            "Pool {{ $labels.pool }} is Degraded, reason {{ $labels.reason }}. The operator retries. `kubectl describe wnp {{ $labels.pool }}` names the \
             hosts and the cause, `kubectl get wi` shows the state of each host.",
        ),
        warning(
            "WindowsNodePoolStalled",
            format!(
                "{} {} {}",
                is_true("Stalled", &format!("!~\"ProgressDeadlineExceeded|NodesFailed|{OF_OTHER_ALERTS}\"")),
                unless_source_is_down(),
                unless_idle()
            ),
            Some("5m"),
            "A pool of Windows nodes waits for a person.",
            "The operator cannot proceed with pool {{ $labels.pool }}, reason {{ $labels.reason }}. It does not recover by itself: \
             `kubectl describe wnp {{ $labels.pool }}` has the condition Stalled, whose message says what to correct.",
        ),
        warning(
            "WindowsNodePoolOperationSlow",
            format!(
                "{} unless on (namespace, pool) ({} > 0) {}",
                "max by (namespace, pool) (windows_node_pool_status_reason{type=\"Stalled\",status=\"true\",reason=\"ProgressDeadlineExceeded\"})",
                of_pool("drain_blocked_nodes"),
                unless_idle()
            ),
            Some("10m"),
            "An operation on a Windows host takes too long.",
            "An operation in pool {{ $labels.pool }} takes longer than `rollout.progressDeadlineSeconds` of the pool. The operator continues with \
             it. `kubectl describe wnp {{ $labels.pool }}` names the host, `kubectl describe wi HOST` the step and the last failure.",
        ),
        warning(
            "WindowsNodePoolDrainBlocked",
            format!("{} > 0 {}", of_pool("drain_blocked_nodes"), unless_idle()),
            // Less than the default time limit of a drain, which is an hour: a drain that is given up is no longer blocked.
            Some("45m"),
            "Pods block the drain of a Windows node.",
            "{{ $value }} drains in pool {{ $labels.pool }} have been blocked for 45 minutes. `kubectl describe wnp {{ $labels.pool }}` names the \
             node and the pods, most often held by a PodDisruptionBudget. The node takes no new pods until the drain ends.",
        ),
        warning(
            "WindowsNodePoolRemovalHeld",
            format!("{} > 0 {}", of_pool("removals_to_confirm"), unless_idle()),
            Some("15m"),
            "Windows hosts are missing from the list, and their removal waits for a confirmation.",
            "The list of pool {{ $labels.pool }} lacks {{ $value }} hosts, and the operator removes none of them before a person confirms it. \
             Restore the list if this is a mistake. If it is meant, confirm it with the annotation that `kubectl describe wnp {{ $labels.pool }}` names.",
        ),
        warning(
            "WindowsNodePoolSourceStale",
            "max by (namespace, pool, source) (windows_node_pool_source_up) == 0".into(),
            Some("15m"),
            "The list of Windows hosts cannot be read.",
            "The source of pool {{ $labels.pool }} ({{ $labels.source }}) cannot be read, or what it has cannot be used. The last good list stays in \
             force, and changes of the list reach no host. The condition InventorySynced of `kubectl describe wnp {{ $labels.pool }}` names the cause.",
        ),
    ]
}

/// What hosts and nodes of pools are like.
fn of_hosts() -> Vec<Alert> {
    vec![
        warning(
            "WindowsNodePoolHostKeyChanged",
            format!("{} > 0", of_pool("hosts_key_changed")),
            None,
            "A Windows host shows another SSH host key than the known one.",
            "{{ $value }} hosts of pool {{ $labels.pool }} show another host key: they were reinstalled, or another machine intercepts the connection. \
             The operator does not log in to them. `kubectl get wi -o custom-columns=NAME:.metadata.name,REASON:.status.failures.lastReason` names them; verify \
             the key on the console of the host, or of its jump host, before you trust it.",
        ),
        warning(
            "WindowsNodePoolNodesUnavailable",
            format!(
                "{} > on (namespace, pool) {} unless on (namespace, pool) ({} == 1) {}",
                of_pool("nodes_unavailable"),
                of_pool("max_unavailable"),
                of_pool("window_open"),
                unless_idle()
            ),
            Some("15m"),
            "More Windows nodes are unavailable than the pool allows.",
            "{{ $value }} nodes of pool {{ $labels.pool }} are unavailable, more than `rollout.maxUnavailable` allows, and no maintenance window is \
             open. The operator begins no disruptive change meanwhile. `kubectl get wi` and `kubectl get nodes -l kubernetes.io/os=windows` name them.",
        ),
        warning(
            "WindowsNodePoolCertificateExpiring",
            format!(
                "{} - time() < on (namespace) group_left () (max by (namespace) (windows_node_pool_host_certificate_lifetime_seconds) / 15)",
                of_pool("host_certificate_earliest_expiry_timestamp_seconds").replacen("max", "min", 1)
            ),
            // wicd renews when a tenth of the life is left at the latest.
            Some("5m"),
            "The certificate of a Windows host was not renewed.",
            "The certificate of the daemon of a host of pool {{ $labels.pool }} expires in {{ $value | humanizeDuration }}; the daemon should have renewed it \
             long before. After that, it can neither follow a new version nor report drift. \
             `kubectl get wi -o custom-columns=NAME:.metadata.name,EXPIRES:.status.wicdCertificateExpires` names the host.",
        ),
    ]
}

/// What concerns the operator as a whole.
fn of_operator() -> Vec<Alert> {
    vec![
        warning(
            "WindowsNodePoolsDown",
            format!(
                r#"absent(windows_node_pool_build_info) unless on () (kube_deployment_spec_replicas{{namespace="$NAMESPACE",deployment="{NAME}"}} == 0)"#
            ),
            Some("10m"),
            "The operator of Windows nodes gives no metrics.",
            "Prometheus reads no metrics of the operator in namespace $NAMESPACE: it does not run, or Prometheus may not read them. Nodes work on, \
             and nothing joins, changes or repairs them. `kubectl -n $NAMESPACE get pods` shows whether it runs.",
        ),
        warning(
            "WindowsNodePoolsNoLeader",
            "sum by (namespace) (windows_node_pool_leader) == 0".into(),
            Some("10m"),
            "No process of the operator of Windows nodes leads.",
            "The operator runs in namespace $NAMESPACE, and no process of it holds the Lease. Nodes work on, and nothing joins, changes or repairs them. \
             `kubectl -n $NAMESPACE logs deployment/windows-node-pools` has the cause.",
        ),
        warning(
            "WindowsNodePoolsErrors",
            r#"max by (namespace, reason) (windows_node_pool_fault{reason!~"AnotherOperator|ControlPlaneUpgrading"}) == 1 or sum by (namespace, kind) (increase(windows_node_pool_reconcile_errors_total[5m])) > 0"#.into(),
            Some("30m"),
            "The operator of Windows nodes fails again and again.",
            "The operator in namespace $NAMESPACE {{ if $labels.reason }}begins no operation, reason {{ $labels.reason }}{{ else }}fails to reconcile objects of kind \
             {{ $labels.kind }}{{ end }}. `kubectl -n $NAMESPACE logs deployment/windows-node-pools` has the cause.",
        ),
        warning(
            "WindowsNodePoolsPoliciesMissing",
            r#"max by (namespace) (windows_node_pool_condition{type="PoliciesInForce",status="false"}) == 1 or min by (namespace) (windows_node_pool_policy_in_force) == 0"#.into(),
            Some("15m"),
            "Admission policies of the operator are missing.",
            "An admission policy of the operator is missing or was changed, and `kubectl describe wnp` names it in the condition PoliciesInForce. While \
             one is missing that holds the daemons of Windows hosts, they have no rights, and no host joins or changes. Install this release again.",
        ),
        Alert {
            severity: Severity::Info,
            ..warning(
                "WindowsNodePoolsOtherOperator",
                r#"max by (namespace) (windows_node_pool_fault{reason="AnotherOperator"}) == 1"#.into(),
                Some("15m"),
                "The Windows Machine Config Operator runs, too.",
                "The Windows Machine Config Operator runs, so the operator in namespace $NAMESPACE begins no operation. Complete the takeover, or \
                 remove one of the two.",
            )
        },
    ]
}

/// The rules, as the Prometheus operator takes them.
pub(super) fn object(site: &Site, file: &'static str) -> Object {
    let rules: Vec<Value> = alerts().iter().map(|alert| alert.rule(site)).collect();
    let rule = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": site.namespaced(NAME, "monitoring"),
        "spec": {"groups": [{"name": NAME, "rules": rules}]},
    });
    Object::new(file, "Alerts; docs/runbooks has a page for each.", &rule)
}
