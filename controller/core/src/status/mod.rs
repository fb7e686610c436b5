//! Status and conditions for users, from what was observed.

pub mod annotations;
pub mod apply;
mod failing;
pub mod instance;
pub mod policies;
pub mod pool;

/// A time as all messages show it.
pub(crate) fn shown(at: jiff::Timestamp) -> String {
    api::Time::from(at).to_string()
}
