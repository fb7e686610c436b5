//! Metrics of the process, with the standard names of Prometheus client libraries, so that common dashboards find them.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// All metrics of the process: name without the unit suffix, type, unit, and help text.
pub(super) static ALL: &[(&str, MetricType, Option<Unit>, &str)] = &[
    ("process_cpu", MetricType::Counter, Some(Unit::Seconds), "User and system time spent"),
    ("process_resident_memory", MetricType::Gauge, Some(Unit::Bytes), "Resident memory"),
    ("process_open_fds", MetricType::Gauge, None, "Open file descriptors"),
    ("process_max_fds", MetricType::Gauge, None, "Maximum number of open file descriptors"),
    ("process_start_time", MetricType::Gauge, Some(Unit::Seconds), "Unix time of the start"),
];

/// Collector for this process. Values that the kernel does not provide are left out.
#[derive(Debug)]
pub(super) struct ThisProcess {
    /// Start time of the process, as Unix time in seconds.
    pub(super) start: f64,
}

impl ThisProcess {
    #[cfg(not(target_os = "linux"))]
    fn value(&self, name: &str) -> Option<f64> {
        (name == "process_start_time").then_some(self.start)
    }

    #[cfg(target_os = "linux")]
    fn value(&self, name: &str) -> Option<f64> {
        use procfs::process::{LimitValue, Process};
        let process = || Process::myself().ok();
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
        let value = match name {
            "process_cpu" => {
                let stat = process()?.stat().ok()?;
                (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
            }
            "process_resident_memory" => (process()?.stat().ok()?.rss * procfs::page_size()) as f64,
            "process_open_fds" => process()?.fd_count().ok()? as f64,
            "process_max_fds" => match process()?.limits().ok()?.max_open_files.soft_limit {
                LimitValue::Value(most) => most as f64,
                LimitValue::Unlimited => return None,
            },
            _ => self.start,
        };
        Some(value)
    }
}

impl Collector for ThisProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, type_, unit, help) in ALL {
            let Some(value) = self.value(name) else { continue };
            let metric = encoder.encode_descriptor(name, &format!("{help}."), unit.as_ref(), *type_)?;
            if matches!(type_, MetricType::Counter) {
                ConstCounter::new(value).encode(metric)?;
            } else {
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}
