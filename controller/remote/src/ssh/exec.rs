//! Execution of a command, and the wait for its exit status.

use std::{future::ready, ops::ControlFlow, time::Duration};

use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client};
use tokio::time::{Instant, timeout_at};

use super::{Connection, SshError, path, tail};

/// Time that a channel may stay open after the exit status. Windows' sshd keeps it open while any child process of the command holds its output,
/// which a service that the command started may do forever.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit status. `None` if the channel closed without one, as at a reboot or when the command was killed.
    pub status: Option<u32>,
    /// Last 4 KiB of standard output and error, sanitised. For users only, never parsed.
    pub log: String,
}

/// Progress of a command.
#[derive(Default)]
struct Progress {
    started: bool,
    refused: bool,
    status: Option<u32>,
    output: tail::Tail,
}

impl Progress {
    fn on(&mut self, message: Option<ChannelMsg>) -> ControlFlow<()> {
        match message {
            None | Some(ChannelMsg::Close) => return ControlFlow::Break(()),
            Some(ChannelMsg::Success) => self.started = true,
            Some(ChannelMsg::Failure) => {
                self.refused = true;
                return ControlFlow::Break(());
            }
            Some(ChannelMsg::Data { data } | ChannelMsg::ExtendedData { data, .. }) => self.output.push(&data),
            Some(ChannelMsg::ExitStatus { exit_status }) => self.status = Some(exit_status),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                self.output.push(format!("\nended by signal {signal_name:?}").as_bytes());
            }
            Some(_) => {}
        }
        ControlFlow::Continue(())
    }
}

/// Exit status of a POSIX shell that does not find the program.
pub(crate) const NOT_FOUND: u32 = 127;

impl Connection {
    /// Runs `command` (see [`path::check_command`]) and waits at most `timeout` until it ends. If the shell does not find the program
    /// ([`NOT_FOUND`]), the command is repeated in the form for POSIX shells, with the same time limit.
    ///
    /// If the host disconnects after it started the command, the result is an [`Exit`] without a status; before, it is an error. A command that
    /// exceeds the time limit is not killed, because SSH cannot do so on Windows.
    ///
    /// # Errors
    /// [`SshError::BadCommand`] when [`path::check_command`] refuses `command`. [`SshError::CommandTimeout`] when the host does not open a channel
    /// within `timeout`, or the command does not end within `timeout`. [`SshError::CommandRefused`] when the host does not start the command.
    /// [`SshError::Disconnected`] when the host refuses to open a channel, or the channel or the connection closes before the command
    /// starts.
    pub async fn exec(&self, command: &str, timeout: Duration) -> Result<Exit, SshError> {
        self.exec_after(ready(Ok(())), command, timeout).await
    }

    /// Runs `command` as [`Connection::exec`] does, once `first` has succeeded. The channel is opened meanwhile.
    ///
    /// # Errors
    /// Fails when `first` fails, and as [`Connection::exec`] does.
    pub async fn exec_after<E: From<SshError>>(
        &self,
        first: impl Future<Output = Result<(), E>>,
        command: &str,
        timeout: Duration,
    ) -> Result<Exit, E> {
        let exit = self.exec_once(first, command, timeout).await?;
        if exit.status != Some(NOT_FOUND) {
            return Ok(exit);
        }
        self.exec_once(ready(Ok(())), &path::for_posix_shell(command), timeout).await
    }

    async fn exec_once<E: From<SshError>>(
        &self,
        first: impl Future<Output = Result<(), E>>,
        command: &str,
        timeout: Duration,
    ) -> Result<Exit, E> {
        path::check_command(command)
            .map_err(|problem| SshError::BadCommand { command: tail::excerpt(command), problem })?;
        let (first, channel) = tokio::join!(first, tokio::time::timeout(timeout, self.open_channel()));
        first?;
        let deadline = Instant::now() + timeout;
        let mut progress = Progress::default();
        let mut in_time = false;
        if let Ok(channel) = channel {
            let (mut output, input) = channel?.split();
            let run = self.run(command, &input, &mut output, &mut progress);
            if let Ok(result) = timeout_at(deadline, run).await {
                result?;
                in_time = true;
            }
            // Without the close, the output of an endless command would be read until the connection ends. The close fails if the host closed the
            // channel first.
            let _ = tokio::time::timeout(CLOSE_GRACE, input.close()).await;
        }
        if !in_time {
            return Err(SshError::CommandTimeout {
                address: self.address().to_owned(),
                command: command.to_owned(),
                after: timeout,
                log: progress.output.text(),
            }
            .into());
        }
        if progress.refused {
            return Err(SshError::CommandRefused { address: self.address().to_owned() }.into());
        }
        if !progress.started && progress.status.is_none() {
            return Err(self.disconnected("the channel closed before the command started").into());
        }
        Ok(Exit { status: progress.status, log: progress.output.text() })
    }

    /// Starts the command, and reads its output as fast as it arrives, until the channel closes or [`CLOSE_GRACE`] has passed since the exit status.
    /// An unread channel would block the whole connection, including SFTP.
    async fn run(
        &self,
        command: &str,
        input: &ChannelWriteHalf<client::Msg>,
        output: &mut ChannelReadHalf,
        progress: &mut Progress,
    ) -> Result<(), SshError> {
        let send = async {
            input.exec(true, command).await?;
            // Standard input is closed, as with `ssh -n`, so that a command that reads it does not wait.
            input.eof().await
        };
        send.await.map_err(|error| self.lost(&error))?;
        while progress.status.is_none() {
            if progress.on(output.wait().await).is_break() {
                return Ok(());
            }
        }
        let until = Instant::now() + CLOSE_GRACE;
        while let Ok(message) = timeout_at(until, output.wait()).await {
            if progress.on(message).is_break() {
                break;
            }
        }
        Ok(())
    }
}
