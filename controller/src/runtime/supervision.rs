//! Supervision of tasks and reconciles, so that faults of the operator do not go unnoticed: a task that ends also ends the process, and a panic in a
//! reconcile is an error of the reconciled object.

use api::Reason;
use std::{any::Any, collections::HashMap, panic::AssertUnwindSafe};

use futures::FutureExt;
use tokio::task::{Id, JoinSet};

/// Panic in a reconcile, which is a fault of the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an internal fault of the operator interrupted its work: {message}; the operator retries. Report the fault with the operator's log"
)]
pub(crate) struct Panicked {
    message: String,
}

impl Panicked {
    /// Reason for conditions and events.
    pub(crate) const REASON: Reason = Reason::InternalError;
}

/// Runs a reconcile. A panic is returned as an error, so that it stops neither the controller nor other objects.
///
/// A reconcile may end at any point: shared data is behind locks that a panic does not poison, and essential state is stored before it takes effect.
pub(crate) async fn catch<T>(reconcile: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(reconcile).catch_unwind().await.map_err(|payload| Panicked { message: message(&*payload) })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").chars().filter(|c| !c.is_control()).take(300).collect()
}

/// Tasks that must all run while the process works.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Starts a task.
    pub(crate) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Waits until any task ends. Returns its name and the way in which it ended, or `None` if there are no tasks.
    pub(crate) async fn first_end(&mut self) -> Option<String> {
        let (id, how) = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => (id, "ended by itself".to_owned()),
            Err(error) => {
                let id = error.id();
                let panic = error.try_into_panic().map(|payload| message(&*payload));
                (id, panic.map_or_else(|_| "was aborted".to_owned(), |m| format!("panicked: {m}")))
            }
        };
        Some(format!(
            "{} {how}; this process exits, and kubelet restarts it",
            self.names.get(&id).copied().unwrap_or("a task")
        ))
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn all_end(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault() {
        panic!("one field is too large\u{1b}[2J");
    }

    #[tokio::test]
    async fn a_panic_in_a_reconcile_is_an_error_of_its_object() {
        assert_eq!(catch(async { 7 }).await, Ok(7));
        let error = catch(async { fault() }).await.unwrap_err();
        assert!(error.to_string().contains("one field is too large[2J"), "{error}");
    }

    #[tokio::test]
    async fn the_first_task_that_ends_is_noticed_while_others_go_on() {
        for (task, expected) in [
            (
                async { fault() }.boxed(),
                "the pool controller panicked: one field is too large[2J; this process exits, and kubelet restarts it",
            ),
            (async {}.boxed(), "the pool controller ended by itself; this process exits, and kubelet restarts it"),
        ] {
            let mut tasks = Tasks::default();
            tasks.spawn("the instance controller", std::future::pending());
            tasks.spawn("the pool controller", task);
            assert_eq!(tasks.first_end().await.as_deref(), Some(expected));
        }
        assert_eq!(Tasks::default().first_end().await, None);
    }
}
