//! Decisions about the change that a command makes to an object. Pure functions.

use api::{
    Failures, Phase, Reason, Time, WindowsInstance, WindowsInstanceStatus, WindowsNodePool, WindowsNodePoolStatus,
    act::{Act, IF_GONE},
    names::{MANAGER_COMMAND, PLUGIN, key},
    services_version::short,
    text,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};
use wnp_core::{acts, enumeration::counted};

use crate::{
    args::host_key_policy::shown_key,
    commands::{
        short_version::means,
        status::{WaitingVersion, waiting_version},
    },
};

/// Maximum number of characters that a message quotes from an object.
const MAX_QUOTED_CHARS: usize = 400;
/// Maximum number of host names in a message.
const FEW: usize = 10;

/// Change of an object, with its messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    /// Merge patch for the object. `None` if nothing needs to change.
    pub patch: Option<Value>,
    /// State before and after, in a sentence that follows the kind and the name of the object.
    pub message: String,
    /// Warning that another client may revert the change.
    pub warning: Option<String>,
    /// Consequence that the user must confirm.
    pub question: Option<String>,
}

impl Change {
    fn new(patch: Value, message: impl Into<String>) -> Self {
        Self { patch: Some(patch), message: message.into(), ..Self::default() }
    }

    fn annotate(key: &str, value: impl Into<Value>, message: impl Into<String>) -> Self {
        Self::new(json!({"metadata": {"annotations": {key: value.into()}}}), message)
    }

