//! Pure decisions: which hosts get a grant, and the next step on a host.

pub mod authorized_keys;
pub mod backoff;
pub mod change;
pub mod grants;
pub mod identity;
pub mod join;
pub mod losses;
pub mod node_ip;
pub mod refusal;
pub mod remove;
pub mod rollout;
pub mod slot;
pub mod update;
pub mod windows;
