//! Network between a control plane and its hosts.

use std::{
    fs::File,
    net::Ipv4Addr,
    process::Command,
    sync::atomic::{AtomicU8, Ordering},
};

use anyhow::{Context as _, Result, bail};

use crate::binaries::{Run as _, cache_dir, lock_file};

/// Bridge on this machine with a /24 of 198.18.0.0/15, the range for tests of network devices (RFC 2544).
/// The bridge is `wnp<number>`, the links to hosts are `wnp<number>h<host>`. The bridge is removed on drop. Remains of a killed process are
/// removed by the next process that gets its number. Needs root.
#[derive(Debug)]
pub struct HostNetwork {
    number: u8,
    next_host: AtomicU8,
    // The kernel releases the lock when the process ends, so that other processes know that the number is free.
    _lock: File,
}

impl HostNetwork {
    /// Creates a network that no other process uses.
    ///
    /// # Errors
    /// Fails when all networks are in use, a lock file cannot be opened, or `ip` fails, for example without root.
    pub fn create() -> Result<Self> {
        let locks = cache_dir()?.join("networks");
        for number in 1..=u8::MAX {
            let lock = lock_file(&locks.join(number.to_string()))?;
            if lock.try_lock().is_err() {
                continue;
            }
            let network = Self { number, next_host: AtomicU8::new(2), _lock: lock };
            let bridge = network.bridge();
            let _ = ip(&["link", "del", &bridge]); // normally there is none
            ip(&["link", "add", &bridge, "type", "bridge"]).context("cannot create a bridge for the hosts")?;
            ip(&["addr", "add", &format!("{}/24", network.gateway()), "dev", &bridge])?;
            ip(&["link", "set", &bridge, "up"])?;
            return Ok(network);
        }
        bail!("all networks for hosts are in use, by the locks in {}", locks.display())
    }

    /// Returns this machine's address in the network, on which control planes for the hosts listen.
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn bridge(&self) -> String {
        format!("wnp{}", self.number)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, host)
    }

    /// Reserves an address for another host. Fails when none is left.
    pub(super) fn reserve(&self) -> Result<Ipv4Addr> {
        let next = |host: u8| (host < u8::MAX - 1).then_some(host + 1);
        match self.next_host.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(host) => Ok(self.address(host)),
            Err(_) => bail!("the network of {} has no free address for another host", self.gateway()),
        }
    }

    /// Creates a link to the network namespace of process `pid`, where it becomes `eth0` with a reserved `address`.
    pub(super) fn connect(&self, pid: u32, address: Ipv4Addr) -> Result<Cable> {
        let name = format!("{}h{}", self.bridge(), address.octets()[3]);
        let namespace = pid.to_string();
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        let cable = Cable { name, address };
        ip(&["link", "set", &cable.name, "master", &self.bridge(), "up"])?;
        let inside = |args: &[&str]| Command::new("nsenter").args(["-n", "-t", &namespace, "ip"]).args(args).run();
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        // Includes the route to the metadata service, which a cloud's DHCP provides: Wine can list routes, but not create them.
        for destination in ["default", "169.254.169.254"] {
            inside(&["route", "add", destination, "via", &self.gateway().to_string()])?;
        }
        Ok(cable)
    }
}

impl Drop for HostNetwork {
    fn drop(&mut self) {
        let _ = ip(&["link", "del", &self.bridge()]);
    }
}

/// Connection of a host to the network.
#[derive(Debug)]
pub(super) struct Cable {
    name: String,
    pub address: Ipv4Addr,
}

impl Cable {
    /// Cuts the connection: packets vanish, as with a pulled cable.
    pub(crate) fn cut(&self) -> Result<()> {
        ip(&["link", "set", &self.name, "down"])
    }

    /// Undoes [`Cable::cut`].
    pub(crate) fn mend(&self) -> Result<()> {
        ip(&["link", "set", &self.name, "up"])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Normally, the kernel removes the interface together with the namespace at its other end.
        let _ = ip(&["link", "del", &self.name]);
    }
}

fn ip(args: &[&str]) -> Result<()> {
    Command::new("ip").args(args).run()
}
