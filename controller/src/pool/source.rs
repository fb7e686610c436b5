//! Queries the source of a pool's hosts.

use api::{Reason, WindowsNodePool};
use kube::ResourceExt;

use super::PoolContext;
use crate::inventory::wmco_sources::{config_map, machines};
use wnp_core::inventory::{Entry, HostList, SourceError, SourceOutcome, ownership::ReadStart};

/// Returns the current host list of a pool's source. `begun` is the start of this read, by which reads of all pools are ordered.
pub(super) async fn ask(pool: &WindowsNodePool, begun: ReadStart, cx: &PoolContext) -> SourceOutcome {
    let inventory = &pool.spec.inventory;
    if inventory.git.is_none() {
        cx.sources.git.forget(&pool.name_any());
    }
    if let Some(hosts) = &inventory.hosts {
        let entries = hosts.iter().map(|host| Entry { host: host.clone(), origin: None }).collect();
        return SourceOutcome::Listed(Box::new(HostList { entries, ..HostList::default() }));
    }
    if let Some(map) = &inventory.config_map_ref {
        return config_map::ask(&map.name, cx).await;
    }
    if let Some(set) = &inventory.machine_set_ref {
        return machines::ask(pool, set, cx).await;
    }
    if let Some(git) = &inventory.git {
        return cx.sources.git.ask(pool, git, begun, cx.process.is_one_shot).await;
    }
    if let Some(from) = &inventory.source_ref {
        let services = cx.hosts.release.get().cluster.service_cidr.clone();
        return cx.sources.flux.ask(pool, from, &cx.cluster.client, &services).await;
    }
    let error = SourceError {
        reason: Reason::SourceNotFound,
        message: "spec.inventory names no source of hosts that this operator knows, so the hosts of the pool stay as they are: set hosts, \
                  configMapRef, machineSetRef, git or sourceRef; or update the operator, if the pool uses a newer source"
            .into(),
        stalls: true,
    };
    SourceOutcome::Unknown(error, None)
}
