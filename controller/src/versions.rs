//! The versions of what hosts get, as ConfigMaps `windows-services-<version>`: immutable, shared by all pools that render to the
//! same, kept for as long as a pool or a host needs them.

use std::{
    collections::{BTreeSet, HashMap},
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
        let _one = self.listing.lock().await;
        self.create(version, &rendered).await?;
        self.permit(&self.live().await?).await?;
        self.learn(version, Stored::Ours(rendered));
        Ok(())
    }

    /// Deletes versions of ours that nobody needs and that are older than this: one that was stored a moment ago may not be named
    /// anywhere yet. Those that are needed, and that somebody else has deleted, are stored again.
    pub async fn keep(&self, needed: &BTreeSet<String>, age: Duration) -> Result<(), VersionError> {
        let _one = self.listing.lock().await;
        let mut live = self.live().await?;
        let mut again = Vec::new();
        for version in needed.iter().filter(|v| !live.iter().any(|l| l.version == **v)) {
            if let Some(Stored::Ours(rendered)) = self.known(version).as_deref() {
                self.create(version, rendered).await?;
                again.push(Live { version: version.clone(), ours: true, age: Duration::ZERO });
            }
        }
        let mut changed = !again.is_empty();
        live.extend(again);
        let old: Vec<(String, bool)> =
            live.iter().filter(|l| l.age > age).map(|l| (l.version.clone(), l.ours)).collect();
        for version in collectable(&old, needed) {
            let name = format!("{SERVICES_CONFIG_MAP_PREFIX}{version}");
            match self.api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => tracing::info!(name, "deleted a services ConfigMap that nobody needs any more"),
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(failed("delete a services ConfigMap")(error)),
            }
            live.retain(|l| l.version != version);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&version);
            changed = true;
        }
        if changed { self.permit(&live).await } else { Ok(()) }
    }

    async fn create(&self, version: &str, rendered: &Rendered) -> Result<(), VersionError> {
        let config_map = rendered.to_config_map(version, &self.namespace);
        match self.api.create(&PostParams::default(), &config_map).await {
            Ok(_) => tracing::info!(version, "stored the services ConfigMap"),
            // The name has the hash of the content in it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(failed("store the services ConfigMap")(error)),
        }
        Ok(())
    }

    async fn live(&self) -> Result<Vec<Live>, VersionError> {
        let all = self.api.list_metadata(&ListParams::default()).await.map_err(failed("list the ConfigMaps"))?;
        let now = jiff::Timestamp::now();
        let live = |c: &kube::core::PartialObjectMeta<ConfigMap>| {
            let age = c.creation_timestamp().map(|t| Duration::try_from(now.duration_since(t.0)).unwrap_or_default());
            Some(Live {
                version: c.name_any().strip_prefix(SERVICES_CONFIG_MAP_PREFIX)?.to_string(),
                ours: is_ours(c.labels()),
                age: age.unwrap_or_default(),
            })
        };
        Ok(all.items.iter().filter_map(live).collect())
    }

    /// Lets the hosts' daemons read these, and nothing else.
    async fn permit(&self, live: &[Live]) -> Result<(), VersionError> {
        let names = live.iter().map(|l| format!("{SERVICES_CONFIG_MAP_PREFIX}{}", l.version)).collect();
        let role = wicd_rbac::services_role(&self.namespace, &names);
        let params = PatchParams::apply(MANAGER_POOL).force();
        let doing = failed("store the right of the hosts' daemons to read services ConfigMaps");
        self.roles.patch(&role.name_any(), &params, &Patch::Apply(&role)).await.map_err(doing)?;
        Ok(())
    }
}

/// A version that is stored.
struct Live {
    version: String,
    ours: bool,
    age: Duration,
}
