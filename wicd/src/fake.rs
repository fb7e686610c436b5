//! A host that is a directory and a few maps, for tests and simulated hosts.
