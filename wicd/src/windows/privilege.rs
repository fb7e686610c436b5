//! Token of this process, and privileges of administrators, which must be enabled before use.

use std::io;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::Security::{
    AdjustTokenPrivileges, GetTokenInformation, LUID_AND_ATTRIBUTES, LookupPrivilegeValueW, SE_PRIVILEGE_ENABLED,
    TOKEN_ADJUST_PRIVILEGES, TOKEN_INFORMATION_CLASS, TOKEN_PRIVILEGES, TOKEN_QUERY,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};
use windows_sys::core::PCWSTR;

use super::wide::{check, check_code};

/// Token of this process, closed when dropped.
pub(super) struct Token(HANDLE);

impl Drop for Token {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, open, and not used afterwards.
        unsafe { CloseHandle(self.0) };
    }
}

impl Token {
    pub(super) fn open(access: u32) -> io::Result<Self> {
        let mut token = null_mut();
        // SAFETY: the handle of our own process needs no closing.
        check(unsafe { OpenProcessToken(GetCurrentProcess(), access, &raw mut token) })?;
        Ok(Self(token))
    }

    /// Reads one class of information into a buffer.
    ///
    /// # Safety
    /// Any bytes are a valid `T`, and `T` is aligned for the struct of the class.
    pub(super) unsafe fn read<T>(&self, class: TOKEN_INFORMATION_CLASS, into: &mut T) -> io::Result<()> {
        let (size, mut needed) = (u32::try_from(size_of::<T>()).unwrap_or_default(), 0);
        // SAFETY: the handle is open; the buffer has the passed size, and the caller promises the rest.
        check(unsafe { GetTokenInformation(self.0, class, (&raw mut *into).cast(), size, &raw mut needed) })
    }
}

/// Enables a privilege of this process.
///
/// # Safety
/// `name` is one of Windows' own constants, or another text that ends with a zero.
pub(super) unsafe fn enable(name: PCWSTR) -> io::Result<()> {
    let token = Token::open(TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY)?;
    let mut privileges = TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES { Attributes: SE_PRIVILEGE_ENABLED, ..LUID_AND_ATTRIBUTES::default() }],
    };
    // SAFETY: the token is open; the struct holds the number of privileges in `PrivilegeCount`. The second call may succeed without an effect; only
    // the last error shows that.
    unsafe {
        check(LookupPrivilegeValueW(null(), name, &raw mut privileges.Privileges[0].Luid))?;
        check(AdjustTokenPrivileges(token.0, 0, &raw const privileges, 0, null_mut(), null_mut()))?;
        check_code(GetLastError())
    }
}
