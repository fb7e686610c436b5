//! One connection to one host, with wicd at the other end.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    WindowsInstance,
    host::{self, Answer, Body, EXIT_ANSWERED, HostState, MAX_ANSWER, Owner, PROTOCOL, Recipient, Request, Verb},
    payload::File,
};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::{error::StepError, facts, program};
use crate::{
    context::Context,
    metrics::Metrics,
    payload::Archive,
    secrets::Key,
    ssh::{Connection, HostKeyCheck, SshError, Target},
};
use wnp_core::operation::identity::Refusal;

/// A directory that only Windows has.
const WINDOWS: &str = r"C:\windows\system32";

/// Further looks for an answer that must be there.
const ANSWER_LOOKS: usize = 4;
const ANSWER_POLL: std::time::Duration = std::time::Duration::from_millis(250);

/// One connection to one host. Takes one of the operator's connection slots for as long as it lives.
pub struct Session {
    connection: Connection,
    cx: Arc<Context>,
    operation: String,
    recipient: Recipient,
    user: String,
    speaks: Option<Speaks>,
    limit: std::time::Duration,
    /// Set once the program on the host is verified.
    program: OnceCell<()>,
    _slot: Option<OwnedSemaphorePermit>,
    _open: OpenGauge,
}

/// The host that a session speaks to, as far as it was proven.
#[derive(Clone, Debug, Default)]
pub struct Speaks {
    /// Recipient of requests.
    pub recipient: Recipient,
    /// The owner in whose place the recipient comes.
    pub supersedes: Option<Owner>,
    /// The epoch that a person has declared void.
    pub void_epoch: Option<i64>,
}

struct OpenGauge(Arc<Metrics>);

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.ssh_connections_open.dec();
    }
}

/// How to log in to a host.
pub struct Login {
    /// Private keys, in order.
    pub keys: Vec<Arc<Key>>,
    /// Which host key is believed.
    pub check: HostKeyCheck,
    /// Limit of connecting.
    pub connect_timeout: std::time::Duration,
    /// Limit of one command.
    pub command_timeout: std::time::Duration,
}

impl Session {
    /// Logs in. Nothing is changed on the host yet: the caller stores the host key first.
    pub async fn open(
        cx: &Arc<Context>,
        instance: &WindowsInstance,
        operation: &str,
        login: Login,
    ) -> Result<Self, StepError> {
        // The semaphore is never closed.
        let slot = cx.hosts.connections.clone().acquire_owned().await.map_err(|_| StepError::NoAddress)?;
        Self::connect(cx, instance, operation, login, Some(slot)).await
    }

    /// Logs in without one of the operator's connection slots, which are for work that was granted. The caller bounds how many there are.
    pub async fn open_apart(
        cx: &Arc<Context>,
        instance: &WindowsInstance,
        operation: &str,
        login: Login,
    ) -> Result<Self, StepError> {
        Self::connect(cx, instance, operation, login, None).await
    }

    async fn connect(
        cx: &Arc<Context>,
        instance: &WindowsInstance,
        operation: &str,
        login: Login,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Self, StepError> {
        let target = Target {
            address: instance.spec.host.address.clone(),
            port: u16::try_from(instance.spec.host.port).unwrap_or(22),
            username: instance.spec.host.username.clone(),
            keys: login.keys.iter().map(|k| k.identity.clone()).collect(),
            host_key: login.check,
            connect_timeout: login.connect_timeout,
            command_timeout: login.command_timeout,
        };
        cx.process.metrics.ssh_connections.inc();
        let connection = Connection::connect(&target).await?;
        cx.process.metrics.ssh_connections_open.inc();
        let open = OpenGauge(cx.process.metrics.clone());
        Ok(Self {
            connection,
            cx: cx.clone(),
            operation: operation.into(),
            recipient: Recipient {
                cluster_id: cx.cluster.id.clone(),
                node_name: instance.spec.host.name.clone(),
                machine_id: None,
            },
            user: instance.spec.host.username.clone(),
            program: OnceCell::new(),
            speaks: None,
            limit: login.command_timeout,
            _slot: slot,
            _open: open,
        })
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Makes sure that the host is a Windows one and has our `wicd.exe`.
    pub async fn prepare(&self) -> Result<(), StepError> {
        let address = || StepError::NotWindows { address: self.connection.peer_address().to_string() };
        match self.connection.size(WINDOWS).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(SshError::NotASftpServer { .. }) => return Err(address()),
            Err(error) => return Err(error.into()),
        }
        self.program().await
    }

    /// Verifies the program on the host, or uploads it: once for each connection.
    async fn program(&self) -> Result<(), StepError> {
        let ensure = || async {
            let sent = program::ensure(&self.connection, &self.cx.hosts.release.wicd, &self.user).await?;
            self.cx.process.metrics.host_bytes_sent.inc_by(sent);
            Ok(())
        };
        self.program.get_or_try_init(ensure).await.copied()
    }

    async fn send(
        &self,
        path: &str,
        total: u64,
        source: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncSeek + Unpin),
    ) -> Result<(), StepError> {
        let sent = self.connection.upload(path, total, source, |_| ()).await?;
        self.cx.process.metrics.host_bytes_sent.inc_by(sent.sent);
        Ok(())
    }

