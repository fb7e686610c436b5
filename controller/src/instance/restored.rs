//! Finds out again what a host is whose status was lost, as after the cluster's objects were restored from a backup without it. A host
//! that is to stay is found to be a node when it joins; one that is to leave must be found out before, or it would be let go as one that
//! was never touched, running, with its Node.

use api::{host::Verb, names::key};
use jiff::Timestamp;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::{error::StepError, identity::prove, login::login, node::reference, session::Session, told, work::Work};
use crate::{
    events::Level,
    plan::identity::{Identity, Purpose},
};

/// Whether nothing is stored of a host that has a Node which follows a version.
pub fn is_lost(work: &Work) -> bool {
    let status = &work.status;
    let blank = status.host_key.is_none() && status.facts.is_none() && status.node_ref.is_none();
    blank && work.cx.node(&work.name()).is_some_and(|n| n.annotations().contains_key(key::DESIRED_VERSION))
}

/// Asks the host for its facts, and adopts it as the node that it reports if that is proven. Does not change the host.
pub async fn recover(work: &mut Work) -> Result<(), StepError> {
    let host = work.instance.spec.host.clone();
    let id = hex::encode(Sha256::digest(format!("{} {} {}", work.name(), host.address, host.port)));
    let login = login(&work.cx, &work.instance, &work.pool).await?;
    let mut session = Session::open(&work.cx, &work.instance, &format!("look-{}", &id[..10]), login).await?;
    session.prepare().await?;
    let state = session.look(&[]).await?;
    let peer = session.connection().peer_address();
    let facts = told::facts(&state.machine, &host.address, peer, Timestamp::now())?;
    let identity = prove(work, &mut session, &state, Purpose::Remove)?;
    session.tidy(&[Verb::Facts]).await?;
    if let (Identity::Meant | Identity::Supersedes(_), Some(marker), Some(node)) =
        (identity, &state.marker, work.cx.node(&work.name()))
    {
        work.proven(session.connection());
        work.status.facts = Some(facts);
        work.status.node_ref = Some(reference(&node));
        let follows = node.annotations().get(key::VERSION).filter(|v| !v.is_empty());
        work.status.current_version = Some(follows.unwrap_or(&marker.version).clone());
        work.status.failures = None;
        let note = "the instance had no stored state; the host's own record and its Node show that it is the same node as before";
        work.cx.events.say(&work.instance, Level::Normal, "Recovered", "Connect", note);
    }
    session.close().await;
    work.save().await
}
