//! Tests of the tasks as programs.

mod bench;
mod take;
