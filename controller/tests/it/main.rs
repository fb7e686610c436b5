//! Tests against a real API server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

mod access;
mod access_operator;
mod bad_input;
mod cluster;
mod config_map;
mod crash;
mod crd;
mod crd_inventory;
mod crd_template;
mod csr;
mod deploy;
mod drain_rights;
mod five_ways;
mod fleet;
mod fleet_faults;
mod flux;
mod git;
mod git_hostile;
mod git_ssh;
mod gitops_tools;
mod host_identity;
mod inventory;
mod key_rotation;
mod lint;
mod machine_keys;
mod machines;
mod node_identity;
mod plan_mode;
mod removal;
mod removal_intent;
mod repair;
mod rollout;
mod rollout_crash;
mod rollout_faults;
mod rollout_restart;
mod rollout_unfit;
mod rollout_windows;
mod takeover;
mod template;
mod transcripts;
mod unnamed;
mod walk;
mod wicd_rights;
mod wine;
