//! HTTP server for untrusted clients: connections, heads and time are limited, so that none of them can take the memory or the place of others.

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

/// Delay after an error of the listener, which is most often that the process has no file left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum size of a request's head, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Limits of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections that may be open at once.
    pub connections: usize,
    /// Connections that may be open at once from one address.
    pub per_address: usize,
    /// Time in which the head of a request must arrive.
    pub head: Duration,
    /// Time after which a connection is closed in any state.
    pub connection: Duration,
}

/// Serves HTTP until `stop`. When as many connections are open as may be, a new one takes the place of the oldest: a client that opens many and sends
/// nothing does not keep out a probe of kubelet, which takes milliseconds.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let places = Places::default();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let place = places.take(peer.ip().to_canonical(), &limits);
        let speak = match tls.clone() {
            None => Either::Left(speak(stream, router.clone(), limits)),
            Some(tls) => {
                let router = router.clone();
                // In a box: it is large.
                Either::Right(Box::pin(async move {
                    // Who does not speak TLS, or stops in the middle, gets no answer.
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
    // How it ends is the client's affair.
    let _ = connection.await;
}

/// Open connections, the oldest first.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<VecDeque<(IpAddr, CancellationToken)>>>);

/// Open connection that counts until it is dropped.
struct Place {
    places: Places,
    /// Token that is cancelled when another connection takes the place.
    taken: CancellationToken,
}

impl Places {
    fn take(&self, address: IpAddr, limits: &Limits) -> Place {
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
        Place { places: self.clone(), taken }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is not cancelled is still in the list. Tokens have no identity: cancelling this one marks its entry.
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

    /// Starts a server that answers with the length of what it is sent.
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

    /// Reads the output of the server before it closes the connection.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        // A reset says as much as an orderly end: nothing more comes.
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    const RIGHT: &[u8] = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

    #[tokio::test]
    async fn one_address_cannot_take_the_places_of_others() {
        let limits = Limits { connections: 3, per_address: 2, head: PATIENT, connection: PATIENT };
        let address = server(limits).await;
        let mut first = connect("127.0.0.1", address).await;
        let _second = connect("127.0.0.1", address).await;
        let _of_another = connect("127.0.0.2", address).await;
        // It is accepted in the order of arrival, so the three above have their places.
        let mut third = connect("127.0.0.1", address).await;
        assert_eq!(answer(&mut first).await, "", "the oldest of this address has made room");
        third.write_all(RIGHT).await.unwrap();
        assert!(answer(&mut third).await.ends_with("\r\n\r\n3"), "a new connection was not served");
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_probe_out() {
        let limits = Limits { connections: 4, per_address: 2, head: PATIENT, connection: PATIENT };
        let address = server(limits).await;
        let mut silent = Vec::new();
        for n in 0..40 {
            silent.push(connect(&format!("127.0.0.{}", 2 + n % 20), address).await);
        }
        // From an address of its own, and from one that is used up.
        for from in ["127.0.0.99", "127.0.0.2"] {
            let mut probe = connect(from, address).await;
            probe.write_all(RIGHT).await.unwrap();
            assert!(answer(&mut probe).await.ends_with("\r\n\r\n3"), "{from}");
        }
        assert_eq!(answer(&mut silent[0]).await, "", "no more are open than fit");
    }

    #[tokio::test]
    async fn a_client_that_does_not_go_on_is_not_waited_for() {
        let short = Duration::from_millis(50);
        for (about, limits, sent) in [
            (
                "half a head",
                Limits { connections: 9, per_address: 9, head: short, connection: PATIENT },
                "POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            ),
            (
                "half a body",
                Limits { connections: 9, per_address: 9, head: PATIENT, connection: short },
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc",
            ),
            (
                "a head without end",
                Limits { connections: 9, per_address: 9, head: PATIENT, connection: PATIENT },
                &format!("POST / HTTP/1.1\r\nHost: x\r\nX-Long: {}", "x".repeat(MAX_HEAD)),
            ),
        ] {
            let mut stream = connect("127.0.0.1", server(limits).await).await;
            stream.write_all(sent.as_bytes()).await.unwrap();
            let said = answer(&mut stream).await;
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{about}: {said}");
        }
    }
}
