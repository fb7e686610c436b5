//! Level of service logs, and rotation for services that do not rotate their own logs. kube-log-runner refuses to start with an invalid value, so
//! each value is checked here first.

use api::{LogLevel, Reason, host::LogRotation};

use super::RenderError;

/// Maximum time for which a log is kept, and the time if no age is set, in seconds: ten years, the maximum of the field in pools.
const FOREVER: u64 = 315_360_000;

/// Level and rotation of logs. `None` omits the flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Size at which a log file is rotated: a Kubernetes quantity.
    pub size: Option<String>,
    /// Age at which a rotated log file is deleted: a Go duration. Without it, kube-log-runner deletes none, and wicd keeps logs for ten years.
    pub age: Option<String>,
    /// Interval at which the log file is flushed to disk: a Go duration.
    pub flush: Option<String>,
    /// Level of the logs.
    pub level: LogLevel,
}

impl Default for LogSettings {
    /// Returns settings that rotate logs. By default, WMCO does not rotate logs, which can then fill the disk of a host.
    fn default() -> Self {
        Self { size: Some("100Mi".into()), age: Some("168h".into()), flush: None, level: LogLevel::Info }
    }
}

/// Error for an environment variable with an unusable value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the environment variable {variable} of the operator is {value:?}; it must be {expected}")]
pub struct LogSettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl LogSettingsError {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        Reason::SettingsInvalid
    }
}

impl LogSettings {
    /// Environment variable of WMCO for [`LogSettings::size`].
    pub const SIZE: &str = "SERVICES_LOG_FILE_SIZE";
    /// Environment variable of WMCO for [`LogSettings::age`].
    pub const AGE: &str = "SERVICES_LOG_FILE_AGE";
    /// Environment variable of WMCO for [`LogSettings::flush`].
    pub const FLUSH: &str = "SERVICES_LOG_FLUSH_INTERVAL";

    /// Reads the settings from the operator's environment. Values are trimmed; a missing or empty variable means the default.
    ///
    /// # Errors
    /// Fails if [`LogSettings::SIZE`] is not a quantity, or [`LogSettings::AGE`] or [`LogSettings::FLUSH`] is not a duration, of 0 or more.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, LogSettingsError> {
        let read = |variable, parse: fn(&str) -> Option<u64>, expected, default| match get(variable) {
            Some(value) if value.trim().is_empty() => Ok(default),
            Some(value) if parse(value.trim()).is_some() => Ok(Some(value.trim().to_owned())),
            Some(value) => Err(LogSettingsError { variable, value, expected }),
            None => Ok(default),
        };
        let duration = "a duration of 0 or more, for example 5s or 1h30m";
        let Self { size, age, flush, level } = Self::default();
        Ok(Self {
            size: read(Self::SIZE, bytes, "a quantity of bytes, for example 100Mi", size)?,
            age: read(Self::AGE, seconds, duration, age)?,
            flush: read(Self::FLUSH, seconds, duration, flush)?,
            level,
        })
    }

    /// Returns the operator's settings with the overrides of a pool. Fails if the pool's size or age is invalid.
    pub(super) fn of_pool(&self, pool: Option<&api::LogRotation>) -> Result<Self, RenderError> {
        let mut logs = self.clone();
        if let Some(size) = pool.and_then(|p| p.max_size.as_ref()) {
            if bytes(size.as_str()).is_none() {
                let problem = "it must be a quantity of bytes, for example 100Mi";
                let value = size.to_string();
                return Err(RenderError::Setting { field: "template.spec.logs.maxSize", value, problem });
            }
            logs.size = Some(size.to_string());
        }
        if let Some(seconds) = pool.and_then(|p| p.max_age_seconds) {
            if seconds < 1 {
                let problem = "it must be 1 or more";
                let value = seconds.to_string();
                return Err(RenderError::Setting { field: "template.spec.logs.maxAgeSeconds", value, problem });
            }
            // Whole hours are written in hours, as in the operator's default: another text for the same age would be another version, and be
            // rolled out.
            let hours = (seconds % 3600 == 0).then(|| format!("{}h", seconds / 3600));
            logs.age = Some(hours.unwrap_or_else(|| format!("{seconds}s")));
        }
        logs.level = pool.and_then(|p| p.level).unwrap_or(logs.level);
        Ok(logs)
    }

    /// Selects a service's value for the log level.
    pub(super) fn of_level<T>(&self, info: T, debug: T) -> T {
        match self.level {
            LogLevel::Info => info,
            LogLevel::Debug => debug,
        }
    }

    /// Returns the rotation of logs that wicd rotates. `None` if logs are not rotated: the size is missing or 0, as in kube-log-runner.
    pub(super) fn rotation(&self) -> Option<LogRotation> {
        let max_bytes = self.size.as_deref().and_then(bytes).filter(|b| *b > 0)?;
        let age = self.age.as_deref().and_then(seconds).filter(|s| *s > 0);
        Some(LogRotation { max_bytes, max_age_seconds: age.unwrap_or(FOREVER).min(FOREVER) })
    }
}

