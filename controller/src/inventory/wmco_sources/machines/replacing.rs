//! Replacement of Machines whose hosts refuse every key.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    MachineGroup, WindowsInstance, WindowsNodePool,
    names::{USER_DATA_SECRET, key},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Preconditions},
};

use super::{super::user_data, listed};
use crate::{
    context::Context,
    runtime::{clock, events::EventReason},
};
use wnp_core::{
    machines::{
        read::{Machine, MachineSet, Source, reference},
        replace::{Member, Refuses, ReplaceDecision, stays, verdicts},
    },
    node,
    operation::key_refusal::{self, Meaning, meaning},
};

/// Instances by the `<namespace>/<name>` of their Machines.
type Instances<'a> = BTreeMap<&'a str, &'a Arc<WindowsInstance>>;

/// Time after which an unchanged reason why a Machine is not deleted is reported again.
const SAY_AGAIN_AFTER: Duration = Duration::from_mins(10);

/// Last reported reason why each Machine is not deleted, by UID. It prevents repeated reports, because checks are much more frequent than changes.
#[derive(Default)]
pub(super) struct Restrictions(HashMap<String, (Instant, String)>);

impl Restrictions {
    fn is_new(&mut self, machine: &Machine, why: &str) -> bool {
        let said = self.0.get(&machine.uid);
        if said.is_some_and(|(at, said)| said == why && at.elapsed() < SAY_AGAIN_AFTER) {
            return false;
        }
        self.0.insert(machine.uid.clone(), (Instant::now(), why.to_owned()));
        true
    }
}

/// Checks all Machines, and deletes those that their MachineSets must replace because their hosts refuse every key.
pub(super) async fn replace(cx: &Context, restrictions: &mut Restrictions) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let instances = cx.caches.instances.state();
    let of_machine: Instances<'_> =
        instances.iter().filter_map(|i| Some((i.spec.origin.as_ref()?.machine.as_deref()?, i))).collect();
    for group in cx.caches.machines.groups() {
        let (machines, sets) = (cx.caches.machines.machines(group), cx.caches.machines.sets(group));
        seen.extend(machines.iter().map(|m| m.uid.clone()));
        let sources: BTreeSet<&Source> =
            machines.iter().filter(|m| m.windows).filter_map(|m| m.source.as_ref()).collect();
        for source in sources {
            let set = sets.iter().find(|s| s.source == *source);
            let members = members(cx, source, &machines, &of_machine).await;
            for (machine, verdict) in verdicts(&members, set) {
                let Some(instance) = of_machine.get(machine.key().as_str()) else { continue };
                let Some(found) = Found::of(cx, group, machine, instance) else { continue };
                let why = match verdict {
                    ReplaceDecision::Restricted(why) => Some(why),
                    ReplaceDecision::Delete => found.replace(cx, source, set, &of_machine).await,
                };
                if let Some(why) = why.filter(|why| restrictions.is_new(machine, why)) {
                    found.report(
                        cx,
                        EventReason::MachineDeletionRestricted,
                        &format!("the Machine is not deleted: {why}"),
                    );
                }
            }
        }
    }
    restrictions.0.retain(|uid, _| seen.contains(uid));
}

/// Returns the Windows Machines of a MachineSet with their states.
async fn members<'a>(
    cx: &Context,
    source: &Source,
    machines: &'a [Machine],
    instances: &Instances<'_>,
) -> Vec<Member<'a>> {
    let mut members = Vec::new();
    for machine in machines.iter().filter(|m| m.windows && m.source.as_ref() == Some(source)) {
        let instance = instances.get(machine.key().as_str()).copied();
        let works =
            machine.node.as_deref().and_then(|name| cx.node(name)).is_some_and(|n| works(&n, machine, instance));
        let refuses = match instance {
            Some(instance) => refuses(cx, machine, instance).await,
            None => None,
        };
        members.push(Member { machine, works, refuses });
    }
    members
}

