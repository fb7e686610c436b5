//! Where hosts come from. Every source gives the same: a list of hosts and a list of problems, each with one entry.

pub mod hosts;