    /// From now on speaks to this host alone: it was proven. Before, nothing but facts can be asked.
    pub fn speak_to(&mut self, whom: Speaks) {
        self.speaks = Some(whom);
    }

    /// Has wicd do something. Answers that it failed are errors.
    pub async fn ask(&self, body: Body) -> Result<Answer, StepError> {
        self.program().await?;
        let verb = body.verb();
        let whom = match &self.speaks {
            Some(whom) => whom.clone(),
            None if verb == Verb::Facts => Speaks { recipient: self.recipient.clone(), ..Speaks::default() },
            None => return Err(Refusal::NotProven.into()),
        };
        let request = Request {
            protocol: PROTOCOL,
            operation: self.operation.clone(),
            epoch: self.cx.process.epoch,
            recipient: whom.recipient,
            supersedes: whom.supersedes,
            void_epoch: whom.void_epoch,
            body,
        };
        let json = serde_json::to_vec(&request).map_err(|_| StepError::BadAnswer { verb: verb.as_str() })?;
        let answer_path = host::answer_path(&self.operation, verb);
        // An answer of an earlier attempt must not be taken for this one's.
        self.connection.remove(&answer_path).await?;
        self.connection.write(&host::request_path(&self.operation, verb), &json).await?;
        self.cx.process.metrics.host_bytes_sent.inc_by(json.len() as u64);
        self.cx.process.metrics.host_processes.inc();
        let command = host::command(&self.cx.hosts.release.wicd.sha256, verb, &self.operation);
        let exit = self.connection.exec(&command, self.limit).await?;
        if exit.status != Some(EXIT_ANSWERED) {
            return Err(StepError::no_answer(verb, exit.status, &exit.log));
        }
        let bytes = self.answer(&answer_path).await?;
        let bytes = bytes.ok_or_else(|| StepError::no_answer(verb, exit.status, &exit.log))?;
        facts::parse_answer(&bytes, &self.operation, verb)
    }

    /// The answer, which is there. A program that an operator before us has started may be writing the same one: on Windows there is
    /// a moment then in which there is none.
    async fn answer(&self, path: &str) -> Result<Option<Vec<u8>>, StepError> {
        for _ in 0..ANSWER_LOOKS {
            if let Some(bytes) = self.connection.read(path, MAX_ANSWER).await? {
                return Ok(Some(bytes));
            }
            tokio::time::sleep(ANSWER_POLL).await;
        }
        Ok(self.connection.read(path, MAX_ANSWER).await?)
    }

    /// Has the host report its facts.
    pub async fn look(&self, files: &[File]) -> Result<HostState, StepError> {
        self.ask(Body::Facts(host::Facts { files: files.to_vec() }))
            .await?
            .state
            .ok_or(StepError::BadAnswer { verb: "facts" })
    }

    /// Sends the payload files that are missing, as one stream, and has them unpacked and verified. What was sent before
    /// the connection broke is not sent again.
    pub async fn upload(&self, files: &[File], missing: &[String]) -> Result<HostState, StepError> {
        let missing: BTreeSet<String> = missing.iter().cloned().collect();
        let mut archive = Archive::new(&self.cx.hosts.release.payload, &missing)?;
        let path = format!(r"{}\{}", host::path::OPERATIONS, archive.name());
        self.connection.mkdir_all(host::path::OPERATIONS).await?;
        let total = archive.len();
        self.send(&path, total, &mut archive).await?;
        let body = Body::Stage(host::Stage { files: files.to_vec(), archive: archive.name().into() });
        match self.ask(body).await {
            Ok(answer) => answer.state.ok_or(StepError::BadAnswer { verb: Verb::Stage.as_str() }),
            Err(StepError::Host { reason, message }) if reason == "HashMismatch" => {
                // Which side is at fault? The operator checks its own files before it blames a host.
                for sha256 in &missing {
                    let (payload, sha256) = (self.cx.hosts.release.payload.clone(), sha256.clone());
                    tokio::task::spawn_blocking(move || payload.verify(&sha256)).await.unwrap_or(Ok(()))?;
                }
                Err(StepError::Host { reason, message })
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the operation's directory with its requests, which may hold secrets.
    pub async fn tidy(&self, verbs: &[Verb]) -> Result<(), StepError> {
        for verb in verbs {
            self.connection.remove(&host::request_path(&self.operation, *verb)).await?;
            self.connection.remove(&host::answer_path(&self.operation, *verb)).await?;
        }
        Ok(())
    }

    /// Takes wicd itself away, which cannot do that: its exe, what it has kept for as long as it ran, what operations have
    /// left, and its directories as far as they are empty.
    pub async fn remove_wicd(&self) -> Result<(), StepError> {
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
                    for file in ["wicd.exe", "wicd.exe.partial"] {
                        self.connection.remove(&format!(r"{directory}\{file}")).await?;
                    }
                    directories.push(directory);
                }
            }
        }
        directories.extend([host::path::LAUNCH, host::path::WICD, host::path::ROOT].map(str::to_owned));
        for directory in directories {
            // A directory that is not empty holds files of another owner.
            self.connection.remove_dir(&directory).await?;
        }
        Ok(())
    }

    /// Removes the files of all operations, and returns the directories in which they were.
    async fn empty_operations(&self) -> Result<Vec<String>, StepError> {
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

    /// Ends the connection.
    pub async fn close(self) {
        self.connection.close().await;
    }
}
