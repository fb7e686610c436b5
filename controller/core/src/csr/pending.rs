//! Undecided certificate requests that a user may approve, for the warning of the Node's pool. Pure.

use crate::enumeration::first_names;
use api::Reason;

/// Certificate request that is neither approved nor denied because nothing proves that it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Name of the request.
    pub request: String,
    /// Name of the requesting Node.
    pub node: String,
    /// Message that says what is not proven.
    pub message: String,
}

/// Returns a pool's warning about pending requests of its nodes, with a command for the first one.
pub fn warning(pending: &[Pending], is_of_pool: &dyn Fn(&str) -> bool) -> Option<(Reason, String)> {
    let mut of_pool = pending.iter().filter(|p| is_of_pool(&p.node));
    let Pending { request, node, message } = of_pool.next()?;
    let others: Vec<String> = of_pool.map(|p| p.node.clone()).collect();
    let more = match others.as_slice() {
        [] => String::new(),
        others => format!("; requests of other nodes also wait: {}", first_names(others)),
    };
    let message = format!(
        "the certificate request {request} of Node {node} waits: {message}. To approve it, run oc adm certificate approve {request} \
         (or kubectl certificate approve {request}){more}"
    );
    Some((Reason::CertificateRequestsWait, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_names_the_requests_of_its_own_nodes() {
        let pending = |node: &str| Pending { request: format!("csr-{node}"), node: node.into(), message: "why".into() };
        let all = ["win-1", "win-2", "other"].map(pending);
        for (nodes, expected) in [
            (&[][..], None),
            (&["win-2"], Some("approve csr-win-2)")),
            (&["win-1", "win-2"], Some("approve csr-win-1); requests of other nodes also wait: win-2")),
        ] {
            let said = warning(&all, &|node| nodes.contains(&node));
            assert_eq!(said.is_some(), expected.is_some(), "{nodes:?}");
            if let (Some((_, message)), Some(end)) = (said, expected) {
                assert!(message.ends_with(end) && message.contains(": why. "), "{message}");
            }
        }
    }
}
