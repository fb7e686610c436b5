//! Processes.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    CloseHandle, FILETIME, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::Threading::{
    GetProcessId, GetProcessTimes, OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, PROCESS_TERMINATE, QueryFullProcessImageNameW, TerminateProcess, WaitForSingleObject,
};

use super::wide::{check, text_in};
use crate::host::HostError;
use crate::process_tree::{Parentage, descendants};

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

    /// When it began, in the unit of Windows.
    fn started(&self) -> io::Result<u64> {
        let mut times = [FILETIME::default(); 4];
        let [created, exited, kernel, user] = &mut times;
        // SAFETY: the handle is open and has the right to query; the structs are ours.
        check(unsafe { GetProcessTimes(self.0, created, exited, kernel, user) })?;
        Ok(u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime))
    }

    /// Ends it by force with all that it has started, and waits until they are gone.
    pub(super) fn end_tree(&self) -> io::Result<()> {
        // SAFETY: the handle is open and has the right to query.
        let root = unsafe { GetProcessId(self.0) };
        let started = |id| if id == root { self.started().ok() } else { Self::open(id).ok()?.started().ok() };
        let all: Vec<Parentage> = list()?.into_iter().map(|entry| entry.parentage).collect();
        // Opened before the first one ends, so that no id is that of another one by then. One that cannot be opened has ended meanwhile.
        let children: Vec<Self> =
            descendants(&all, root, started).into_iter().filter_map(|id| Self::open(id).ok()).collect();
        // The parent first: it could start a child again.
        self.end()?;
        children.iter().try_for_each(Self::end)
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
    Ok(list()?.into_iter().filter(|p| p.program.eq_ignore_ascii_case(name)).map(|p| p.parentage.id).collect())
}

/// A process of the host.
struct Listed {
    parentage: Parentage,
    /// Name of its program, without a path.
    program: String,
}

fn list() -> io::Result<Vec<Listed>> {
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
    let mut all = Vec::new();
    // SAFETY: the handle is open and the struct says its size.
    let mut more = unsafe { Process32FirstW(snapshot.0, &raw mut entry) };
    while more != 0 {
        let parentage = Parentage { id: entry.th32ProcessID, parent: entry.th32ParentProcessID };
        all.push(Listed { parentage, program: text_in(&entry.szExeFile) });
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot.0, &raw mut entry) };
    }
    Ok(all)
}

/// Not in CI: the tests of this crate run on Linux there. With Wine: `cargo test -p wicd --target x86_64-pc-windows-gnu --lib process::`.
#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_ended_with_what_it_has_started() {
        let mut root = Command::new("cmd.exe").args(["/c", "cmd.exe /c pause"]).stdin(Stdio::piped()).spawn().unwrap();
        let child = loop {
            if let Some(child) = list().unwrap().iter().find(|p| p.parentage.parent == root.id()) {
                break Process::open(child.parentage.id).unwrap();
            }
        };
        assert!(!child.wait(Duration::ZERO).unwrap());
        Process::open(root.id()).unwrap().end_tree().unwrap();
        assert!(child.wait(Duration::ZERO).unwrap(), "the child lives on");
        assert_eq!(root.wait().unwrap().code(), Some(1));
    }
}
