//! The page on which a reader finds a reason: what kubectl shows, one question, the section of the reason, the remedy.

use std::fmt::Write as _;

use api::{
    Step,
    conditions::reason,
    reasons::{Reason, SECTIONS},
};

use super::{
    reference::cell,
    tables::{code, page, section},
};

/// The page with the meanings of all reasons, and the heading of those that several conditions share.
const PAGE: &str = "conditions.md";
const SHARED: &str = "Reasons of conditions";

/// What a reader sees first, the question that it raises, and where to go.
const POOLS: &[[&str; 3]] = &[
    [
        "STATUS ends with `nodes Ready`, DEGRADED is `False`",
        "Is there a fault at all?",
        "No. `UPDATING` or `UPDATED=False` name work in progress: [rollouts](../guide/rollouts.md#operations-in-progress).",
    ],
    [
        "no pool, or no STATUS",
        "Does the operator run?",
        "[Check the installation](../guide/troubleshooting.md#check-the-installation).",
    ],
    [
        "STATUS names a host: `… failed: win-1: …`",
        "Which step of which host?",
        "[The host](#what-kubectl-get-wi-shows).",
    ],
    [
        "`InventorySynced` is `False` (`kubectl describe wnp`)",
        "Is the list unreadable, or does it lack hosts?",
        "[Entries of the list](conditions.md#a-pool-entries-of-its-list), [hosts that stay although the list lacks them](conditions.md#a-pool-hosts-that-stay-although-the-list-lacks-them), [Git](conditions.md#a-pool-hosts-from-git), [Flux](conditions.md#a-pool-hosts-from-flux), [WMCO](conditions.md#a-pool-hosts-of-a-wmco-cluster).",
    ],
    [
        "every pool has the same fault",
        "What does the operator lack?",
        "[The operator](conditions.md#the-operator), [policies](conditions.md#policies), [notes](conditions.md#notes).",
    ],
    [
        "UPDATED is `False` and nothing moves",
        "Who is waited for?",
        "[Reasons of conditions](conditions.md#reasons-of-conditions): `WaitingForWindow`, `WaitingForApproval`, `BlockedByCordon`, `Paused`, `FailureLimitReached`.",
    ],
    [
        "nodes that had joined are not Ready",
        "Do their hosts answer?",
        "[Repair](../guide/rollouts.md#repair); `TooManyUnhealthy` and `NodesLost` in [reasons of conditions](conditions.md#reasons-of-conditions).",
    ],
];
const HOSTS: &[[&str; 3]] = &[
    [
        "no instance of the host",
        "Is its entry used?",
        "`kubectl describe wnp POOL`, condition `InventorySynced`: [entries of the list](conditions.md#a-pool-entries-of-its-list).",
    ],
    ["PHASE `Pending`", "What does it wait for?", "Its turn (`provisioning.maxConcurrent`). No action is needed."],
    [
        "PHASE `Joining` and STEP, no FAILURES",
        "Is it slow, or does it wait?",
        "SINCE shows for how long; STATUS says for what. [The step](#what-each-step-needs).",
    ],
    [
        "FAILURES and NEXT-TRY",
        "What is the reason?",
        "STATUS begins with the step; the reason is in `kubectl describe wi HOST`: [all reasons](#all-reasons).",
    ],
    ["READY `False`, UPTODATE `True`", "Is the Node not Ready?", "[Repair](../guide/rollouts.md#repair)."],
    [
        "READY `True`, UPTODATE `False`",
        "Does a change wait, or did it fail?",
        "[Operations in progress](../guide/rollouts.md#operations-in-progress), [a version that fails](../guide/rollouts.md#a-version-that-fails).",
    ],
    [
        "PHASE `Removing` for long",
        "Does a drain wait, or does the host not answer?",
        "[A drain that does not get on](../guide/removal.md#a-drain-that-does-not-get-on), [a host that cannot be reached](../guide/removal.md#a-host-that-cannot-be-reached).",
    ],
];