    /// Returns an empty change, for an object that already has the desired state.
    fn none(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    fn asks(self, question: String) -> Self {
        Self { question: Some(question), ..self }
    }
}

/// Decision: the change, or a refusal with its remedy, in a sentence that follows the kind and the name of the object.
pub(super) type Decided = Result<Change, String>;

fn refuse(message: impl Into<String>) -> Decided {
    Err(message.into())
}

/// Returns the names of the hosts whose removal waits for an approval, at most [`FEW`], and the number of the others. For an inventory outside the
/// pool, the status has the names.
fn names_of_removals(pool: &WindowsNodePool, members: &[String], status: &WindowsNodePoolStatus) -> String {
    let is_listed = |name: &&String| pool.spec.hosts().iter().any(|host| host.name == **name);
    let mut names: Vec<String> = match &status.inventory {
        Some(inventory) => inventory.held_removals.iter().map(|name| text::line(name, MAX_QUOTED_CHARS)).collect(),
        None => members.iter().filter(|name| !is_listed(name)).cloned().collect(),
    };
    names.sort();
    names.truncate(FEW);
    let waiting = usize::try_from(status.removals_to_confirm).unwrap_or_default();
    let more = waiting.saturating_sub(names.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// Approves the version or this number of removals. Without either, approves what waits, unless both a version and removals wait. `members` are the
/// names of the pool's instances.
pub(super) fn approve(
    pool: &WindowsNodePool,
    members: &[String],
    version: Option<&str>,
    removals: Option<usize>,
) -> Decided {
    let status = pool.status.clone().unwrap_or_default();
    if status.observed_generation.is_none() || status.observed_generation != pool.metadata.generation {
        return refuse(
            "the operator has not observed the last change of the pool yet, so it is not known what waits for an approval: run the command again in \
             a few seconds. If this does not help, run kubectl windows-node-pools check",
        );
    }
    let name = pool.name_any();
    let waiting = waiting_version(&name, &status);
    let leaving = usize::try_from(status.removals_to_confirm).unwrap_or_default();
    let waiting = waiting.as_ref();
    // Without arguments, what waits is approved, if it is either a version or removals.
    let version = version.or_else(|| waiting.filter(|_| removals.is_none() && leaving == 0).map(|w| w.version));
    let removals = removals.or_else(|| (version.is_none() && waiting.is_none() && leaving > 0).then_some(leaving));
    match (version, removals, waiting) {
        (Some(version), ..) => approve_version(pool, waiting, version),
        (None, Some(number), _) => approve_removals(pool, members, &status, leaving, number),
        (None, None, None) => refuse("nothing waits for an approval; see: kubectl windows-node-pools status"),
        (None, None, Some(WaitingVersion { version, .. })) => refuse(format!(
            "a version and a removal wait for an approval: name one with --version {} or --removals {leaving}",
            short(version)
        )),
    }
}

fn approve_version(pool: &WindowsNodePool, waiting: Option<&WaitingVersion<'_>>, version: &str) -> Decided {
    let before = acts::in_force(pool, key::APPROVE).map(|before| text::line(before, MAX_QUOTED_CHARS));
    // No other version can be approved, so a short version is unambiguous.
    let whole = waiting.map(|w| w.version).into_iter().chain(before.as_deref()).find(|known| means(version, known));
    let version = whole.unwrap_or(version);
    match waiting {
        _ if before.as_deref() == Some(version) => {
            Ok(Change::none(format!("version {} is approved already", short(version))))
        }
        None => refuse("no version waits for an approval; see: kubectl windows-node-pools status"),
        Some(waiting) if waiting.version != version => {
            let named = text::line(version, MAX_QUOTED_CHARS);
            refuse(format!("version {} waits for an approval, not {named}", short(waiting.version)))
        }
        Some(WaitingVersion { message: sentence, .. }) => {
            let before =
                before.as_ref().map_or_else(|| "no version".to_owned(), |before| format!("version {}", short(before)));
            let message = format!(
                "{before} was approved; now version {} is approved, and the rollout may continue",
                short(version)
            );
            let question = format!(
                "{sentence}. After the approval, the rollout may continue on more nodes, and drains them if the change requires it"
            );
            Ok(Change::annotate(key::APPROVE, version, message).asks(question))
        }
    }
}

fn approve_removals(
    pool: &WindowsNodePool,
    members: &[String],
    status: &WindowsNodePoolStatus,
    waiting: usize,
    number: usize,
) -> Decided {
    let hosts = |number| counted(number, "host");
    let names = names_of_removals(pool, members, status);
    if waiting == 0 {
        return refuse("no removal waits for an approval; see: kubectl windows-node-pools status");
    }
    if number != waiting {
        return refuse(format!("the removal of {} waits, not of {number}: {names}", hosts(waiting)));
    }
    if acts::in_force(pool, key::APPROVE_REMOVAL) == Some(&number.to_string()) {
        return Ok(Change::none(format!("the removal of {} is approved already", hosts(number))));
    }
    let nodes = if number == 1 { "its Node" } else { "their Nodes" };
    let question = format!(
        "{} will be drained and deconfigured, and {nodes} deleted: {names}. A host that has been deconfigured must join again",
        hosts(number)
    );
    let message = format!("the removal of {} waited; now it is approved: {names}", hosts(number));
    Ok(Change::annotate(key::APPROVE_REMOVAL, number.to_string(), message).asks(question))
}

/// Pauses the pool, until a time or without an end.
pub(super) fn pause(pool: &WindowsNodePool, until: Option<Time>, now: Timestamp) -> Decided {
    let before = pool.spec.rollout().pause(now);
    let (field, value, after) = match (until, before) {
        (None, Some(pause)) if pause.end().is_none() => {
            return Ok(Change::none("it is paused without an end already"));
        }
        (None, _) => ("paused", json!(true), "paused".to_owned()),
        (Some(until), _) if until.known().is_none_or(|end| end <= now) => {
            return refuse(format!("{until} has passed: name a time in the future"));
        }
        (Some(_), Some(pause)) if pause.end().is_none() => {
            return refuse(
                "it is paused without an end, and a time would end that pause: resume it first, then pause it until that time",
            );
        }
        (Some(until), Some(pause)) if pause.end() == until.known() => {
            return Ok(Change::none(format!("it is {pause} already")));
        }
        (Some(until), _) => ("pausedUntil", json!(until), format!("paused until {until}")),
    };
    let was = before.map_or_else(String::new, |pause| format!("it was {pause}; now it is "));
    let resume = format!("{PLUGIN} resume {}", pool.name_any());
    let message = format!(
        "{was}{after}. No new operation begins, and drains are aborted; a change that has begun on a host finishes. To resume: {resume}"
    );
    let change = Change::new(json!({"spec": {"rollout": {field: value}}}), message);
    Ok(Change { warning: other_tool_warning(pool, &[field]), ..change })
}

/// Ends the pause of the pool.
pub(super) fn resume(pool: &WindowsNodePool, now: Timestamp) -> Change {
    let Some(pause) = pool.spec.rollout().pause(now) else {
        return Change::none("it is not paused");
    };
    let patch = json!({"spec": {"rollout": {"paused": null, "pausedUntil": null}}});
    let change = Change::new(patch, format!("it was {pause}; now it continues"));
    Change { warning: other_tool_warning(pool, &["paused", "pausedUntil"]), ..change }
}

/// Returns a warning if another tool has set one of these fields of `spec.rollout`, according to the managed fields, and may set it again.
fn other_tool_warning(pool: &WindowsNodePool, fields: &[&str]) -> Option<String> {
    fields.iter().find_map(|field| {
        let path = format!("/f:spec/f:rollout/f:{field}");
        let sets = |manager: &&str| *manager != MANAGER_COMMAND && !manager.starts_with("kubectl");
        let of_field = pool.managed_fields().iter().filter(|entry| {
            entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer(&path).is_some())
        });
        let manager = of_field.filter_map(|entry| entry.manager.as_deref()).find(sets)?;
        let manager = text::line(manager, MAX_QUOTED_CHARS);
        Some(format!(
            "{manager} has set spec.rollout.{field} of this pool. If it syncs the pool from Git, it reverts this change: make the change in Git"
        ))
    })
}

/// Returns the failure records of an instance, the record of the current operation first.
fn failures(status: &WindowsInstanceStatus) -> impl Iterator<Item = &Failures> {
    let of_key = status.key_rotation.as_ref().and_then(|k| k.failures.as_ref());
    let of_images = status.pre_pulled.as_ref().and_then(|p| p.failures.as_ref());
    [status.failures.as_ref(), status.address_failures.as_ref(), of_key, of_images].into_iter().flatten()
}

/// Requests a retry of the host at once, if it has failed or its Node is not Ready.
pub(super) fn retry(instance: &WindowsInstance) -> Decided {
    let status = instance.status.clone().unwrap_or_default();
    let message = if let Some(failures) = failures(&status).next() {
        let times = if failures.count == 1 { "once".to_owned() } else { format!("{} times", failures.count) };
        let next = if failures.next_retry_time.is_some() {
            "waited for its next try; now the operator tries it at once, unless the host or its pool is paused"
        } else {
            "a try is under way or due now; another one is requested"
        };
        let last = text::line(&failures.summary(), MAX_QUOTED_CHARS);
        format!("failed {times}, and {next}. It failed with: {last}")
    } else if let Some(version) = status.failed_version {
        format!(
            "version {version} failed on the host and was not tried again; now the operator tries that version again, unless the host or its pool \
             is paused"
        )
    } else if status.phase == Some(Phase::NotReady) {
        "its Node is not Ready; now it is repaired at once, unless for example a pause, requested maintenance or a MachineHealthCheck prevents it; see: \
         kubectl windows-node-pools status"
            .into()
    } else {
        return refuse("it has not failed, so there is nothing to retry; see: kubectl windows-node-pools status");
    };
    // Any new value triggers a retry, and the resource version changes with each write.
    Ok(Change::annotate(key::RETRY, instance.resource_version().unwrap_or_default(), message))
}

/// Reports whether the instance has a hold annotation that is in effect.
fn is_held(instance: &WindowsInstance) -> bool {
    instance.annotations().get(key::HOLD).is_some_and(|value| value == "true")
}

/// Puts a host on hold.
pub(super) fn hold(instance: &WindowsInstance) -> Change {
    if is_held(instance) {
        return Change::none("it is paused already");
    }
    let resume = Act::Release(&instance.name_any()).command();
    Change::annotate(
        key::HOLD,
        "true",
        format!(
            "paused. No new operation begins on it, and a drain for a change is aborted; a change that has begun on the host finishes. To resume: {resume}"
        ),
    )
}

/// Ends the hold of a host.
pub(super) fn release(instance: &WindowsInstance) -> Change {
    if !is_held(instance) {
        return Change::none("it is not paused");
    }
    Change::annotate(
        key::HOLD,
        Value::Null,
        "it was paused; now the operator works on it again, unless its pool is paused",
    )
}

/// Removes the hold annotation of the Node, which takes precedence over the annotation of the instance.
pub(super) fn release_node(node: &Node) -> Change {
    if !node.annotations().contains_key(key::HOLD) {
        return Change::none("it has no hold annotation of its own");
    }
    let message = "its own hold annotation is removed; now the hold annotation of its WindowsInstance counts";
    Change::annotate(key::HOLD, Value::Null, message)
}

/// Abandons the host. `pool` is its pool, if that exists.
pub(super) fn abandon(instance: &WindowsInstance, pool: Option<&WindowsNodePool>) -> Decided {
    let name = instance.name_any();
    if instance.annotations().get(key::ABANDON).is_some_and(|value| value == "true") {
        return Ok(Change::none("it is abandoned already"));
    }
    if let Some(pool) = pool.map(ResourceExt::name_any).filter(|_| !instance.is_leaving()) {
        return refuse(format!(
            "it is a host of the pool {pool}, and only a host that is leaving can be abandoned: take it out of the list of {pool} first, and confirm the removal if the pool asks for it"
        ));
    }
    let last = instance.status.as_ref().and_then(|status| status.failures.as_ref());
    let last = last.map_or_else(
        || "No attempt to clean the host has failed yet: wait, unless the host is gone for good.".to_owned(),
        |failures| {
            let summary = failures.summary();
            // The rest of the message says to abandon the host.
            let fault = summary.split_once(IF_GONE).map_or(summary.as_str(), |(fault, _)| fault);
            format!("The last attempt failed with: {}.", text::line(fault, MAX_QUOTED_CHARS))
        },
    );
    let question = format!(
        "the host is abandoned without a connection to it. {last} The Node {name} and the records of its pods are deleted at once, without a drain, unless that Node belongs to another host. \
         Services and files of the operator stay on the host: make sure that it is off, or its kubelet registers again. This cannot be undone"
    );
    let message = "now its Node is deleted, and the host is forgotten without being cleaned";
    Ok(Change::annotate(key::ABANDON, "true", message).asks(question))
}

/// Trusts the host key with this fingerprint, if a fault of the host asks for it. After a mismatch, only the key that the host showed is trusted.
pub(super) fn trust(instance: &WindowsInstance, fingerprint: &str) -> Decided {
    let status = instance.status.clone().unwrap_or_default();
    if instance.annotations().get(key::TRUST_HOST_KEY).is_some_and(|trusted| trusted == fingerprint) {
        return Ok(Change::none("this key is trusted already"));
    }
    if instance.spec.host.host_key.is_some() {
        return refuse(
            "its entry in the list declares the host key, which takes precedence: change hostKey in the list",
        );
    }
    if let Some(mismatch) = failures(&status).find(|failures| failures.last_reason == Reason::HostKeyMismatch) {
        if shown_key(&mismatch.last_message) != Some(fingerprint) {
            let message = text::line(&mismatch.last_message, MAX_QUOTED_CHARS);
            return refuse(format!(
                "the host did not show the key {fingerprint}, so it is not trusted. Compare the key on the console of the host with the one that it showed: {message}"
            ));
        }
    // The messages of other faults name this annotation if it is their remedy.
    } else if !failures(&status).any(|failures| failures.last_message.contains("trust-host-key")) {
        return refuse("no host key mismatch is pending; see: kubectl windows-node-pools status");
    }
    let before = status.host_key.map_or_else(|| "no key".to_owned(), |key| key.fingerprint);
    let message = format!(
        "{before} was trusted; now {fingerprint} is trusted, so that the operator can log in to the host again"
    );
    let question = format!(
        "{before} was trusted, and from now on {fingerprint} is trusted. The operator sends credentials to the host with this key: compare it on the console of the host"
    );
    Ok(Change::annotate(key::TRUST_HOST_KEY, fingerprint, message).asks(question))
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
