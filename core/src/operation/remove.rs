//! The next step of taking a host out.
//!
//! Until the host is being deconfigured, its removal can be revoked: it is only marked as leaving, and at most cordoned
//! and drained. What cannot be revoked begins with the deletion of the instance.

use api::{GrantType, WindowsInstance};

/// A step, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Take no new pods.
    Cordon,
    /// Move the pods away.
    Drain,
    /// Remove everything that the operator put on the host.
    Deconfigure,
    /// Delete the Node.
    DeleteNode,
}

impl Step {
    /// As the status shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cordon => "Cordon",
            Self::Drain => "Drain",
            Self::Deconfigure => "Deconfigure",
            Self::DeleteNode => "DeleteNode",
        }
    }

    /// The step with that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Cordon, Self::Drain, Self::Deconfigure, Self::DeleteNode].into_iter().find(|s| s.as_str() == name)
    }
}

/// What is seen.
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent observation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Whether the Node is there and is this host's.
    pub node: bool,
    /// Whether it is cordoned, by this operation or by another client before it.
    pub cordoned: bool,
    /// Whether the last pass of the drain found it empty. Counts for one choice only.
    pub drained: bool,
    /// Whether the instance is being deleted: then the removal can no longer be revoked.
    pub deleted: bool,
    /// Whether anything was ever put on the host.
    pub touched: bool,
    /// Whether the host was found clean in this operation.
    pub clean: bool,
    /// The step that this operation had begun. It is stored before a step begins, so all earlier ones were seen done.
    pub begun: Option<Step>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This step.
    Do(Step),
    /// Delete the instance, if the host is still to leave.
    Delete,
    /// Nothing: the host is out.
    Gone,
}

/// Whether the removal of a host can no longer be revoked.
pub fn is_past_return(instance: &WindowsInstance) -> bool {
    let operation = instance.status.as_ref().and_then(|s| s.operation.as_ref());
    let deconfigures =
        operation.is_some_and(|o| o.type_ == GrantType::Remove && Step::parse(&o.step) >= Some(Step::Deconfigure));
    instance.is_deleting() && deconfigures
}

/// Chooses the next step.
pub fn next(seen: Seen) -> Next {
    // Past the drain the services on the host may be stopped already: no pod can be moved any more, none must be waited for.
    let past_drain = seen.begun >= Some(Step::Deconfigure);
    if seen.node && !past_drain {
        if !seen.cordoned {
            return Next::Do(Step::Cordon);
        }
        if !seen.drained {
            return Next::Do(Step::Drain);
        }
    }
    if !seen.deleted {
        return Next::Delete;
    }
    if seen.touched && !seen.clean && seen.begun != Some(Step::DeleteNode) {
        return Next::Do(Step::Deconfigure);
    }
    if seen.node { Next::Do(Step::DeleteNode) } else { Next::Gone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        use Next::{Delete, Do, Gone};
        use Step::{Cordon, Deconfigure, DeleteNode, Drain};
        let marked = Seen { node: true, touched: true, ..Seen::default() };
        let node = Seen { deleted: true, ..marked };
        let deleted = Seen { deleted: true, ..Seen::default() };
        for (name, seen, expected) in [
            ("a node that is marked", marked, Do(Cordon)),
            ("cordoned", Seen { cordoned: true, ..marked }, Do(Drain)),
            ("drained, and nothing of it is done yet", Seen { cordoned: true, drained: true, ..marked }, Delete),
            ("marked before it had a Node", Seen { touched: true, ..Seen::default() }, Delete),
            ("marked before it was reached", Seen::default(), Delete),
            ("a node that a person deletes", node, Do(Cordon)),
            ("cordoned", Seen { cordoned: true, ..node }, Do(Drain)),
            (
                "another client lifts the cordon in the middle",
                Seen { drained: true, begun: Some(Drain), ..node },
                Do(Cordon),
            ),
            ("drained", Seen { cordoned: true, drained: true, ..node }, Do(Deconfigure)),
            (
                "the operator died while deconfiguring",
                Seen { cordoned: true, begun: Some(Deconfigure), ..node },
                Do(Deconfigure),
            ),
            (
                "clean",
                Seen { cordoned: true, drained: true, clean: true, begun: Some(Deconfigure), ..node },
                Do(DeleteNode),
            ),
            (
                "the operator died before the Node was deleted",
                Seen { cordoned: true, begun: Some(DeleteNode), ..node },
                Do(DeleteNode),
            ),
            ("the Node is gone", Seen { touched: true, clean: true, ..deleted }, Gone),
            ("the Node was deleted by hand", Seen { touched: true, ..deleted }, Do(Deconfigure)),
            ("it is deleted and the operator died", Seen { touched: true, begun: Some(DeleteNode), ..deleted }, Gone),
            ("the host was never reached", deleted, Gone),
        ] {
            assert_eq!(next(seen), expected, "{name}");
        }
        for step in [Cordon, Drain, Deconfigure, DeleteNode] {
            assert_eq!(Step::parse(step.as_str()), Some(step));
        }
    }
}
