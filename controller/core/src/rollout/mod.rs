//! Rollouts of a pool: grants for operations on hosts, progress of a change, maintenance windows.

mod budgets;
mod candidate;
pub mod grants;
pub mod image_pull;
pub mod key_rotation;
pub mod lost_settings;
pub mod maintenance_window;
pub mod member;
pub mod preview;
pub mod progress;
pub mod release_file;
pub mod shared_limit;
pub mod version_diff;
pub mod versions_in_use;
