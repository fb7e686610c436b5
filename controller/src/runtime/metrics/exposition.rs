//! Text formats of metrics: OpenMetrics for clients that accept it, such as Prometheus, and [Prometheus' older
//! format](https://prometheus.io/docs/instrumenting/exposition_formats/) for all others.

use std::fmt::Write as _;

/// Media type of OpenMetrics, without parameters.
const OPENMETRICS: &str = "application/openmetrics-text";

/// Text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the format for a client by its `Accept` header.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let types = accept.unwrap_or_default().split(',');
        let mut names = types.map(|entry| entry.split(';').next().unwrap_or_default().trim());
        if names.any(|name| name.eq_ignore_ascii_case(OPENMETRICS)) { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the value of the `Content-Type` header.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts metrics from OpenMetrics to this format.
    pub(crate) fn write(self, openmetrics: String) -> String {
        match self {
            Self::OpenMetrics => openmetrics,
            Self::Prometheus => to_prometheus(&openmetrics),
        }
    }
}

/// Converts metrics to Prometheus' older format. In it, counters and infos have the names of their samples, and there are no units and no end mark.
fn to_prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some(help) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_accepts() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, expected) in [
            (None, Format::Prometheus),
            (Some("*/*"), Format::Prometheus),
            (Some("text/plain;version=0.0.4"), Format::Prometheus),
            (Some(prometheus), Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn names_and_types_are_those_of_the_older_format() {
        let openmetrics = "# HELP a_errors Errors.\n# TYPE a_errors counter\na_errors_total{pool=\"p\"} 3\n\
                           # HELP a_up Up.\n# TYPE a_up gauge\n# UNIT a_up seconds\na_up 1\n\
                           # HELP a Version.\n# TYPE a info\na_info{version=\"1\"} 1\n# EOF\n";
        let expected = "# HELP a_errors_total Errors.\n# TYPE a_errors_total counter\na_errors_total{pool=\"p\"} 3\n\
                        # HELP a_up Up.\n# TYPE a_up gauge\na_up 1\n\
                        # HELP a_info Version.\n# TYPE a_info gauge\na_info{version=\"1\"} 1\n";
        assert_eq!(Format::Prometheus.write(openmetrics.into()), expected);
        assert_eq!(Format::OpenMetrics.write(openmetrics.into()), openmetrics);
    }
}
