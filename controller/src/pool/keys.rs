//! Reads the SSH keys that the hosts of a pool must accept.

use std::collections::BTreeMap;

use api::InstanceHost;
use futures::{StreamExt, stream};

use crate::context::Context;
use wnp_core::rollout::key_rotation::{Keys, first_keys, max_cache_age};

/// Maximum number of concurrent reads of Secrets.
const READS: usize = 16;

/// Reads the first private key of each host, and each key only once.
pub(super) async fn read(hosts: &BTreeMap<String, InstanceHost>, cx: &Context) -> Keys {
    let places = first_keys(hosts);
    let old = max_cache_age(places.len());
    let reads = places.into_iter().map(|(place, reference)| async move {
        let key = cx.hosts.secrets.key_not_older(&reference, old).await;
        let weak = key.as_ref().ok().and_then(|k| k.identity.weakness());
        (place, key.map(|k| k.identity.public_key_hash()).map_err(|e| e.to_string()), weak)
    });
    let read: Vec<_> = stream::iter(reads).buffer_unordered(READS).collect().await;
    let mut weak: Vec<String> = read.iter().filter_map(|(.., weak)| weak.clone()).collect();
    weak.sort();
    Keys::new(hosts, read.into_iter().map(|(place, hash, _)| (place, hash)).collect(), weak)
}
