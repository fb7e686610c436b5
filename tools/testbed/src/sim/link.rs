//! Simulated link between operator and host, on the host's side of a connection: latency, data rate, byte counts and cuts.

use std::{
    future::Future as _,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::lock::lock;

/// Quality of the link.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Round-trip time of a packet.
    pub rtt: Duration,
    /// Line that the bytes to the host take, if its data rate is limited. Many links can share it.
    pub line: Option<Arc<Line>>,
}

/// Line with a data rate. Pieces take turns in the order in which they arrive.
#[derive(Debug)]
pub struct Line {
    bytes_per_second: f64,
    free_at: Mutex<Instant>,
}

impl Line {
    /// Creates a line with a data rate in bits per second.
    pub fn new(bits_per_second: f64) -> Self {
        Self { bytes_per_second: bits_per_second / 8.0, free_at: Mutex::new(Instant::now()) }
    }

    /// Returns the time when these bytes, which take their turn now, have passed.
    fn pass(&self, bytes: u32) -> Instant {
        let mut free_at = lock(&self.free_at);
        *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(f64::from(bytes) / self.bytes_per_second);
        *free_at
    }
}

/// Time for which a piece may be early on a line, because timers have a resolution of a millisecond.
const BURST: Duration = Duration::from_millis(2);
/// Maximum size of a piece that is sent at once.
const PIECE: usize = 32 << 10;
/// Maximum number of pieces in flight in one direction: 32 MiB, more than any window that SSH grants.
const PIECES_UNDER_WAY: usize = 1024;

impl Link {
    /// Returns the other end of a link that begins at `wire`. Bytes are delayed by half of `rtt`, any number at once: a
    /// sender that does not wait for responses is not slowed down by latency. Ends when either side does.
    pub fn stretch(self, wire: impl AsyncRead + AsyncWrite + Send + 'static) -> DuplexStream {
        let (near, far) = tokio::io::duplex(256 << 10);
        tokio::spawn(async move {
            // The wait stands for SYN and SYN-ACK, which the kernel has already exchanged.
            tokio::time::sleep(self.rtt).await;
            let (wire_in, wire_out) = tokio::io::split(wire);
            let (far_in, far_out) = tokio::io::split(far);
            let inward = pin!(self.carry(wire_in, far_out, self.line.as_deref()));
            let outward = pin!(self.carry(far_in, wire_out, None));
            // SSH does not use half-closed connections.
            futures::future::select(inward, outward).await;
        });
        near
    }

    async fn carry(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, line: Option<&Line>) {
        let (sender, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_UNDER_WAY);
        let take = async move {
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = from.read(&mut buffer).await {
                if let Some(line) = line {
                    sleep_until(line.pass(u32::try_from(n).unwrap_or(u32::MAX)) - BURST).await;
                }
                if sender.send((Instant::now() + self.rtt / 2, buffer[..n].to_vec())).await.is_err() {
                    break;
                }
            }
        };
        let give = async move {
            while let Some((due, piece)) = under_way.recv().await {
                sleep_until(due).await;
                if to.write_all(&piece).await.is_err() || to.flush().await.is_err() {
                    return;
                }
            }
            let _ = to.shutdown().await;
        };
        // `give` ends after `take`, when all pieces are delivered, or before it, when no reader is left.
        let (take, give) = (pin!(take), pin!(give));
        if let futures::future::Either::Left(((), give)) = futures::future::select(take, give).await {
            give.await;
        }
    }
}

/// Connection that counts its received bytes, and that breaks on request or at a byte limit.
pub(super) struct Metered {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    received: Arc<AtomicU64>,
    mine: u64,
    limit: Option<(u64, Box<dyn FnOnce() + Send + Sync>)>,
    is_cut: bool,
}

impl Metered {
    pub(super) fn new(stream: TcpStream, cut: WaitForCancellationFutureOwned, received: Arc<AtomicU64>) -> Self {
        Self { stream, cut: Box::pin(cut), received, mine: 0, limit: None, is_cut: false }
    }

    /// Makes the connection break once it has received `bytes`, and calls `then` at that moment.
    pub(super) fn with_limit(mut self, bytes: u64, then: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.limit = Some((bytes, Box::new(then)));
        self
    }

    fn broken() -> io::Error {
        io::ErrorKind::ConnectionReset.into()
    }
}

impl AsyncRead for Metered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_cut || self.cut.as_mut().poll(cx).is_ready() {
            self.is_cut = true;
            return Poll::Ready(Err(Self::broken()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let n = (buf.filled().len() - before) as u64;
        self.received.fetch_add(n, Ordering::Relaxed);
        self.mine += n;
        if self.limit.as_ref().is_some_and(|(limit, _)| self.mine >= *limit)
            && let Some((_, then)) = self.limit.take()
        {
            then();
            self.is_cut = true;
            buf.set_filled(before);
            return Poll::Ready(Err(Self::broken()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that latency counts for each round trip, not for each packet: bytes that are sent without waiting are not slowed down.
    #[tokio::test]
    async fn latency_counts_once_for_bytes_that_are_sent_together() {
        let rtt = Duration::from_millis(100);
        let (wire, mut client) = tokio::io::duplex(PIECE);
        let mut host = Link { rtt, line: None }.stretch(wire);
        let begun = Instant::now();
        let (request, mut received) = (vec![7; 64 * PIECE], vec![0; 64 * PIECE]);
        let (sent, arrived) = tokio::join!(client.write_all(&request), host.read_exact(&mut received));
        assert!(sent.is_ok() && arrived.is_ok());
        host.write_all(b"answer").await.unwrap();
        client.read_exact(&mut [0; 6]).await.unwrap();
        // The connection takes one round trip, and the request and its answer take another.
        let elapsed = begun.elapsed();
        assert!((2 * rtt..20 * rtt).contains(&elapsed), "{elapsed:?}");
    }
}
