//! Status and conditions for users, from the observed state.

pub mod annotations;
pub mod apply;
mod failing;
pub mod instance;
pub mod policies;
pub mod pool;

/// Returns a time in the form in which all messages show it.
pub(crate) fn shown(at: jiff::Timestamp) -> String {
    api::Time::from(at).to_string()
}
