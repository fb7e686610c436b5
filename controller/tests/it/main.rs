//! Tests against a real API server.

mod access;
mod cluster;
mod csr;