/// What a step needs, and the sections of the reasons with which it fails most.
fn of_step(step: Step) -> (&'static str, &'static [&'static str]) {
    const FITNESS: &str = "A host: fitness";
    const CONNECTION: &str = "A host: connection";
    const WICD: &str = "A host: refusals and failures of wicd";
    const DRAINS: &str = "A host: drains and the API server";
    const VERSIONS: &str = "A host: versions";
    const KEY: &str = "A host: another SSH key";
    match step {
        Step::Unknown => ("", &[]),
        Step::Connect | Step::VerifyAddress => {
            ("address, port, firewall, SSH key, host key, identity", &[CONNECTION, FITNESS])
        }
        Step::Stage | Step::Check => ("a way to the host, disk, what a node needs", &[CONNECTION, FITNESS]),
        Step::Upload | Step::Configure | Step::Reboot | Step::Start => {
            ("rights on the host, disk, services of the host", &[WICD, CONNECTION])
        }
        Step::Certify => (
            "signers of the cluster, admission policies",
            &["A host: certificates", "Denied certificate requests", "Policies"],
        ),
        Step::Register | Step::Verify => {
            ("kubelet that reaches the API server, the pod network", &["A host", VERSIONS])
        }
        Step::Cordon | Step::Drain | Step::Uncordon | Step::DeleteNode => {
            ("PodDisruptionBudgets, the API server", &[DRAINS])
        }
        Step::Maintain => ("the person who patches the host", &["A host"]),
        Step::Deconfigure => ("a way to the host, the programs on it", &[WICD, CONNECTION]),
        Step::AddKey | Step::VerifyKey | Step::RetireKey => ("both SSH keys, the file of authorised keys", &[KEY]),
        Step::PullImages => ("registries that the host reaches", &["A host: images"]),
    }
}

/// Each reason, with the heading of its section.
fn reasons() -> Vec<(&'static str, &'static Reason)> {
    let of_sections = SECTIONS.iter().flat_map(|one| one.reasons.iter().map(|reason| (one.title, reason)));
    let mut all: Vec<_> = reason::TABLE.iter().map(|reason| (SHARED, reason)).chain(of_sections).collect();
    all.sort_by_key(|(title, reason)| (reason.word, *title));
    all
}

fn link(title: &str) -> String {
    format!("[{title}]({PAGE}#{})", anchor(title))
}

/// A remedy whose links to other sections lead to the page that has them.
fn from_here(remedy: &str) -> String {
    cell(remedy).replace("](#", &format!("]({PAGE}#"))
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(title: &str) -> String {
    let kept = |c: char| (c.is_alphanumeric() || "_- ".contains(c)).then_some(if c == ' ' { '-' } else { c });
    title.to_lowercase().chars().filter_map(kept).collect()
}

/// The text of the page.
pub(super) fn find_a_reason() -> String {
    let about = "From what `kubectl` shows to the remedy. Begin with the pool, then the host, then the reason.\n\n\
                 ```sh\nkubectl get wnp\nkubectl get wi\nkubectl describe wi win-1\n```";
    let mut text = page("Find a reason", about);
    let columns = ["you see", "question", "answer"];
    let rows = |rows: &[[&str; 3]]| rows.iter().map(|row| row.map(ToOwned::to_owned).to_vec()).collect::<Vec<_>>();
    section(&mut text, "What kubectl get wnp shows", "", &columns, rows(POOLS));
    section(&mut text, "What kubectl get wi shows", "", &columns, rows(HOSTS));
    let steps = Step::ALL.iter().map(|step| {
        let (needs, sections) = of_step(*step);
        vec![
            code(step.as_str()),
            needs.to_owned(),
            sections.iter().map(|title| link(title)).collect::<Vec<_>>().join(", "),
        ]
    });
    let about = "The step is in the column STEP, and STATUS begins with it after a failure.";
    section(&mut text, "What each step needs", about, &["step", "needs", "reasons"], steps);
    let about = "A reason is a stable word, in conditions, events, metrics and logs. Its section has the meaning.";
    let _ = write!(text, "\n## All reasons\n\n{about}\n\n| reason | section | what to do |\n|---|---|---|\n");
    for (title, Reason { word, remedy, .. }) in reasons() {
        let _ = writeln!(text, "| `{word}` | {} | {} |", link(title), from_here(remedy));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_remedy_and_a_section() {
        let text = find_a_reason();
        for (title, Reason { word, remedy, .. }) in reasons() {
            assert!(remedy.split_whitespace().count() > 1, "{word}");
            let row = format!("| `{word}` | [{title}](conditions.md#{}) | {} |", anchor(title), from_here(remedy));
            assert!(text.lines().any(|line| line == row), "{row}");
        }
    }

    #[test]
    fn each_step_leads_to_sections_that_exist() {
        for step in Step::ALL {
            let (needs, sections) = of_step(*step);
            assert!(!needs.is_empty() && !sections.is_empty(), "{step:?}");
            for title in sections {
                assert!(SECTIONS.iter().any(|section| section.title == *title), "{step:?}: {title}");
            }
        }
    }

    #[test]
    fn words_in_the_tree_are_reasons() {
        for [_, _, answer] in POOLS.iter().chain(HOSTS) {
            let spans = answer.split('`').skip(1).step_by(2);
            let is_reason = |span: &str| span.chars().all(char::is_alphanumeric) && span.contains(char::is_lowercase);
            for word in spans.filter(|span| is_reason(span) && *span != "InventorySynced") {
                assert!(reasons().iter().any(|(_, reason)| reason.word == word), "{word}");
            }
        }
    }
}
