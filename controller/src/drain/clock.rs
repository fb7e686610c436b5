//! Time limit of a drain pass for its API calls.

use std::{fmt::Debug, time::Duration};

use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::error::DrainError;

/// Number of objects per page of a list.
const PAGE: u32 = 500;

/// Time limit of a pass.
pub(super) struct Clock {
    pub(super) deadline: Instant,
    pub(super) limit: Duration,
}

impl Clock {
    /// Awaits one API call until the deadline of the pass. `what` completes "cannot …".
    pub(super) async fn call<T>(
        &self,
        what: impl FnOnce() -> String,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, DrainError> {
        match timeout_at(self.deadline, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(DrainError::Api { what: what(), source: Box::new(source) }),
            Err(_) => Err(DrainError::Slow { what: what(), limit: self.limit }),
        }
    }

    /// Awaits several API calls until the deadline of the pass. `what` completes "cannot …".
    pub(super) async fn bound<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, DrainError>>,
    ) -> Result<T, DrainError> {
        let slow = |_| DrainError::Slow { what: what.to_owned(), limit: self.limit };
        timeout_at(self.deadline, work).await.map_err(slow)?
    }
}

/// Lists all objects, page by page.
pub(super) async fn list_all<K>(
    api: &Api<K>,
    params: ListParams,
    clock: &Clock,
    what: &str,
) -> Result<Vec<K>, DrainError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = params.limit(PAGE);
    let mut items = Vec::new();
    loop {
        let page = clock.call(|| what.to_owned(), api.list(&params)).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(items),
        }
    }
}
