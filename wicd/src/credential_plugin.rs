//! Registration of a Container Credential Guard (CCG) plugin, as registry keys below `HKLM`.
//!
//! Windows activates the class out of process, in a surrogate (`dllhost.exe`) that loads the library and ends when it is no longer used. So
//! the library can be replaced like a program. See the documentation of
//! [`ICcgDomainAuthCredentials`](https://learn.microsoft.com/windows/win32/api/ccgplugins/nf-ccgplugins-iccgdomainauthcredentials-getpasswordcredentials);
//! the keys and values are those of Microsoft's own
//! [plugin](https://github.com/microsoft/Azure-Key-Vault-Plugin-gMSA/blob/main/src/CCGAKVPlugin/registerplugin.reg). The class is its own
//! application (`AppID`).
//!
//! A registration is wicd's if its library is in [`path::CREDENTIAL_PLUGINS`]: other installers register the same classes, and a registration can
//! outlive wicd's record.

use api::Reason;
use std::collections::{BTreeMap, BTreeSet};

use api::host::{CredentialPlugin, path};

use crate::host::{Host, HostError, RegistryValue as Value, RegistryValues as Values};
use crate::ownership::Ownership;

/// Registry key with the list of classes that CCG may use.
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

/// Maximum number of classes that are read from CCG's list.
const MAX_CLASSES: usize = 64;

/// Owner of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No registration.
    None,
    /// Registration by wicd, complete or partial.
    Ours,
    /// Registration by another installer, with its library or the existing key.
    Other(String),
}

/// Keys of a registration, in the order of creation: CCG's list last, when the class is complete.
fn keys(clsid: &str) -> [String; 4] {
    let class = format!(r"SOFTWARE\Classes\CLSID\{clsid}");
    let server = server(clsid);
    [format!(r"SOFTWARE\Classes\AppID\{clsid}"), class, server, format!(r"{CLASSES_OF_CCG}\{clsid}")]
}

/// Registry key that names the library of a class.
fn server(clsid: &str) -> String {
    format!(r"SOFTWARE\Classes\CLSID\{clsid}\InprocServer32")
}

/// Values of the [`keys`] of a plugin, in the same order.
fn values(plugin: &CredentialPlugin) -> [Values; 4] {
    let CredentialPlugin { clsid, library } = plugin;
    let values = |values: &[(&str, Value)]| values.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
    let text = |text: &str| Value::Text(text.to_owned());
    let rights = || Value::Bytes(USE_BY_SERVICES.to_vec());
    [
        // An empty value selects Windows' own surrogate.
        values(&[("AccessPermission", rights()), ("LaunchPermission", rights()), ("DllSurrogate", text(""))]),
        values(&[("AppID", text(clsid))]),
        values(&[("", text(library)), ("ThreadingModel", text("Both"))]),
        values(&[("", text(""))]),
    ]
}

/// Reports whether a text is a class identifier in braces and upper case, which cannot be more than one part of a key's name.
pub fn is_class(text: &str) -> bool {
    let Some(id) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else { return false };
    let parts: Vec<&str> = id.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.concat().bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'))
}

/// Reports whether a library is in wicd's directory of plugins.
pub fn is_our_library(library: &str) -> bool {
    let place = library.rsplit_once('\\');
    place.is_some_and(|(directory, name)| directory.eq_ignore_ascii_case(path::CREDENTIAL_PLUGINS) && !name.is_empty())
}

/// Returns the owner of a class's registration, by the library that it names. The ownership record decides only if the registration names no library.
///
/// # Errors
/// Fails when the registry cannot be read.
pub fn owner(host: &dyn Host, clsid: &str, owned: &Ownership) -> Result<Owner, HostError> {
    let named = host.registry_key(&server(clsid))?.and_then(|mut values| values.remove(""));
    if let Some(Value::Text(library)) = named.filter(|value| *value != Value::Text(String::new())) {
        return Ok(if is_our_library(&library) { Owner::Ours } else { Owner::Other(library) });
    }
    let mut found = Owner::None;
    for key in keys(clsid) {
        if host.registry_key(&key)?.is_some() {
            if !owned.keys.contains(&key) {
                return Ok(Owner::Other(format!(r"HKLM\{key} exists")));
            }
            found = Owner::Ours;
        }
    }
    Ok(found)
}

/// Registrations by other installers: the library or the key, by class. Checks the class `asked` even if CCG does not list it.
///
/// # Errors
/// Fails when the registry cannot be read.
pub fn foreign(host: &dyn Host, asked: Option<&str>, owned: &Ownership) -> Result<BTreeMap<String, String>, HostError> {
    let mut foreign = BTreeMap::new();
    for clsid in listed(host)?.into_iter().chain(asked.map(str::to_owned)).filter(|clsid| is_class(clsid)) {
        if let Owner::Other(what) = owner(host, &clsid, owned)? {
            foreign.insert(clsid, what);
        }
    }
    Ok(foreign)
}

