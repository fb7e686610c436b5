//! Registry keys for the registration of classes.
//!
//! TrustedInstaller owns the list of classes that Container Credential Guard may use. Installers of plugins take ownership of it while they write,
//! as [Microsoft's own](https://github.com/microsoft/Azure-Key-Vault-Plugin-gMSA/blob/main/src/CCGAKVPlugin/InstallPlugin.ps1) does. wicd does the
//! same, only if access is denied: [`access`], [`open_up`], the change, [`restore`].

use std::io;

use windows_registry::{Key, LOCAL_MACHINE, Type};
use windows_sys::Win32::Foundation::ERROR_INSUFFICIENT_BUFFER;
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, GetSecurityDescriptorLength, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR,
    SE_RESTORE_NAME, SE_TAKE_OWNERSHIP_NAME,
};
use windows_sys::Win32::Storage::FileSystem::{READ_CONTROL, WRITE_DAC, WRITE_OWNER};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RegDeleteKeyExW, RegGetKeySecurity, RegSetKeySecurity};

use super::acl::Descriptor;
use super::library::Library;
use super::privilege;
use super::wide::{check_code, if_found, plain, wide};
use crate::host::{HostError, RegistryValue as Value, RegistryValues as Values};

/// Access list of a key while wicd writes: SYSTEM and Administrators may change the key and new subkeys, and all may read.
const WRITABLE: &str = "O:BAD:P(A;CI;KA;;;SY)(A;CI;KA;;;BA)(A;CI;KR;;;WD)";

type IsValid = unsafe extern "system" fn(PSECURITY_DESCRIPTOR, u32, u32) -> u8;

/// Text and binary values of a key; `None` if it does not exist.
pub(super) fn values(key: &str) -> Result<Option<Values>, HostError> {
    let read = || -> io::Result<Values> {
        let opened = LOCAL_MACHINE.open(key).map_err(plain)?;
        let mut values = Values::new();
        for (name, value) in opened.values().map_err(plain)? {
            match value.ty() {
                Type::String | Type::ExpandString => {
                    let text = opened.get_string(&name).map_err(plain)?;
                    values.insert(name, Value::Text(text));
                }
                Type::Bytes => drop(values.insert(name, Value::Bytes(value.to_vec()))),
                _ => {}
            }
        }
        Ok(values)
    };
    if_found(read()).map_err(HostError::system("read the registry key", key))
}

/// Names of the subkeys of a key; none if it does not exist.
pub(super) fn keys(key: &str) -> Result<Vec<String>, HostError> {
    let names = if_found(LOCAL_MACHINE.open(key).and_then(|opened| Ok(opened.keys()?.collect())));
    names.map(Option::unwrap_or_default).map_err(HostError::system("list the registry key", key))
}

/// Creates a key, unless it exists, and sets values in it.
pub(super) fn put(key: &str, values: &Values) -> Result<(), HostError> {
    write(key, values).map_err(HostError::system("write the registry key", key))
}

/// Removes a key without subkeys, and returns whether it no longer exists. Checks for subkeys first, because Windows reports them as denied access.
pub(super) fn remove(key: &str) -> Result<bool, HostError> {
    let done = has_keys(key).and_then(|has_keys| if has_keys { Ok(false) } else { delete(key).map(|()| true) });
    if_found(done).map(|is_gone| is_gone.unwrap_or(true)).map_err(HostError::system("remove the registry key", key))
}

fn has_keys(key: &str) -> io::Result<bool> {
    let opened = LOCAL_MACHINE.open(key).map_err(plain)?;
    Ok(opened.keys().map_err(plain)?.next().is_some())
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
    // SAFETY: the text ends with a zero. A key with subkeys is refused.
    check_code(unsafe { RegDeleteKeyExW(HKEY_LOCAL_MACHINE, key.as_ptr(), 0, 0) })
}

/// Owner and access list of a key, as Windows stores them.
pub(super) fn access(key: &str) -> Result<Vec<u8>, HostError> {
    let read = || -> io::Result<Vec<u8>> {
        let buffer = security(&open(key, READ_CONTROL)?)?;
        // SAFETY: Windows has put a descriptor at the beginning of the buffer.
        let length = unsafe { GetSecurityDescriptorLength(buffer.as_ptr().cast_mut().cast()) } as usize;
        Ok(buffer.iter().flat_map(|part| part.to_ne_bytes()).take(length).collect())
    };
    read().map_err(HostError::system("read the access list of the registry key", key))
}

