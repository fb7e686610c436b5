//! Who may use a file.

use std::io;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1, SE_FILE_OBJECT, SetNamedSecurityInfoW,
};
use windows_sys::Win32::Security::{
    ACL, DACL_SECURITY_INFORMATION, GetSecurityDescriptorDacl, PROTECTED_DACL_SECURITY_INFORMATION,
    PSECURITY_DESCRIPTOR,
};

use super::wide::{check, check_code, wide};
use crate::host::HostError;

/// Nothing inherited; everything for SYSTEM and Administrators, also for what is made below later.
const DIRECTORY: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)";
/// The same for a file.
const FILE: &str = "D:P(A;;FA;;;SY)(A;;FA;;;BA)";

/// Lets only SYSTEM and Administrators use a file or directory.
pub fn protect(path: &Path) -> Result<(), HostError> {
    try_protect(path).map_err(HostError::system("restrict access to", path.display().to_string()))
}

fn try_protect(path: &Path) -> io::Result<()> {
    let descriptor = Descriptor::parse(if path.is_dir() { DIRECTORY } else { FILE })?;
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: the path ends with a zero; the list lies in the descriptor, which lives until the end.
    check_code(unsafe {
        SetNamedSecurityInfoW(
            path.as_ptr(),
            SE_FILE_OBJECT,
            DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION,
            null_mut(),
            null_mut(),
            descriptor.dacl()?,
            null(),
        )
    })
}

struct Descriptor(PSECURITY_DESCRIPTOR);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was allocated by the conversion and is not used afterwards.
        unsafe { LocalFree(self.0) };
    }
}

impl Descriptor {
    fn parse(text: &str) -> io::Result<Self> {
        let text = wide(text)?;
        let mut descriptor = null_mut();
        // SAFETY: the text ends with a zero; null stands for: size not asked for.
        check(unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                null_mut(),
            )
        })?;
        Ok(Self(descriptor))
    }

    fn dacl(&self) -> io::Result<*const ACL> {
        let (mut present, mut defaulted, mut dacl) = (0, 0, null_mut());
        // SAFETY: the descriptor is a valid one.
        check(unsafe { GetSecurityDescriptorDacl(self.0, &raw mut present, &raw mut dacl, &raw mut defaulted) })?;
        // A null list would mean that everybody may do everything.
        if present == 0 || dacl.is_null() {
            return Err(io::Error::other("the access list is empty"));
        }
        Ok(dacl)
    }
}
