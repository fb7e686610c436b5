//! Rotation of the logs of services that do not rotate theirs: values for `kube-log-runner`, which refuses to start with a
//! wrong one. So each is checked here first.

/// How logs are rotated. `None` leaves the flag out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Size at which a file is put aside: a Kubernetes quantity.
    pub size: Option<String>,
    /// Age at which a file that was put aside is deleted: a Go duration. Without it none ever is.
    pub age: Option<String>,
    /// How often the file is flushed to disk: a Go duration.
    pub flush: Option<String>,
}

impl Default for LogSettings {
    /// WMCO does not rotate unless told to; hosts whose disks fill up are among its users' complaints.
    fn default() -> Self {
        Self { size: Some("100Mi".into()), age: Some("168h".into()), flush: None }
    }
}

/// An environment variable has a value that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the environment variable {variable} is {value:?}; it must be {expected}")]
pub struct LogSettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl LogSettingsError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        "LogSettingsInvalid"
    }
}

impl LogSettings {
    /// Environment variable for [`LogSettings::size`]. This and the next two are WMCO's.
    pub const SIZE: &str = "SERVICES_LOG_FILE_SIZE";
    /// Environment variable for [`LogSettings::age`].
    pub const AGE: &str = "SERVICES_LOG_FILE_AGE";
    /// Environment variable for [`LogSettings::flush`].
    pub const FLUSH: &str = "SERVICES_LOG_FLUSH_INTERVAL";

    /// From the operator's environment. Values are trimmed; an empty or missing one leaves the default.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, LogSettingsError> {
        let read = |variable, fine: fn(&str) -> bool, expected, default| match get(variable) {
            Some(value) if value.trim().is_empty() => Ok(default),
            Some(value) if fine(value.trim()) => Ok(Some(value.trim().to_owned())),
            Some(value) => Err(LogSettingsError { variable, value, expected }),
            None => Ok(default),
        };
        let duration = "a duration of 0 or more, as 5s or 1h30m";
        let Self { size, age, flush } = Self::default();
        Ok(Self {
            size: read(Self::SIZE, is_quantity, "a quantity of bytes, as 100Mi", size)?,
            age: read(Self::AGE, is_duration, duration, age)?,
            flush: read(Self::FLUSH, is_duration, duration, flush)?,
        })
    }
}

/// A Kubernetes quantity of 0 or more.
fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let exponent = |rest: &str| {
        let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        !rest.is_empty() && rest.len() < 3 && rest.bytes().all(|b| b.is_ascii_digit())
    };
    is_number(number)
        && (matches!(suffix, "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E")
            || matches!(suffix, "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei")
            || suffix.strip_prefix(['e', 'E']).is_some_and(exponent))
}

/// A Go duration of 0 or more.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return true;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, unit) = rest.split_at(digits);
        // Longest first: `m` is also the beginning of `ms`.
        let unit_len =
            ["ns", "us", "µs", "μs", "ms", "s", "m", "h"].iter().find(|u| unit.starts_with(**u)).map(|u| u.len());
        let (true, Some(len)) = (is_number(number), unit_len) else { return false };
        rest = &unit[len..];
    }
    !text.trim_start_matches('+').is_empty()
}

/// Digits with at most one point among them, few enough for any reader.
fn is_number(text: &str) -> bool {
    text.len() <= 12 && text.contains(|c: char| c.is_ascii_digit()) && text.matches('.').count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities() {
        for good in ["0", "100Mi", "1.5Gi", "10M", "1e3", "1E-2", "+5k", ".5G", "5."] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "-1", "Mi", "1 Mi", "1Mb", "1mi", "1.2.3", "1e", "1e+", ".", "1Mi -x", "1e999"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for good in ["0", "5s", "1h30m", "1.5h", "100ms", "+3m", "1us", "0s"] {
            assert!(is_duration(good), "{good}");
        }
        for bad in ["", "-5s", "5", "s", "5 s", "5d", "1h-30m", "1.2.3s", "+", "5s;"] {
            assert!(!is_duration(bad), "{bad}");
        }
    }

    #[test]
    fn the_environment() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        };
        assert_eq!(LogSettings::from_env(env(&[])), Ok(LogSettings::default()));
        assert_eq!(LogSettings::from_env(env(&[("SERVICES_LOG_FILE_SIZE", "  ")])), Ok(LogSettings::default()));
        let all: &[(&str, &str)] = &[
            ("SERVICES_LOG_FILE_SIZE", " 10Mi "),
            ("SERVICES_LOG_FILE_AGE", "24h"),
            ("SERVICES_LOG_FLUSH_INTERVAL", "5s"),
        ];
        let expected = LogSettings { size: Some("10Mi".into()), age: Some("24h".into()), flush: Some("5s".into()) };
        assert_eq!(LogSettings::from_env(env(all)), Ok(expected));
        let error = LogSettings::from_env(env(&[("SERVICES_LOG_FILE_AGE", "-1h")])).unwrap_err();
        assert!(error.to_string().contains("SERVICES_LOG_FILE_AGE"), "{error}");
    }

    proptest! {
        #[test]
        fn nothing_that_is_accepted_can_leave_its_argument(text in ".{0,20}") {
            if is_quantity(&text) || is_duration(&text) {
                prop_assert!(!text.contains([' ', '"', '\'', '\\', '&', '\t']));
            }
        }
    }
}
