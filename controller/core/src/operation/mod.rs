//! Operations on one host: the checks before them, their next step, and the meaning of their failures.

pub mod authorized_keys;
pub mod host_key_problem;
pub mod identity;
pub mod join;
pub mod key_refusal;
pub mod node_ip;
pub mod preflight;
pub mod preflight_warnings;
pub mod remove;
pub mod service_accounts;
pub mod times;
pub mod update;
pub mod windows_versions;