/// Reports whether the Node works: it is Ready, an operator has marked it as complete unless the Machine is ignored, and no operation changes it.
fn works(node: &Node, machine: &Machine, instance: Option<&Arc<WindowsInstance>>) -> bool {
    let complete = machine.ignored || node.annotations().get(key::VERSION).is_some_and(|v| !v.is_empty());
    let changes = instance.is_some_and(|i| {
        let begun = i.status.as_ref().and_then(|s| s.operation.as_ref()).is_some_and(|o| o.type_.is_change());
        begun || i.open_grant().is_some_and(|g| g.type_.is_change())
    });
    node::ready(node).0 && complete && !changes
}

/// Returns the state of a host that refuses every key of its list, with the reason to keep its Machine, if there is one. Returns `None` if no such
/// refusal is known for the pool's current list of keys.
async fn refuses(cx: &Context, machine: &Machine, instance: &WindowsInstance) -> Option<Refuses> {
    let status = instance.status.as_ref()?;
    // Secrets are read only for hosts that refuse keys.
    let refusal = status.key_refusal.as_ref()?;
    let pool = cx.pool_of(instance)?;
    // A changed list of keys may not have reached the instance yet, so that its keys have not been tried.
    let keys = Some(&instance.spec.host.private_keys).filter(|keys| **keys == pool.spec.ssh().private_keys())?;
    let listed = cx.hosts.secrets.hashes(keys).await.ok();
    let node = cx.node(machine.node.as_deref().unwrap_or(&instance.name_any()));
    let on_node = |key: &str| node.as_ref().and_then(|n| n.annotations().get(key));
    let is_node = status.current_version.is_some() || node.is_some();
    let seen = key_refusal::RefusalFacts {
        refusal: Some(refusal),
        listed: listed.as_deref(),
        // For a host that this operator has never joined, an earlier operator may have recorded the hash.
        taken: status.public_key_hash.as_ref().or_else(|| on_node(key::PUB_KEY_HASH)).map(String::as_str),
        is_node,
    };
    let held = on_node(key::HOLD).or_else(|| instance.annotations().get(key::HOLD)).is_some_and(|v| v == "true");
    let stays = match meaning(seen, cx.process.args.machine_refusal_timeout) {
        Meaning::Nothing => return None,
        Meaning::Unclear(why) => Some(why.into()),
        Meaning::LockedOut => {
            stays(&pool, held, is_node, clock::now()).or_else(|| left_to(cx, machine, node.as_deref()))
        }
    };
    Some(Refuses { is_node, stays })
}

/// Returns the reason to leave the Machine to its MachineHealthCheck, if there is one that replaces Machines whose Nodes are not Ready.
fn left_to(cx: &Context, machine: &Machine, node: Option<&Node>) -> Option<String> {
    let is_down = node.is_none_or(|n| !node::ready(n).0);
    let check = cx.caches.machines.health_check(&machine.key(), node).filter(|_| is_down)?;
    Some(format!("its Node is missing or not Ready, and {check} replaces such Machines"))
}

/// Machine whose host refuses every key, with the objects that its replacement needs.
struct Found<'a> {
    machine: &'a Machine,
    object: Arc<DynamicObject>,
    instance: &'a WindowsInstance,
    pool: Arc<WindowsNodePool>,
}

impl<'a> Found<'a> {
    fn of(cx: &Context, group: MachineGroup, machine: &'a Machine, instance: &'a WindowsInstance) -> Option<Self> {
        let watched = cx.caches.machines.of(group)?;
        let object = watched.machines.find(|o| o.uid().as_deref() == Some(machine.uid.as_str()))?;
        Some(Self { machine, object, instance, pool: cx.pool_of(instance)? })
    }

