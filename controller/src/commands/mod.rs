//! Commands that users run, and the code that they share.

pub mod act;
pub mod age;
pub mod check;
#[cfg(test)]
mod documented_commands_tests;
pub mod explain;
pub mod gather;
pub mod host_session;
pub mod machineset;
pub mod plan;
mod short_version;
pub mod status;
pub mod ui;
pub mod version;
