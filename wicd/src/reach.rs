//! Checks of connections and ports in the host's network.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit for the resolution of a name.
const RESOLVE: Duration = Duration::from_secs(10);
/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES: usize = 4;

/// Returns the reason why `https://host:port` cannot be reached; `None` if it can. Only connects, and sends nothing.
pub fn unreachable(url: &str) -> Option<String> {
    let Some((host, port)) = host_and_port(url) else {
        return Some(format!("{url} is not a URL of the form https://HOST:PORT"));
    };
    let (send, found) = mpsc::channel();
    let name = host.clone();
    // The operating system's resolver has no timeout that a caller can set.
    thread::spawn(move || send.send((name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>)));
    let addresses = match found.recv_timeout(RESOLVE) {
        Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
        Ok(Ok(_)) => return Some(format!("{host} has no address")),
        Ok(Err(error)) => return Some(format!("{host} cannot be resolved: {error}")),
        Err(_) => return Some(format!("{host} cannot be resolved: DNS does not answer")),
    };
    let mut last = None;
    for address in addresses.into_iter().take(ADDRESSES) {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => return None,
            Err(error) => last = Some(format!("{address}: {error}")),
        }
    }
    last
}

/// Reports whether a TCP port cannot be bound on all IPv4 addresses: another program listens on it, or Windows reserves it. Windows may report both
/// as a lack of permission.
pub fn is_in_use(port: u16) -> bool {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).is_err()
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let authority = url.strip_prefix("https://")?.split('/').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, 443),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_url_defaults_to_443() {
        for (url, expected) in [
            ("https://api:6443", Some(("api", 6443))),
            ("https://api.example.com/", Some(("api.example.com", 443))),
            ("https://[fd00::1]:6443", Some(("fd00::1", 6443))),
            ("https://[fd00::1]", Some(("fd00::1", 443))),
            ("https://", None),
            ("http://api", None),
            ("https://api:x", None),
        ] {
            assert_eq!(host_and_port(url), expected.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
    }

    #[test]
    fn only_a_port_with_a_listener_is_reachable() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(unreachable(&format!("https://{address}")), None);
        assert!(is_in_use(address.port()));
        // Nothing listens on port 1.
        let why = unreachable("https://127.0.0.1:1").unwrap();
        assert!(why.contains("127.0.0.1:1"), "{why}");
        let why = unreachable("https://no-such-name.invalid:6443").unwrap();
        assert!(why.contains("no-such-name.invalid cannot be resolved"), "{why}");
    }
}
