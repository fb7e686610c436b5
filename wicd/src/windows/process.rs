//! Processes.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0, WAIT_TIMEOUT};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::Threading::{
    OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE, PROCESS_TERMINATE,
    QueryFullProcessImageNameW, TerminateProcess, WaitForSingleObject,
};

use super::wide::{check, text_in};
use crate::host::HostError;

/// A process that may be waited for and ended. Its id cannot be given to another one while this is held.
pub(super) struct Process(HANDLE);

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, open, and not used afterwards.
        unsafe { CloseHandle(self.0) };
    }
}

impl Process {
    /// Opens a process by its id.
    pub(super) fn open(id: u32) -> io::Result<Self> {
        let access = PROCESS_SYNCHRONIZE | PROCESS_TERMINATE | PROCESS_QUERY_LIMITED_INFORMATION;
        // SAFETY: no pointers.
        let handle = unsafe { OpenProcess(access, 0, id) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }

    /// Path of its program.
    fn program(&self) -> io::Result<String> {
        let mut buffer = [0_u16; 1024];
        let mut length = 1024;
        // SAFETY: the handle is open and has the right to query; the buffer is as long as we say.
        check(unsafe { QueryFullProcessImageNameW(self.0, PROCESS_NAME_WIN32, buffer.as_mut_ptr(), &raw mut length) })?;
        Ok(text_in(&buffer))
    }

    /// Waits until it has ended. `false`: it has not within `limit`.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<bool> {
        let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX - 1);
        // SAFETY: the handle is open.
        match unsafe { WaitForSingleObject(self.0, milliseconds) } {
            WAIT_OBJECT_0 => Ok(true),
            WAIT_TIMEOUT => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Ends it by force and waits until it is gone.
    pub(super) fn end(&self) -> io::Result<()> {
        // SAFETY: the handle is open and has the right to terminate.
        let done = check(unsafe { TerminateProcess(self.0, 1) });
        // A process that has ended meanwhile may refuse to be ended.
        if self.wait(Duration::from_secs(10))? { Ok(()) } else { done }
    }
}

/// Ends all processes whose program has this path.
pub(super) fn end_all(program: &str) -> Result<(), HostError> {
    let name = program.rsplit('\\').next().unwrap_or(program);
    for id in ids(name).map_err(HostError::system("list", "the processes"))? {
        // One that cannot be opened or has no program has ended meanwhile.
        if let Ok(process) = Process::open(id)
            && process.program().is_ok_and(|path| path.eq_ignore_ascii_case(program))
        {
            process.end().map_err(HostError::system("end process", program))?;
        }
    }
    Ok(())
}

fn ids(name: &str) -> io::Result<Vec<u32>> {
    // SAFETY: no pointers.
    let snapshot = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if snapshot == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    let snapshot = Process(snapshot);
    let mut entry = PROCESSENTRY32W {
        dwSize: u32::try_from(size_of::<PROCESSENTRY32W>()).unwrap_or(0),
        ..PROCESSENTRY32W::default()
    };
    let mut ids = Vec::new();
    // SAFETY: the handle is open and the struct says its size.
    let mut more = unsafe { Process32FirstW(snapshot.0, &raw mut entry) };
    while more != 0 {
        if text_in(&entry.szExeFile).eq_ignore_ascii_case(name) {
            ids.push(entry.th32ProcessID);
        }
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot.0, &raw mut entry) };
    }
    Ok(ids)
}
