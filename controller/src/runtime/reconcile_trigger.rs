//! Trigger for reconciles of pools after a change that the watches of the pool controller do not report.

use std::sync::Arc;

use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Channel that carries the names of pools to reconcile. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ReconcileTrigger {
    sender: mpsc::UnboundedSender<String>,
    receiver: Arc<Mutex<Option<mpsc::UnboundedReceiver<String>>>>,
}

impl Default for ReconcileTrigger {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(Mutex::new(Some(receiver))) }
    }
}

impl ReconcileTrigger {
    /// Triggers a reconcile of the pool with this name.
    pub(crate) fn pool(&self, name: &str) {
        // Sending fails only if the receiver is gone, and no reconcile is needed then.
        let _ = self.sender.send(name.to_owned());
    }

    /// Triggers a reconcile of each of these pools.
    pub(crate) fn pools(&self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        for name in names {
            self.pool(name.as_ref());
        }
    }

    /// Streams the names of pools to reconcile. Only the first caller gets them, because there is one pool controller. For others, the stream is
    /// empty.
    pub(crate) fn triggered(&self) -> impl Stream<Item = String> + Send + 'static {
        let receiver = self.receiver.lock().take();
        stream::unfold(receiver, |receiver| async move {
            let mut receiver = receiver?;
            receiver.recv().await.map(|name| (name, Some(receiver)))
        })
    }
}
