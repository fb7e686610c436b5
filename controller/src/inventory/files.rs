//! Host lists in files, from Git or Flux: entries with their locations, or an error with the findings.

use std::collections::BTreeMap;

use api::{Commit, Origin, Reason};
use gitops::hosts::{self, Finding};

use wnp_core::inventory::{Entry, SourceError};

/// Maximum number of findings in a message.
const SHOWN: usize = 3;

/// Commit that last changed each entry. [`change_key`] returns the key of an entry.
pub(super) type Changes = BTreeMap<(String, String), Commit>;

/// Returns the key of an entry in [`Changes`]: the file, and the name of the host, or its address if it has no name.
pub(super) fn change_key(entry: &hosts::Entry) -> (String, String) {
    let host = &entry.host;
    let name = if host.name.is_empty() { &host.address } else { &host.name };
    (entry.file.clone(), name.clone())
}

/// Returns the entries of files with their locations and last changes.
pub(super) fn placed(entries: Vec<hosts::Entry>, source: &str, revision: &str, changes: &Changes) -> Vec<Entry> {
    let place = |entry: hosts::Entry| {
        let commit = changes.get(&change_key(&entry)).cloned();
        let origin = Origin {
            source: source.into(),
            revision: Some(revision.into()),
            file: Some(entry.file),
            line: i32::try_from(entry.line).ok(),
            commit,
            machine: None,
            provider_id: None,
        };
        Entry { host: entry.host, origin: Some(origin) }
    };
    entries.into_iter().map(place).collect()
}

/// Returns the error for a revision with findings. No part of such a revision is used.
pub(super) fn refused(revision: &str, findings: &[Finding]) -> SourceError {
    let shown: Vec<String> = findings.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = findings.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    SourceError {
        reason: Reason::InvalidInventory,
        message: format!("{revision} is not used: {}{more}", shown.join("; ")),
        stalls: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Host;

    #[test]
    fn an_entry_has_its_location_and_last_change() {
        let host = |name: &str, address: &str| Host { name: name.into(), address: address.into(), ..Host::default() };
        let at = |host, line| hosts::Entry { host, file: "a.yaml".into(), line };
        let commit = |id: &str| Commit { id: id.into(), ..Commit::default() };
        let changes = Changes::from([
            (("a.yaml".to_string(), "w".to_string()), commit("1")),
            (("a.yaml".to_string(), "10.0.0.2".to_string()), commit("2")),
        ]);
        let entries = vec![at(host("w", "10.0.0.1"), 3), at(host("", "10.0.0.2"), 4), at(host("x", "10.0.0.3"), 5)];
        let origins: Vec<Origin> =
            placed(entries, "git u", "main@sha1:f", &changes).into_iter().filter_map(|e| e.origin).collect();
        let ids: Vec<Option<&str>> = origins.iter().map(|o| o.commit.as_ref().map(|c| c.id.as_str())).collect();
        assert_eq!(ids, [Some("1"), Some("2"), None]);
        assert_eq!((origins[1].file.as_deref(), origins[1].line), (Some("a.yaml"), Some(4)));
        assert_eq!((origins[0].source.as_str(), origins[0].revision.as_deref()), ("git u", Some("main@sha1:f")));
    }

    #[test]
    fn findings_are_reported_by_file_and_line() {
        let finding = |file: &str, line, message: &str| Finding { file: file.into(), line, message: message.into() };
        let one = refused("r", &[finding("a.yaml", Some(3), "no address")]);
        assert_eq!(one.message, "r is not used: a.yaml:3: no address");
        let many: Vec<Finding> = (0..5).map(|n| finding("a", None, &n.to_string())).collect();
        assert_eq!(refused("r", &many).message, "r is not used: a: 0; a: 1; a: 2; and 2 more");
        assert_eq!(refused("r", &[finding("", None, "no hosts")]).message, "r is not used: no hosts");
    }
}
