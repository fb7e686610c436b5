//! Host keys that the legacy operator has seen and not yet written to a Node. The ConfigMap `windows-ssh-host-keys` maps addresses to keys in
//! base64 of the SSH wire format. It is only read: the keys are then pinned in the instance's status.
//!
//! The legacy operator leaves the entry of a Machine that never became a node, and a cloud may give the address to another machine later. So for
//! a Machine, an entry counts only if it may have been written after the Machine was created. Entries have no timestamp; an entry is not newer
//! than the last write of its manager (`metadata.managedFields`).

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use api::names::LEGACY_HOST_KEYS;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex;
use wnp_core::inventory::address::canonical;

use remote::ssh::HostKey;
use wnp_core::operation::host_key_problem::HostKeyProblem;

/// Error of an unusable ConfigMap.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WmcoHostKeysError {
    /// The ConfigMap cannot be read.
    #[error("failed to get the ConfigMap {LEGACY_HOST_KEYS}: {}", crate::runtime::errors::api_message(.0))]
    Api(#[source] kube::Error),
    /// The entry of the host is not a valid key.
    #[error("{0}")]
    Key(#[from] HostKeyProblem),
}

/// Reader of the ConfigMap.
pub(crate) struct WmcoHostKeys {
    api: Api<ConfigMap>,
    /// Outcome of the last request, with the time at which the request began.
    seen: Mutex<Option<(Instant, Outcome)>>,
}

/// Content of the ConfigMap: key and time of the last write, by address.
pub(crate) type Entries = BTreeMap<String, (String, Option<Timestamp>)>;

/// Content, or the message of the failure to read it.
type Outcome = Result<Arc<Entries>, String>;

impl WmcoHostKeys {
    /// Creates a reader of the ConfigMap in `namespace`.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), seen: Mutex::default() }
    }

    /// Returns the key of an address, unless it was last written before `since`.
    ///
    /// # Errors
    /// Fails when the ConfigMap or the entry cannot be read: a recorded key must not be ignored.
    pub(crate) async fn of(
        &self,
        address: &str,
        since: Option<Timestamp>,
    ) -> Result<Option<HostKey>, WmcoHostKeysError> {
        Ok(find(&*self.read().await?, address, since)?)
    }

    /// Returns the content at a time after the call: a key that was recorded before is never missed. Callers that ask during a request share the
    /// next one, and its failure.
    pub(crate) async fn read(&self) -> Result<Arc<Entries>, WmcoHostKeysError> {
        let asked = Instant::now();
        let mut seen = self.seen.lock().await;
        if let Some((_, outcome)) = seen.as_ref().filter(|(began, _)| *began >= asked) {
            return outcome.clone().map_err(|error| WmcoHostKeysError::Api(kube::Error::Service(error.into())));
        }
        let began = Instant::now();
        match self.api.get_opt(LEGACY_HOST_KEYS).await {
            Ok(map) => {
                let entries = Arc::new(map.as_ref().map(entries).unwrap_or_default());
                *seen = Some((began, Ok(entries.clone())));
                Ok(entries)
            }
            Err(error) => {
                *seen = Some((began, Err(crate::runtime::errors::api_message(&error))));
                Err(WmcoHostKeysError::Api(error))
            }
        }
    }
}

fn entries(map: &ConfigMap) -> Entries {
    let data = map.data.clone().unwrap_or_default();
    data.into_iter().map(|(address, key)| (address.clone(), (key, written(map, &address)))).collect()
}

/// Returns the time of the last write by the managers of an entry; `None` if it is unknown.
fn written(map: &ConfigMap, address: &str) -> Option<Timestamp> {
    let field = format!("f:{address}");
    let owns = |fields: &serde_json::Value| fields.get("f:data").and_then(|data| data.get(&field)).is_some();
    let owners = map.managed_fields().iter().filter(|m| m.fields_v1.as_ref().is_some_and(|f| owns(&f.0)));
    owners.filter_map(|m| m.time.as_ref().map(|t| t.0)).max()
}

