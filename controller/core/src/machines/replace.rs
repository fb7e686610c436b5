//! Replacement of Machines because the operator cannot log in to their hosts: a new Machine gets the current key. Pure.

use api::{WindowsNodePool, names::key};
use jiff::Timestamp;

use super::read::{Machine, MachineSet};
use crate::{rollout::maintenance_window, status::shown};

/// Machine of a source, with its state.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The Machine.
    pub machine: &'a Machine,
    /// True if the Machine's Node works, and no operation is in progress after which it might not.
    pub works: bool,
    /// Facts about the host, if it has refused every key for so long that it counts as locked out.
    pub refuses: Option<Refuses>,
}

/// Facts about a host that refuses every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuses {
    /// True if the host is a node, which would be lost.
    pub is_node: bool,
    /// Reason why the host must stay, regardless of the other Machines.
    pub stays: Option<String>,
}

/// Decision about a Machine whose host refuses every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplaceDecision {
    /// The Machine is deleted; its MachineSet creates another.
    Delete,
    /// The Machine is not deleted, for this reason.
    Restricted(String),
}

/// Decides about each Machine of one source whose host refuses every key, except Machines that are being deleted or ignored. Machines are replaced
/// one at a time, and only while all others work: otherwise the key itself may be wrong. `set` is the MachineSet of the source, if it exists.
pub fn verdicts<'a>(members: &[Member<'a>], set: Option<&MachineSet>) -> Vec<(&'a Machine, ReplaceDecision)> {
    let refusing = members.iter().filter(|m| !m.machine.deleting && !m.machine.ignored);
    let mut refusing: Vec<(&Member<'a>, &Refuses)> =
        refusing.filter_map(|m| m.refuses.as_ref().map(|refuses| (m, refuses))).collect();
    refusing.sort_by(|a, b| a.0.machine.name.cmp(&b.0.machine.name));
    let mut first: Option<&str> = None;
    let mut verdict = |m: &Member<'a>, refuses: &Refuses| {
        if let Some(why) = refuses.stays.clone().or_else(|| no_replacement_reason(m.machine, set)) {
            return ReplaceDecision::Restricted(why);
        }
        let others = || members.iter().filter(|o| o.machine.uid != m.machine.uid);
        if let Some(other) = others().find(|o| o.machine.deleting) {
            let name = &other.machine.name;
            return ReplaceDecision::Restricted(format!(
                "another Machine of its MachineSet is being deleted ({name}), and only one is replaced at a time"
            ));
        }
        if let Some(other) = others().find(|o| o.machine.phase != "Running" || !o.works) {
            return ReplaceDecision::Restricted(format!(
                "another Machine of its MachineSet ({}) is not Running, or its Node does not work or is being changed: if that lasts, check that the private keys of the pool are the right ones",
                other.machine.name
            ));
        }
        // Between the end of one replacement and the start of its new Machine, all existing Machines work.
        let wanted = set.map_or(0, |s| s.replicas);
        if members.len() < wanted {
            return ReplaceDecision::Restricted(format!(
                "its MachineSet has {} of {wanted} Machines, and the Machine is replaced when all exist",
                members.len()
            ));
        }
        if let Some(first) = first {
            return ReplaceDecision::Restricted(format!(
                "another Machine of its MachineSet is replaced first ({first}), and only one is replaced at a time"
            ));
        }
        first = Some(&m.machine.name);
        ReplaceDecision::Delete
    };
    refusing.into_iter().map(|(m, refuses)| (m.machine, verdict(m, refuses))).collect()
}

fn no_replacement_reason(machine: &Machine, set: Option<&MachineSet>) -> Option<String> {
    if machine.source.as_ref().is_none_or(|s| s.set.is_none()) {
        return Some("no MachineSet owns it, so no controller would replace it: delete the Machine yourself".into());
    }
    set.is_none_or(|s| s.deleting)
        .then(|| "its MachineSet does not exist or is being deleted, so no controller would replace the Machine: delete the Machine yourself".into())
}

/// Returns the reason why a host must stay unchanged now. `held` is true if the host is on hold, and `is_node` if it is a node.
pub fn stays(pool: &WindowsNodePool, held: bool, is_node: bool, now: Timestamp) -> Option<String> {
    if pool.spec.is_plan() {
        return Some("its pool is in mode Plan, and Machines are replaced in mode Apply only".into());
    }
    if held {
        return Some(format!(
            "the host is on hold: to end the hold, remove the annotation {} from its WindowsInstance or its Node",
            key::HOLD
        ));
    }
    if !is_node {
        return None;
    }
    let rollout = pool.spec.rollout();
    if let Some(pause) = rollout.pause(now) {
        return Some(format!("its pool is {pause} ({})", pause.field()));
    }
    match maintenance_window::observe(rollout.windows(), now) {
        Err(error) => Some(error.to_string()),
        Ok(window) if window.open => None,
        Ok(window) => {
            let opens = window.opens.map(|at| format!("the next opens at {}", shown(at)));
            Some(format!("it waits for a maintenance window; {}", opens.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;
