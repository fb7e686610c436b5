//! Behaviour of a test host as a jump host.

use std::{
    net::{Shutdown, SocketAddr},
    sync::Arc,
};

use russh::{
    Channel, ChannelOpenFailure,
    server::{ChannelOpenHandle, Msg},
};
use tokio::{
    io::{AsyncReadExt as _, copy, split},
    net::TcpStream,
};

/// Response of a test host to a request for a forwarded connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwards {
    /// Refuses, because forwarding is not allowed.
    Nothing,
    /// Connects to the requested address, or reports that the connection failed.
    Asked,
    /// Connects to this address in any case.
    Always(SocketAddr),
    /// Never answers.
    Hangs,
    /// Connects, and ends the client's connection after this many bytes from the other host.
    Breaks(u64),
}

/// Answers a request for a forwarded connection. `wire` is the connection of the client.
pub(super) async fn forward(
    forwards: Forwards,
    asked: SocketAddr,
    channel: Channel<Msg>,
    reply: ChannelOpenHandle,
    wire: Arc<std::net::TcpStream>,
) {
    let (to, limit) = match forwards {
        Forwards::Asked => (asked, u64::MAX),
        Forwards::Always(other) => (other, u64::MAX),
        Forwards::Breaks(limit) => (asked, limit),
        Forwards::Nothing => return reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await,
        Forwards::Hangs => {
            tokio::spawn(async move {
                let _kept = (reply, channel);
                std::future::pending::<()>().await;
            });
            return;
        }
    };
    let Ok(mut stream) = TcpStream::connect(to).await else {
        return reply.reject(ChannelOpenFailure::ConnectFailed).await;
    };
    reply.accept().await;
    tokio::spawn(async move {
        let (from_host, mut to_host) = stream.split();
        let (mut from_client, mut to_client) = split(channel.into_stream());
        let mut from_host = from_host.take(limit);
        tokio::select! {
            _ = copy(&mut from_client, &mut to_host) => {}
            _ = copy(&mut from_host, &mut to_client) => {
                if from_host.limit() == 0 {
                    wire.shutdown(Shutdown::Both).unwrap();
                }
            }
        }
    });
}
