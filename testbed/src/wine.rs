//! Windows hosts: Wine's service manager, registry and certificate store behind a real OpenSSH server, each in a network
//! of its own.

mod network;

pub use network::HostNetwork;
