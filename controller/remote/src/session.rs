//! Session with one host: a connection, and requests to its wicd.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    Reason,
    host::{self, Answer, Body, EXIT_ANSWERED, HostState, MAX_ANSWER, Owner, PROTOCOL, Recipient, Request, Verb},
    payload::File,
};
use futures::future::try_join_all;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use tokio::sync::OnceCell;

use crate::{
    RemoteError, facts,
    payload::{Archive, Payload, Wicd},
    program,
    ssh::{Connection, NOT_FOUND, SshError, Target},
    support,
};

/// Directory that exists only on Windows.
const WINDOWS: &str = r"C:\windows\system32";

/// Number of further reads if the answer file is missing although it must exist.
const ANSWER_LOOKS: usize = 4;
const ANSWER_POLL: std::time::Duration = std::time::Duration::from_millis(250);

/// Identity of the operator and the files that it sends, shared by all sessions.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Id of the operator's cluster.
    pub cluster_id: String,
    /// Epoch of the operator. A host refuses an operator with an older epoch.
    pub epoch: i64,
    /// Program that is sent to a host first.
    pub wicd: Wicd,
    /// Payload that hosts receive.
    pub payload: Payload,
    /// Counters of the traffic with hosts.
    pub traffic: Traffic,
}

/// Metrics of the traffic with hosts.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Number of attempts to open an SSH connection.
    pub connections: Counter,
    /// Number of open SSH connections.
    pub open: Gauge,
    /// Number of requests to start a program on a host.
    pub processes: Counter,
    /// Number of bytes of requests and files that were sent to hosts.
    pub sent: Counter,
}

/// Reservation of one of the operator's connections, released when the slot is dropped.
pub type Slot = Box<dyn Send + Sync>;

/// Connection to one host. The session holds its slot until it is dropped.
pub struct Session {
    connection: Connection,
    operator: Arc<Operator>,
    operation: String,
    recipient: Recipient,
    user: String,
    proven_host: Option<ProvenHost>,
    limit: std::time::Duration,
    /// True if the host had the program when the session began. Set once that is verified.
    has_program: OnceCell<bool>,
    /// Cell that is set once the host has the program.
    program: OnceCell<()>,
    _slot: Option<Slot>,
    _open: Open,
}

/// Proven identity of the host that a session sends requests to.
#[derive(Clone, Debug, Default)]
pub struct ProvenHost {
    /// Recipient of requests.
    pub recipient: Recipient,
    /// Previous owner that the recipient supersedes.
    pub supersedes: Option<Owner>,
    /// Epoch that a user has declared void.
    pub void_epoch: Option<i64>,
}

