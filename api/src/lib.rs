//! Types that the operator, the host daemon and users share.
//!
//! * [`WindowsNodePool`]: the kind with which users declare hosts.
//! * [`WindowsInstance`]: one for each host. The operator writes it; users only annotate or delete it.
//! * [`host`]: the protocol between operator and `wicd.exe`: JSON files over SFTP.
//! * [`services`]: the `windows-services-<version>` ConfigMap.
//! * [`payload`]: the manifest of the files that a host needs.
//! * [`act`]: user actions that messages propose.
//! * [`events`]: reasons of the operator's events.
//! * [`Reason`]: reasons of conditions and failures, with their descriptions.
//! * [`registries`]: matching of images with registry logins.
//! * [`text`]: text from outside the operator, made safe to display.
//!
//! This crate has no client and no async code: it is also compiled for Windows.
//!
//! ```
//! use api::{IntOrPercent, WindowsNodePoolSpec};
//! let spec: WindowsNodePoolSpec = serde_json::from_value(serde_json::json!({
//!     "inventory": {"hosts": [{"name": "win-1", "address": "10.0.0.1"}]},
//!     "rollout": {"maxUnavailable": "10%"},
//! })).unwrap();
//! assert_eq!(spec.ssh().port(), 22);
//! assert_eq!(spec.rollout().max_unavailable(), IntOrPercent::Percent(10));
//! ```

#![expect(unreachable_pub, reason = "the derive of `KubeSchema` repeats each type in a function")]

pub mod act;
pub mod conditions;
mod crd;
mod documented;
pub mod events;
mod examples;
pub mod host;
mod instance;
mod int_or_percent;
mod kstatus;
pub mod maintenance;
pub mod names;
pub mod payload;
mod pool;
mod quantity;
mod reason;
pub mod registries;
mod rule;
pub mod services;
pub mod services_version;
mod step;
pub mod text;
mod time;

pub use crd::crds;
pub use examples::{Example, examples};
pub use instance::*;
pub use int_or_percent::{IntOrPercent, ParseIntOrPercentError};
pub use kstatus::Kstatus;
pub use maintenance::MaintenanceState;
pub use pool::*;
pub use quantity::Quantity;
pub use reason::{Reason, UnknownReason};
pub use step::Step;
pub use time::Time;
