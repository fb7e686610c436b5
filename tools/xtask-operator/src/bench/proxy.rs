//! A line with a delay in front of a server: what arrives is passed on later, however much is on its way.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

/// Largest number of bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Pieces on their way in one direction: up to 64 MiB, more than any window here.
const PIECES: usize = 1024;

/// Proxy that passes connections on until it is dropped.
pub(super) struct Proxy {
    /// Address at which the proxy listens.
    pub(super) address: SocketAddr,
    task: AbortHandle,
}

impl Proxy {
    /// A line to `server` on which bytes take `rtt` there and back.
    pub(super) async fn start(server: SocketAddr, rtt: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::join!(carry(from_client, to_server, rtt / 2), carry(from_server, to_client, rtt / 2));
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

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (sender, mut on_their_way) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let take = async move {
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            match from.read_buf(&mut piece).await {
                Ok(1..) if sender.send((Instant::now() + delay, piece)).await.is_ok() => {}
                _ => break,
            }
        }
    };
    let give = async move {
        while let Some((due, piece)) = on_their_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(take, give);
}