    fn report(&self, cx: &Context, reason: EventReason, what: &str) {
        let note = format!("the host of the Machine {} refuses every key; {what}", self.machine.key());
        cx.events.say_of(reference(&self.object), reason, "ReplaceMachine", &note);
        cx.events.say(&*self.pool, reason, "ReplaceMachine", &note);
    }

    /// Deletes the Machine if the observed state is unchanged, or returns the objection.
    async fn replace(
        &self,
        cx: &Context,
        source: &Source,
        set: Option<&MachineSet>,
        instances: &Instances<'_>,
    ) -> Option<String> {
        match self.objection(cx, source, set, instances).await {
            Ok(Objection::None) => self.delete(cx).await,
            // The watch is about to trigger another check.
            Ok(Objection::Outdated) => {}
            Ok(Objection::Of(why)) => return Some(why),
            Err(error) => self.failed(
                cx,
                "the Machine is not deleted, because its state cannot be read from the API server",
                &error,
            ),
        }
        None
    }

    async fn delete(&self, cx: &Context) {
        let Some(resource) = self
            .object
            .types
            .as_ref()
            .and_then(|types| Some(ApiResource::from_gvk_with_plural(&types.try_into().ok()?, "machines")))
        else {
            return;
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(cx.cluster.client.clone(), &self.object.namespace().unwrap_or_default(), &resource);
        let only_this = Preconditions { uid: self.object.uid(), resource_version: None };
        match api.delete(&self.machine.name, &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => {
                self.report(
                    cx,
                    EventReason::MachineDeleted,
                    "the Machine was deleted, so that its MachineSet replaces it",
                );
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => self.failed(cx, "the Machine could not be deleted", &error),
        }
    }

    fn failed(&self, cx: &Context, what: &str, error: &kube::Error) {
        let what = format!("{what}; the operator retries: {}", crate::runtime::errors::api_message(error));
        self.report(cx, EventReason::MachineDeletionFailed, &what);
    }

    /// Returns the objection to deleting the Machine, according to the current state in the API server: with an older state from a watch cache, two
    /// Machines could be deleted instead of one.
    async fn objection(
        &self,
        cx: &Context,
        source: &Source,
        set: Option<&MachineSet>,
        instances: &Instances<'_>,
    ) -> kube::Result<Objection> {
        let keys = &self.instance.spec.host.private_keys;
        cx.hosts.secrets.forget(keys);
        let Some(machines) = listed(&cx.cluster.client, source).await? else { return Ok(Objection::Outdated) };
        let members = members(cx, source, &machines, instances).await;
        let is_this = |m: &Machine| m.uid == self.machine.uid;
        let same = verdicts(&members, set).into_iter().any(|(m, v)| is_this(m) && v == ReplaceDecision::Delete);
        let refuses = members.iter().find(|m| is_this(m.machine)).and_then(|m| m.refuses.as_ref());
        let Some(refuses) = refuses.filter(|_| same) else { return Ok(Objection::Outdated) };
        if !refuses.is_node {
            return Ok(Objection::None);
        }
        if let Some(other) = set.and_then(|s| s.user_data.as_deref()).filter(|name| *name != USER_DATA_SECRET) {
            return Ok(Objection::Of(format!(
                "its MachineSet has user data of its own, in the Secret {other}: check that this user data has the key, and delete the Machine yourself"
            )));
        }
        if !user_data::lets_in(cx, &source.namespace, keys).await? {
            return Ok(Objection::Of(format!(
                "the user data in the Secret {}/{USER_DATA_SECRET} is missing, or has none of the keys of its pool (a key whose Secret cannot be read does \
                 not count), so a new host would refuse the operator, too: store a key of the pool in the Secret cloud-private-key, and the operator \
                 writes it to the user data",
                source.namespace
            )));
        }
        Ok(Objection::None)
    }
}

/// Objection to deleting a Machine.
enum Objection {
    /// Nothing prevents the deletion.
    None,
    /// The state of the Machine has changed.
    Outdated,
    /// The Machine must stay for this reason.
    Of(String),
}
