//! Machine-wide variables and trusted certificates, kept in the desired state.

use std::collections::BTreeSet;

use api::host::Desired;
use tracing::info;

use crate::certificates;
use crate::host::{Host, HostError};
use crate::operation::{require_reboot, untrusted, wanted_variables};
use crate::ownership::Ownership;

/// Checks machine-wide variables and trusted certificates, restores them if `heal`, and returns those that differed. Where a variable had
/// to be changed, a restart of the host is requested: Windows passes variables to services only when it starts. Certificates need no restart:
/// programs query Windows for them at each verification.
///
/// The caller holds the [`crate::lock`].
///
/// # Errors
/// Fails when a variable or the certificate store cannot be read, or the certificates of `desired` are damaged. With `heal`, also when a variable,
/// the store or a record cannot be written.
pub fn keep(host: &dyn Host, desired: &Desired, heal: bool) -> Result<BTreeSet<String>, HostError> {
    let mut found = BTreeSet::new();
    for (name, value) in wanted_variables(&desired.services) {
        if host.env_var(name)?.as_deref() == value {
            continue;
        }
        // Only the name is reported, because the value may hold a password.
        found.insert(format!("variable {name}"));
        if heal {
            claim(host, |owned| owned.claim_env_var(host, name, value))?;
            // The restart request is recorded first, so that a crash here does not lose it.
            require_reboot(host, "machine-wide environment variables have changed")?;
            info!(variable = name, set = value.is_some(), "changing a machine-wide environment variable");
            host.set_env_var(name, value)?;
        }
    }

    // `apply` has verified these certificates; damaged text is an error, so that none is silently dropped.
    let wanted = certificates::bundle(desired.trusted_ca.as_bytes())
        .map_err(|e| HostError::system("read", "the certificates to trust")(std::io::Error::other(e)))?;
    for der in untrusted(host, &wanted)? {
        found.insert("trusted certificates".to_owned());
        if heal {
            claim(host, |owned| {
                owned.claim_trust(der);
                Ok(())
            })?;
            info!("adding a trusted certificate");
            host.trust(der)?;
        }
    }
    Ok(found)
}

fn claim(host: &dyn Host, change: impl FnOnce(&mut Ownership) -> Result<(), HostError>) -> Result<(), HostError> {
    let mut owned = Ownership::load_or_adopt(host)?;
    change(&mut owned)?;
    owned.save(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::operation::pending_reboot;
    use api::services::ServicesConfig;

    #[test]
    fn a_corrected_variable_requires_a_restart() {
        let host = FakeHost::temporary();
        host.state().env =
            [("HTTP_PROXY", "mine"), ("NO_PROXY", "x"), ("PATH", "y")].map(|(k, v)| (k.into(), v.into())).into();
        let certified = rcgen::generate_simple_self_signed(["ca".to_string()]).unwrap();
        let desired = Desired {
            services: ServicesConfig {
                environment_vars: [("HTTP_PROXY".to_string(), "http://proxy".to_string())].into(),
                watched_environment_vars: ["HTTP_PROXY", "NO_PROXY"].map(String::from).to_vec(),
                ..ServicesConfig::default()
            },
            trusted_ca: certified.cert.pem(),
            ..Desired::default()
        };
        let found = ["trusted certificates", "variable HTTP_PROXY", "variable NO_PROXY"].map(String::from);
        let before = host.state().env.clone();
        assert_eq!(keep(&host, &desired, false).unwrap(), found.clone().into());
        assert_eq!(host.state().env, before, "it was only checked");
        assert!(host.state().trusted.is_empty());
        assert_eq!((pending_reboot(&host).unwrap(), Ownership::load(&host).unwrap()), (None, None));

        assert_eq!(keep(&host, &desired, true).unwrap(), found.into());
        assert_eq!(host.env_var("HTTP_PROXY").unwrap().as_deref(), Some("http://proxy"));
        assert_eq!(host.env_var("NO_PROXY").unwrap(), None);
        assert_eq!(host.env_var("PATH").unwrap().as_deref(), Some("y"));
        assert!(host.trusted().unwrap().contains(&certified.cert.der().to_vec()));
        assert!(pending_reboot(&host).unwrap().is_some());
        let owned = Ownership::load(&host).unwrap().unwrap();
        assert_eq!(owned.env_vars["HTTP_PROXY"].as_deref(), Some("mine"), "what was there before is remembered");
        assert_eq!(owned.trusted.len(), 1);

        host.state().machine.boot_id = "2".into();
        assert_eq!(keep(&host, &desired, true).unwrap(), BTreeSet::new());
        assert_eq!(pending_reboot(&host).unwrap(), None);

        host.state().trusted.clear();
        assert_eq!(keep(&host, &desired, true).unwrap(), BTreeSet::from(["trusted certificates".to_owned()]));
        assert_eq!(pending_reboot(&host).unwrap(), None, "programs see a certificate at once");
    }
}
