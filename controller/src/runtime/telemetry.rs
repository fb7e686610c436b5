//! Log in JSON or text, with a level that can be changed at run time.

use api::Reason;
use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::{EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::args::LogFormat;

/// Handle to change the level of the log.
#[derive(Clone)]
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Sets the level, for example `debug` or `info,controller::instance=debug`. Fails with a message about the fault if the level is invalid.
    pub(crate) fn set(&self, level: &str) -> Result<(), String> {
        let filter = EnvFilter::try_new(level)
            .map_err(|e| format!("{level:?} is not a log level: {e}; name a level such as info or debug"))?;
        self.0.reload(filter).map_err(|e| e.to_string())
    }

    /// Returns the level in force.
    pub(crate) fn get(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Installs the log for the whole process.
pub(crate) fn init(format: LogFormat, level: &str) -> anyhow::Result<LogLevel> {
    let filter = EnvFilter::try_new(level)
        .with_context(|| format!("{level:?} is not a log level: set --log-level to a level such as info or debug"))?;
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Json => {
            registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Text => registry
            .with(
                fmt::layer().with_target(false).with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr),
            )
            .try_init(),
    }
    .context("the log is already set up")?;
    // Panics are logged in the format of the log, so that log collectors can read them.
    std::panic::set_hook(Box::new(|panic| tracing::error!(reason = Reason::InternalError.as_str(), "{panic}")));
    Ok(LogLevel(handle))
}
