//! Which Machines are replaced because nobody can log in to their hosts: a new one gets the key that is in force. Pure.

use super::read::Machine;

/// A Machine of a MachineSet, and how it does.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The Machine.
    pub machine: &'a Machine,
    /// Whether its Node is Ready.
    pub ready: bool,
    /// Whether its host has refused every key for so long that it will not take one any more.
    pub refuses: bool,
}

/// What to do about a Machine whose host refuses every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is deleted; its MachineSet makes another.
    Delete,
    /// It is not, for this reason.
    Restricted(String),
}

/// What to do about each Machine of one MachineSet whose host refuses every key. One at a time, and only while all others work: what is
/// wrong may be the key.
pub fn verdicts<'a>(members: &[Member<'a>]) -> Vec<(&'a Machine, Verdict)> {
    let unhealthy = |m: &Member<'_>| m.machine.deleting || m.machine.phase != "Running" || !m.ready;
    let refusing = members.iter().filter(|m| m.refuses && !m.machine.deleting && !m.machine.ignored);
    let verdict = |m: &Member<'a>| {
        if m.machine.source.as_ref().is_none_or(|s| s.set.is_none()) {
            return Verdict::Restricted(
                "no MachineSet owns it, so nobody would make another: delete it yourself".into(),
            );
        }
        match members.iter().find(|o| o.machine.uid != m.machine.uid && unhealthy(o)) {
            None => Verdict::Delete,
            Some(other) => Verdict::Restricted(format!(
                "another Machine of its MachineSet does not work either ({}): see whether the private key is the right one",
                other.machine.name
            )),
        }
    };
    refusing.map(|m| (m.machine, verdict(m))).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::read::Source, *};
    use api::MachineGroup;

    #[test]
    fn one_is_replaced_while_all_others_work() {
        let machine = |name: &str, phase: &str, set: Option<&str>| Machine {
            source: Some(Source { group: MachineGroup::OpenShift, namespace: "ns".into(), set: set.map(Into::into) }),
            name: name.into(),
            uid: name.into(),
            windows: true,
            phase: phase.into(),
            ..Machine::default()
        };
        let bad = machine("bad", "Provisioned", Some("s"));
        let good = machine("good", "Running", Some("s"));
        let young = machine("young", "Provisioned", Some("s"));
        let going = Machine { deleting: true, ..machine("going", "Running", Some("s")) };
        let alone = machine("alone", "Provisioned", None);
        let ignored = Machine { ignored: true, ..bad.clone() };
        // Machine, whether its Node is Ready, whether its host refuses.
        for (about, members, expected) in [
            ("nobody refuses", vec![(&good, true, false), (&young, false, false)], vec![]),
            ("the only one", vec![(&bad, false, true)], vec![("bad", true)]),
            ("all others work", vec![(&bad, false, true), (&good, true, false)], vec![("bad", true)]),
            ("another is not Ready", vec![(&bad, false, true), (&good, false, false)], vec![("bad", false)]),
            ("another is new", vec![(&bad, false, true), (&young, false, false)], vec![("bad", false)]),
            ("another goes", vec![(&bad, false, true), (&going, true, false)], vec![("bad", false)]),
            ("two refuse", vec![(&bad, false, true), (&young, false, true)], vec![("bad", false), ("young", false)]),
            ("it goes already", vec![(&going, false, true)], vec![]),
            ("no owner", vec![(&alone, false, true)], vec![("alone", false)]),
            ("not ours", vec![(&ignored, false, true)], vec![]),
        ] {
            let members: Vec<Member<'_>> =
                members.into_iter().map(|(machine, ready, refuses)| Member { machine, ready, refuses }).collect();
            let verdicts = verdicts(&members);
            let seen: Vec<(&str, bool)> =
                verdicts.iter().map(|(m, v)| (m.name.as_str(), *v == Verdict::Delete)).collect();
            assert_eq!(seen, expected, "{about}");
            assert!(verdicts.iter().filter(|(_, v)| *v == Verdict::Delete).count() <= 1, "{about}");
        }
    }
}
