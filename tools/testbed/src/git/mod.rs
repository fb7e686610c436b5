//! Real Git servers over https and SSH on loopback, and a repository with a work tree for them.
//!
//! Servers and repository use the program `git`, which only tests start. A failure panics, which fails the test at once.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]
#![allow(missing_docs, reason = "their names say what they are")]
#![allow(clippy::new_without_default, reason = "each makes files and keys")]

pub mod origin;
pub mod server;
pub mod ssh;
pub mod tls;

pub use origin::Origin;
pub use server::{Asked, Reply, Server};
pub use ssh::SshServer;
