//! The registration of a plugin of Container Credential Guard (CCG), as keys of the registry below `HKLM`.
//!
//! Windows activates the class out of process, in a surrogate (`dllhost.exe`) that loads the library and ends when it is no longer used. So
//! the library can be replaced like a program. See the documentation of
//! [`ICcgDomainAuthCredentials`](https://learn.microsoft.com/windows/win32/api/ccgplugins/nf-ccgplugins-iccgdomainauthcredentials-getpasswordcredentials);
//! the keys and values are those of Microsoft's own
//! [plugin](https://github.com/microsoft/Azure-Key-Vault-Plugin-gMSA/blob/main/src/CCGAKVPlugin/registerplugin.reg). The class is its own
//! application (`AppID`).

use std::collections::BTreeSet;

use api::host::CredentialPlugin;

use crate::host::{Host, HostError, RegistryValue as Value, RegistryValues as Values};
use crate::ownership::Ownership;

/// Classes that CCG may use.
pub const CLASSES_OF_CCG: &str = r"SYSTEM\CurrentControlSet\Control\CCG\COMClasses";
/// Security descriptor, self-relative: owner and group are Administrators; SYSTEM and services may activate the class on this host and use it
/// (rights 0x0b).
const USE_BY_SERVICES: [u8; 100] = [
    1, 0, 4, 0x80, 0x44, 0, 0, 0, 0x54, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0,
    0, // Owner at 0x44, group at 0x54, list at 0x14.
    2, 0, 0x30, 0, 2, 0, 0, 0, // A list of two entries.
    0, 0, 0x14, 0, 0x0b, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0, // S-1-5-18
    0, 0, 0x14, 0, 0x0b, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 5, 6, 0, 0, 0, // S-1-5-6
    1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0, // S-1-5-32-544
    1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0,
];

/// Keys of a registration in the order in which they are made: the list of CCG last, when the class is whole.
fn keys(plugin: &CredentialPlugin) -> [(String, Values); 4] {
    let CredentialPlugin { clsid, library } = plugin;
    let values = |values: &[(&str, Value)]| values.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
    let text = |text: &str| Value::Text(text.to_owned());
    let rights = || Value::Bytes(USE_BY_SERVICES.to_vec());
    let class = format!(r"SOFTWARE\Classes\CLSID\{clsid}");
    [
        (
            format!(r"SOFTWARE\Classes\AppID\{clsid}"),
            // An empty surrogate is Windows' own.
            values(&[("AccessPermission", rights()), ("LaunchPermission", rights()), ("DllSurrogate", text(""))]),
        ),
        (class.clone(), values(&[("AppID", text(clsid))])),
        (format!(r"{class}\InprocServer32"), values(&[("", text(library)), ("ThreadingModel", text("Both"))])),
        (format!(r"{CLASSES_OF_CCG}\{clsid}"), values(&[("", text(""))])),
    ]
}

/// Whether a text is a class in braces and upper case, and so no more than one part of the name of a key.
pub fn is_class(text: &str) -> bool {
    let Some(id) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else { return false };
    let parts: Vec<&str> = id.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.concat().bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'))
}

/// The first key of the registration that exists and that wicd did not make.
///
/// # Errors
/// When the registry cannot be read.
pub fn foreign_key(host: &dyn Host, plugin: &CredentialPlugin, owned: &Ownership) -> Result<Option<String>, HostError> {
    for (key, _) in keys(plugin) {
        if !owned.keys.contains(&key) && host.registry_key(&key)?.is_some() {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Claims the keys of a registration that is about to be made.
pub fn claim(plugin: &CredentialPlugin, owned: &mut Ownership) {
    owned.keys.extend(keys(plugin).map(|(key, _)| key));
}

/// Makes the registration, where it differs. Its keys are claimed.
///
/// # Errors
/// When a key cannot be read or written.
pub fn register(host: &dyn Host, plugin: &CredentialPlugin) -> Result<(), HostError> {
    for (key, values) in keys(plugin) {
        let differs = |now: Values| values.iter().any(|(name, value)| now.get(name) != Some(value));
        if host.registry_key(&key)?.is_none_or(differs) {
            host.put_registry_key(&key, &values)?;
        }
    }
    Ok(())
}

/// Removes the registrations that wicd made, but this one, and forgets them. Returns keys that stay because another program has put one into
/// them: they are that program's now.
///
/// # Errors
/// When a key cannot be removed.
pub fn unregister_others(
    host: &dyn Host,
    plugin: Option<&CredentialPlugin>,
    owned: &mut Ownership,
) -> Result<Vec<String>, HostError> {
    let stay: BTreeSet<String> = plugin.into_iter().flat_map(keys).map(|(key, _)| key).collect();
    let mut left = Vec::new();
    for key in removal_order(&owned.keys).into_iter().filter(|key| !stay.contains(key)) {
        let is_gone = host.remove_registry_key(&key)?;
        owned.keys.remove(&key);
        if !is_gone {
            left.push(key);
        }
    }
    Ok(left)
}

/// A key that stays, for a report.
pub fn left_in_words(key: &str) -> String {
    format!("the registry key HKLM\\{key} stays, because another program has put keys into it")
}

/// CCG must not find a class of which a part is missing, and a key that has others is not removed.
fn removal_order(keys: &BTreeSet<String>) -> Vec<String> {
    let mut order: Vec<String> = keys.iter().cloned().collect();
    order.sort_by_key(|key| (!key.starts_with(CLASSES_OF_CCG), std::cmp::Reverse(key.len())));
    order
}

#[cfg(test)]
#[path = "credential_plugin_tests.rs"]
mod tests;
