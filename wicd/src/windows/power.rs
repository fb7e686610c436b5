//! Restarting the host.

use std::io;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{CloseHandle, ERROR_SHUTDOWN_IN_PROGRESS, GetLastError, HANDLE};
use windows_sys::Win32::Security::{
    AdjustTokenPrivileges, LUID_AND_ATTRIBUTES, LookupPrivilegeValueW, SE_PRIVILEGE_ENABLED, SE_SHUTDOWN_NAME,
    TOKEN_ADJUST_PRIVILEGES, TOKEN_PRIVILEGES, TOKEN_QUERY,
};
use windows_sys::Win32::System::Shutdown::{
    InitiateSystemShutdownExW, SHTDN_REASON_FLAG_PLANNED, SHTDN_REASON_MAJOR_OPERATINGSYSTEM,
    SHTDN_REASON_MINOR_RECONFIG,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::wide::{check, check_code, is, wide};
use crate::host::HostError;

/// Seconds between the call and the restart: time to send the answer.
const DELAY: u32 = 5;

/// Begins a restart and returns. One that has begun already is success. (Wine ends its processes instead of restarting.)
pub fn reboot() -> Result<(), HostError> {
    match try_reboot() {
        Err(e) if !is(&e, ERROR_SHUTDOWN_IN_PROGRESS) => Err(HostError::system("restart", "the host")(e)),
        _ => Ok(()),
    }
}

fn try_reboot() -> io::Result<()> {
    enable_privilege()?;
    let message = wide("Restart by the operator for Windows nodes")?;
    let reason = SHTDN_REASON_MAJOR_OPERATINGSYSTEM | SHTDN_REASON_MINOR_RECONFIG | SHTDN_REASON_FLAG_PLANNED;
    // SAFETY: the message ends with a zero; null stands for this computer.
    check(unsafe { InitiateSystemShutdownExW(null(), message.as_ptr(), DELAY, 1, 1, reason) })
}

/// Administrators have the right to restart, but it must be switched on.
fn enable_privilege() -> io::Result<()> {
    let mut token: HANDLE = null_mut();
    let mut privileges = TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES { Attributes: SE_PRIVILEGE_ENABLED, ..LUID_AND_ATTRIBUTES::default() }],
    };
    // SAFETY: the handle of our own process needs no closing, that of the token is closed; the struct holds as many
    // privileges as it says. The last call may say yes though it did not do it: then the last error tells.
    unsafe {
        check(OpenProcessToken(GetCurrentProcess(), TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY, &raw mut token))?;
        let done = check(LookupPrivilegeValueW(null(), SE_SHUTDOWN_NAME, &raw mut privileges.Privileges[0].Luid))
            .and_then(|()| {
                check(AdjustTokenPrivileges(token, 0, &raw const privileges, 0, null_mut(), null_mut()))?;
                check_code(GetLastError())
            });
        CloseHandle(token);
        done
    }
}
