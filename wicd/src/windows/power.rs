//! Restart of the host.

use std::io;
use std::ptr::null;

use windows_sys::Win32::Foundation::{ERROR_SHUTDOWN_IN_PROGRESS, ERROR_SHUTDOWN_IS_SCHEDULED};
use windows_sys::Win32::Security::SE_SHUTDOWN_NAME;
use windows_sys::Win32::System::Shutdown::{
    InitiateSystemShutdownExW, SHTDN_REASON_FLAG_PLANNED, SHTDN_REASON_MAJOR_OPERATINGSYSTEM,
    SHTDN_REASON_MINOR_RECONFIG,
};

use super::privilege;
use super::wide::{check, is, wide};
use crate::host::HostError;

/// Seconds between the call and the restart: time to send the answer.
const DELAY: u32 = 5;

/// Starts a restart of the host and returns. A restart that is in progress or scheduled is success. (Wine ends its processes instead.)
pub(super) fn reboot() -> Result<(), HostError> {
    match try_reboot() {
        Err(e) if !is(&e, ERROR_SHUTDOWN_IN_PROGRESS) && !is(&e, ERROR_SHUTDOWN_IS_SCHEDULED) => {
            Err(HostError::system("restart", "the host")(e))
        }
        _ => Ok(()),
    }
}

fn try_reboot() -> io::Result<()> {
    // SAFETY: the name is one of Windows' own constants.
    unsafe { privilege::enable(SE_SHUTDOWN_NAME)? };
    let message = wide("Restart by the operator for Windows nodes")?;
    let reason = SHTDN_REASON_MAJOR_OPERATINGSYSTEM | SHTDN_REASON_MINOR_RECONFIG | SHTDN_REASON_FLAG_PLANNED;
    // SAFETY: the message ends with a zero; null stands for this computer.
    check(unsafe { InitiateSystemShutdownExW(null(), message.as_ptr(), DELAY, 1, 1, reason) })
}
