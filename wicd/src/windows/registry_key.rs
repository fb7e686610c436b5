//! Keys of the registry, for the registration of classes.
//!
//! Windows gives the list of classes that Container Credential Guard may use to TrustedInstaller, and installers of plugins take ownership of
//! it while they write, as [Microsoft's own](https://github.com/microsoft/Azure-Key-Vault-Plugin-gMSA/blob/main/src/CCGAKVPlugin/InstallPlugin.ps1)
//! does. So does this, and only where a plain write is refused; owner and access list are put back afterwards.

use std::io;

use windows_registry::{Key, LOCAL_MACHINE, Type};
use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, ERROR_FILE_NOT_FOUND, ERROR_INSUFFICIENT_BUFFER};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, SE_RESTORE_NAME,
    SE_TAKE_OWNERSHIP_NAME,
};
use windows_sys::Win32::Storage::FileSystem::{READ_CONTROL, WRITE_DAC, WRITE_OWNER};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RegDeleteKeyExW, RegGetKeySecurity, RegSetKeySecurity};

use super::acl::Descriptor;
use super::privilege;
use super::wide::{check_code, is, plain, wide};
use crate::host::{HostError, RegistryValue as Value, RegistryValues as Values};

/// While wicd writes: SYSTEM and Administrators may change the key and what is made in it, and all may read.
const WRITABLE: &str = "O:BAD:P(A;CI;KA;;;SY)(A;CI;KA;;;BA)(A;CI;KR;;;WD)";

/// The texts and bytes in a key; `None` if it does not exist.
pub(super) fn values(key: &str) -> Result<Option<Values>, HostError> {
    let read = || {
        let opened = LOCAL_MACHINE.open(key).map_err(plain)?;
        let mut values = Values::new();
        for (name, value) in opened.values().map_err(plain)? {
            match value.ty() {
                Type::String => {
                    let text = opened.get_string(&name).map_err(plain)?;
                    values.insert(name, Value::Text(text));
                }
                Type::Bytes => drop(values.insert(name, Value::Bytes(value.to_vec()))),
                _ => {}
            }
        }
        Ok(values)
    };
    match read() {
        Ok(values) => Ok(Some(values)),
        Err(e) if is(&e, ERROR_FILE_NOT_FOUND) => Ok(None),
        Err(e) => Err(HostError::system("read the registry key", key)(e)),
    }
}

/// Makes a key, unless it exists, and sets values in it.
pub(super) fn put(key: &str, values: &Values) -> Result<(), HostError> {
    let done = match write(key, values) {
        Err(e) if is(&e, ERROR_ACCESS_DENIED) => {
            let above = key.rsplit_once('\\').map_or("", |(above, _)| above);
            opened_up(above).and_then(|before| {
                let done = write(key, values);
                before.restore().and(done)
            })
        }
        done => done,
    };
    done.map_err(HostError::system("write the registry key", key))
}

/// Removes a key that has no others, and returns whether it is gone. Windows answers for one that has others as for one without the right
/// to, so they are looked for first.
pub(super) fn remove(key: &str) -> Result<bool, HostError> {
    let done =
        has_keys(key).and_then(|has_keys| if has_keys { Ok(false) } else { delete_with_rights(key).map(|()| true) });
    match done {
        Err(e) if is(&e, ERROR_FILE_NOT_FOUND) => Ok(true),
        done => done.map_err(HostError::system("remove the registry key", key)),
    }
}

fn has_keys(key: &str) -> io::Result<bool> {
    let opened = LOCAL_MACHINE.open(key).map_err(plain)?;
    Ok(opened.keys().map_err(plain)?.next().is_some())
}

fn delete_with_rights(key: &str) -> io::Result<()> {
    match delete(key) {
        // Another user may have made it again.
        Err(e) if is(&e, ERROR_ACCESS_DENIED) => {
            opened_up(key).and_then(|before| delete(key).or_else(|e| before.restore().and(Err(e))))
        }
        done => done,
    }
}

fn write(key: &str, values: &Values) -> io::Result<()> {
    let key = LOCAL_MACHINE.create(key).map_err(plain)?;
    for (name, value) in values {
        match value {
            Value::Text(text) => key.set_string(name, text),
            Value::Bytes(bytes) => key.set_bytes(name, Type::Bytes, bytes),
        }
        .map_err(plain)?;
    }
    Ok(())
}

fn delete(key: &str) -> io::Result<()> {
    let key = wide(key)?;
    // SAFETY: the text ends with a zero. A key that has others is refused.
    check_code(unsafe { RegDeleteKeyExW(HKEY_LOCAL_MACHINE, key.as_ptr(), 0, 0) })
}

/// A key that wicd has made writable, and its security descriptor before that.
struct OpenedUp {
    key: Key,
    before: Vec<u64>,
}

/// Gives a key to Administrators, who may then change it. What is below stays as it is.
fn opened_up(key: &str) -> io::Result<OpenedUp> {
    for name in [SE_TAKE_OWNERSHIP_NAME, SE_RESTORE_NAME] {
        privilege::enable(name)?;
    }
    let open = |access| LOCAL_MACHINE.options().access(access).open(key).map_err(plain);
    let owned = open(READ_CONTROL | WRITE_OWNER)?;
    let before = security(&owned)?;
    let writable = Descriptor::parse(WRITABLE)?;
    set_security(&owned, OWNER_SECURITY_INFORMATION, writable.as_raw())?;
    // Its owner may change the list, but only with a handle that was opened since.
    let opened = OpenedUp { key: open(READ_CONTROL | WRITE_DAC | WRITE_OWNER)?, before };
    match set_security(&opened.key, DACL_SECURITY_INFORMATION, writable.as_raw()) {
        Ok(()) => Ok(opened),
        Err(e) => opened.restore().and(Err(e)),
    }
}

impl OpenedUp {
    fn restore(mut self) -> io::Result<()> {
        let before = self.before.as_mut_ptr().cast();
        set_security(&self.key, DACL_SECURITY_INFORMATION | OWNER_SECURITY_INFORMATION, before)
    }
}

/// Owner and access list of a key, in a buffer that is aligned for them.
fn security(key: &Key) -> io::Result<Vec<u64>> {
    let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let mut buffer = vec![0_u64; 64];
    loop {
        let mut size = u32::try_from(size_of_val(buffer.as_slice())).unwrap_or(u32::MAX);
        // SAFETY: the handle is open, and the buffer is as large as said.
        let code = unsafe { RegGetKeySecurity(key.as_raw(), what, buffer.as_mut_ptr().cast(), &raw mut size) };
        if code != ERROR_INSUFFICIENT_BUFFER {
            return check_code(code).map(|()| buffer);
        }
        buffer.resize((size as usize).div_ceil(size_of::<u64>()).max(buffer.len() + 1), 0);
    }
}

fn set_security(key: &Key, what: u32, descriptor: PSECURITY_DESCRIPTOR) -> io::Result<()> {
    // SAFETY: the handle is open; the descriptor is one that Windows made, and lives.
    check_code(unsafe { RegSetKeySecurity(key.as_raw(), what, descriptor) })
}
