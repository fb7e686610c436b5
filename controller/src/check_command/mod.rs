//! The command `check`: what stands in the way of something, found without a change.

mod host;
mod obstacle;
mod row;
mod takeover;

pub use host::host;
pub use takeover::takeover;
