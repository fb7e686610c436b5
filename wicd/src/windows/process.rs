//! Processes of the host: listing, waiting and ending.

use std::collections::BTreeMap;
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
use crate::processes;

/// Maximum number of searches for further descendants while a process tree is being ended.
const GENERATIONS: u32 = 10;

/// Open process that can be waited for and ended. While it is open, Windows does not reuse its ID.
pub(super) struct Process(HANDLE);

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, open, and not used afterwards.
        unsafe { CloseHandle(self.0) };
    }
}

impl Process {
    /// Opens a process by its ID.
    pub(super) fn open(id: u32) -> io::Result<Self> {
        let access = PROCESS_SYNCHRONIZE | PROCESS_TERMINATE | PROCESS_QUERY_LIMITED_INFORMATION;
        // SAFETY: no pointers.
        let handle = unsafe { OpenProcess(access, 0, id) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }

    /// Path of the process's program.
    fn program(&self) -> io::Result<String> {
        let mut buffer = [0_u16; 1024];
        let mut length = 1024;
        // SAFETY: the handle is open and has the right to query; the buffer has the passed length.
        check(unsafe { QueryFullProcessImageNameW(self.0, PROCESS_NAME_WIN32, buffer.as_mut_ptr(), &raw mut length) })?;
        Ok(text_in(&buffer))
    }

    /// Waits until the process has ended. Returns false if it has not within `limit`.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<bool> {
        let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX - 1);
        // SAFETY: the handle is open.
        match unsafe { WaitForSingleObject(self.0, milliseconds) } {
            WAIT_OBJECT_0 => Ok(true),
            WAIT_TIMEOUT => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Terminates the process and waits until it has ended.
    pub(super) fn end(&self) -> io::Result<()> {
        // SAFETY: the handle is open and has the right to terminate.
        let done = check(unsafe { TerminateProcess(self.0, 1) });
        // Terminating a process that has ended meanwhile may fail.
        if self.wait(Duration::from_secs(10))? { Ok(()) } else { done }
    }

    /// Ends the process and its descendants except containers, because descendants would keep ports and programs in use. Windows does not reuse
    /// their IDs meanwhile.
    pub(super) fn end_with_descendants(&self) -> io::Result<()> {
        // SAFETY: the handle is open.
        let id = unsafe { GetProcessId(self.0) };
        let mut family = vec![processes::Process { id, parent: 0, started: self.started()?, program: String::new() }];
        // Descendants are listed before the process ends, because afterwards they have no parent.
        let mut held = descend(&mut family)?;
        self.end()?;
        for _ in 0..GENERATIONS {
            held.iter().try_for_each(Self::end)?;
            let new = descend(&mut family)?;
            if new.is_empty() {
                break;
            }
            held.extend(new);
        }
        Ok(())
    }

    /// Start time of the process, in units of 100 ns.
    fn started(&self) -> io::Result<u64> {
        let mut times = [FILETIME::default(); 4];
        let [started, ended, kernel, user] = &mut times;
        // SAFETY: the handle is open and has the right to query; the structs are ours.
        check(unsafe { GetProcessTimes(self.0, started, ended, kernel, user) })?;
        Ok((u64::from(times[0].dwHighDateTime) << 32) | u64::from(times[0].dwLowDateTime))
    }
}

/// Opens the descendants of `family`, and adds them to it.
fn descend(family: &mut Vec<processes::Process>) -> io::Result<Vec<Process>> {
    // A process that cannot be opened has ended meanwhile, or belongs to Windows.
    let mut handles: BTreeMap<u32, Process> =
        list()?.into_iter().filter_map(|p| Some((p.id, Process::open(p.id).ok()?))).collect();
    // The processes are listed again: now that they are open, their IDs are not reused, so the list matches the handles.
    let held = list()?.into_iter().filter_map(|p| {
        let started = handles.get(&p.id)?.started().ok()?;
        Some(processes::Process { started, ..p })
    });
    let all: Vec<_> = held.collect();
    let found: Vec<_> = processes::descendants(&all, family).into_iter().cloned().collect();
    handles.retain(|id, _| found.iter().any(|p| p.id == *id));
    family.extend(found);
    Ok(handles.into_values().collect())
}

/// Ends all processes whose program has this path.
pub(super) fn end_all(program: &str) -> Result<(), HostError> {
    let name = program.rsplit('\\').next().unwrap_or(program);
    let all = list().map_err(HostError::system("list", "the processes"))?;
    for listed in all.iter().filter(|p| p.program.eq_ignore_ascii_case(name)) {
        // A process that cannot be opened or has no program has ended meanwhile.
        if let Ok(process) = Process::open(listed.id)
            && process.program().is_ok_and(|path| path.eq_ignore_ascii_case(program))
        {
            process.end().map_err(HostError::system("end process", program))?;
        }
    }
    Ok(())
}

/// Ends processes of these programs whose parent has ended, with all their descendants except containers. Returns the file names of the programs,
/// without those of the descendants.
pub(super) fn end_orphans(programs: &[&str]) -> io::Result<Vec<String>> {
    // As in `descend`: open processes keep their IDs from the second list on.
    let mut handles: BTreeMap<u32, Process> =
        list()?.into_iter().filter_map(|p| Some((p.id, Process::open(p.id).ok()?))).collect();
    // Windows' own processes cannot be opened, and count as the oldest.
    let started = |id| handles.get(&id).and_then(|process| process.started().ok()).unwrap_or_default();
    let all: Vec<_> = list()?.into_iter().map(|p| processes::Process { started: started(p.id), ..p }).collect();
    let path = |id| handles.get(&id).and_then(|process| process.program().ok());
    let is_meant = |p: &processes::Process| {
        let is_named = programs
            .iter()
            .any(|program| program.rsplit('\\').next().is_some_and(|n| n.eq_ignore_ascii_case(&p.program)));
        is_named && path(p.id).is_some_and(|path| programs.iter().any(|program| program.eq_ignore_ascii_case(&path)))
    };
    let found: Vec<(u32, String)> =
        processes::orphans(&all, is_meant).into_iter().map(|p| (p.id, p.program.clone())).collect();
    let mut ended = Vec::new();
    for (id, program) in found {
        if let Some(process) = handles.remove(&id) {
            process.end_with_descendants()?;
            ended.push(program);
        }
    }
    Ok(ended)
}

/// Returns all processes, without their start times.
fn list() -> io::Result<Vec<processes::Process>> {
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
    // SAFETY: the handle is open and the struct has its size.
    let mut more = unsafe { Process32FirstW(snapshot.0, &raw mut entry) };
    while more != 0 {
        all.push(processes::Process {
            id: entry.th32ProcessID,
            parent: entry.th32ParentProcessID,
            started: 0,
            program: text_in(&entry.szExeFile),
        });
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot.0, &raw mut entry) };
    }
    Ok(all)
}