/// Makes Administrators the owner of a key, and lets them change it. Subkeys stay as they are.
pub(super) fn open_up(key: &str) -> Result<(), HostError> {
    let open_up = || {
        enable()?;
        let writable = Descriptor::parse(WRITABLE)?;
        // SAFETY: Windows created the descriptor, which is still alive.
        unsafe { set_security(&open(key, WRITE_OWNER)?, OWNER_SECURITY_INFORMATION, writable.as_raw())? };
        // The owner may change the access list, but only with a new handle.
        // SAFETY: as above.
        unsafe { set_security(&open(key, WRITE_DAC)?, DACL_SECURITY_INFORMATION, writable.as_raw()) }
    };
    open_up().map_err(HostError::system("take ownership of the registry key", key))
}

/// Restores the owner and access list of a key, from [`access`]. A missing key is success.
pub(super) fn restore(key: &str, access: &[u8]) -> Result<(), HostError> {
    let restore = || {
        let mut buffer = vec![0_u64; access.len().div_ceil(size_of::<u64>())];
        for (part, bytes) in buffer.iter_mut().zip(access.chunks(size_of::<u64>())) {
            let mut whole = [0; size_of::<u64>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            *part = u64::from_ne_bytes(whole);
        }
        let raw: PSECURITY_DESCRIPTOR = buffer.as_mut_ptr().cast();
        let what = DACL_SECURITY_INFORMATION | OWNER_SECURITY_INFORMATION;
        let length = u32::try_from(access.len()).unwrap_or_default();
        // SAFETY: the type is that of the library's documentation. The buffer has at least the passed length, and the call reads no
        // more than that.
        let is_whole = unsafe {
            let is_valid: IsValid = Library::load("ntdll.dll")?.function(c"RtlValidRelativeSecurityDescriptor")?;
            is_valid(raw, length, what) != 0
        };
        if !is_whole {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the record of its access list is damaged"));
        }
        enable()?;
        // Ownership is taken first: only the owner may change the list, and an earlier attempt may have restored the owner already.
        let writable = Descriptor::parse(WRITABLE)?;
        // SAFETY: Windows created the descriptor, which is still alive.
        unsafe { set_security(&open(key, WRITE_OWNER)?, OWNER_SECURITY_INFORMATION, writable.as_raw())? };
        // SAFETY: the descriptor was checked, and is in the buffer, which is still alive.
        unsafe { set_security(&open(key, WRITE_DAC | WRITE_OWNER)?, what, raw) }
    };
    if_found(restore()).map(drop).map_err(HostError::system("restore the access list of the registry key", key))
}

/// Enables the privileges of administrators to take ownership of a key, and to give it to another owner.
fn enable() -> io::Result<()> {
    // SAFETY: the names are Windows' own constants.
    [SE_TAKE_OWNERSHIP_NAME, SE_RESTORE_NAME].into_iter().try_for_each(|name| unsafe { privilege::enable(name) })
}

fn open(key: &str, access: u32) -> io::Result<Key> {
    LOCAL_MACHINE.options().access(access).open(key).map_err(plain)
}

/// Owner and access list of a key, in a buffer that is aligned for them.
fn security(key: &Key) -> io::Result<Vec<u64>> {
    let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let mut buffer = vec![0_u64; 64];
    loop {
        let mut size = u32::try_from(size_of_val(buffer.as_slice())).unwrap_or(u32::MAX);
        // SAFETY: the handle is open, and the buffer has the passed size.
        let code = unsafe { RegGetKeySecurity(key.as_raw(), what, buffer.as_mut_ptr().cast(), &raw mut size) };
        if code != ERROR_INSUFFICIENT_BUFFER {
            return check_code(code).map(|()| buffer);
        }
        buffer.resize((size as usize).div_ceil(size_of::<u64>()).max(buffer.len() + 1), 0);
    }
}

/// Sets the parts of a key's security descriptor that `what` selects.
///
/// # Safety
/// `descriptor` is valid.
unsafe fn set_security(key: &Key, what: u32, descriptor: PSECURITY_DESCRIPTOR) -> io::Result<()> {
    // SAFETY: the handle is open; the caller promises the descriptor.
    check_code(unsafe { RegSetKeySecurity(key.as_raw(), what, descriptor) })
}
