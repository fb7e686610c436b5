//! The version of rendered services: which `windows-services-<version>` ConfigMap a host follows.

use api::services::ServicesConfig;
use sha2::{Digest, Sha256};

/// `<operator version>-<8 hex digits>`. The digits follow from what the services and the payload mean, not from how they are
/// written down: the order of lists in which order says nothing does not matter. The result is fit for names of objects.
pub fn services_version(operator_version: &str, config: &ServicesConfig, payload_digest: &str) -> String {
    let mut canonical = config.clone();
    canonical.services.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
    for service in &mut canonical.services {
        service.dependencies.sort();
        service.node_variables_in_command.sort_by(|a, b| a.name.cmp(&b.name));
        service.host_variables_in_command.sort_by(|a, b| a.name.cmp(&b.name));
    }
    canonical.files.sort_by(|a, b| a.path.cmp(&b.path));
    canonical.watched_environment_vars.sort();

    let mut hash = Sha256::new();
    for (key, text) in canonical.to_data() {
        // Lengths keep one text from running over into the next.
        hash.update(format!("{key} {}\n{text}\n", text.len()));
    }
    hash.update(payload_digest);
    let digest = hex::encode(hash.finalize());

    // Build metadata, as in `1.2.3+abc`, is legal in a version and not in a name.
    let fit = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' };
    let version: String = operator_version.to_ascii_lowercase().chars().map(fit).collect();
    format!("{}-{}", version.trim_matches(['-', '.']), &digest[..8])
}
