//! Simulated host as a machine: its port, its power switch, its disk and its state.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::host::Verb;
use russh::keys::{PrivateKey, ssh_key::PublicKey};
use russh_sftp::protocol::StatusCode;
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, time::sleep};

use wicd::fake::ServiceEvent;

use super::{
    fault::Fault,
    link::Link,
    sftp::Disk,
    shell::Shell,
    windows::{KUBELET, Windows},
};

/// Time between the end of the program that requests a restart and the restart, as with `shutdown /r`, so that the exit status
/// is still sent.
const RESTART_AFTER: Duration = Duration::from_millis(200);

/// Account that may log in.
const USER: &str = "Administrator";
/// Files with the keys that may log in, if they exist. Without any, the keys in the host's options may log in.
const KEY_FILES: [&[&str]; 2] =
    [&["ProgramData", "ssh", "administrators_authorized_keys"], &["Users", "Administrator", ".ssh", "authorized_keys"]];

/// State of a machine outside of Windows: power, faults, address and counters.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) powered: bool,
    /// Number of boots so far, which is the boot id.
    pub(super) boots: u32,
    pub(super) faults: Vec<Fault>,
    /// Number that increases whenever services may have changed.
    pub(super) revision: u64,
    /// Number of starts of kubelet.
    pub(super) kubelet_runs: u64,
    /// Address and SSH port of the machine.
    pub(super) address: SocketAddr,
    /// Number of the cluster whose simulation runs the machine's kubelet now.
    pub(super) cluster: u32,
}

/// Properties with which a machine is created.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) authorized_keys: Vec<PublicKey>,
    pub(super) host_key: PrivateKey,
    pub(super) dir: PathBuf,
    pub(super) link: Link,
    pub(super) process_start: Duration,
    pub(super) restart: Duration,
    pub(super) boot: Duration,
}

/// Simulated machine.
pub(super) struct Machine {
    parts: Parts,
    drive: PathBuf,
    other_key: OnceLock<PrivateKey>,
    windows: Windows,
    state: Arc<watch::Sender<State>>,
    pub(super) connections: AtomicU64,
    pub(super) processes: AtomicU64,
    /// Total run time of the programs that have ended, in microseconds.
    pub(super) busy: AtomicU64,
    pub(super) received: Arc<AtomicU64>,
}

/// Exit status and output of a program.
pub(super) struct Exit {
    pub(super) status: u32,
    pub(super) output: String,
}

impl Exit {
    fn new(status: u32, output: impl Into<String>) -> Self {
        Self { status, output: output.into() }
    }
}

