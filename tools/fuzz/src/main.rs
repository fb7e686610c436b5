//! Fuzz targets in one program, because linking one program per target takes longer than running all. `FUZZ_TARGET` selects the target.

#![no_main]

mod files;
mod messages;
mod signatures;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// Targets in alphabetical order. The seeds of a target are in `tools/fuzz/seeds/<name>`, and in folders that `tools/xtask/src/fuzz.rs` lists.
const TARGETS: &[(&str, Target)] = &[
    ("answer", messages::answer),
    ("artifact", files::artifact),
    ("artifact-tar", files::artifact_tar),
    ("csr", messages::csr),
    ("hosts", files::hosts),
    ("kept", files::kept),
    ("keys", signatures::keys),
    ("known-hosts", files::known_hosts),
    ("object", signatures::object),
    ("release", files::release),
    ("signature", signatures::signature),
    ("support", messages::support),
    ("username", messages::username),
    ("webhook", messages::webhook),
    ("windows-instances", files::windows_instances),
];

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => {
            eprintln!("FUZZ_TARGET={name:?} is not a fuzz target");
            std::process::exit(2);
        }
    }
});

fuzz_target!(|data: &[u8]| CHOSEN(data));

/// Panics if a message for users has more than `most` characters, or contains control characters, which could move a terminal's cursor.
fn assert_fit_for_people(message: &str, most: usize) {
    assert!(message.chars().count() <= most, "too long: {message:?}");
    assert!(!message.chars().any(char::is_control), "control characters: {message:?}");
}
