//! Tests of simulated hosts from the operator's point of view: over SSH, and as Nodes.

mod faults;
mod node;
mod operator;
mod ssh;
