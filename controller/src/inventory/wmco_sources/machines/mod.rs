//! Source of Machines, from OpenShift's Machine API and from Cluster API, where their CRDs are installed.

mod replacing;
mod watching;

use std::sync::Arc;

use api::{MachineSetRef, Reason, WindowsInstance, WindowsNodePool};
use jiff::SignedDuration;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams},
};

pub(super) use watching::run;

use crate::{
    caches::machines::served,
    context::Context,
    inventory::temporary,
    runtime::{clock, events::EventReason},
};
use wnp_core::{
    inventory::{HostList, SourceError, SourceOutcome},
    machines::{
        list::{ListInputs, departures, list},
        provider_id::ProviderIds,
        read::{Machine, Source},
    },
    render::has_cloud_controller,
};

/// Delay before Machines are listed again after an error of the API server.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Returns the host list of a pool that reads a MachineSet. Without a watch cache, as at the start and in the command `plan`, lists the Machines in
/// the API server.
pub(crate) async fn ask(pool: &WindowsNodePool, reference: &MachineSetRef, cx: &Context) -> SourceOutcome {
    let source = Source::of(reference);
    let machines = if cx.caches.machines.of(source.group).is_some() {
        let machines = cx.caches.machines.machines(source.group);
        report_provider_ids(pool, &source, &machines, cx);
        machines
    } else {
        match listed(&cx.cluster.client, &source).await {
            Ok(Some(machines)) => machines,
            Ok(None) => {
                let message = format!(
                    "{source} cannot be read, because this cluster does not serve its API: install the API, or name another source in the \
                     inventory of the pool; existing hosts stay"
                );
                let trouble = SourceError { reason: Reason::SourceNotFound, message, stalls: true };
                return SourceOutcome::Unknown(trouble, None);
            }
            Err(error) => {
                let message = format!(
                    "{source} could not be read: {}; the operator retries, and the hosts stay as they are",
                    crate::runtime::errors::api_message(&error)
                );
                let next = clock::now().checked_add(RETRY).ok();
                return SourceOutcome::Unknown(temporary(Reason::ApiError, message), next);
            }
        }
    };
    let instances = cx.caches.instances.state();
    let of_machine = |i: &api::WindowsInstance| Some((i.spec.origin.as_ref()?.machine.clone()?, i.name_any()));
    let mine = instances.iter().filter(|i| !i.is_deleting());
    let from_here = |i: &&Arc<WindowsInstance>| {
        let origin = i.spec.origin.as_ref();
        i.spec.pool_ref.name == pool.name_any() && origin.is_some_and(|o| o.source == source.to_string())
    };
    let here: Vec<(String, String)> = mine.clone().filter(from_here).filter_map(|i| of_machine(i)).collect();
    let beside = ListInputs {
        platform: cx.hosts.release.get().cluster.platform,
        pool_has_user: pool.spec.ssh().username.is_some(),
        instances: mine.filter_map(|i| of_machine(i)).collect(),
    };
    let departures = Some(departures(source.group, &machines, &here));
    let read_at = Some(clock::now());
    SourceOutcome::Listed(Box::new(HostList { departures, read_at, ..list(&source, &machines, &beside) }))
}

/// Reports Machines whose provider ID cannot be given to their Nodes, so that the Machine API does not find these Nodes. A cloud controller manager
/// sets the IDs itself.
fn report_provider_ids(pool: &WindowsNodePool, source: &Source, machines: &[Machine], cx: &Context) {
    if has_cloud_controller(&cx.hosts.release.get().cluster, &pool.spec.template_spec()) {
        return;
    }
    let ids = ProviderIds::of(machines);
    for machine in machines.iter().filter(|m| m.windows && !m.ignored && m.source.as_ref() == Some(source)) {
        if let Err(problem) = ids.usable(machine) {
            let id = api::text::line(machine.provider_id.as_deref().unwrap_or_default(), 100);
            let note = format!(
                "spec.providerID {id:?} of the Machine {} {problem}, so the operator does not set it on the Node, and the Machine API cannot find the Node: correct the Machine that has the wrong ID",
                machine.key()
            );
            cx.events.say(pool, EventReason::ProviderIdRefused, "List", &note);
        }
    }
}

/// Lists the Machines in the namespace of a source. Returns `None` if the cluster does not serve their API.
async fn listed(client: &Client, source: &Source) -> kube::Result<Option<Vec<Machine>>> {
    let Some(resource) = served(client, source.group).await? else { return Ok(None) };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &source.namespace, &resource.machines);
    let all = api.list(&ListParams::default()).await?;
    Ok(Some(all.iter().map(|o| Machine::read(o, source.group)).collect()))
}