/// Guard that counts an open connection.
struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Session {
    /// Logs in to the host of the Node `node_name`. Changes nothing on the host, so that the caller can store the host key first. `operation` names
    /// the request and answer files on the host.
    ///
    /// # Errors
    /// Fails when the host cannot be reached, shows another host key than `target` trusts, or refuses its keys.
    pub async fn open(
        operator: &Arc<Operator>,
        target: &Target,
        node_name: &str,
        operation: &str,
        slot: Option<Slot>,
    ) -> Result<Self, RemoteError> {
        operator.traffic.connections.inc();
        let connection = Connection::connect(target).await.map_err(|error| error.of_host(node_name))?;
        operator.traffic.open.inc();
        Ok(Self {
            connection,
            operator: operator.clone(),
            operation: operation.into(),
            recipient: Recipient {
                cluster_id: operator.cluster_id.clone(),
                node_name: node_name.into(),
                machine_id: None,
            },
            user: target.username.clone(),
            has_program: OnceCell::new(),
            program: OnceCell::new(),
            proven_host: None,
            limit: target.command_timeout,
            _slot: slot,
            _open: Open(operator.traffic.open.clone()),
        })
    }

    /// Returns the connection of the session.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Checks that the host runs Windows, and looks for the operator's `wicd.exe`; if it is missing, the first request sends it. Changes nothing on
    /// the host.
    ///
    /// # Errors
    /// [`RemoteError::NotWindows`] when the host has no `C:\windows\system32` or offers no SFTP. [`RemoteError::Ssh`] when the
    /// connection breaks, or the program cannot be read for another reason.
    pub async fn prepare(&self) -> Result<(), RemoteError> {
        let not_windows = || RemoteError::NotWindows { address: self.connection.peer_address().to_string() };
        let (windows, has_program) = tokio::join!(self.connection.size(WINDOWS), self.has_program());
        match windows {
            Ok(Some(_)) => {}
            Ok(None) | Err(SshError::NotASftpServer { .. }) => return Err(not_windows()),
            Err(error) => return Err(error.into()),
        }
        has_program.map(drop)
    }

    /// Verifies the program on the host: once for each connection.
    async fn has_program(&self) -> Result<bool, RemoteError> {
        let verify = || program::is_there(&self.connection, &self.operator.wicd);
        self.has_program.get_or_try_init(verify).await.copied()
    }

    /// Uploads the program if the host lacks it: once for each connection.
    async fn program(&self) -> Result<(), RemoteError> {
        let ensure = || async {
            if !self.has_program().await? {
                let sent = program::send(&self.connection, &self.operator.wicd, &self.user).await?;
                self.operator.traffic.sent.inc_by(sent);
            }
            Ok(())
        };
        self.program.get_or_try_init(ensure).await.copied()
    }

    /// Binds the session to a host whose identity was proven. Before that, only facts and support data can be requested.
    pub fn speak_to(&mut self, whom: ProvenHost) {
        self.proven_host = Some(whom);
    }

    /// Sends a request to wicd and returns its answer. An answer that reports a failure is an error.
    ///
    /// # Errors
    /// [`RemoteError::NotProven`] for all requests but those for facts and support data, until [`Session::speak_to`] was called.
    /// [`RemoteError::ShellNotSupported`] when the shell of the user does not start wicd.
    /// [`RemoteError::NoAnswer`] when wicd ends without an answer. [`RemoteError::BadAnswer`] when its answer does not belong to
    /// this request. [`RemoteError::Host`] when it reports a failure. [`RemoteError::Ssh`] when the connection breaks,
    /// the command does not end in time, or a file cannot be read or written on the host. When the program is not on the host
    /// yet, also [`RemoteError::NotAdministrator`] when the user may not write it, [`RemoteError::ProgramDamaged`] when the
    /// program on the host differs from the one that was sent, and [`RemoteError::OwnFile`] or [`RemoteError::Payload`] when the
    /// operator's own `wicd.exe` cannot be read or has changed.
    pub async fn ask(&self, body: Body) -> Result<Answer, RemoteError> {
        let verb = body.verb();
        let whom = match &self.proven_host {
            Some(whom) => whom.clone(),
            None if matches!(verb, Verb::Facts | Verb::Support) => {
                ProvenHost { recipient: self.recipient.clone(), ..ProvenHost::default() }
            }
            None => return Err(RemoteError::NotProven),
        };
        let request = Request {
            protocol: PROTOCOL,
            operation: self.operation.clone(),
            epoch: self.operator.epoch,
            recipient: whom.recipient,
            supersedes: whom.supersedes,
            void_epoch: whom.void_epoch,
            body,
        };
        let json = serde_json::to_vec(&request).map_err(|_| RemoteError::BadAnswer { verb: verb.as_str() })?;
        let answer_path = host::answer_path(&self.operation, verb);
        let request_path = host::request_path(&self.operation, verb);
        let hand_over = async {
            // The answer of an earlier attempt must not be mistaken for the new one.
            let (program, removed, written) = tokio::join!(
                self.program(),
                self.connection.remove(&answer_path),
                self.connection.write(&request_path, &json)
            );
            // If the user may not write at all, the error of the program's upload names the cause, so it comes first.
            program?;
            removed.and(written)?;
            self.operator.traffic.sent.inc_by(json.len() as u64);
            self.operator.traffic.processes.inc();
            Ok::<_, RemoteError>(())
        };
        let command = host::command(&self.operator.wicd.sha256, verb, &self.operation);
        let exit = self.connection.exec_after(Box::pin(hand_over), &command, self.limit).await?;
        if exit.status.is_none()
            && let Some(error) = self.connection.broken()
        {
            return Err(error.into());
        }
        if exit.status == Some(NOT_FOUND) {
            return Err(RemoteError::ShellNotSupported { user: self.user.clone() });
        }
        if exit.status != Some(EXIT_ANSWERED) {
            return Err(RemoteError::no_answer(verb, exit.status, &exit.log));
        }
        let bytes = self.answer(&answer_path).await?;
        let bytes = bytes.ok_or_else(|| RemoteError::no_answer(verb, exit.status, &exit.log))?;
        facts::parse_answer(&bytes, &self.operation, verb)
    }

    /// Reads the answer, which must exist. A program that an earlier operator started may be writing the same file, which is then missing for a
    /// moment.
    async fn answer(&self, path: &str) -> Result<Option<Vec<u8>>, RemoteError> {
        for _ in 0..ANSWER_LOOKS {
            if let Some(bytes) = self.connection.read(path, MAX_ANSWER).await? {
                return Ok(Some(bytes));
            }
            tokio::time::sleep(ANSWER_POLL).await;
        }
        Ok(self.connection.read(path, MAX_ANSWER).await?)
    }

    /// Requests the facts of the host.
    ///
    /// # Errors
    /// Fails when [`Session::ask`] fails. [`RemoteError::Host`] also when wicd could not get the state of the host.
    pub async fn look(&self, files: &[File]) -> Result<HostState, RemoteError> {
        self.facts(host::Facts { files: files.to_vec(), ..host::Facts::default() }).await
    }

    /// Requests the facts of the host with all options of `body`. [`Session::look`] sets only the files.
    ///
    /// # Errors
    /// Fails as [`Session::look`] does.
    pub async fn facts(&self, body: host::Facts) -> Result<HostState, RemoteError> {
        facts::state_of(self.ask(Body::Facts(body)).await?)
    }

    /// Requests support data, and returns the answer and the archive, which is then removed from the host.
    ///
    /// # Errors
    /// Fails when [`Session::ask`] fails, or the archive is missing, larger than [`support::MAX_ARCHIVE_BYTES`], or cannot be read or
    /// removed.
    pub async fn support(&self, body: host::Support) -> Result<(Answer, Vec<u8>), RemoteError> {
        let path = host::support_path(&self.operation);
        let collected = async {
            let answer = self.ask(Body::Support(body)).await?;
            let archive = self.connection.read(&path, support::MAX_ARCHIVE_BYTES).await?;
            Ok((answer, archive.ok_or(RemoteError::BadAnswer { verb: Verb::Support.as_str() })?))
        };
        let collected = collected.await;
        self.connection.remove(&path).await?;
        collected
    }

    /// Sends the missing payload files as one stream, and makes wicd unpack and verify them. An interrupted upload is resumed.
    ///
    /// # Errors
    /// [`RemoteError::Payload`] when a hash in `missing` is not in the payload, or the host could not unpack the files because the payload is
    /// damaged. [`RemoteError::Ssh`] when the files cannot be sent. [`RemoteError::Host`] when wicd could not get the state of the host. Also fails
    /// when [`Session::ask`] fails.
    pub async fn upload(&self, files: &[File], missing: &[String]) -> Result<HostState, RemoteError> {
        let missing: BTreeSet<String> = missing.iter().cloned().collect();
        let mut archive = Archive::new(&self.operator.payload, &missing)?;
        let path = format!(r"{}\{}", host::path::OPERATIONS, archive.name());
        let sent = self.connection.upload(&path, archive.size(), &mut archive).await?;
        self.operator.traffic.sent.inc_by(sent);
        let body = Body::Stage(host::Stage { files: files.to_vec(), archive: archive.name().into() });
        match self.ask(body).await {
            Ok(answer) => facts::state_of(answer),
            // wicd received files that it cannot unpack.
            Err(RemoteError::Host { reason: reason @ Reason::HashMismatch, message }) => {
                // The operator checks its own files before it blames the host.
                for sha256 in &missing {
                    let (payload, sha256) = (self.operator.payload.clone(), sha256.clone());
                    tokio::task::spawn_blocking(move || payload.verify(&sha256)).await.unwrap_or(Ok(()))?;
                }
                Err(RemoteError::Host { reason, message })
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the operation's request and answer files for these verbs. The files may hold secrets.
    ///
    /// # Errors
    /// [`RemoteError::Ssh`] when a file cannot be removed.
    pub async fn tidy(&self, verbs: &[Verb]) -> Result<(), RemoteError> {
        let paths =
            |verb: &Verb| [host::request_path(&self.operation, *verb), host::answer_path(&self.operation, *verb)];
        let removals = verbs.iter().flat_map(paths).map(async |path| self.connection.remove(&path).await);
        try_join_all(removals).await?;
        Ok(())
    }

    /// Removes wicd, which cannot remove itself: its programs, its state, the files of operations, and its directories if they are empty.
    ///
    /// # Errors
    /// [`RemoteError::Ssh`] when a directory cannot be listed, or a file cannot be removed. The rest is then kept as well. A missing file, or a
    /// directory that the host does not remove, is not an error.
    pub async fn remove_wicd(&self) -> Result<(), RemoteError> {
        for file in [host::path::LOCK, host::path::EPOCH] {
            self.connection.remove(file).await?;
        }
        let mut directories = self.empty_operations().await?;
        directories.push(host::path::OPERATIONS.to_string());
        for parent in [host::path::LAUNCH, host::path::WICD] {
            for entry in self.connection.list(parent).await? {
                // Older versions of wicd may lie beside the current one.
                if entry.is_directory && api::payload::is_sha256(&entry.name) {
                    let directory = format!(r"{parent}\{}", entry.name);
                    // Beside the program, an interrupted upload and a replaced program that still ran may be left.
                    for file in self.connection.list(&directory).await? {
                        if file.name == "wicd.exe" || file.name.starts_with("wicd.exe.") {
                            self.connection.remove(&format!(r"{directory}\{}", file.name)).await?;
                        }
                    }
                    directories.push(directory);
                }
            }
        }
        directories.extend([host::path::LAUNCH, host::path::WICD, host::path::ROOT].map(str::to_owned));
        for directory in directories {
            // A directory that is not empty holds files of another owner, and is kept.
            self.connection.remove_dir(&directory).await?;
        }
        Ok(())
    }

    /// Removes the files of all operations, and returns their directories.
    async fn empty_operations(&self) -> Result<Vec<String>, RemoteError> {
        let mut directories = Vec::new();
        for entry in self.connection.list(host::path::OPERATIONS).await? {
            let path = format!(r"{}\{}", host::path::OPERATIONS, entry.name);
            if !entry.is_directory {
                self.connection.remove(&path).await?;
                continue;
            }
            for file in self.connection.list(&path).await?.iter().filter(|f| !f.is_directory) {
                self.connection.remove(&format!(r"{path}\{}", file.name)).await?;
            }
            directories.push(path);
        }
        Ok(directories)
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.connection.close().await;
    }
}
