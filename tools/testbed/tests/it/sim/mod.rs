//! Tests of simulated hosts, seen as the operator sees them: over SSH, and as Nodes.

mod faults;
mod node;
mod operator;
mod ssh;
