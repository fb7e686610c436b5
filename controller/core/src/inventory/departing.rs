//! Hosts that are no longer listed: which of them leave, and which stay until a user confirms their removal or missing facts are known.

use std::{collections::BTreeSet, sync::Arc};

use api::{IntOrPercent, WindowsInstance, WindowsNodePool, act::Act, names::key};
use kube::ResourceExt;

use super::{
    EntryError,
    list::{List, ObservedList},
    ownership::Unread,
    removals::{self, Change, Others, Presence, RemovalDecision},
};
use crate::{
    acts,
    enumeration::{counted, first_names},
    wait::{Cause, Hold, Wait},
};

impl List {
    /// Returns the reason why a host leaves.
    pub(super) fn why_leaving(&self, name: &str) -> String {
        let revision = self.status.as_ref().and_then(|s| s.revision.as_ref());
        match (self.vanishing.contains(name), revision) {
            _ if self.deleting => "its pool is being deleted".into(),
            (true, _) => "its Machine is being deleted, or does not exist".into(),
            (false, Some(revision)) => format!("no longer listed at {revision}"),
            (false, None) => "no longer listed".into(),
        }
    }

    /// Decides about the hosts that are neither listed nor handed over: those that must not leave yet are put back into the list. `unread`
    /// returns which lists of other pools have not been read since these hosts were first missing.
    pub fn depart(
        &mut self,
        pool: &WindowsNodePool,
        mine: &[Arc<WindowsInstance>],
        seen: &ObservedList,
        unread: impl FnOnce(&BTreeSet<String>) -> Unread,
    ) {
        let nameless = seen.nameless.all();
        self.deleting = seen.deleting;
        let is_unlisted = |n: &String| !self.hosts.contains_key(n) && !self.moves.contains_key(n);
        let says_so =
            |n: &String| seen.departures.as_ref().is_some_and(|d| d.vanishing.contains(n) || d.dismissed.contains(n));
        // The mark of a leaving host settles its removal. If an entry has no known name, or the entries are Machines, only a mark that a user has
        // confirmed does.
        let asks_again = !nameless.is_empty() || seen.presence == Presence::Machines;
        let is_settled = |i: &WindowsInstance| i.spec.leaving.as_ref().is_some_and(|l| l.confirmed || !asks_again);
        let staying = mine.iter().filter(|i| !i.is_deleting());
        let gone: Vec<&Arc<WindowsInstance>> = staying
            .clone()
            .filter(|i| is_unlisted(&i.name_any()) && !says_so(&i.name_any()) && !is_settled(i))
            .collect();
        let names: BTreeSet<String> = gone.iter().map(|i| i.name_any()).collect();
        self.vanishing = seen.departures.as_ref().map(|d| d.vanishing.clone()).unwrap_or_default();

        let unread = unread(&names);
        let limit = pool.spec.inventory.max_removals();
        // The pool's own list changes with the pool's generation.
        let own = || pool.metadata.generation.map(|g| format!("generation-{g}"));
        let revision = self.status.as_ref().map_or_else(own, |s| s.revision.clone());
        let change = Change {
            gone: gone.len(),
            of: staying.filter(|i| !i.is_leaving()).count(),
            list: seen.presence,
            nameless: !nameless.is_empty(),
            others: unread.others(),
            limit,
            revision: revision.as_deref(),
            approved: acts::in_force(pool, key::APPROVE_REMOVAL),
        };
        self.spent = change.approved.filter(|_| removals::is_spent(&change)).map(str::to_owned);
        let verdict = if seen.deleting { of_deleted_pool(change) } else { removals::decide(change) };
        let hold = match verdict {
            RemovalDecision::Go => return,
            RemovalDecision::Confirmed => {
                self.confirmed = names;
                return;
            }
            RemovalDecision::Held(hold) => hold,
        };
        self.is_transient = match hold {
            Hold::Pending | Hold::Unreadable => true,
            Hold::Nameless => seen.nameless.broken.is_empty(),
            Hold::Missing | Hold::Empty | Hold::TooMany | Hold::Machines => false,
        };
        let mut names: Vec<String> = names.into_iter().collect();
        // No confirmation is needed yet: the lists that are about to be read may name these hosts.
        self.to_confirm = if hold == Hold::Pending { 0 } else { names.len() };
        let source = self.status.as_ref().map_or("the list", |s| s.source.as_str());
        let held = Held {
            pool: &pool.name_any(),
            hosts: &names,
            of: change.of,
            list: &match (hold, revision) {
                (Hold::TooMany, Some(revision)) => format!("{source} at {revision}"),
                _ => source.to_owned(),
            },
            trouble: seen.trouble.as_deref().unwrap_or_default(),
            nameless: &nameless,
            pools: &unread.names(),
            limit: &limit_clause(limit),
        };
        let Wait { cause, message } = held.wait(hold);
        let problem = EntryError { host: String::new(), reason: cause.reason(), message };
        if hold == Hold::Missing {
            self.problems.clear();
        }
        self.problems.insert(0, problem);
        self.hosts.extend(gone.iter().map(|i| (i.name_any(), i.spec.host.clone())));
        names.truncate(10);
        if let Some(status) = &mut self.status {
            status.held_removals = names;
        }
    }
}

/// Decides for a pool that is being deleted, whose hosts must leave. They wait only until it is known which of them another pool lists.
fn of_deleted_pool(change: Change<'_>) -> RemovalDecision {
    let others = if change.others == Others::Pending { Others::Pending } else { Others::Read };
    let limit = Some(IntOrPercent::Percent(100));
    removals::decide(Change { gone: change.gone, of: change.of, others, limit, ..Change::default() })
}

