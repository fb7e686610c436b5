//! HTTP server for untrusted clients. It limits the connections, the size of request heads and the time, so that no client can exhaust the memory or
//! the connections.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

use axum::Router;
use futures::future::Either;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Delay after an error of the listener, most often because the process has no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum size of a request's head, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Limits on clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of open connections from one address.
    pub per_address: usize,
    /// Time limit for a TLS handshake, and for the head of each request.
    pub head: Duration,
    /// Maximum lifetime of a connection.
    pub connection: Duration,
}

/// Serves HTTP until `stop`. When the limit of connections is reached, a new connection replaces the oldest one, so that a client with many silent
/// connections does not block a probe of kubelet, which takes milliseconds.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let places = OpenConnections::default();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept an HTTP connection; the operator retries");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let place = places.take(peer.ip().to_canonical(), &limits);
        let speak = match tls.clone() {
            None => Either::Left(speak(stream, router.clone(), limits)),
            Some(tls) => {
                let router = router.clone();
                // Boxed because it is large.
                Either::Right(Box::pin(async move {
                    // A client that does not speak TLS, or stops during the handshake, gets no answer.
                    if let Ok(Ok(stream)) = timeout(limits.head, tls.accept(stream)).await {
                        speak(stream, router, limits).await;
                    }
                }))
            }
        };
        let stop = stop.clone();
        tokio::spawn(async move {
            let until_taken = place.taken.run_until_cancelled(timeout(limits.connection, speak));
            let _ = stop.run_until_cancelled(until_taken).await;
            drop(place);
        });
    }
}

/// Answers the requests of one connection.
async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router, limits: Limits) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Errors of a client's connection do not matter.
    let _ = connection.await;
}

/// Open connections, the oldest first.
#[derive(Clone, Default)]
struct OpenConnections(Arc<Mutex<VecDeque<(IpAddr, CancellationToken)>>>);

/// Open connection that counts until it is dropped.
struct OpenConnection {
    places: OpenConnections,
    /// Token that is cancelled when another connection replaces this one.
    taken: CancellationToken,
}

impl OpenConnections {
    /// Adds a connection from this address. If a limit is reached, cancels the oldest connection, from the same address if its limit is reached.
    fn take(&self, address: IpAddr, limits: &Limits) -> OpenConnection {
        let mut open = self.0.lock();
        let from_here = open.iter().filter(|(from, _)| *from == address).count();
        let oldest = if from_here >= limits.per_address {
            open.iter().position(|(from, _)| *from == address)
        } else {
            (open.len() >= limits.connections).then_some(0)
        };
        if let Some((_, token)) = oldest.and_then(|oldest| open.remove(oldest)) {
            token.cancel();
        }
        let taken = CancellationToken::new();
        open.push_back((address, taken.clone()));
        OpenConnection { places: self.clone(), taken }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        // Tokens cannot be compared, so the entry of this connection is marked by cancelling its token, and then removed.
        self.taken.cancel();
        self.places.0.lock().retain(|(_, token)| !token.is_cancelled());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Bytes, routing::post};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpSocket, TcpStream},
    };

    const PATIENT: Duration = Duration::from_mins(10);

    /// Starts a server that answers with the length of the body.
    async fn server(limits: Limits) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", post(|body: Bytes| async move { body.len().to_string() }));
        tokio::spawn(serve(listener, None, router, limits, CancellationToken::new()));
        address
    }

    async fn connect(from: &str, to: std::net::SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Reads everything until the server closes the connection.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        // A reset counts as an end, because nothing more follows.
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    const RIGHT: &[u8] = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

    #[tokio::test]
    async fn one_address_cannot_take_the_connections_of_others() {
        let limits = Limits { connections: 3, per_address: 2, head: PATIENT, connection: PATIENT };
        let address = server(limits).await;
        let mut first = connect("127.0.0.1", address).await;
        let _second = connect("127.0.0.1", address).await;
        let _of_another = connect("127.0.0.2", address).await;
        // Connections are accepted in the order of arrival, so the three above are open.
        let mut third = connect("127.0.0.1", address).await;
        assert_eq!(answer(&mut first).await, "", "the oldest of this address has made room");
        third.write_all(RIGHT).await.unwrap();
        assert!(answer(&mut third).await.ends_with("\r\n\r\n3"), "a new connection was not served");
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_a_probe() {
        let limits = Limits { connections: 4, per_address: 2, head: PATIENT, connection: PATIENT };
        let address = server(limits).await;
        let mut silent = Vec::new();
        for n in 0..40 {
            silent.push(connect(&format!("127.0.0.{}", 2 + n % 20), address).await);
        }
        // From an address without connections, and from one at its limit.
        for from in ["127.0.0.99", "127.0.0.2"] {
            let mut probe = connect(from, address).await;
            probe.write_all(RIGHT).await.unwrap();
            assert!(answer(&mut probe).await.ends_with("\r\n\r\n3"), "{from}");
        }
        assert_eq!(answer(&mut silent[0]).await, "", "the oldest connection was replaced");
    }

    #[tokio::test]
    async fn a_stalled_client_is_disconnected() {
        let short = Duration::from_millis(50);
        let limits = |head, connection| Limits { connections: 9, per_address: 9, head, connection };
        let endless = format!("POST / HTTP/1.1\r\nHost: x\r\nX-Long: {}", "x".repeat(MAX_HEAD));
        let half_body = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc";
        for (about, limits, sent) in [
            ("half a head", limits(short, PATIENT), "POST / HTTP/1.1\r\nHost: x\r\nX-Slow: "),
            ("half a body", limits(PATIENT, short), half_body),
            ("a head without end", limits(PATIENT, PATIENT), endless.as_str()),
        ] {
            let mut stream = connect("127.0.0.1", server(limits).await).await;
            stream.write_all(sent.as_bytes()).await.unwrap();
            let said = answer(&mut stream).await;
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{about}: {said}");
        }
    }
}
