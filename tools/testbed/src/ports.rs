//! Ports for programs that listen on a port given as an argument.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    ops::Range,
    sync::Mutex,
};

use anyhow::{Context as _, Result};

use crate::lock::lock;

/// Ports below those that the kernel gives to outgoing connections and to listeners without a port of their own (32768 and up on Linux).
const PORTS: Range<u16> = 12_000..32_700;
/// Number of ports that a process reserves at a time.
const BLOCK: u16 = 100;

/// Ports of one process. No port is returned twice, because its program may not listen yet.
///
/// While the process runs, it listens on the first port of each of its blocks: no other process reserves the same block.
struct Ports {
    reserved: Vec<TcpListener>,
    rest: Range<u16>,
}

impl Ports {
    const fn new() -> Self {
        Self { reserved: Vec::new(), rest: 0..0 }
    }

    fn next(&mut self, ip: IpAddr) -> Result<SocketAddr> {
        loop {
            for port in self.rest.by_ref() {
                let address = SocketAddr::new(ip, port);
                if TcpListener::bind(address).is_ok() {
                    return Ok(address);
                }
            }
            let blocks: Vec<u16> = PORTS.step_by(BLOCK.into()).collect();
            // Each process begins at another block, so that conflicts are rare.
            let begin = usize::try_from(std::process::id()).unwrap_or_default() % blocks.len();
            let reserve = |first: u16| Some((first, TcpListener::bind((Ipv4Addr::LOCALHOST, first)).ok()?));
            let (first, listener) = (blocks.iter().cycle().skip(begin).take(blocks.len()))
                .find_map(|first| reserve(*first))
                .context("all ports for programs of tests are reserved: too many tests run at once on this machine")?;
            self.reserved.push(listener);
            self.rest = first + 1..first + BLOCK;
        }
    }
}

/// Returns a loopback address for a program that is about to listen there.
///
/// # Errors
/// Fails when other processes have reserved all ports.
pub fn free_address() -> Result<SocketAddr> {
    free_address_on(Ipv4Addr::LOCALHOST.into())
}

/// Returns an address with this IP address, like [`free_address`].
pub(crate) fn free_address_on(ip: IpAddr) -> Result<SocketAddr> {
    static PORTS: Mutex<Ports> = Mutex::new(Ports::new());
    lock(&PORTS).next(ip)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks ports whose program does not listen yet: until it does, neither the kernel nor another test may use the port.
    #[test]
    fn no_port_is_given_to_two_programs() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first_of_kernel: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        // A second set stands for another process, which also asks for ports.
        let (mut one, mut other) = (Ports::new(), Ports::new());
        let mut seen = BTreeSet::new();
        for _ in 0..2 * BLOCK {
            for ports in [&mut one, &mut other] {
                let port = ports.next(Ipv4Addr::LOCALHOST.into()).unwrap().port();
                assert!(port < first_of_kernel && seen.insert(port), "{port} is given to two programs");
            }
        }
    }
}
