//! What a host waits for, as its instance reports it. Pure.

use std::borrow::Cow;

use api::{Pause, act::Act, names::key};

/// What decides it.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Whether the host leaves; otherwise it is to join.
    pub leaves: bool,
    /// Whether it is a node.
    pub is_node: bool,
    /// Whether it leaves with a Machine.
    pub has_machine: bool,
    /// Whether its pool is in mode Plan.
    pub is_plan: bool,
    /// Whether another operator works in the cluster, or it is not known that none does.
    pub has_other_operator: bool,
    /// The pause of its pool.
    pub pause: Option<Pause>,
    /// Whether a person holds it.
    pub held: bool,
    /// Whether the admission policies that hold the rights of the hosts' daemons are missing.
    pub lacks_policies: bool,
}

impl Waiting {
    /// The first of all reasons, in words. `host` is its name.
    pub fn message(self, host: &str) -> Cow<'static, str> {
        let words = match self {
            Self { is_plan: true, .. } => "waits because its pool is in mode Plan: no operation begins",
            Self { has_other_operator: true, .. } => {
                "waits until no other operator works in the cluster; see the condition Ready of its pool"
            }
            Self { lacks_policies: true, .. } => {
                "waits until the admission policies for wicd are in force again; see the condition PoliciesInForce of its pool"
            }
            Self { held: true, .. } => {
                let end = Act::Release(host).command();
                return format!("waits because the annotation {}=true holds it. To end the hold, run {end}", key::HOLD)
                    .into();
            }
            Self { pause: Some(pause), .. } => {
                return format!("waits because its pool is {pause} ({})", pause.field()).into();
            }
            Self { leaves: false, .. } => "waits for its turn to join (provisioning.maxConcurrent)",
            Self { has_machine: true, .. } => {
                "waits until its Machine is deleted, or until its turn to be deconfigured (rollout.maxUnavailable)"
            }
            Self { is_node: true, .. } => "waits until another node may be disrupted (rollout.maxUnavailable)",
            _ => "waits for its turn to be deconfigured (provisioning.maxConcurrent)",
        };
        words.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_so_is_named() {
        let (join, leave) = (Waiting::default(), Waiting { leaves: true, ..Waiting::default() });
        let node = Waiting { is_node: true, ..leave };
        let pause = Some(Pause::Indefinite);
        let until = Some(Pause::Until("2027-01-01T08:00:00Z".parse().unwrap()));
        for (waiting, expected) in [
            (join, "its turn to join (provisioning.maxConcurrent)"),
            (leave, "its turn to be deconfigured (provisioning.maxConcurrent)"),
            (node, "another node may be disrupted (rollout.maxUnavailable)"),
            (Waiting { has_machine: true, ..node }, "until its Machine is deleted"),
            (Waiting { pause, ..node }, "its pool is paused (rollout.paused)"),
            (Waiting { pause: until, ..join }, "its pool is paused until 2027-01-01T08:00:00Z (rollout.pausedUntil)"),
            (Waiting { pause, held: true, ..join }, "hold=true holds it"),
            (Waiting { pause, lacks_policies: true, ..join }, "PoliciesInForce"),
            (Waiting { pause, lacks_policies: true, has_other_operator: true, ..join }, "no other operator works"),
            (Waiting { pause, is_plan: true, ..join }, "mode Plan"),
        ] {
            assert!(waiting.message("win-1").contains(expected), "{waiting:?}: {}", waiting.message("win-1"));
        }
    }

    #[test]
    fn a_hold_is_named_with_its_end() {
        let held = Waiting { held: true, ..Waiting::default() }.message("win-1").into_owned();
        assert!(held.contains(&format!("{}=true", key::HOLD)), "{held}");
        assert!(held.ends_with("kubectl windows-node-pools release win-1"), "{held}");
    }
}
