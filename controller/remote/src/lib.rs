//! Access to a host: SSH, the files that a host receives, and requests to its `wicd.exe`. Independent of Kubernetes.
//!
//! - [`ssh`]: one connection, with SFTP for all bytes and exec for starting `wicd.exe`;
//! - [`payload`]: files that are sent to a host;
//! - [`session`]: requests to the `wicd.exe` of one host, over one connection;
//! - [`facts`]: parsers for the untrusted answers of a host;
//! - [`support`]: support data of a host, which is untrusted as well.

mod error;
pub mod facts;
pub mod payload;
mod program;
pub mod session;
pub mod ssh;
pub mod support;

pub use error::RemoteError;
pub use session::{Operator, ProvenHost, Session, Traffic};
