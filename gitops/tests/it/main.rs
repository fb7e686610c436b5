//! Fetching from real Git servers on loopback: `git http-backend` behind TLS, `git upload-pack` behind SSH, and servers that
//! mean no good.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail tests")]

mod fetch;
mod history;
mod hostile;
mod https;
mod origin;
mod proxy;
mod server;
mod ssh;
mod sshd;
mod tls;
