//! ConfigMap with hosts in the format of WMCO: addresses, and the users to log in as.

use api::{Host, InventoryStatus, Origin, Reason};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};

use crate::{cluster::texts, context::Context, inventory::temporary, runtime::clock};
use gitops::hosts::{Bad, windows_instances};
use wnp_core::inventory::{Entry, EntryError, HostList, SourceError, SourceOutcome};

/// Delay before the ConfigMap is read again after an error of the API server.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Returns the host list in a ConfigMap. Its hosts have no names: each host reports its own.
pub(crate) fn read(map: ConfigMap) -> HostList {
    let (source, revision) = (format!("ConfigMap {}", map.name_any()), map.resource_version());
    let (entries, bad) = windows_instances(&texts::entries(map));
    let origin = Origin { source: source.clone(), revision: revision.clone(), ..Origin::default() };
    let entry = |(address, username)| Entry {
        host: Host { address, username: Some(username), ..Host::default() },
        origin: Some(origin.clone()),
    };
    let problem = |bad: Bad| EntryError {
        host: bad.key,
        reason: Reason::InvalidInventory,
        message: format!("{source}: {}", bad.message),
    };
    HostList {
        entries: entries.into_iter().map(entry).collect(),
        problems: bad.into_iter().map(problem).collect(),
        status: Some(InventoryStatus { source: source.clone(), revision, ..InventoryStatus::default() }),
        ..HostList::default()
    }
}

/// Reads the host list from a ConfigMap in the operator's namespace.
///
/// A missing ConfigMap removes no hosts, not even if it is `windows-instances`. A ConfigMap is missing for a moment when it is replaced, and for
/// longer when the operator's namespace is deleted and created again.
pub(crate) async fn ask(name: &str, cx: &Context) -> SourceOutcome {
    let api: Api<ConfigMap> = Api::namespaced(cx.cluster.client.clone(), &cx.process.args.namespace);
    match api.get_opt(name).await {
        Ok(Some(map)) => {
            let list = read(map);
            SourceOutcome::Listed(Box::new(HostList { read_at: Some(clock::now()), ..list }))
        }
        Ok(None) => {
            let message = format!(
                "the ConfigMap {}/{name} does not exist: create it, or name another in inventory.configMapRef",
                cx.process.args.namespace
            );
            SourceOutcome::Missing(SourceError { reason: Reason::SourceNotFound, message, stalls: true })
        }
        Err(error) => {
            let message = format!(
                "the ConfigMap {name} could not be read: {}; the operator retries, and the hosts stay as they are",
                crate::runtime::errors::api_message(&error)
            );
            SourceOutcome::Unknown(temporary(Reason::ApiError, message), clock::now().checked_add(RETRY).ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(mut object: serde_json::Value) -> ConfigMap {
        object["metadata"] = json!({"name": "windows-instances", "resourceVersion": "42"});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn entries_in_binary_data_are_read() {
        let base64 = |bytes: &[u8]| serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap();
        let utf16: Vec<u8> = "\u{feff}username=core\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let listing = read(map(json!({
            "data": {"10.0.0.1": "username=core"},
            "binaryData": {"10.0.0.2": base64(&utf16), "10.0.0.3": base64(b"username=J\xf6rg")},
        })));
        let hosts: Vec<&str> = listing.entries.iter().map(|e| e.host.address.as_str()).collect();
        assert_eq!(hosts, ["10.0.0.1", "10.0.0.2"]);
        let [problem] = listing.problems.as_slice() else { panic!("{:?}", listing.problems) };
        // The key of a bad entry keeps the host with that address.
        assert!(problem.host == "10.0.0.3" && problem.message.contains("not text in UTF-8"), "{problem:?}");
    }

    #[test]
    fn entries_have_no_names_and_faulty_ones_do_not_affect_the_others() {
        let listing = read(map(json!({
            "data": {"10.0.0.1": "username=Administrator", "win.example.com": "username=core\n", "10.0.0.3": "core"},
        })));
        let seen: Vec<(&str, Option<&str>)> =
            listing.entries.iter().map(|e| (e.host.address.as_str(), e.host.username.as_deref())).collect();
        assert_eq!(seen, [("10.0.0.1", Some("Administrator")), ("win.example.com", Some("core"))]);
        let origin =
            Origin { source: "ConfigMap windows-instances".into(), revision: Some("42".into()), ..Origin::default() };
        assert!(listing.entries.iter().all(|e| e.host.name.is_empty() && e.origin.as_ref() == Some(&origin)));
        let problem = &listing.problems[0];
        assert_eq!((problem.host.as_str(), problem.reason), ("10.0.0.3", Reason::InvalidInventory));
        assert!(problem.message.starts_with("ConfigMap windows-instances: 10.0.0.3: "), "{}", problem.message);
        let status = listing.status.unwrap();
        assert_eq!((status.source.as_str(), status.revision.as_deref()), ("ConfigMap windows-instances", Some("42")));
    }
}
