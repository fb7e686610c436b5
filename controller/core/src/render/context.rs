//! Input from which the commands of services are rendered.

use api::{host::path, payload::Manifest};

use super::{Cluster, LogSettings, Settings, program};

/// Placeholder for the name of the Node in commands.
pub(super) const NODE_NAME: &str = "NODE_NAME";
/// Placeholder for the address of the Node in commands.
pub(super) const NODE_IP: &str = "NODE_IP";

/// Input from which a service is rendered.
pub(super) struct Context<'a> {
    pub cluster: &'a Cluster,
    pub payload: &'a Manifest,
    pub settings: &'a Settings,
}

impl Context<'_> {
    /// Reports whether hosts of this cluster get a file with this destination.
    pub(super) fn has(&self, destination: &str) -> bool {
        let platform = self.cluster.platform.as_str();
        let here = |f: &api::payload::File| f.platforms.is_empty() || f.platforms.contains(platform);
        self.payload.files.iter().any(|f| f.destination.eq_ignore_ascii_case(destination) && here(f))
    }

    /// Returns the command of a service, wrapped in the log runner if the payload has one.
    pub(super) fn logged(&self, service: &str, command: &str) -> String {
        if !self.has(program::LOG_RUNNER) {
            return command.to_owned();
        }
        let LogSettings { size, age, flush, level: _ } = &self.settings.logs;
        let mut line =
            vec![program::LOG_RUNNER.to_owned(), format!(r"-log-file={}\{service}\{service}.log", path::LOGS)];
        let flags = [("log-file-size", size), ("log-file-age", age), ("flush-interval", flush)];
        line.extend(flags.into_iter().filter_map(|(flag, value)| Some(format!("-{flag}={}", value.as_ref()?))));
        line.push(command.to_owned());
        line.join(" ")
    }
}
