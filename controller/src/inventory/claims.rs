//! Which pool lists which hosts, as each has last looked.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

/// Names of hosts by pool.
#[derive(Debug, Default)]
pub struct Claims(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl Claims {
    /// A pool lists these hosts now; none if it lets them all go.
    pub fn set(&self, pool: &str, hosts: BTreeSet<String>) {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.is_empty() {
            claims.remove(pool);
        } else {
            claims.insert(pool.to_owned(), hosts);
        }
    }

    /// The first other pool that lists a host.
    pub fn other(&self, pool: &str, host: &str) -> Option<String> {
        let claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        claims.iter().find(|(p, hosts)| *p != pool && hosts.contains(host)).map(|(p, _)| p.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_pool_is_found_while_it_lists_the_host() {
        let claims = Claims::default();
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        claims.set("a", set(&["x"]));
        assert_eq!(claims.other("a", "x"), None);
        assert_eq!(claims.other("b", "x").as_deref(), Some("a"));
        claims.set("a", set(&[]));
        assert_eq!(claims.other("b", "x"), None);
    }
}
