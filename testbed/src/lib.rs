//! The test bed: a real control plane, Windows hosts under Wine, simulated hosts.

pub mod payload;
