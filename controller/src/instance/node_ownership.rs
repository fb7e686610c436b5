//! Ownership of Nodes: claims the Node name for a host, and finds the Node that belongs to an instance.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use super::{error::StepError, scope::Scope};
use crate::caches::name_owner as whose;
use wnp_core::node::{
    owner::{By, Evidence, NodeOwner, evidence},
    reference,
};

/// Result of the search for the Node that is on record for a host.
pub(crate) enum Found {
    /// The Node exists.
    Node(Box<Node>),
    /// The host holds the Node name, and no Node with this name exists. Pods may still be bound to the name.
    Gone,
    /// No Node is on record for the host. Either no Node with its name exists, and the host does not hold the name; or the existing Node is unproven
    /// or not recorded yet.
    None,
}

impl Found {
    /// Returns the Node, if it exists.
    pub(crate) fn node(self) -> Option<Node> {
        match self {
            Self::Node(node) => Some(*node),
            Self::Gone | Self::None => None,
        }
    }
}

impl Scope {
    /// Returns the known facts that identify the host's Node.
    pub(super) fn evidence(&self) -> Evidence {
        evidence(&self.instance, &self.status, &|machine| self.cx.caches.machines.addresses(machine))
    }

    /// Claims the Node name for the host, before the host gets any credentials of that Node. Reads the owner of the Node from the API server, and
    /// fails if the Node is not proven to belong to the host. If there is no Node, records that the host holds the name. `reached` is the address of
    /// the connection, if it is not on record yet.
    pub(super) async fn claim_name(&mut self, reached: Option<IpAddr>) -> Result<(), StepError> {
        match self.ask_for_node(reached).await? {
            (_, NodeOwner::Nobodys) => self.status.record().holds_node_name = true,
            (_, NodeOwner::Hosts(_)) => {}
            (_, NodeOwner::Others(why)) => {
                // Another owner may have the name now, even if the host held it before.
                self.status.record().holds_node_name = false;
                return Err(StepError::NodeNameTaken { name: self.name(), why });
            }
        }
        Ok(())
    }

    /// Returns the Node from the API server, if the host is on record as that node: its pods may be evicted, and it may be deleted. Records a Node
    /// that was created again, under another UID.
    pub(super) async fn find_node(&mut self) -> Result<Found, StepError> {
        let found = self.ask_for_node(None).await?;
        Ok(self.found(found))
    }

    fn found(&mut self, found: (Option<Node>, NodeOwner)) -> Found {
        match found {
            (None, _) if self.evidence().holds_name => {
                // From now on, a Node with this name belongs to the host if it has an address of the host.
                self.status.record().node_ref = None;
                self.status.record().holds_node_name = true;
                Found::Gone
            }
            (Some(node), NodeOwner::Hosts(By::Uid | By::Name)) => {
                self.status.record().node_ref = Some(reference(&node));
                Found::Node(Box::new(node))
            }
            // A mark on the Node shows that some operator created it. That is not enough without a record of the host.
            _ => Found::None,
        }
    }

    /// Returns the Node whose pods must leave before the host is disturbed, like [`Scope::find_node`]. Fails if the host may be a node and no Node is
    /// proven to belong to it, because its pods could not be evicted. A host with a recorded host key will be cleaned, so a Node with an operator's
    /// mark counts as its own, whichever operator has joined the host.
    pub(super) async fn find_node_to_empty(&mut self) -> Result<Found, StepError> {
        let will_be_cleaned = self.status.host_key.is_some();
        match self.ask_for_node(None).await? {
            (Some(node), NodeOwner::Hosts(By::Mark)) if will_be_cleaned => {
                self.status.record().node_ref = Some(reference(&node));
                Ok(Found::Node(Box::new(node)))
            }
            (_, NodeOwner::Others(why))
                if will_be_cleaned || self.status.current_version.is_some() || self.evidence().holds_name =>
            {
                Err(StepError::NodeUnproven { name: self.name(), why })
            }
            found => Ok(self.found(found)),
        }
    }

    /// Reads the Node with the host's name from the API server, and decides who owns it. `reached` is the address of the connection, if it is not on
    /// record yet.
    pub(super) async fn ask_for_node(&self, reached: Option<IpAddr>) -> Result<(Option<Node>, NodeOwner), StepError> {
        let mut evidence = self.evidence();
        evidence.proven.extend(reached.map(|ip| ip.to_canonical()));
        whose::ask(&self.cx.cluster.client, &evidence).await.map_err(StepError::api("get the Node"))
    }
}

#[cfg(test)]
#[path = "node_ownership_tests.rs"]
mod tests;
