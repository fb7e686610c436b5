//! Tests against a real API server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

mod access;
mod bad_input;
mod cluster;
mod crash;
mod crd;
mod csr;
mod deploy;
mod fleet;
mod fleet_faults;
mod plan_mode;
mod removal;
mod repair;
mod rollout;
mod rollout_crash;
mod rollout_faults;
mod rollout_restart;
mod rollout_windows;
mod takeover;
mod template;
mod transcripts;
mod wine;