/// Reads a Kubernetes quantity of 0 or more, rounded up.
fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (mantissa, point) = number_of(number)?;
    let ten = |exponent: u32| 10_u128.saturating_pow(exponent);
    let (times, by) = match suffix {
        "" => (1, 1),
        "n" => (1, ten(9)),
        "u" => (1, ten(6)),
        "m" => (1, ten(3)),
        "k" => (ten(3), 1),
        "M" => (ten(6), 1),
        "G" => (ten(9), 1),
        "T" => (ten(12), 1),
        "P" => (ten(15), 1),
        "E" => (ten(18), 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let (down, digits) = match exponent.strip_prefix('-') {
                Some(digits) => (true, digits),
                None => (false, exponent.strip_prefix('+').unwrap_or(exponent)),
            };
            let fine = (1..3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            let power = ten(digits.parse().ok().filter(|_| fine)?);
            if down { (1, power) } else { (power, 1) }
        }
    };
    let value = mantissa.saturating_mul(times).div_ceil(ten(point).saturating_mul(by));
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// Reads a Go duration of 0 or more, in seconds, rounded up.
fn seconds(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    // Longest first: `m` is also the beginning of `ms`.
    let units: [(&str, u128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let mut nanoseconds = 0_u128;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, unit) = rest.split_at(digits);
        let (mantissa, point) = number_of(number)?;
        let (name, length) = units.into_iter().find(|(name, _)| unit.starts_with(name))?;
        let part = mantissa.saturating_mul(length) / 10_u128.saturating_pow(point);
        nanoseconds = nanoseconds.saturating_add(part);
        rest = &unit[name.len()..];
    }
    Some(u64::try_from(nanoseconds.div_ceil(1_000_000_000)).unwrap_or(u64::MAX))
}

/// Parses digits with at most one decimal point, 12 characters at most. Returns the digits, and the number of decimal places.
fn number_of(text: &str) -> Option<(u128, u32)> {
    if text.len() > 12 {
        return None;
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{fraction}");
    let fine = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    Some((digits.parse().ok().filter(|_| fine)?, u32::try_from(fraction.len()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("0", 0),
            ("100Mi", 104_857_600),
            ("1.5Gi", 1_610_612_736),
            ("10M", 10_000_000),
            ("+5k", 5000),
            ("1e3", 1000),
            ("1E-2", 1),
            ("2500m", 3),
            (".5k", 500),
            ("5.", 5),
            ("9e99", u64::MAX),
            ("1e-99", 1),
            ("999999999999Ei", u64::MAX),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for bad in ["", "-1", "Mi", "1 Mi", "1Mb", "1mi", "1.2.3", "1e", "1e+", ".", "1Mi -x", "1e999"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("+0s", 0),
            ("5s", 5),
            ("168h", 604_800),
            ("1h30m", 5400),
            ("1.5h", 5400),
            ("+3m", 180),
            ("100ms", 1),
            ("1us", 1),
            ("2m1.5s", 122),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for bad in ["", "-5s", "5", "s", "5 s", "5d", "1h-30m", "1.2.3s", "+", "5s;"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_pool_overrides_the_rotation_of_the_operator() {
        let operator = |size: Option<&str>, age: Option<&str>| LogSettings {
            size: size.map(Into::into),
            age: age.map(Into::into),
            ..LogSettings::default()
        };
        let pool = |size: Option<&str>, seconds| api::LogRotation {
            max_size: size.map(Into::into),
            max_age_seconds: seconds,
            level: None,
        };
        let rotation = |max_bytes, max_age_seconds| Some(LogRotation { max_bytes, max_age_seconds });
        let mi = 1 << 20;
        for (name, operator, pool, expected) in [
            ("default", LogSettings::default(), None, rotation(100 * mi, 604_800)),
            ("an empty pool", LogSettings::default(), Some(pool(None, None)), rotation(100 * mi, 604_800)),
            ("the operator's", operator(Some("5Mi"), Some("1h")), None, rotation(5 * mi, 3600)),
            (
                "the pool's size",
                operator(Some("5Mi"), Some("1h")),
                Some(pool(Some("7Mi"), None)),
                rotation(7 * mi, 3600),
            ),
            ("the pool's age", operator(Some("5Mi"), Some("1h")), Some(pool(None, Some(7200))), rotation(5 * mi, 7200)),
            ("rotation is disabled", operator(Some("0"), Some("1h")), None, None),
            (
                "the pool enables rotation again",
                operator(Some("0"), None),
                Some(pool(Some("1Mi"), None)),
                rotation(mi, FOREVER),
            ),
            ("logs are kept without an age", operator(Some("1Mi"), Some("0")), None, rotation(mi, FOREVER)),
        ] {
            assert_eq!(operator.of_pool(pool.as_ref()).unwrap().rotation(), expected, "{name}");
        }
        for (pool, field) in [
            (pool(Some("1Mi -x"), None), "template.spec.logs.maxSize"),
            (pool(None, Some(0)), "template.spec.logs.maxAgeSeconds"),
        ] {
            let error = LogSettings::default().of_pool(Some(&pool)).unwrap_err();
            assert!(matches!(error, RenderError::Setting { field: f, .. } if f == field), "{error}");
        }
    }

    #[test]
    fn settings_are_read_from_the_environment() {
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
        let expected = LogSettings {
            size: Some("10Mi".into()),
            age: Some("24h".into()),
            flush: Some("5s".into()),
            level: LogLevel::Info,
        };
        assert_eq!(LogSettings::from_env(env(all)), Ok(expected));
        let error = LogSettings::from_env(env(&[("SERVICES_LOG_FILE_AGE", "-1h")])).unwrap_err();
        assert!(error.to_string().contains("SERVICES_LOG_FILE_AGE"), "{error}");
    }

    proptest! {
        #[test]
        fn an_accepted_value_cannot_end_its_argument(text in ".{0,20}") {
            if bytes(&text).is_some() || seconds(&text).is_some() {
                prop_assert!(!text.contains([' ', '"', '\'', '\\', '&', '\t']));
            }
        }
    }
}