/// Classes that CCG may use.
fn listed(host: &dyn Host) -> Result<Vec<String>, HostError> {
    let names = host.registry_keys(CLASSES_OF_CCG)?.into_iter().take(MAX_CLASSES);
    Ok(names.map(|name| name.to_ascii_uppercase()).filter(|name| is_class(name)).collect())
}

/// Adds the keys of a registration that is about to be created to the ownership record, and the keys of wicd's registrations that are not on record:
/// a version of wicd without support for plugins drops them from the record.
///
/// # Errors
/// Fails when the registry cannot be read.
pub fn claim(host: &dyn Host, plugin: Option<&CredentialPlugin>, owned: &mut Ownership) -> Result<(), HostError> {
    owned.keys.extend(plugin.into_iter().flat_map(|plugin| keys(&plugin.clsid)));
    for clsid in listed(host)? {
        if owner(host, &clsid, owned)? == Owner::Ours {
            owned.keys.extend(keys(&clsid));
        }
    }
    Ok(())
}

/// Registers a plugin, where the registration differs. The caller has claimed its keys.
///
/// # Errors
/// Fails when a key cannot be read or written.
pub fn register(host: &dyn Host, plugin: &CredentialPlugin, owned: &mut Ownership) -> Result<(), HostError> {
    for (key, values) in keys(&plugin.clsid).iter().zip(values(plugin)) {
        let differs = |now: Values| values.iter().any(|(name, value)| now.get(name) != Some(value));
        if host.registry_key(key)?.is_none_or(differs) {
            let above = key.rsplit_once('\\').map_or("", |(above, _)| above);
            with_rights(host, above, owned, || host.put_registry_key(key, &values))?;
        }
    }
    Ok(())
}

/// Removes wicd's registrations, except that of `plugin`, also from the record. Returns warnings about what stays: registrations that another
/// installer has taken over, and keys that another program uses.
///
/// # Errors
/// Fails when a key cannot be read or removed.
pub fn unregister_others(
    host: &dyn Host,
    plugin: Option<&CredentialPlugin>,
    owned: &mut Ownership,
) -> Result<Vec<String>, HostError> {
    let mut warnings = Vec::new();
    let classes: BTreeSet<String> = owned.keys.iter().filter_map(|key| class_of(key)).map(str::to_owned).collect();
    for clsid in classes.iter().filter(|clsid| plugin.is_none_or(|plugin| plugin.clsid != **clsid)) {
        if let Owner::Other(what) = owner(host, clsid, owned)? {
            warnings.push(format!("the credential plugin {clsid} stays registered, because another installer registered it ({what}); leave it there, or uninstall it with that installer"));
        } else {
            for key in removal_order(clsid) {
                if !with_rights(host, &key, owned, || host.remove_registry_key(&key))? {
                    warnings.push(format!(
                        "the registry key HKLM\\{key} stays, because another program has put keys into it; delete it by hand if nobody needs it"
                    ));
                }
            }
        }
        owned.keys.retain(|key| class_of(key) != Some(clsid));
    }
    Ok(warnings)
}

/// Class in the name of a registry key.
fn class_of(key: &str) -> Option<&str> {
    key.split('\\').find(|part| is_class(part))
}

/// Keys of a registration, in the order of removal: CCG must not find an incomplete class, and a key with subkeys cannot be removed.
fn removal_order(clsid: &str) -> [String; 4] {
    let [app, class, server, listed] = keys(clsid);
    [listed, app, server, class]
}

/// Changes the registry. If access is denied, takes the right to write in `key` for the change: CCG's list belongs to TrustedInstaller. Records the
/// previous owner and access list first, so that [`close_keys`] restores them after a crash.
fn with_rights<T>(
    host: &dyn Host,
    key: &str,
    owned: &mut Ownership,
    change: impl Fn() -> Result<T, HostError>,
) -> Result<T, HostError> {
    match change() {
        Err(e) if e.reason() == Reason::AccessDenied => {}
        done => return done,
    }
    let before = host.registry_key_access(key)?;
    owned.opened_keys.insert(key.to_owned(), hex::encode(before));
    owned.save(host)?;
    let done = host.open_registry_key(key).and_then(|()| change());
    close_keys(host, owned).and(done)
}

/// Restores the owner and access list of the keys that a change has opened for writing.
///
/// # Errors
/// Fails when Windows refuses it, or the record cannot be written.
pub fn close_keys(host: &dyn Host, owned: &mut Ownership) -> Result<(), HostError> {
    if owned.opened_keys.is_empty() {
        return Ok(());
    }
    for (key, before) in &owned.opened_keys {
        host.restore_registry_key(key, &hex::decode(before).unwrap_or_default())?;
    }
    owned.opened_keys.clear();
    owned.save(host)
}

#[cfg(test)]
#[path = "credential_plugin_tests.rs"]
mod tests;
