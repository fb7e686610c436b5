//! Tests of the tasks as programs.

mod bench;
