//! What people read: status and conditions, from what was observed.

pub mod instance;
pub mod policies;
pub mod pool;
pub mod waiting;
