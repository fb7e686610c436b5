//! The operator.

pub mod ssh;
