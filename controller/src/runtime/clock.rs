//! Clock for decisions: the time of the API server, continued by the monotonic clock between its responses.
//!
//! Until the first correction, it continues the time that the operator's machine had at the first use. A wrong or changed clock of the machine then
//! ends no timeout, opens no maintenance window, and is not taken for a fault of a host.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Known time at an instant of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Instant,
    time: Timestamp,
}

impl Known {
    fn now(self, now: Instant) -> Timestamp {
        let passed = SignedDuration::try_from(now.saturating_duration_since(self.at)).unwrap_or_default();
        self.time.checked_add(passed).unwrap_or(self.time)
    }
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Returns the current time of the API server, as far as it is known.
pub(crate) fn now() -> Timestamp {
    let now = Instant::now();
    KNOWN.lock().get_or_insert_with(|| Known { at: now, time: Timestamp::now() }).now(now)
}

/// Corrects the clock by a difference on which the responses of the API server agree.
pub(crate) fn correct(by: SignedDuration) {
    let (now, mut known) = (Instant::now(), KNOWN.lock());
    let time = known.map_or_else(Timestamp::now, |known| known.now(now));
    *known = time.checked_add(by).ok().map(|time| Known { at: now, time });
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;

    #[test]
    fn time_passes_as_the_monotonic_clock_does() {
        let (at, time) = (Instant::now(), "2027-01-01T00:00:00Z".parse().unwrap());
        let known = Known { at, time };
        assert_eq!(known.now(at + Duration::from_secs(90)), "2027-01-01T00:01:30Z".parse::<Timestamp>().unwrap());
        assert_eq!(known.now(at), time);
    }

    /// Commands, and text that is only shown, may use the machine's clock.
    #[test]
    fn no_controller_uses_the_clock_of_the_machine() {
        let mut found = Vec::new();
        let mut folders = ["instance", "pool", "inventory", "drain", "csr"].map(Into::into).to_vec();
        while let Some(folder) = folders.pop() {
            let folder: std::path::PathBuf = folder;
            for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&folder)).unwrap() {
                let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
                if path.is_dir() {
                    folders.push(folder.join(name));
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let is_test = path.to_string_lossy().ends_with("tests.rs") || path.ends_with("instance/test_bed.rs");
                if !is_test
                    && ["Timestamp::now()", " Time::now()", "SystemTime::now()"].iter().any(|call| code.contains(call))
                {
                    found.push(path);
                }
            }
        }
        assert!(found.is_empty(), "{found:?} read the clock of the machine: use clock::now");
    }
}
