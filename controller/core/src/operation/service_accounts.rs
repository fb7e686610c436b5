//! Check whether pods on a host can use the group Managed Service Accounts (gMSA) that its pool lists. The host becomes a node in any case: pods
//! without such an account run on it.

use api::{
    Reason,
    conditions::Status,
    host::{AccountState, HostState},
};

use crate::node::permitted::is_label;

/// Maximum length of a domain name, the same as of a label value.
const DOMAIN: usize = 63;

/// Reason why a host cannot use the accounts of its pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountFault {
    /// The host reports no domain with a usable name, and the pool has no plugin.
    #[error(
        "the host reports no Active Directory domain with a DNS name of at most {DOMAIN} characters, so the operator does not expect it to retrieve the passwords of {accounts}; join the host to the domain of the accounts, remove the accounts from template.spec.gmsa, or name a plugin there that retrieves passwords without a domain"
    )]
    NotDomainJoined {
        /// Accounts of the pool.
        accounts: String,
    },
    /// The host cannot use at least one account.
    #[error("the host cannot use these group Managed Service Accounts: {accounts}")]
    AccountNotUsable {
        /// Accounts that cannot be used, each with the cause and the remedy.
        accounts: String,
    },
    /// No account is known to be unusable, and the state of at least one is unknown.
    #[error(
        "Windows could not tell whether the host can use the group Managed Service Accounts {accounts}; check that the host reaches a domain controller. If it does, restart the host. If it is already a node, request its maintenance first, so that it is drained: set the annotation windowsmachineconfig.openshift.io/maintenance of its WindowsInstance to a reason"
    )]
    AccountUnknown {
        /// Accounts without a report.
        accounts: String,
    },
    /// The host reports no domain with a usable name, and only a pod shows whether the plugin retrieves the passwords.
    #[error(
        "the operator cannot check the accounts {accounts}: the host reports no Active Directory domain with a DNS name of at most {DOMAIN} characters, and only a pod that uses an account shows whether the plugin {clsid} retrieves its password. The host works as a node nevertheless"
    )]
    AccountsNotChecked {
        /// Accounts that are not checked.
        accounts: String,
        /// Class ID of the plugin.
        clsid: String,
    },
}

impl AccountFault {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotDomainJoined { .. } | Self::AccountNotUsable { .. } => Reason::AccountNotUsable,
            Self::AccountUnknown { .. } | Self::AccountsNotChecked { .. } => Reason::AccountUnknown,
        }
    }

    /// Returns the status of the condition.
    pub fn status(&self) -> Status {
        match self {
            Self::NotDomainJoined { .. } | Self::AccountNotUsable { .. } => Status::False,
            Self::AccountUnknown { .. } | Self::AccountsNotChecked { .. } => Status::Unknown,
        }
    }

    /// Reports whether a user must act.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::AccountsNotChecked { .. })
    }
}

/// Checks the accounts of a pool on a host, and returns them as text if all are usable. `state` is the host's response to a request with these
/// accounts. A pool with a plugin can have hosts without a domain: whether the plugin can retrieve a password is not known before a pod needs it.
///
/// # Errors
/// The worst fault: a missing domain, then an unusable account, then an unknown account.
pub fn check(accounts: &[String], plugin: Option<&str>, state: &HostState) -> Result<String, AccountFault> {
    if accounts.is_empty() {
        return Ok(String::new());
    }
    let all = accounts.join(", ");
    if domain(state.machine.domain.as_deref()).is_none() {
        return match plugin {
            Some(clsid) => Err(AccountFault::AccountsNotChecked { accounts: all, clsid: clsid.to_owned() }),
            None => Err(AccountFault::NotDomainJoined { accounts: all }),
        };
    }
    let of = |account: &String| state.service_accounts.get(account).copied().unwrap_or_default();
    let problem = |account: &String| {
        let why = match of(account) {
            AccountState::Usable | AccountState::Unknown => return None,
            AccountState::NotFound => {
                "the domain has no account of this name: correct the name in template.spec.gmsa.accounts"
            }
            AccountState::NotManaged => {
                "it is not a group Managed Service Account: list such an account in template.spec.gmsa.accounts"
            }
            AccountState::NotAllowed => {
                "the host cannot retrieve its password: allow its computer account to retrieve it (Set-ADServiceAccount -PrincipalsAllowedToRetrieveManagedPassword), and then restart the host"
            }
        };
        Some(format!("{account} ({why})"))
    };
    let bad: Vec<String> = accounts.iter().filter_map(problem).collect();
    if !bad.is_empty() {
        return Err(AccountFault::AccountNotUsable { accounts: bad.join(", ") });
    }
    let unknown: Vec<&str> = accounts.iter().filter(|a| of(a) == AccountState::Unknown).map(String::as_str).collect();
    if unknown.is_empty() { Ok(all) } else { Err(AccountFault::AccountUnknown { accounts: unknown.join(", ") }) }
}

