//! Parsers for the untrusted answers of a host, without side effects.

use std::net::IpAddr;

use api::{
    HostFacts, Reason, Time,
    host::{Answer, HostState, Machine, Outcome, PROTOCOL, Verb},
    text,
};
use jiff::Timestamp;

use crate::error::{MAX_MESSAGE, RemoteError};
use wnp_core::operation::{node_ip::node_ip, service_accounts};

/// Maximum number of addresses that are read from a host's answer.
const MAX_ADDRESSES: usize = 64;
const MINUTE_MS: i64 = 60_000;

/// Parses the answer of wicd to `verb` of `operation`. An answer that reports a failure is an error.
///
/// # Errors
/// [`RemoteError::BadAnswer`] when `bytes` is not an answer to `operation` in this version of the protocol.
/// [`RemoteError::Host`] when wicd reported a failure.
pub fn parse_answer(bytes: &[u8], operation: &str, verb: Verb) -> Result<Answer, RemoteError> {
    let bad = || RemoteError::BadAnswer { verb: verb.as_str() };
    let answer: Answer = serde_json::from_slice(bytes).map_err(|_| bad())?;
    if answer.protocol != PROTOCOL || answer.operation != operation {
        return Err(bad());
    }
    match &answer.outcome {
        Outcome::Failed { reason, message } => Err(RemoteError::host(reason, message)),
        Outcome::Done | Outcome::RebootRequired { .. } => Ok(answer),
    }
}

/// Returns the state of the host in an answer.
///
/// # Errors
/// [`RemoteError::Host`] with the warnings of wicd when wicd could not get the state.
pub fn state_of(answer: Answer) -> Result<HostState, RemoteError> {
    let Answer { state, warnings, .. } = answer;
    state.ok_or_else(|| {
        let why = if warnings.is_empty() {
            "wicd did not report the state of the host; the operator retries".to_owned()
        } else {
            warnings.join("; ")
        };
        RemoteError::host(Reason::HostCallFailed.as_str(), &why)
    })
}

/// Returns the facts of a host for its status. `named` is the address that a user configured, `peer` the address that was connected to.
///
/// # Errors
/// [`RemoteError::NoAddress`] when the host has neither `named` nor `peer`, and no other address that its node can use.
pub fn parse_facts(machine: &Machine, named: &str, peer: IpAddr, now: Timestamp) -> Result<HostFacts, RemoteError> {
    let has: Vec<IpAddr> = machine.addresses.iter().filter_map(|a| a.parse().ok()).take(MAX_ADDRESSES).collect();
    let default = machine.default_address.as_ref().and_then(|a| a.parse().ok());
    let ip = node_ip(named, Some(peer), &has, default).ok_or(RemoteError::NoAddress)?;
    Ok(HostFacts {
        hostname: text::line(&machine.hostname, 63),
        machine_id: text::line(&machine.machine_id, 64),
        os_build: text::line(&machine.os_build, 64),
        os_name: text::line(&machine.os_name, 128),
        domain: service_accounts::domain(machine.domain.as_deref()),
        language: machine.language.as_deref().and_then(language),
        boot_id: text::line(&machine.boot_id, 64),
        boot_time: boot_time(machine),
        node_ip: ip.to_string(),
        addresses: has.iter().map(ToString::to_string).collect(),
        clock_skew_seconds: clock_skew_ms(machine, now) / 1000,
    })
}

/// Returns the language that a host reports, if it has the form of a language tag, for example `de-DE`.
fn language(reported: &str) -> Option<String> {
    let is_tag = (2..=35).contains(&reported.len()) && reported.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    is_tag.then(|| reported.to_owned())
}

/// Returns the number of milliseconds by which the host's clock is ahead of `now`; negative if it is behind.
pub fn clock_skew_ms(machine: &Machine, now: Timestamp) -> i64 {
    machine.clock_ms.saturating_sub(now.as_millisecond())
}

/// Returns a host's message, truncated and sanitised.
pub fn message(text: &str) -> String {
    text::line(text, MAX_MESSAGE)
}

