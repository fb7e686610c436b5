//! Tests that run the tasks of `xtask-operator` as programs.

mod bench;
mod take;
