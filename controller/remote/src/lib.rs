//! The operator's side of a host: SSH, the files that a host gets, and `wicd.exe` at the other end. Knows hosts, and not Kubernetes.
//!
//! - [`ssh`]: one connection, with SFTP for all bytes and exec for starting `wicd.exe`;
//! - [`payload`]: what is sent;
//! - [`session`]: requests to the `wicd.exe` of one host, over one connection;
//! - [`facts`]: what a host says, which is untrusted until parsed;
//! - [`support`]: support data of a host, which is untrusted as well.

mod error;
pub mod facts;
pub mod payload;
mod program;
pub mod session;
pub mod ssh;
pub mod support;

pub use error::RemoteError;
pub use session::{Operator, Session, Speaks, Traffic};
