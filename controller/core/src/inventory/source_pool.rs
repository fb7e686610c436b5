//! Changes to the pool that the operator creates for a source: the ConfigMap of the legacy operator, or Machines. Pure.

use std::sync::Arc;

use api::{
    WindowsInstance, WindowsNodePool,
    names::{MANAGER_ADAPTER, MANAGER_INSTANCE, MANAGER_POOL},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// Change to the pool of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// No change: none is needed or possible, or the deletion of the pool is in progress and triggers another reconcile.
    Nothing,
    /// The pool must be created.
    Make,
    /// The pool with this name has another source, which a user has set.
    Taken,
    /// The pool is no longer needed.
    Drop,
}

/// Observed source, and the pool that has its name.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each field is an independent fact")]
pub struct ObservedSource<'a> {
    /// True if the source exists.
    pub source: bool,
    /// Pool that has the name of the source.
    pub pool: Option<&'a WindowsNodePool>,
    /// True if the pool reads the source.
    pub reads: bool,
    /// True if another pool reads the source.
    pub other_reads: bool,
    /// True if the pool has instances.
    pub has_instances: bool,
}

/// Decides the change to the pool of a source.
pub fn decide(seen: &ObservedSource<'_>) -> PoolChange {
    let ObservedSource { source, reads, other_reads, .. } = *seen;
    match seen.pool {
        Some(pool) if pool.metadata.deletion_timestamp.is_some() => PoolChange::Nothing,
        // Two pools with the same source would conflict about each host.
        None if source && !other_reads => PoolChange::Make,
        Some(_) if source && !reads && !other_reads => PoolChange::Taken,
        Some(pool) if !source && reads && !seen.has_instances && !has_unclean_hosts(pool) => PoolChange::Drop,
        _ => PoolChange::Nothing,
    }
}

/// Reports whether a pool's status lists hosts on which files of the operator remain. No other object lists them.
fn has_unclean_hosts(pool: &WindowsNodePool) -> bool {
    pool.status.as_ref().is_some_and(|s| !s.unclean_hosts.is_empty())
}

/// Reports whether the operator created a pool for a source, and no other client owns any of its fields.
pub fn is_only_ours(fields: &[ManagedFieldsEntry]) -> bool {
    let by = |names: &[&str], f: &ManagedFieldsEntry| f.manager.as_deref().is_some_and(|m| names.contains(&m));
    fields.iter().any(|f| by(&[MANAGER_ADAPTER], f))
        && fields.iter().all(|f| by(&[MANAGER_ADAPTER, MANAGER_POOL, MANAGER_INSTANCE], f))
}

/// Reports whether a pool has instances.
pub fn has_instances(instances: &[Arc<WindowsInstance>], pool: &str) -> bool {
    instances.iter().any(|i| i.spec.pool_ref.name == pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{UncleanHost, WindowsNodePoolSpec, WindowsNodePoolStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn a_pool_is_created_and_deleted_with_its_source_and_never_taken_from_a_user() {
        let plain = WindowsNodePool::new("p", WindowsNodePoolSpec::default());
        let mut going = plain.clone();
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        let mut unclean = plain.clone();
        let unclean_hosts = vec![UncleanHost::default()];
        unclean.status = Some(WindowsNodePoolStatus { unclean_hosts, ..WindowsNodePoolStatus::default() });
        // Source exists, pool with its name, pool reads the source, another pool reads it, pool has instances.
        for (about, source, pool, reads, other_reads, has_instances, expected) in [
            ("neither a source nor a pool", false, None, false, false, false, PoolChange::Nothing),
            ("a source and no pool", true, None, false, false, false, PoolChange::Make),
            ("another pool reads it", true, None, false, true, false, PoolChange::Nothing),
            ("the pool of the source", true, Some(&plain), true, false, true, PoolChange::Nothing),
            ("a user's pool", true, Some(&plain), false, false, false, PoolChange::Taken),
            ("a user's pool, and another one reads it", true, Some(&plain), false, true, false, PoolChange::Nothing),
            (
                "the source is gone, and the pool still has hosts",
                false,
                Some(&plain),
                true,
                false,
                true,
                PoolChange::Nothing,
            ),
            (
                "the source is gone, and the pool has no hosts",
                false,
                Some(&plain),
                true,
                false,
                false,
                PoolChange::Drop,
            ),
            ("a user's pool, without the source", false, Some(&plain), false, false, false, PoolChange::Nothing),
            (
                "the source is gone, and the pool records unclean hosts",
                false,
                Some(&unclean),
                true,
                false,
                false,
                PoolChange::Nothing,
            ),
            ("the pool is being deleted", true, Some(&going), true, false, false, PoolChange::Nothing),
            (
                "the pool is being deleted, and the source is gone",
                false,
                Some(&going),
                true,
                false,
                false,
                PoolChange::Nothing,
            ),
        ] {
            let seen = ObservedSource { source, pool, reads, other_reads, has_instances };
            assert_eq!(decide(&seen), expected, "{about}");
        }
    }

    #[test]
    fn a_pool_is_only_ours_until_another_client_writes_to_it() {
        for (managers, expected) in [
            (vec![], false),
            (vec![MANAGER_POOL], false),
            (vec![MANAGER_ADAPTER], true),
            (vec![MANAGER_ADAPTER, MANAGER_POOL, MANAGER_INSTANCE], true),
            (vec![MANAGER_ADAPTER, "kubectl-edit"], false),
            (vec![MANAGER_ADAPTER, MANAGER_POOL, "argocd-controller"], false),
        ] {
            let fields: Vec<ManagedFieldsEntry> = managers
                .iter()
                .map(|m| ManagedFieldsEntry { manager: Some((*m).into()), ..ManagedFieldsEntry::default() })
                .collect();
            assert_eq!(is_only_ours(&fields), expected, "{managers:?}");
        }
        assert!(!is_only_ours(&[ManagedFieldsEntry::default()]), "an entry without a manager may be of any client");
    }
}
