//! What people read: status and conditions, from what was observed.

pub mod annotations;
pub mod apply;
mod failing;
pub mod instance;
pub mod policies;
pub mod pool;
pub mod waiting;