/// Describes how many hosts one change may remove, and the setting that says so.
fn limit_clause(limit: Option<IntOrPercent>) -> String {
    match limit {
        Some(limit) => format!("inventory.maxRemovals allows one change to remove at most {limit}"),
        None => format!(
            "without inventory.maxRemovals, one change may remove {} hosts or more only if these are fewer than half",
            removals::MASS
        ),
    }
}

/// Facts for the message about hosts that stay.
struct Held<'a> {
    /// Name of the pool.
    pool: &'a str,
    hosts: &'a [String],
    of: usize,
    /// Source of the list; for [`Hold::TooMany`], with the revision, if it is known.
    list: &'a str,
    trouble: &'a str,
    nameless: &'a [String],
    pools: &'a [String],
    limit: &'a str,
}

impl Held<'_> {
    fn wait(&self, hold: Hold) -> Wait {
        let Self { pool, hosts, of, list, trouble, nameless, pools, limit } = self;
        let (n, names) = (hosts.len(), first_names(hosts));
        let (count, stay) = (counted(n, "host"), if n == 1 { "stays" } else { "stay" });
        let (they, them, hosts) = if n == 1 { ("It stays", "it", "host") } else { ("They stay", "them", "hosts") };
        let confirm = Act::ApproveRemovals(pool, n);
        let message = match hold {
            Hold::Missing => format!(
                "{trouble}. The {count} of the pool {stay}: {names}. To remove {them}, {confirm}, or delete the pool"
            ),
            Hold::Empty => format!(
                "{list} no longer lists any host. The {count} of the pool {stay}: {names}. To remove {them}, {confirm}, or delete the pool; otherwise correct the list"
            ),
            Hold::Nameless => format!(
                "the host names of these entries are unknown: {}. They may belong to {count} that {list} no longer lists by name: {names}. {they} until the names are known. To remove {them} now, {confirm}; otherwise correct or remove the entries",
                first_names(nameless)
            ),
            Hold::TooMany => format!(
                "{list} no longer lists {n} of {of} hosts, and {limit}: {names}. {they}. To remove {them}, {confirm}; otherwise correct the list"
            ),
            Hold::Machines => format!(
                "{list} no longer lists {count}, although no Machine of the {hosts} is being deleted: {names}. {they}. To remove {them}, delete or exclude the Machines (label {}=true); to remove the {hosts} without a change of the Machines, {confirm}",
                key::IGNORE
            ),
            Hold::Pending => format!(
                "{count} {stay} until the operator knows whether another pool lists {them} now: {names}. The operator is reading the lists of {}",
                first_names(pools)
            ),
            Hold::Unreadable => format!(
                "{count} {stay} because another pool may list {them} now, and the lists of these pools cannot be read: {}. Correct the sources of the lists; to remove the {hosts} ({names}), {confirm}",
                first_names(pools)
            ),
        };
        Wait::new(Cause::Removal(hold), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_hosts_that_stay_and_the_act_that_confirms() {
        let hosts: Vec<String> = ["a", "b", "c", "d"].map(Into::into).into();
        let (entries, pools) = (["win.example.com".to_owned()], ["hall-b".to_owned()]);
        let held = Held {
            pool: "hall-a",
            hosts: &hosts,
            of: 9,
            list: "ConfigMap windows-instances",
            trouble: "the ConfigMap ns/windows-instances does not exist",
            nameless: &entries,
            pools: &pools,
            limit: &limit_clause(Some(IntOrPercent::Percent(10))),
        };
        let number = format!("{}=4", key::APPROVE_REMOVAL);
        for (hold, parts) in [
            (Hold::Missing, ["does not exist", "4 hosts", "delete the pool", &number]),
            (Hold::Empty, ["windows-instances no longer lists any host", "4 hosts", "delete the pool", &number]),
            (Hold::Nameless, ["win.example.com", "4 hosts", "correct or remove the entries", &number]),
            (
                Hold::TooMany,
                [
                    "4 of 9 hosts",
                    "inventory.maxRemovals allows one change to remove at most 10%",
                    "correct the list",
                    &number,
                ],
            ),
            (
                Hold::Machines,
                ["no Machine of the hosts is being deleted", "4 hosts", "delete or exclude the Machines", &number],
            ),
            (Hold::Unreadable, ["hall-b", "4 hosts", "Correct the sources", &number]),
            (Hold::Pending, ["hall-b", "4 hosts", "reading the lists", "stay until"]),
        ] {
            let message = held.wait(hold).message;
            for part in parts.iter().chain(&["a, b, c and 1 more"]) {
                assert!(message.contains(part), "{part} in {message}");
            }
            let is_decided_by_people = hold != Hold::Pending;
            let command = "kubectl windows-node-pools approve hall-a --removals 4 ";
            assert_eq!(message.contains(command), is_decided_by_people, "{message}");
        }
    }

    #[test]
    fn a_limit_names_its_setting() {
        for (limit, part) in [
            (Some(IntOrPercent::Int(1)), "inventory.maxRemovals allows one change to remove at most 1"),
            (Some(IntOrPercent::Percent(10)), "inventory.maxRemovals allows one change to remove at most 10%"),
            (None, "without inventory.maxRemovals, one change may remove 3 hosts or more only if"),
        ] {
            assert!(limit_clause(limit).starts_with(part), "{limit:?}");
        }
    }
}
