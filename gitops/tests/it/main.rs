//! Fetches from real Git servers on loopback: `git http-backend` behind TLS, `git-shell` behind OpenSSH, and malicious servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail tests")]

mod fetch;
mod history;
mod hostile;
mod https;
mod proxy;
mod ssh;

use testbed::git::{origin, server, tls};
