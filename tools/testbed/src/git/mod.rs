//! Real Git servers over https and ssh on loopback, and a repository behind it with a work tree.
//!
//! Servers and repository are made with the program `git`, which only tests start. What cannot be done fails the test at once.

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