/// Returns the boot time of the host by its own clock, which may be wrong. The time is rounded down to the minute, so that it rarely differs between
/// observations.
fn boot_time(machine: &Machine) -> Option<Time> {
    let started = machine.clock_ms.checked_sub(machine.uptime_ms).filter(|_| machine.uptime_ms > 0)?;
    let minute = Timestamp::from_millisecond(started.div_euclid(MINUTE_MS).checked_mul(MINUTE_MS)?).ok()?;
    Some(minute.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(clock_ms: i64, uptime_ms: i64) -> Machine {
        Machine { clock_ms, uptime_ms, addresses: vec!["10.0.0.1".into()], ..Machine::default() }
    }

    /// Text from a host is shown in conditions, events and terminals.
    #[test]
    fn messages_of_a_host_are_sanitised() {
        for word in ["a\u{202e}b", "a\u{200b}b", "a\u{1b}[2Jb", "a\nb", "a\u{feff}b"] {
            let shown = message(word);
            assert!(shown.starts_with('a') && shown.ends_with('b'), "{shown:?}");
            assert!(shown.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{shown:?}");
        }
        assert_eq!(message(&"x".repeat(100_000)).len(), MAX_MESSAGE);
    }

    #[test]
    fn the_boot_time_is_rounded_down_to_the_minute() {
        for (clock_ms, uptime_ms, expected) in [
            (120_000, 1, Some("1970-01-01T00:01:00Z")),
            (120_000, 60_000, Some("1970-01-01T00:01:00Z")),
            // Boot time before the epoch, because the clock is not set.
            (0, 1, Some("1970-01-01T00:00:00Z")),
            (120_000, 0, None),
            (120_000, -5, None),
            (i64::MIN, 1, None),
            // Rounding down to the minute overflows.
            (i64::MIN + 1, 1, None),
            (i64::MAX, 1, None),
        ] {
            assert_eq!(
                boot_time(&machine(clock_ms, uptime_ms)).map(|t| t.to_string()).as_deref(),
                expected,
                "{clock_ms} {uptime_ms}"
            );
        }
    }

    #[test]
    fn only_language_tags_are_accepted() {
        for (reported, shown) in
            [("de-DE", true), ("zh-Hant-TW", true), ("", false), ("a\u{1b}", false), ("e n", false)]
        {
            assert_eq!(language(reported).is_some(), shown, "{reported:?}");
        }
        assert_eq!(language(&"x".repeat(36)), None);
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        let read = |protocol: u32, operation: &str, outcome: &str| {
            let text = format!(r#"{{"protocol":{protocol},"operation":"{operation}","outcome":{outcome}}}"#);
            parse_answer(text.as_bytes(), "join-1", Verb::Apply)
                .map(|a| a.operation)
                .map_err(|e| e.reason().to_string())
        };
        let failed = r#"{"failed":{"reason":"DiskFull","message":"no room"}}"#;
        for (protocol, operation, outcome, expected) in [
            (PROTOCOL, "join-1", r#""done""#, Ok("join-1")),
            (PROTOCOL, "join-1", r#"{"rebootRequired":{"why":"x"}}"#, Ok("join-1")),
            (PROTOCOL, "join-1", failed, Err("DiskFull")),
            (PROTOCOL, "join-0", r#""done""#, Err("HostFilesChanged")),
            (PROTOCOL + 1, "join-1", r#""done""#, Err("HostFilesChanged")),
            (PROTOCOL, "join-1", "7", Err("HostFilesChanged")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(read(protocol, operation, outcome), expected, "{protocol} {operation} {outcome}");
        }
    }

    #[test]
    fn an_answer_without_a_state_fails_with_its_warnings() {
        let answer = |state: &str, warnings: &str| {
            let text = format!(
                r#"{{"protocol":{PROTOCOL},"operation":"facts-1","outcome":"done","state":{state},"warnings":{warnings}}}"#
            );
            state_of(serde_json::from_str(&text).unwrap()).map(drop).map_err(|error| error.to_string())
        };
        for (warnings, expected) in [
            (r#"["cannot get the state of the host: x"]"#, "cannot get the state of the host: x"),
            ("[]", "wicd did not report the state of the host; the operator retries"),
        ] {
            assert_eq!(answer("null", warnings), Err(expected.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn any_clock_is_accepted(clock_ms: i64, uptime_ms: i64, now in -1_000_000_000_i64..4_000_000_000) {
            let now = Timestamp::from_second(now).unwrap();
            let peer = IpAddr::from([10, 0, 0, 1]);
            prop_assert!(parse_facts(&machine(clock_ms, uptime_ms), "win-1", peer, now).is_ok());
        }
    }
}
