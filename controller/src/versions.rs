//! The versions of what hosts get, as ConfigMaps `windows-services-<version>`: immutable, shared by all pools that render to the
//! same, kept for as long as a pool or a host needs them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::names::{MANAGER_POOL, SERVICES_CONFIG_MAP_PREFIX};
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::Role};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};

use crate::{
    render::{Rendered, Stored, StoredError, collectable, is_ours},
    wicd_rbac,
};

/// What is stored of a version cannot be had, or not be stored.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The API server did not do what was asked.
    #[error("the API server did not {doing}: {}", crate::errors::said(.source))]
    Api {
        /// What was asked.
        doing: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// Somebody else has made it.
    #[error("the ConfigMap {name} cannot be read: {problem}; delete it, and the operator makes it again")]
    Unreadable {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: StoredError,
    },
}

impl VersionError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "ApiError",
            Self::Unreadable { .. } => "VersionUnreadable",
        }
    }
}

fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> VersionError {
    move |source| VersionError::Api { doing, source: Box::new(source) }
}

/// The versions that are stored.
pub struct Versions {
    api: Api<ConfigMap>,
    roles: Api<Role>,
    namespace: String,
    /// What is stored never changes, so it is read once.
    known: Mutex<HashMap<String, Arc<Stored>>>,
    /// One writer of the list of what wicd may read.
    listing: tokio::sync::Mutex<()>,
}

impl Versions {
    /// Those of this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            roles: Api::namespaced(client, namespace),
            namespace: namespace.into(),
            known: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    fn known(&self, version: &str) -> Option<Arc<Stored>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(version).cloned()
    }

    fn learn(&self, version: &str, stored: Stored) -> Arc<Stored> {
        let stored = Arc::new(stored);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(version.into(), stored.clone());
        stored
    }

    /// What a version stands for. `None` if it is not stored.
    pub async fn get(&self, version: &str) -> Result<Option<Arc<Stored>>, VersionError> {
        if let Some(known) = self.known(version) {
            return Ok(Some(known));
        }
        let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{version}");
        let Some(config_map) = self.api.get_opt(&name).await.map_err(failed("show a services ConfigMap"))? else {
            return Ok(None);
        };
        let stored =
            Rendered::from_config_map(&config_map).map_err(|problem| VersionError::Unreadable { name, problem })?;
        Ok(Some(self.learn(version, stored)))
    }

    /// Stores a version, and lets the hosts' daemons read it.
    pub async fn publish(&self, version: &str, rendered: Rendered) -> Result<(), VersionError> {
        if self.known(version).is_some() {
            return Ok(());
        }
        let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{version}");
        let config_map = rendered.to_config_map(version, &self.namespace);
        match self.api.create(&PostParams::default(), &config_map).await {
            Ok(_) => tracing::info!(name, "stored the services ConfigMap"),
            // The name has the hash of the content in it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(failed("store the services ConfigMap")(error)),
        }
        self.list(None).await?;
        self.learn(version, Stored::Ours(rendered));
        Ok(())
    }

    /// Deletes versions of ours that nobody needs and that are older than this: one that was stored a moment ago may not be named
    /// anywhere yet.
    pub async fn collect(&self, needed: &BTreeSet<String>, age: Duration) -> Result<(), VersionError> {
        self.list(Some((needed, age))).await
    }

    async fn list(&self, needed: Option<(&BTreeSet<String>, Duration)>) -> Result<(), VersionError> {
        let _one = self.listing.lock().await;
        let all = self.api.list_metadata(&ListParams::default()).await.map_err(failed("list the ConfigMaps"))?;
        let mut live: BTreeMap<String, bool> = all
            .items
            .iter()
            .filter_map(|c| {
                Some((c.name_any().strip_prefix(SERVICES_CONFIG_MAP_PREFIX)?.to_string(), is_ours(c.labels())))
            })
            .collect();
        let (stored, old) = match needed {
            None => (Vec::new(), None),
            Some((needed, age)) => (old_enough(&all.items, &live, age), Some(needed)),
        };
        for version in old.map(|needed| collectable(&stored, needed)).unwrap_or_default() {
            let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{version}");
            match self.api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => tracing::info!(name, "deleted a services ConfigMap that nobody needs any more"),
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(failed("delete a services ConfigMap")(error)),
            }
            live.remove(&version);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&version);
        }
        let names = live.keys().map(|version| format!("{SERVICES_CONFIG_MAP_PREFIX}{version}")).collect();
        let role = wicd_rbac::services_role(&self.namespace, &names);
        let params = PatchParams::apply(MANAGER_POOL).force();
        let doing = failed("store the right of the hosts' daemons to read services ConfigMaps");
        self.roles.patch(&role.name_any(), &params, &Patch::Apply(&role)).await.map_err(doing)?;
        Ok(())
    }
}

/// Versions that have been stored for longer than this, and whether they are ours.
fn old_enough<K: ResourceExt>(all: &[K], live: &BTreeMap<String, bool>, age: Duration) -> Vec<(String, bool)> {
    let now = jiff::Timestamp::now();
    let old = |k: &K| {
        let made = k.creation_timestamp().map(|t| t.0);
        made.is_some_and(|t| Duration::try_from(now.duration_since(t)).unwrap_or_default() > age)
    };
    let versions = all
        .iter()
        .filter(|k| old(k))
        .filter_map(|k| Some(k.name_any().strip_prefix(SERVICES_CONFIG_MAP_PREFIX)?.to_string()));
    versions.filter_map(|v| live.get(&v).map(|ours| (v.clone(), *ours))).collect()
}
