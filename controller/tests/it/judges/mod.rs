//! This operator beside programs of other projects, as their makers ship them. Each takes minutes to build: they run by night
//! (`cargo xtask check --nightly`).

mod cluster_api;
mod machine_api;
mod olm;
