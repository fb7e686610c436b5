//! Names for hosts of lists that have none. Pure.
//!
//! The name of a host is what the host itself says at first contact, not what DNS says. A host that is there already keeps the name
//! that it has, whatever it says later.

use std::collections::BTreeMap;

use api::Host;

use super::{Entry, Problem, hosts::canonical};

/// Where a host answers: its address in one form for all ways to write it, and its port.
pub type Place = (String, i32);

/// What a host has said of its name; or the reason and the message why there is no usable one.
pub type Said = Result<String, (&'static str, String)>;

/// What is known of names.
pub struct Names<'a> {
    /// Of instances of this pool, by place.
    pub instances: &'a BTreeMap<Place, String>,
    /// Of the Node that has this address and was made by the legacy operator, or by this one.
    pub node: &'a dyn Fn(&str) -> Option<String>,
    /// What the host at a place has said, or why it could not be asked. `None`: it was not asked yet.
    pub said: &'a dyn Fn(&Place) -> Option<Said>,
}

/// Entries with names, and hosts that have to be asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Entries, each with a name.
    pub entries: Vec<Entry>,
    /// Hosts without one.
    pub unnamed: Vec<Entry>,
    /// Those of them that could not be asked, or have no usable name.
    pub problems: Vec<Problem>,
}

/// Gives a name to each entry that has none, as far as it is known. `port` is that of entries that say nothing.
pub fn name(entries: Vec<Entry>, port: i32, names: &Names<'_>) -> Named {
    let mut named = Named::default();
    for mut entry in entries {
        if !entry.host.name.is_empty() {
            named.entries.push(entry);
            continue;
        }
        let place = place(&entry.host, port);
        let known = names.instances.get(&place).cloned().or_else(|| (names.node)(&place.0));
        let found =
            known.map(Ok).or_else(|| (names.said)(&place).map(|said| said.and_then(|n| usable(&entry.host, &n))));
        match found {
            Some(Ok(name)) => {
                entry.host.name = name;
                named.entries.push(entry);
            }
            Some(Err((reason, message))) => {
                named.problems.push(Problem { host: entry.host.address.clone(), reason, message });
                named.unnamed.push(entry);
            }
            None => named.unnamed.push(entry),
        }
    }
    named
}

/// Where a host answers. `port` holds if it says nothing.
pub fn place(host: &Host, port: i32) -> Place {
    (canonical(&host.address), host.port.unwrap_or(port))
}

/// The name of a Node for what a host calls itself. Windows likes capitals, Kubernetes takes none.
fn usable(host: &Host, said: &str) -> Said {
    let name = said.to_ascii_lowercase();
    let label = |l: &str| {
        !l.is_empty()
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    if name.len() <= 63 && name.split('.').all(label) {
        return Ok(name);
    }
    let message = format!(
        "the host at {} calls itself {:?}, which can be no name of a Node: rename the host",
        host.address,
        said.chars().take(64).collect::<String>()
    );
    Err(("InvalidHostname", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(name: &str, address: &str) -> Entry {
        Entry { host: Host { name: name.into(), address: address.into(), ..Host::default() }, origin: None }
    }

    #[test]
    fn a_host_keeps_its_name_and_else_tells_it() {
        let instances = BTreeMap::from([(("10.0.0.1".to_string(), 22), "known".to_string())]);
        let node = |address: &str| (address == "10.0.0.2").then(|| "old-node".to_string());
        let said = |place: &Place| match place.0.as_str() {
            "10.0.0.3" => Some(Ok("WIN-3".to_string())),
            "10.0.0.4" => Some(Ok("WIN_4".to_string())),
            "10.0.0.5" => Some(Err(("Unreachable", "no answer".to_string()))),
            _ => None,
        };
        let names = Names { instances: &instances, node: &node, said: &said };
        for (about, given, expected, problem, asks) in [
            ("it has one", entry("a", "10.0.0.9"), Some("a"), None, false),
            ("of the instance", entry("", "10.0.0.1"), Some("known"), None, false),
            ("of the Node", entry("", "10.0.0.2"), Some("old-node"), None, false),
            ("what the host says", entry("", "10.0.0.3"), Some("win-3"), None, false),
            ("no usable one", entry("", "10.0.0.4"), None, Some("InvalidHostname"), true),
            ("could not be asked", entry("", "10.0.0.5"), None, Some("Unreachable"), true),
            ("not asked yet", entry("", "10.0.0.6"), None, None, true),
            ("another port", entry("", "10.0.0.1"), Some("known"), None, false),
        ] {
            let named = name(vec![given], 22, &names);
            assert_eq!(named.entries.first().map(|e| e.host.name.as_str()), expected, "{about}");
            assert_eq!(named.problems.first().map(|p| p.reason), problem, "{about}");
            assert_eq!(named.unnamed.len(), usize::from(asks), "{about}");
        }
        let other = name(vec![entry("", "10.0.0.1")], 2222, &names);
        assert!(other.entries.is_empty(), "a host at another port is another host");
    }

    proptest! {
        #[test]
        fn whatever_a_host_says_is_a_name_or_a_problem(said in ".{0,80}") {
            if let Ok(name) = usable(&Host::default(), &said) {
                prop_assert!(name.len() <= 63 && !name.is_empty());
                prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
            }
        }
    }
}
