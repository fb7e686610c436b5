//! Hosts that are released as they are, although their pool or their instances are deleted: not everything that deletes them wants the hosts to be
//! deconfigured.

use std::sync::Arc;

use api::{DeletionPolicy, WindowsInstance, WindowsNodePool, names::ORPHAN_DEPENDENTS};
use kube::{Resource as _, ResourceExt};

/// Kinds that are being deleted, and with them all their objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Going {
    /// True if the kind of pools is being deleted.
    pub pools: bool,
    /// True if the kind of instances is being deleted.
    pub instances: bool,
}

/// Reports whether a pool lets all hosts that leave it go as they are. With `--cascade=orphan`, the garbage collector takes the pool's name off its
/// instances, and then its own finalizer off the pool: either is a sign. The first sign that is seen is recorded in the pool's status.
pub fn lets_all_go(pool: &WindowsNodePool, mine: &[Arc<WindowsInstance>], going: Going) -> bool {
    let is_orphaning = || pool.finalizers().iter().any(|f| f == ORPHAN_DEPENDENTS);
    let is_deserted = || mine.iter().any(|i| !i.is_deleting() && !is_owned_by(i, pool));
    let is_deleted = pool.metadata.deletion_timestamp.is_some();
    let is_recorded = || pool.status.as_ref().is_some_and(|status| status.hosts_stay);
    pool.spec.deletion_policy() == DeletionPolicy::Orphan
        || (is_deleted && (going.pools || is_recorded() || is_orphaning() || is_deserted()))
}

/// Reports whether an instance was deleted as a side effect, without a deletion by a user: with its kind, or by the garbage collector with an earlier
/// pool of that name.
pub fn is_let_go(pool: &WindowsNodePool, instance: &WindowsInstance, going: Going) -> bool {
    instance.is_deleting() && (going.instances || !is_owned_by(instance, pool))
}

/// Reports whether the pool owns the instance, and not only has the name of the one that does.
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
    fn a_pool_that_is_deleted_for_another_reason_lets_its_hosts_go() {
        let (orphan, none) = (Some(DeletionPolicy::Orphan), Going::default());
        let kind = Going { pools: true, instances: false };
        let (owned, deserted) = (Some("1"), None);
        for (about, pool, owner, going, expected) in vec![
            ("its hosts are taken out", pool(None, false, &[]), owned, none, false),
            ("with Orphan", pool(orphan, false, &[]), owned, none, true),
            ("it is deleted", pool(None, true, &["x"]), owned, none, false),
            ("with Orphan", pool(orphan, true, &["x"]), owned, none, true),
            ("--cascade=orphan", pool(None, true, &["x", "orphan"]), owned, none, true),
            ("--cascade=orphan, a moment later", pool(None, true, &["x"]), deserted, none, true),
            ("--cascade=foreground", pool(None, true, &["x", "foregroundDeletion"]), owned, none, false),
            ("with its kind", pool(None, true, &["x"]), owned, kind, true),
            ("it is there, and an instance was not owned yet", pool(None, false, &["x"]), deserted, none, false),
        ] {
            let mine = [Arc::new(instance(owner, false))];
            assert_eq!(lets_all_go(&pool, &mine, going), expected, "{about}");
        }
    }

    #[test]
    fn what_was_seen_of_a_deletion_holds() {
        let mut pool = pool(None, true, &["x"]);
        let mine = [Arc::new(instance(Some("1"), false))];
        for hosts_stay in [false, true] {
            pool.status = Some(api::WindowsNodePoolStatus { hosts_stay, ..api::WindowsNodePoolStatus::default() });
            assert_eq!(lets_all_go(&pool, &mine, Going::default()), hosts_stay);
        }
    }

    #[test]
    fn an_instance_that_was_deleted_by_the_way_is_let_go() {
        let kind = Going { pools: false, instances: true };
        for (about, owner, deleted, going, expected) in [
            ("it is there", Some("1"), false, Going::default(), false),
            ("a user deletes it", Some("1"), true, Going::default(), false),
            ("the garbage collector does, after its pool", Some("0"), true, Going::default(), true),
            ("it goes with its kind", Some("1"), true, kind, true),
            ("its kind goes, and it is not deleted yet", Some("1"), false, kind, false),
        ] {
            let found = is_let_go(&pool(None, false, &[]), &instance(owner, deleted), going);
            assert_eq!(found, expected, "{about}");
        }
    }
}
