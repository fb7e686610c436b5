//! Tests of the binding that gives wicd its rights.

use jiff::Timestamp;
use k8s_openapi::{
    api::rbac::v1::{RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::*;
use crate::caches::wicd_rights::WicdRights;

fn owner(uid: &str) -> ValidatingAdmissionPolicyBinding {
    let mut owner = ValidatingAdmissionPolicyBinding::default();
    owner.metadata.name = Some(wicd_rbac::OWNER_POLICY.into());
    owner.metadata.uid = Some(uid.into());
    owner
}

#[test]
fn the_binding_exists_only_while_the_policies_are_in_force() {
    let (one, two) = (owner("1"), owner("2"));
    let granted = wicd_rbac::binding(&one);
    let with = |change: &dyn Fn(&mut ClusterRoleBinding)| {
        let mut grant = granted.clone();
        change(&mut grant);
        grant
    };
    let other_role = with(&|g| g.role_ref = RoleRef { name: "cluster-admin".into(), ..g.role_ref.clone() });
    let more = with(&|g| g.subjects.get_or_insert_default().push(Subject::default()));
    let deleted = with(&|g| g.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)));
    let orphan = with(&|g| g.metadata.owner_references = None);
    for (name, in_force, owner, grant, expected) in [
        ("nothing and no rights", false, None, None, Act::Nothing),
        ("policy gone", false, None, Some(&granted), Act::Delete),
        ("policy weakened", false, Some(&one), Some(&granted), Act::Delete),
        ("policy weakened, no rights", false, Some(&one), None, Act::Nothing),
        ("in force, no rights yet", true, Some(&one), None, Act::Apply),
        ("as it must be", true, Some(&one), Some(&granted), Act::Nothing),
        ("policy made again", true, Some(&two), Some(&granted), Act::Apply),
        ("another role", true, Some(&one), Some(&other_role), Act::Delete),
        ("being deleted", true, Some(&one), Some(&deleted), Act::Wait),
        ("others have it, too", true, Some(&one), Some(&more), Act::Apply),
        ("not owned", true, Some(&one), Some(&orphan), Act::Apply),
    ] {
        assert_eq!(act(in_force, owner, grant), expected, "{name}");
        let is_replaced = in_force && ["being deleted", "another role"].contains(&name);
        assert_eq!(in_force && !expected.leaves_rights(), is_replaced, "{name}");
    }
}

#[test]
fn only_a_new_policy_needs_time_to_settle() {
    let at = |second| Timestamp::from_second(second).unwrap();
    for (name, written, now, expected) in [
        ("just now", Some(at(100)), at(100), 5),
        ("a while ago", Some(at(100)), at(103), 2),
        ("long ago", Some(at(100)), at(1000), 0),
        ("in the future", Some(at(200)), at(100), 5),
        ("nothing is known", None, at(100), 5),
    ] {
        assert_eq!(settles_in(written, now), Duration::from_secs(expected), "{name}");
    }
}

#[test]
fn nothing_is_issued_before_the_policies_are_read() {
    let rights = WicdRights::unknown();
    assert_eq!(rights.problem().unwrap().reason(), "PolicyMissing");
    rights.set(RightsState::Given);
    assert_eq!(rights.problem(), None);
    let fault = wicd_policy::fault(&wicd_policy::shipped(api::names::DEFAULT_NAMESPACE), &[]).unwrap();
    rights.set(RightsState::Withheld(RightsProblem::policy(&fault)));
    let problem = rights.problem().unwrap();
    assert_eq!(problem.reason(), "PolicyMissing");
    assert!(problem.to_string().contains("kubectl apply"), "{problem}");
}
