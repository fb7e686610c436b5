//! Tests against a real API server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

mod access;
mod cluster;
mod crd;
mod csr;
mod deploy;
mod fleet;
