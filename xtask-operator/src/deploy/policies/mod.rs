//! Admission policies: what RBAC cannot express.
//!
//! The operator compares them with the files in `deploy/`, which are compiled into it.

mod clients;
mod guards;
mod hosts;
mod operator;
mod policy;
pub(super) mod release;

use super::object::{Object, Site};

/// Policies with their bindings.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    [
        hosts::WICD_NODES,
        hosts::WICD_REQUESTS,
        hosts::WICD_TOKENS,
        hosts::NODE_MANAGER_NODES,
        clients::INSTANCES,
        clients::SERVICES,
        operator::OPERATOR_RBAC,
        operator::OPERATOR_NODES,
        operator::OPERATOR_APPROVALS,
    ]
    .iter()
    .flat_map(|policy| policy.objects(site))
    .chain(guards::objects(site))
    .collect()
}
