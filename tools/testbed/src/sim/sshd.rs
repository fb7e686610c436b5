//! SSH server of a simulated host.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use russh::{
    Channel, ChannelId, MethodKind, MethodSet,
    keys::{PrivateKey, ssh_key::PublicKey},
    server::{Auth, ChannelOpenHandle, Config, Handle, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use tokio_util::sync::CancellationToken;

use super::{fault::Fault, link::Metered, machine::Machine, sftp};

/// Serves one connection until it ends or is cut.
pub(super) async fn serve(machine: Arc<Machine>, wire: Metered) {
    let config = Arc::new(config(machine.current_host_key()));
    let link = machine.parts().link.clone();
    let handler = Connection { machine, channels: HashMap::new(), over: CancellationToken::new() };
    let session = if link.rtt.is_zero() && link.line.is_none() {
        russh::server::run_stream(config, wire, handler).await
    } else {
        russh::server::run_stream(config, link.stretch(wire), handler).await
    };
    // Errors of a connection are ignored: operators disconnect at any time.
    if let Ok(session) = session {
        let _ = session.await;
    }
}

pub(super) fn config(key: PrivateKey) -> Config {
    Config {
        server_id: russh::SshId::Standard(Cow::Borrowed("SSH-2.0-OpenSSH_for_Windows_8.1")),
        methods: MethodSet::from([MethodKind::PublicKey].as_slice()),
        keys: vec![key],
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        // OpenSSH has the same default for `MaxAuthTries`.
        max_auth_attempts: 6,
        // OpenSSH has a window of 2 MiB and refills it as it is used. This server refills when half is used, so that with twice the size
        // at least 2 MiB are always free.
        window_size: 4 << 20,
        maximum_packet_size: 32 << 10,
        nodelay: true,
        inactivity_timeout: None,
        ..Config::default()
    }
}

struct Connection {
    machine: Arc<Machine>,
    channels: HashMap<ChannelId, Channel<Msg>>,
    over: CancellationToken,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Connection {
    fn authenticate(&self, user: &str, key: &PublicKey) -> Auth {
        let is_accepted = !self.machine.has(&Fault::WrongKey) && self.machine.admits(user, key);
        if is_accepted { Auth::Accept } else { Auth::reject() }
    }
}

impl russh::server::Handler for Connection {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, Self::Error> {
        Ok(self.machine.has(&Fault::GarbledOutput).then(|| BANNER.to_owned()))
    }

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        Ok(self.authenticate(user, offer.public_key))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(self.authenticate(user, key.public_key))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn subsystem_request(&mut self, id: ChannelId, name: &str, session: &mut Session) -> Result<(), Self::Error> {
        let Some(channel) = self.channels.remove(&id).filter(|_| name == "sftp") else {
            return session.channel_failure(id);
        };
        session.channel_success(id)?;
        russh_sftp::server::run(channel.into_stream(), sftp::Session::new(self.machine.clone())).await;
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, command: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        let Some(mut channel) = self.channels.remove(&id) else { return session.channel_failure(id) };
        session.channel_success(id)?;
        let (machine, command, handle) =
            (self.machine.clone(), String::from_utf8_lossy(command).into_owned(), session.handle());
        let over = self.over.clone();
        tokio::spawn(async move {
            // Input is discarded, as some shells do; unread input would block the whole connection.
            let swallow = async { while channel.wait().await.is_some() {} };
            let run = run(&machine, &command, id, &handle);
            tokio::select! {
                () = run => {}
                () = over.cancelled() => {}
                () = async { swallow.await; std::future::pending().await } => {}
            }
        });
        Ok(())
    }
}

async fn run(machine: &Arc<Machine>, command: &str, id: ChannelId, handle: &Handle) {
    let exit = machine.execute(command).await;
    let output = exit.output.into_bytes();
    // The client may have closed the channel: then the result is not needed.
    if machine.has(&Fault::GarbledOutput) {
        let _ = handle.data(id, [MESSAGE_OF_THE_DAY, &garble(&output)].concat()).await;
        let _ = handle.extended_data(id, STDERR, NOT_RECOGNIZED.to_vec()).await;
    } else {
        let _ = handle.data(id, output).await;
    }
    let _ = handle.exit_status_request(id, exit.status).await;
    let _ = handle.eof(id).await;
    let _ = handle.close(id).await;
}

/// Banner before the log-in.
const BANNER: &str = "Zutritt nur f\u{fc}r Befugte\r\n";
/// Message of the day in code page 932, that of a Japanese Windows.
const MESSAGE_OF_THE_DAY: &[u8] = b"\x82\xe6\x82\xa4\x82\xb1\x82\xbb WIN\r\n";
/// Message of `cmd.exe` in code page 850, that of a German Windows.
const NOT_RECOGNIZED: &[u8] = b"Der Befehl \"chcp\" konnte nicht ausgef\x81hrt werden.\r\n";
/// Code of standard error in SSH.
const STDERR: u32 = 1;

/// Garbles output like a PowerShell in another language: a banner, UTF-16, and progress records.
fn garble(output: &[u8]) -> Vec<u8> {
    let mut noise = b"\xff\xfe".to_vec();
    let banner = format!("Willkommen \u{2013} {}\r\n", String::from_utf8_lossy(output));
    noise.extend(banner.encode_utf16().flat_map(u16::to_le_bytes));
    noise.extend(b"#< CLIXML\r\n<Objs Version=\"1.1.0.1\"><Obj S=\"progress\" RefId=\"0\">\0\x80");
    noise
}
