//! Hosts that are released unchanged although their pool or instances are deleted: not every deletion means that the hosts must be deconfigured.

use std::sync::Arc;

use api::{DeletionPolicy, WindowsInstance, WindowsNodePool, names::ORPHAN_DEPENDENTS};
use kube::{Resource as _, ResourceExt};

/// Custom resource kinds that are being deleted, and all their objects with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedKinds {
    /// True if the kind `WindowsNodePool` is being deleted.
    pub pools: bool,
    /// True if the kind `WindowsInstance` is being deleted.
    pub instances: bool,
}

/// Reports whether a pool releases all leaving hosts unchanged: by its deletion policy, or because it is deleted together with its kind or with
/// `--cascade=orphan`. Such a deletion shows in the finalizer of the garbage collector or, once that is removed, in instances without an owner
/// reference to the pool. The first sign that is seen is recorded in the pool's status.
pub fn orphans_all_hosts(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], going: DeletedKinds) -> bool {
    let is_orphaning = || pool.finalizers().iter().any(|f| f == ORPHAN_DEPENDENTS);
    let is_deserted = || mine.iter().any(|i| !i.is_deleting() && !is_owned_by(i, pool));
    let is_deleted = pool.metadata.deletion_timestamp.is_some();
    let is_recorded = || pool.status.as_ref().is_some_and(|status| status.hosts_stay);
    pool.spec.deletion_policy() == DeletionPolicy::Orphan
        || (is_deleted && (going.pools || is_recorded() || is_orphaning() || is_deserted()))
}

/// Reports whether an instance was deleted only as a side effect: with its kind, or by the garbage collector with an earlier pool of the same
/// name.
pub fn is_let_go(pool: &WindowsNodePool, instance: &WindowsInstance, going: DeletedKinds) -> bool {
    instance.is_deleting() && (going.instances || !is_owned_by(instance, pool))
}

/// Reports whether the pool owns the instance, and not another pool with the same name.
pub(crate) fn is_owned_by(instance: &WindowsInstance, pool: &WindowsNodePool) -> bool {
    let uid = pool.meta().uid.as_deref();
    uid.is_none_or(|uid| instance.owner_references().iter().any(|o| o.uid == uid))
}

#[cfg(test)]
mod tests {
    use api::{WindowsInstanceSpec, WindowsNodePoolSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

    use super::*;

    fn pool(policy: Option<DeletionPolicy>, deleted: bool, finalizers: &[&str]) -> WindowsNodePool {
        let spec = WindowsNodePoolSpec { deletion_policy: policy, ..WindowsNodePoolSpec::default() };
        let mut pool = WindowsNodePool::new("p", spec);
        pool.metadata.uid = Some("1".into());
        pool.metadata.deletion_timestamp = deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        pool.metadata.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
        pool
    }

    fn instance(owner: Option<&str>, deleted: bool) -> WindowsInstance {
        let mut instance = WindowsInstance::new("w", WindowsInstanceSpec::default());
        let reference = |uid: &str| vec![OwnerReference { uid: uid.into(), ..OwnerReference::default() }];
        instance.metadata.owner_references = owner.map(reference);
        instance.metadata.deletion_timestamp = deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        instance
    }

    #[test]
    fn a_pool_releases_its_hosts_unchanged_for_its_policy_or_the_kind_of_its_deletion() {
        let (orphan, none) = (Some(DeletionPolicy::Orphan), DeletedKinds::default());
        let kind = DeletedKinds { pools: true, instances: false };
        let (owned, deserted) = (Some("1"), None);
        for (about, pool, owner, going, expected) in vec![
            ("its hosts are removed from the list", pool(None, false, &[]), owned, none, false),
            ("its hosts are removed from the list, with Orphan", pool(orphan, false, &[]), owned, none, true),
            ("it is deleted", pool(None, true, &["x"]), owned, none, false),
            ("it is deleted, with Orphan", pool(orphan, true, &["x"]), owned, none, true),
            ("--cascade=orphan", pool(None, true, &["x", "orphan"]), owned, none, true),
            ("--cascade=orphan, a moment later", pool(None, true, &["x"]), deserted, none, true),
            ("--cascade=foreground", pool(None, true, &["x", "foregroundDeletion"]), owned, none, false),
            ("it is deleted with its kind", pool(None, true, &["x"]), owned, kind, true),
            ("it is not deleted, and an instance has no owner yet", pool(None, false, &["x"]), deserted, none, false),
        ] {
            let mine = [Arc::new(instance(owner, false))];
            assert_eq!(orphans_all_hosts(&pool, &mine, going), expected, "{about}");
        }
    }

    #[test]
    fn a_recorded_deletion_that_orphans_stays_in_force() {
        let mut pool = pool(None, true, &["x"]);
        let mine = [Arc::new(instance(Some("1"), false))];
        for hosts_stay in [false, true] {
            pool.status = Some(api::WindowsNodePoolStatus { hosts_stay, ..api::WindowsNodePoolStatus::default() });
            assert_eq!(orphans_all_hosts(&pool, &mine, DeletedKinds::default()), hosts_stay);
        }
    }

    #[test]
    fn an_instance_that_was_deleted_as_a_side_effect_is_released() {
        let kind = DeletedKinds { pools: false, instances: true };
        for (about, owner, deleted, going, expected) in [
            ("it is not deleted", Some("1"), false, DeletedKinds::default(), false),
            ("a user deletes it", Some("1"), true, DeletedKinds::default(), false),
            ("the garbage collector deletes it, after its pool", Some("0"), true, DeletedKinds::default(), true),
            ("it is deleted with its kind", Some("1"), true, kind, true),
            ("its kind is being deleted, and it is not yet", Some("1"), false, kind, false),
        ] {
            let found = is_let_go(&pool(None, false, &[]), &instance(owner, deleted), going);
            assert_eq!(found, expected, "{about}");
        }
    }
}
