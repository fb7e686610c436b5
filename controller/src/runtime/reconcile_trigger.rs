//! Trigger of pools for something that is no object of the cluster's API.

use std::sync::Arc;

use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Channel on which a source reports a change.
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
    /// Triggers the pool of this name.
    pub(crate) fn pool(&self, name: &str) {
        // Without a receiver no reconcile is needed.
        let _ = self.sender.send(name.to_owned());
    }

    /// Streams the names of pools to reconcile. The first caller gets them; there is one pool controller.
    pub(crate) fn pools(&self) -> impl Stream<Item = String> + Send + 'static {
        let receiver = self.receiver.lock().take();
        stream::unfold(receiver, |receiver| async move {
            let mut receiver = receiver?;
            receiver.recv().await.map(|name| (name, Some(receiver)))
        })
    }
}