/// Returns the domain that a host reports, in lower case; `None` if there is none, or if it is not a DNS name that fits into a label value.
pub fn domain(reported: Option<&str>) -> Option<String> {
    let name = reported?.to_ascii_lowercase();
    (name.len() <= DOMAIN && name.split('.').all(is_label)).then_some(name)
}

#[cfg(test)]
mod tests {
    use api::host::Machine;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_worst_fault_of_the_accounts_is_reported() {
        use AccountState::{NotAllowed, NotFound, NotManaged, Unknown, Usable};
        let joined = Some("corp.example.com");
        type Found = &'static [(&'static str, AccountState)];
        type Case =
            (&'static str, &'static [&'static str], Option<&'static str>, Found, Option<&'static str>, &'static str);
        let cases: [Case; 10] = [
            ("no accounts, no domain", &[], None, &[], None, ""),
            ("no domain", &["web", "db"], None, &[("web", Usable)], Some("AccountNotUsable"), "web, db"),
            (
                "a domain that is not a DNS name",
                &["web"],
                Some("a b"),
                &[("web", Usable)],
                Some("AccountNotUsable"),
                "web",
            ),
            ("usable", &["web"], joined, &[("web", Usable)], None, ""),
            (
                "one of two accounts is not usable",
                &["web", "db"],
                joined,
                &[("web", Usable), ("db", NotAllowed)],
                Some("AccountNotUsable"),
                "Accounts: db (the host",
            ),
            (
                "no such account",
                &["web"],
                joined,
                &[("web", NotFound)],
                Some("AccountNotUsable"),
                "no account of this name",
            ),
            (
                "another kind of account",
                &["web"],
                joined,
                &[("web", NotManaged)],
                Some("AccountNotUsable"),
                "not a group Managed",
            ),
            ("an account is not reported", &["web"], joined, &[], Some("AccountUnknown"), "web"),
            (
                "the state of one account is unknown",
                &["web", "db"],
                joined,
                &[("web", Usable), ("db", Unknown)],
                Some("AccountUnknown"),
                "Accounts db;",
            ),
            (
                "an unusable account goes before an unknown one",
                &["web", "db"],
                joined,
                &[("web", Unknown), ("db", NotFound)],
                Some("AccountNotUsable"),
                "db",
            ),
        ];
        for (about, accounts, domain, found, expected, part) in cases {
            let accounts: Vec<String> = accounts.iter().map(|a| (*a).to_owned()).collect();
            let service_accounts = found.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect();
            let machine = Machine { domain: domain.map(str::to_owned), ..Machine::default() };
            let state = HostState { machine, service_accounts, ..HostState::default() };
            let result = check(&accounts, None, &state);
            assert_eq!(result.as_ref().err().map(|f| f.reason().as_str()), expected, "{about}");
            assert!(result.err().is_none_or(|e| e.to_string().contains(part)), "{about}");
            // A plugin is for hosts without a domain, and changes nothing for members of a domain.
            let with_plugin = check(&accounts, Some("{X}"), &state).err().map(|e| e.reason().as_str());
            let is_member = domain == joined;
            assert_eq!(
                with_plugin,
                expected.map(|it| if is_member { it } else { "AccountUnknown" }),
                "{about}, with a plugin"
            );
        }
    }

    #[test]
    fn accounts_of_a_plugin_are_unknown_and_not_a_fault() {
        let accounts = ["web".to_owned(), "db".to_owned()];
        let fault = check(&accounts, Some("{X}"), &HostState::default()).unwrap_err();
        assert_eq!((fault.status(), fault.is_warning()), (Status::Unknown, false));
        let message = fault.to_string();
        assert!(message.contains("cannot check the accounts web, db") && message.contains("plugin {X}"), "{message}");
    }

    #[test]
    fn only_dns_names_that_fit_into_a_label_are_used() {
        for (reported, expected) in [
            (Some("corp.example.com"), Some("corp.example.com")),
            (Some("CORP.Example.COM"), Some("corp.example.com")),
            (Some("corp"), Some("corp")),
            (None, None),
            (Some(""), None),
            (Some("corp."), None),
            (Some("-corp"), None),
            (Some("corp example"), None),
            (Some("corp\u{202e}"), None),
            (Some(&*"a".repeat(63)), Some(&*"a".repeat(63))),
            (Some(&*"a".repeat(64)), None),
        ] {
            assert_eq!(domain(reported).as_deref(), expected, "{reported:?}");
        }
    }

    proptest! {
        #[test]
        fn a_used_domain_is_a_valid_label_value(reported in r"[a-zA-Z0-9.\-_ é]{0,70}") {
            if let Some(value) = domain(Some(&reported)) {
                prop_assert!(value.len() <= 63 && !value.is_empty());
                let ends = [value.as_bytes()[0], value.as_bytes()[value.len() - 1]];
                prop_assert!(ends.iter().all(u8::is_ascii_alphanumeric));
                prop_assert!(value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-'));
            }
        }
    }
}
