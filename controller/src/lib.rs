//! stub
pub mod drain;
#[cfg(test)]
mod fake_api;