/// Returns the key of an address, unless it was last written before `since`.
///
/// # Errors
/// Fails when the entry is not a host key.
pub(crate) fn find(
    entries: &Entries,
    address: &str,
    since: Option<Timestamp>,
) -> Result<Option<HostKey>, HostKeyProblem> {
    let wanted = canonical(address);
    let Some((at, (key, written))) = entries.iter().find(|(at, _)| canonical(at) == wanted) else { return Ok(None) };
    if let (Some(written), Some(since)) = (written, since)
        && *written < since
    {
        return Ok(None);
    }
    let place = || format!("entry {at} of the ConfigMap {LEGACY_HOST_KEYS}");
    HostKey::parse(key).map(Some).map_err(|error| HostKeyProblem::Unusable { place: place(), error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use serde_json::{Value, json};

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    fn map() -> Entries {
        let map = json!({
            "metadata": {"name": LEGACY_HOST_KEYS, "managedFields": [
                {"manager": "old", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {"f:10.0.0.3": {}}}},
                {"manager": "new", "time": "2026-03-01T00:00:00Z", "fieldsV1": {"f:data": {".": {}, "f:10.0.0.4": {}}}},
            ]},
            "data": {"win-1.example.com": KEY, "10.0.0.2": "no key", "10.0.0.3": KEY, "10.0.0.4": KEY},
        });
        entries(&serde_json::from_value(map).unwrap())
    }

    #[test]
    fn an_entry_from_before_the_machine_is_ignored_and_a_damaged_one_is_an_error() {
        let machine: Option<Timestamp> = Some("2026-02-01T00:00:00Z".parse().unwrap());
        for (address, since, expected) in [
            ("WIN-1.example.com.", None, Ok(true)),
            // The time of the write is not recorded.
            ("win-1.example.com", machine, Ok(true)),
            ("10.0.0.2", None, Err("HostKeyInvalid")),
            ("10.0.0.2", machine, Err("HostKeyInvalid")),
            ("10.0.0.3", None, Ok(true)),
            ("10.0.0.3", machine, Ok(false)),
            ("10.0.0.4", machine, Ok(true)),
            ("10.0.0.5", None, Ok(false)),
        ] {
            let found = find(&map(), address, since);
            let found = found.map(|k| k.is_some()).map_err(|e| e.reason().as_str());
            assert_eq!(found, expected, "{address} {since:?}");
        }
        let says = find(&map(), "10.0.0.2", None).unwrap_err().to_string();
        assert!(says.contains("entry 10.0.0.2 of the ConfigMap windows-ssh-host-keys"), "{says}");
    }
    #[tokio::test]
    async fn a_key_that_is_recorded_before_the_request_is_never_missed() {
        const PATH: &str = "/api/v1/namespaces/operator/configmaps/windows-ssh-host-keys";
        let api = FakeApi::new();
        let keys = WmcoHostKeys::new(api.client(), "operator");
        let asked = |at: &'static str| keys.of(at, None);
        let recorded = json!({"metadata": {"name": LEGACY_HOST_KEYS}, "data": {"10.0.0.3": KEY}});
        api.fail("GET", PATH, 404, "NotFound", "there is none", Value::Null);
        assert!(asked("10.0.0.3").await.unwrap().is_none());
        let gate = api.forget("GET", PATH).hold("GET", PATH, recorded.clone());
        api.on("GET", PATH, 200, recorded);
        let (first, second, third, ()) =
            tokio::join!(asked("10.0.0.3"), asked("10.0.0.3"), asked("10.0.0.4"), async { gate.notify_one() });
        assert!(first.unwrap().is_some() && second.unwrap().is_some() && third.unwrap().is_none());
        assert_eq!(api.calls("GET", PATH).len(), 3, "hosts that ask during a request share the next one");

        let gate = api.forget("GET", PATH).hold("GET", PATH, Value::Null);
        api.fail("GET", PATH, 403, "Forbidden", "no", Value::Null);
        let (_, second, third, ()) =
            tokio::join!(asked("10.0.0.3"), asked("10.0.0.3"), asked("10.0.0.4"), async { gate.notify_one() });
        for failed in [second, third] {
            assert!(failed.unwrap_err().to_string().starts_with("failed to get the ConfigMap windows-ssh-host-keys: "));
        }
        assert_eq!(api.calls("GET", PATH).len(), 5, "a failure is shared, too");
    }
}
