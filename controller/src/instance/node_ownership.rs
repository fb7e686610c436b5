//! Ownership of Nodes: finds the Node that belongs to an instance, by [`name_owner`](crate::caches::name_owner).

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use super::{error::StepError, scope::Scope};
use crate::caches::name_owner as whose;
use wnp_core::node::{
    owner::{By, Evidence, Whose, evidence},
    reference,
};

/// Node that a host is on record as.
pub(crate) enum Found {
    /// The Node is there.
    Node(Box<Node>),
    /// The host was a node, and there is no Node of its name now. Pods may still be bound to that name.
    Gone,
    /// A Node of the host's name exists, and it is not proven to be the host's.
    Others,
    /// The host never was a node.
    None,
}

impl Found {
    /// The Node, if it is there.
    pub(crate) fn node(self) -> Option<Node> {
        match self {
            Self::Node(node) => Some(*node),
            Self::Gone | Self::Others | Self::None => None,
        }
    }
}

impl Scope {
    /// Known facts about the host, to identify its Node.
    pub(super) fn evidence(&self) -> Evidence {
        evidence(&self.instance, &self.status, &|machine| self.cx.caches.machines.addresses(machine))
    }

    /// Asks the API server whose the Node of the host's name is, before the host gets anything that makes it that Node. One of
    /// another owner is an error; a missing one leaves the name to the host. `reached` is the address of the
    /// connection, if it is not on record yet.
    pub(super) async fn claim_name(&mut self, reached: Option<IpAddr>) -> Result<(), StepError> {
        match self.ask_for_node(reached).await? {
            (_, Whose::Nobodys) => self.status.record().holds_node_name = true,
            (_, Whose::Hosts(_)) => {}
            (_, Whose::Others(why)) => {
                // What was free once is another's now.
                self.status.record().holds_node_name = false;
                return Err(StepError::NodeNameTaken { name: self.name(), why });
            }
        }
        Ok(())
    }

    /// Returns the Node, asked of the API server, if the host is on record as that node: its pods may be
    /// moved away, and it may be deleted. A Node that was created again, under another UID, is recorded.
    pub(super) async fn find_node(&mut self) -> Result<Found, StepError> {
        let found = self.ask_for_node(None).await?;
        Ok(self.found(found))
    }

    fn found(&mut self, found: (Option<Node>, Whose)) -> Found {
        match found {
            (None, _) if self.evidence().holds_name => {
                // What appears under this name from now on is the host's, if it has an address of the host.
                self.status.record().node_ref = None;
                self.status.record().holds_node_name = true;
                Found::Gone
            }
            (Some(node), Whose::Hosts(By::Uid | By::Name)) => {
                self.status.record().node_ref = Some(reference(&node));
                Found::Node(Box::new(node))
            }
            (_, Whose::Others(_)) => Found::Others,
            // A mark means that an operator has made it a node. An operator that has only observed the host does not decide that.
            (_, Whose::Hosts(_) | Whose::Nobodys) => Found::None,
        }
    }

    /// Returns the Node as [`Scope::find_node`] does, before the host is disturbed. A host that is a node is not treated as one without pods only
    /// because it is not proven which Node is its own. A host that was logged in to is going to be cleaned, whichever operator has made it the node
    /// that it is, and whether or not that is on record already.
    pub(super) async fn find_node_to_empty(&mut self) -> Result<Found, StepError> {
        let will_be_cleaned = self.status.host_key.is_some();
        match self.ask_for_node(None).await? {
            (Some(node), Whose::Hosts(By::Mark)) if will_be_cleaned => {
                self.status.record().node_ref = Some(reference(&node));
                Ok(Found::Node(Box::new(node)))
            }
            (_, Whose::Others(why))
                if will_be_cleaned || self.status.current_version.is_some() || self.evidence().holds_name =>
            {
                Err(StepError::NodeUnproven { name: self.name(), why })
            }
            found => Ok(self.found(found)),
        }
    }

    /// Asks the API server whose the Node of the host's name is. `reached` is the address of the connection, if it is not on record yet.
    pub(super) async fn ask_for_node(&self, reached: Option<IpAddr>) -> Result<(Option<Node>, Whose), StepError> {
        let mut evidence = self.evidence();
        evidence.proven.extend(reached.map(|ip| ip.to_canonical()));
        whose::ask(&self.cx.cluster.client, &evidence).await.map_err(StepError::api("get the Node"))
    }
}

#[cfg(test)]
#[path = "node_ownership_tests.rs"]
mod tests;
