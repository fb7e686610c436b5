//! Simulated jump host: an SSH server that only forwards connections to other hosts.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Result;
use russh::{
    Channel, ChannelOpenFailure,
    keys::{PrivateKey, ssh_key::PublicKey},
    server::{Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use tokio::{io::copy_bidirectional, net::TcpStream, sync::watch};
use tokio_util::sync::CancellationToken;

use super::{Sim, listen, new_key, port::accept, sshd::config};

/// Jump host, which ends with its [`Sim`].
#[derive(Clone)]
pub struct SimJumpHost {
    machine: Arc<Machine>,
    powered: watch::Sender<bool>,
}

struct Machine {
    address: SocketAddr,
    user: String,
    authorized_key: PublicKey,
    host_key: PrivateKey,
    forwarded: AtomicU64,
}

impl Sim {
    /// Creates a jump host that accepts this user with this key, and switches it on.
    ///
    /// # Errors
    /// Fails when there is no address to listen on.
    pub async fn jump_host(&self, user: &str, authorized_key: PublicKey) -> Result<SimJumpHost> {
        let (listener, address) = listen().await?;
        let machine = Arc::new(Machine {
            address,
            user: user.to_owned(),
            authorized_key,
            host_key: new_key(),
            forwarded: AtomicU64::new(0),
        });
        let (powered, is_powered) = watch::channel(true);
        let (jump_host, stop) = (machine.clone(), self.stop.clone());
        tokio::spawn(async move {
            let open = |on: &bool| on.then_some(address);
            accept(is_powered, open, listener, stop, |stream, up| handle(&jump_host, stream, up)).await;
        });
        Ok(SimJumpHost { machine, powered })
    }
}

impl SimJumpHost {
    /// Returns the address, which is in 127.0.0.0/8.
    pub fn address(&self) -> IpAddr {
        self.machine.address.ip()
    }

    /// Returns the SSH port.
    pub fn port(&self) -> u16 {
        self.machine.address.port()
    }

    /// Returns the host key that the jump host presents.
    pub fn host_key(&self) -> PublicKey {
        self.machine.host_key.public_key().clone()
    }

    /// Returns the number of connections that the jump host has made to other hosts.
    pub fn forwarded(&self) -> u64 {
        self.machine.forwarded.load(Ordering::Relaxed)
    }

    /// Switches the jump host off: connections end, and the port refuses new ones.
    pub fn power_off(&self) {
        self.powered.send_replace(false);
    }

    /// Switches the jump host on again.
    pub fn power_on(&self) {
        self.powered.send_replace(true);
    }
}

fn handle(machine: &Arc<Machine>, stream: TcpStream, up: &CancellationToken) {
    let (config, up) = (Arc::new(config(machine.host_key.clone())), up.clone());
    let connection = Connection { machine: machine.clone(), up: up.clone() };
    tokio::spawn(async move {
        let session = async {
            if let Ok(session) = russh::server::run_stream(config, stream, connection).await {
                let _ = session.await;
            }
        };
        up.run_until_cancelled(session).await;
    });
}

struct Connection {
    machine: Arc<Machine>,
    up: CancellationToken,
}

impl Connection {
    fn authenticate(&self, user: &str, key: &PublicKey) -> Auth {
        let is_known = user == self.machine.user && key.key_data() == self.machine.authorized_key.key_data();
        if is_known { Auth::Accept } else { Auth::reject() }
    }
}

impl russh::server::Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        Ok(self.authenticate(user, offer.public_key))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(self.authenticate(user, key.public_key))
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let (machine, up) = (self.machine.clone(), self.up.clone());
        let place = (host.to_owned(), u16::try_from(port).unwrap_or_default());
        tokio::spawn(async move {
            let Ok(mut stream) = TcpStream::connect(place).await else {
                return reply.reject(ChannelOpenFailure::ConnectFailed).await;
            };
            machine.forwarded.fetch_add(1, Ordering::Relaxed);
            let _ = stream.set_nodelay(true);
            reply.accept().await;
            let mut channel = channel.into_stream();
            let _ = up.run_until_cancelled(copy_bidirectional(&mut channel, &mut stream)).await;
        });
        Ok(())
    }
}
