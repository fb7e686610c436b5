//! Fetching from real Git servers on loopback: `git http-backend` behind TLS, `git upload-pack` behind SSH, and servers that
//! mean no good.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail tests")]

mod fetch;
mod history;
mod hostile;
mod https;
mod proxy;
mod ssh;
mod sshd;

use testbed::git::{origin, server, tls};
