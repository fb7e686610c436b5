//! Privileges of administrators, which must be enabled before use.

use std::io;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::Security::{
    AdjustTokenPrivileges, LUID_AND_ATTRIBUTES, LookupPrivilegeValueW, SE_PRIVILEGE_ENABLED, TOKEN_ADJUST_PRIVILEGES,
    TOKEN_PRIVILEGES, TOKEN_QUERY,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};
use windows_sys::core::PCWSTR;

use super::wide::{check, check_code};

/// Enables a privilege of this process.
///
/// # Safety
/// `name` is one of Windows' own constants, or another text that ends with a zero.
pub(super) unsafe fn enable(name: PCWSTR) -> io::Result<()> {
    let mut token: HANDLE = null_mut();
    let mut privileges = TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES { Attributes: SE_PRIVILEGE_ENABLED, ..LUID_AND_ATTRIBUTES::default() }],
    };
    // SAFETY: the handle of our own process needs no closing, that of the token is closed; the struct holds as many
    // privileges as it says. The last call may report success without an effect: then the last error shows it.
    unsafe {
        check(OpenProcessToken(GetCurrentProcess(), TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY, &raw mut token))?;
        let done = check(LookupPrivilegeValueW(null(), name, &raw mut privileges.Privileges[0].Luid)).and_then(|()| {
            check(AdjustTokenPrivileges(token, 0, &raw const privileges, 0, null_mut(), null_mut()))?;
            check_code(GetLastError())
        });
        CloseHandle(token);
        done
    }
}
