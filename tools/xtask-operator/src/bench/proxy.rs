//! Proxy that adds a delay in front of a server.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use testbed::sim::Link;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

/// Proxy that accepts connections until it is dropped.
pub(super) struct Proxy {
    /// Address at which the proxy listens.
    pub(super) address: SocketAddr,
    task: AbortHandle,
}

impl Proxy {
    /// Starts a proxy to `server` with the round-trip time `rtt`.
    pub(super) async fn start(server: SocketAddr, rtt: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let mut client = Link { rtt, line: None }.stretch(client);
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Ok(Self { address, task: task.abort_handle() })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
