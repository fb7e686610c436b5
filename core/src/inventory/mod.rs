//! Which hosts a pool has, by the list that names them.

pub mod address;