impl Machine {
    pub(super) fn new(parts: Parts) -> io::Result<Arc<Self>> {
        let drive = parts.dir.join("drive_c");
        super::drive::format(&drive, &parts.dir.join("linux"))?;
        let address = parts.address;
        let state =
            State { powered: true, boots: 1, faults: Vec::new(), revision: 0, kubelet_runs: 0, address, cluster: 0 };
        let state = Arc::new(watch::Sender::new(state));
        let revised = state.clone();
        let changed = move |event, service: &str| {
            revised.send_modify(|s| {
                s.revision += 1;
                s.kubelet_runs += u64::from(event == ServiceEvent::Started && service == KUBELET);
            });
        };
        let windows = Windows::new(&parts.name, parts.address.ip(), drive.clone(), changed);
        Ok(Arc::new(Self {
            drive,
            other_key: OnceLock::new(),
            windows,
            state,
            connections: AtomicU64::new(0),
            processes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            received: Arc::default(),
            parts,
        }))
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the current address of the machine, with the SSH port.
    pub(super) fn address(&self) -> SocketAddr {
        self.state.borrow().address
    }

    /// Gives the machine another address in place of its own: connections are cut, and services are not informed.
    pub(super) fn readdress(&self, address: SocketAddr) {
        let mut windows = self.windows.host().state();
        windows.machine.addresses = vec![address.ip().to_string()];
        windows.machine.default_address = Some(address.ip().to_string());
        drop(windows);
        self.change(|s| {
            s.address = address;
            s.revision += 1;
        });
    }

    pub(super) fn drive(&self) -> &Path {
        &self.drive
    }

    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Changes the state, notifies all waiters, and adapts Windows to the boots and faults.
    pub(super) fn change(&self, how: impl FnOnce(&mut State)) {
        self.state.send_modify(how);
        let state = self.state.borrow();
        self.windows.set_conditions(state.boots, &state.faults);
    }

    pub(super) fn has(&self, fault: &Fault) -> bool {
        self.state.borrow().faults.contains(fault)
    }

    fn shell(&self) -> Shell {
        let shell = |f: &Fault| if let Fault::Shell(shell) = f { Some(*shell) } else { None };
        self.state.borrow().faults.iter().find_map(shell).unwrap_or_default()
    }

    pub(super) fn admits(&self, user: &str, key: &PublicKey) -> bool {
        // User names are case-insensitive on Windows.
        let files: Vec<String> = KEY_FILES.iter().filter_map(|parts| self.key_file(parts)).collect();
        let listed = match files.as_slice() {
            [] => self.parts.authorized_keys.iter().any(|k| k.key_data() == key.key_data()),
            files => files.iter().flat_map(|text| text.lines()).any(|line| contains_key(line, key)),
        };
        user.eq_ignore_ascii_case(USER) && listed
    }

    fn key_file(&self, parts: &[&str]) -> Option<String> {
        let bytes = fs::read(super::drive::find(&self.drive, parts)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn current_host_key(&self) -> PrivateKey {
        if self.has(&Fault::ChangedHostKey) {
            self.other_key.get_or_init(super::new_key).clone()
        } else {
            self.parts.host_key.clone()
        }
    }

    /// Runs a command line. Its process continues after the last waiter has left, as on Windows.
    pub(super) async fn execute(self: &Arc<Self>, command: &str) -> Exit {
        self.processes.fetch_add(1, Ordering::Relaxed);
        let (machine, command) = (self.clone(), command.to_string());
        let process = tokio::spawn(async move {
            let begun = Instant::now();
            let exit = machine.process(&command).await;
            let ran = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            machine.busy.fetch_add(ran, Ordering::Relaxed);
            exit
        });
        process.await.unwrap_or_else(|_| Exit::new(0xC000_0005, ""))
    }

    async fn process(self: &Arc<Self>, command: &str) -> Exit {
        sleep(self.parts.process_start).await;
        let mut state = self.state.subscribe();
        let boots = state.borrow().boots;
        let moving = |s: &State| s.boots != boots || !s.faults.contains(&Fault::HangInCommand);
        let Ok(State { boots: boots_now, faults, .. }) = state.wait_for(moving).await.map(|s| s.clone()) else {
            return Exit::new(1, "");
        };
        if boots_now != boots {
            return Exit::new(1, "");
        }
        if faults.contains(&Fault::NotWindows) {
            return Exit::new(127, "sh: 1: not found\n");
        }
        let shell = self.shell();
        if let Some(status) = faults.iter().find_map(|f| if let Fault::ProgramsFail(n) = f { Some(*n) } else { None }) {
            return Exit::new(shell.status(status), "");
        }
        let words = shell.words(command).unwrap_or_default();
        let Some((sha256, verb, operation)) = parse(&words) else {
            let (status, message) = shell.not_found(words.first().map_or(command, String::as_str));
            return Exit::new(status, message);
        };
        let (machine, verb_name) = (self.clone(), verb.as_str());
        let run = move || {
            if !machine.is_whole(&sha256) {
                return Err("This program cannot be run: it is missing or incomplete.\r\n".to_string());
            }
            machine.windows.run(verb, &operation).map_err(|e| format!("wicd: {e:#}\r\n"))
        };
        let done = tokio::task::spawn_blocking(run).await;
        self.change(|s| s.revision += 1);
        match done {
            Ok(Ok(restart)) => {
                if restart {
                    self.restart_after(RESTART_AFTER);
                }
                Exit::new(api::host::EXIT_ANSWERED, format!("wicd: {verb_name} answered\r\n"))
            }
            Ok(Err(message)) => Exit::new(shell.status(1), message),
            Err(_) => Exit::new(shell.status(0xC000_0005), ""),
        }
    }

    /// Reports whether `C:\windows\wicd\<sha256>\wicd.exe` has the hash in its path.
    fn is_whole(&self, sha256: &str) -> bool {
        let exe = super::drive::find(&self.drive, &["windows", "wicd", sha256, "wicd.exe"]);
        fs::read(exe).is_ok_and(|content| hex::encode(Sha256::digest(content)) == sha256)
    }

    /// Restarts the machine after this time: connections are cut, the port refuses for a while, the boot id changes, and services that start with the
    /// host start.
    pub(super) fn restart_after(self: &Arc<Self>, wait: Duration) {
        let machine = self.clone();
        tokio::spawn(async move {
            sleep(wait).await;
            machine.power_off();
            sleep(machine.parts.restart).await;
            machine.power_on();
        });
    }

    /// Switches the machine off, without a shutdown.
    pub(super) fn power_off(&self) {
        self.windows.halt();
        self.change(|s| {
            s.powered = false;
            s.revision += 1;
        });
    }

    /// Switches the machine on again, with a new boot id.
    pub(super) fn power_on(&self) {
        self.change(|s| {
            s.boots += 1;
            s.faults.retain(|f| *f != Fault::NeedsReboot);
        });
        self.windows.boot();
        self.change(|s| {
            s.powered = true;
            s.revision += 1;
        });
    }
}

/// Reports whether a line of a key file contains this key. Options before the key are ignored.
fn contains_key(line: &str, key: &PublicKey) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let read = |pair: &[&str]| PublicKey::from_openssh(&pair.join(" ")).ok();
    !line.trim_start().starts_with('#')
        && words.windows(2).find_map(read).is_some_and(|listed| listed.key_data() == key.key_data())
}

/// Parses the words `C:\windows\wicd\<sha256>\wicd.exe`, `<verb>` and `<operation>`, the only command that this host knows.
fn parse(words: &[String]) -> Option<(String, Verb, String)> {
    let [exe, verb, operation] = words else { return None };
    let sha256 = exe.strip_prefix(api::host::path::LAUNCH)?.strip_prefix('\\')?.strip_suffix(r"\wicd.exe")?;
    let verbs =
        [Verb::Facts, Verb::Stage, Verb::Apply, Verb::Start, Verb::Reboot, Verb::Pull, Verb::Cleanup, Verb::Support];
    let verb = verbs.into_iter().find(|v| v.as_str() == *verb)?;
    api::payload::is_sha256(sha256).then(|| (sha256.to_string(), verb, operation.clone()))
}

impl Disk for Machine {
    fn root(&self) -> PathBuf {
        if self.is_windows() { self.drive.clone() } else { self.parts.dir.join("linux") }
    }

    fn free(&self) -> u64 {
        self.windows.machine().disk_free
    }

    fn is_windows(&self) -> bool {
        !self.has(&Fault::NotWindows)
    }

    fn has_extensions(&self) -> bool {
        !self.has(&Fault::PlainSftp)
    }

    fn is_old(&self) -> bool {
        self.has(&Fault::OldSftp)
    }

    fn release(&self, path: &Path) -> Result<(), StatusCode> {
        wicd::held::held_by_others(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
            // OpenSSH has no specific status for a file in use.
            _ => StatusCode::Failure,
        })
    }

    fn open(&self, path: &Path) -> Result<(), StatusCode> {
        self.release(path)
    }

    fn take(&self, _bytes: usize) -> Result<(), StatusCode> {
        // OpenSSH on Windows reports only a general failure.
        if self.has(&Fault::DiskFull) { Err(StatusCode::Failure) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Machine {
        /// Returns the machine `win-0`, with its disk in `dir`.
        pub(crate) fn in_dir(dir: &Path) -> Arc<Self> {
            let parts = Parts {
                name: "win-0".into(),
                address: ([127, 0, 0, 1], 22).into(),
                authorized_keys: Vec::new(),
                host_key: crate::sim::new_key(),
                dir: dir.to_owned(),
                link: Link::default(),
                process_start: Duration::ZERO,
                restart: Duration::ZERO,
                boot: Duration::ZERO,
            };
            Self::new(parts).unwrap()
        }
    }

    #[tokio::test]
    async fn a_program_runs_only_if_its_hash_is_in_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::in_dir(dir.path());
        let sha256 = hex::encode(Sha256::digest("a program"));
        let folder = machine.drive().join("windows/wicd").join(&sha256);
        fs::create_dir_all(&folder).unwrap();
        for (content, is_whole) in [("a prog", false), ("a program", true)] {
            fs::write(folder.join("wicd.exe"), content).unwrap();
            assert_eq!(machine.is_whole(&sha256), is_whole, "{content}");
        }
        assert!(!machine.is_whole(&"0".repeat(64)));
    }

    #[test]
    fn only_commands_of_wicd_are_parsed() {
        let sha = "a".repeat(64);
        let parse = |line: &str| parse(&Shell::Cmd.words(line)?);
        let (found, verb, operation) = parse(&api::host::command(&sha, Verb::Stage, "join-1")).unwrap();
        assert_eq!((found, verb, operation.as_str()), (sha.clone(), Verb::Stage, "join-1"));
        for bad in [
            "cmd.exe /c dir",
            r"C:\windows\wicd\abc\wicd.exe facts x",
            &format!(r"C:\k\wicd\{sha}\wicd.exe facts x"),
            &format!(r"C:\windows\wicd\{sha}\wicd.exe facts"),
            &format!(r"C:\windows\wicd\{sha}\wicd.exe facts x y"),
            &format!(r"C:\windows\wicd\{sha}\wicd.exe dance x"),
            &format!(r"D:\windows\wicd\{sha}\wicd.exe facts x"),
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
