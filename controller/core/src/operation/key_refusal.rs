//! Refusals of every listed key by a host: their duration, and whether they mean that the operator is locked out.

use std::time::Duration;

use api::KeyRefusal;
use jiff::Timestamp;

/// Returns the record of a refusal. Continues the record `before` of an earlier refusal of the same keys, and otherwise starts a new record.
pub fn again(before: Option<KeyRefusal>, key_hashes: Vec<String>, now: Timestamp) -> KeyRefusal {
    let now = now.into();
    let first_time = before.filter(|b| b.key_hashes == key_hashes).map_or(now, |b| b.first_time);
    KeyRefusal { key_hashes, first_time, last_time: now }
}

/// Known facts about a host and its keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalFacts<'a> {
    /// Recorded refusal of all keys that were listed.
    pub refusal: Option<&'a KeyRefusal>,
    /// Hashes of the keys that are listed now; `None` if one of the keys is not available.
    pub listed: Option<&'a [String]>,
    /// Hash of the key that the host last accepted, if recorded. Empty if a previous operator marked the host for replacement.
    pub taken: Option<&'a str>,
    /// True if the host is a node, of this operator or of one before it.
    pub is_node: bool,
}

/// Reason why a refusal by a node is unclear if the key that the node accepted is unknown.
const NOT_ON_RECORD: &str = "the operator does not know which key the host accepted before, so it cannot tell whether the fault is on the host or in the keys: add a public key of the pool to the authorized keys on the host (administrators_authorized_keys), or delete the Machine yourself";
/// Reason why a refusal by a node is unclear if the list still has the key that the node accepted.
const SAME_KEY: &str = "the host accepted one of these keys before, so the fault is on the host, not in the keys: check its OpenSSH server and its authorized keys (administrators_authorized_keys), or delete the Machine yourself";

/// Meaning of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// No meaning yet: no refusal is recorded, the host has not refused for long enough, or the listed keys have changed or cannot be read.
    Nothing,
    /// The host rejects every listed key, and it is not a node yet, or the key that it last accepted is not listed.
    LockedOut,
    /// Reason why the key may not be the cause.
    Unclear(&'static str),
}

/// Returns the meaning of a refusal. The refusal counts once the host has refused the same keys for `at_least`, from the first time to the last.
pub fn meaning(seen: RefusalFacts<'_>, at_least: Duration) -> Meaning {
    let (Some(refusal), Some(listed)) = (seen.refusal, seen.listed) else { return Meaning::Nothing };
    let lasted = refusal.first_time.known().zip(refusal.last_time.known()).and_then(|(first, last)| {
        // A clock that was set back makes the duration invalid.
        Duration::try_from(last.duration_since(first)).ok()
    });
    if refusal.key_hashes != listed || lasted.is_none_or(|lasted| lasted < at_least) {
        return Meaning::Nothing;
    }
    match seen.taken {
        _ if !seen.is_node => Meaning::LockedOut,
        None => Meaning::Unclear(NOT_ON_RECORD),
        Some(taken) if listed.iter().any(|key| key == taken) => Meaning::Unclear(SAME_KEY),
        Some(_) => Meaning::LockedOut,
    }
}

#[cfg(test)]
mod tests {
    use api::Time;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_700_000_000, 0);

    fn at(seconds: i64) -> Timestamp {
        NOW.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap()
    }

    fn keys(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn refusal(names: &[&str], seconds: i64) -> KeyRefusal {
        again(Some(again(None, keys(names), NOW)), keys(names), at(seconds))
    }

    #[test]
    fn a_refusal_of_other_keys_starts_a_new_record() {
        let first = again(None, keys(&["new"]), NOW);
        assert_eq!(first.first_time, first.last_time);
        let second = again(Some(first.clone()), keys(&["new"]), at(60));
        assert_eq!((second.first_time, second.last_time), (first.first_time, at(60).into()));
        for other in [keys(&["old"]), keys(&["new", "old"]), keys(&[])] {
            let third = again(Some(second.clone()), other.clone(), at(90));
            assert_eq!((third.first_time, third.key_hashes), (at(90).into(), other));
        }
    }

    #[test]
    fn only_a_lasting_refusal_of_the_listed_keys_has_a_meaning() {
        use Meaning::{LockedOut, Nothing, Unclear};
        let (long, short) = (refusal(&["new"], 300), refusal(&["new"], 299));
        let (backwards, both) = (refusal(&["new"], -300), refusal(&["new", "newer"], 300));
        let broken = KeyRefusal { first_time: Time::default(), ..long.clone() };
        let (new, newer) = (keys(&["new"]), keys(&["newer"]));
        let (two, with_old) = (keys(&["new", "newer"]), keys(&["new", "old"]));
        let node = RefusalFacts { refusal: Some(&long), listed: Some(&new), taken: Some("old"), is_node: true };
        let unknown = Unclear(NOT_ON_RECORD);
        let broke = Unclear(SAME_KEY);
        for (about, seen, expected) in [
            ("took another key before", node, LockedOut),
            ("a previous operator marked it for replacement", RefusalFacts { taken: Some(""), ..node }, LockedOut),
            ("took this key before", RefusalFacts { taken: Some("new"), ..node }, broke.clone()),
            (
                "took one of several before",
                RefusalFacts { refusal: Some(&both), listed: Some(&two), taken: Some("newer"), ..node },
                broke,
            ),
            ("took none of several", RefusalFacts { refusal: Some(&both), listed: Some(&two), ..node }, LockedOut),
            ("the accepted key is unknown", RefusalFacts { taken: None, ..node }, unknown),
            ("is not a node yet", RefusalFacts { taken: None, is_node: false, ..node }, LockedOut),
            (
                "is not a node yet, and took it once",
                RefusalFacts { taken: Some("new"), is_node: false, ..node },
                LockedOut,
            ),
            ("not for long enough", RefusalFacts { refusal: Some(&short), ..node }, Nothing),
            (
                "not a node yet, not for long enough",
                RefusalFacts { refusal: Some(&short), is_node: false, ..node },
                Nothing,
            ),
            ("a clock was set back", RefusalFacts { refusal: Some(&backwards), ..node }, Nothing),
            ("the start time is unknown", RefusalFacts { refusal: Some(&broken), ..node }, Nothing),
            ("no refusal is recorded", RefusalFacts { refusal: None, ..node }, Nothing),
            ("the key has changed since", RefusalFacts { listed: Some(&newer), ..node }, Nothing),
            ("another key is listed now", RefusalFacts { listed: Some(&with_old), ..node }, Nothing),
            ("a key cannot be read", RefusalFacts { listed: None, ..node }, Nothing),
        ] {
            assert_eq!(meaning(seen, Duration::from_mins(5)), expected, "{about}");
        }
    }
}
