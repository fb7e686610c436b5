//! stub
pub mod drain;
