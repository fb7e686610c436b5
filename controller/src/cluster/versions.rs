//! Versions of the services for hosts, as ConfigMaps `windows-services-<version>`. They are immutable, shared by all pools with the same rendered
//! services, and kept for as long as a pool or a host needs them.
//!
//! Any client with rights for ConfigMaps may have written the stored data. The data is used only if it matches the digest in the name
//! ([`api::services_version`]). A ConfigMap with other content is deleted, and stored again with the right content if it is needed. The names of
//! WMCO's ConfigMaps have no digest. Such a ConfigMap only shows the configuration of a node that WMCO created; the operator gives it to no host.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{
    Reason,
    names::{MANAGER_POOL, SERVICES_CONFIG_MAP_PREFIX},
    services_version::{self, UnverifiedError},
};
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::Role};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use parking_lot::Mutex;

use crate::{
    cluster::wicd_rbac,
    runtime::{
        clock,
        events::{EventReason, Events},
    },
};
use wnp_core::render::{Rendered, Stored, StoredError, StoredVersion, collectable, is_ours};

/// Error of a version that cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VersionError {
    /// A request to the API server failed.
    #[error("failed to {doing}: {}", crate::runtime::errors::api_message(.source))]
    Api {
        /// Action that failed.
        doing: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The content of the ConfigMap cannot be read.
    #[error(
        "the ConfigMap {name} cannot be read: {problem}. The nodes of this version keep their configuration; move them to another version, then \
         delete the ConfigMap"
    )]
    Unreadable {
        /// Name of the ConfigMap.
        name: String,
        /// Fault of the ConfigMap.
        problem: StoredError,
    },
    /// Other content is stored under the name, and cannot be replaced.
    #[error(
        "the ConfigMap {name} is not used: {problem}. The operator could not replace it, and retries: delete it, and find the client that writes it"
    )]
    Unverified {
        /// Name of the ConfigMap.
        name: String,
        /// Fault of the ConfigMap.
        problem: UnverifiedError,
    },
}

impl VersionError {
    /// Returns the reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Api { .. } => Reason::ApiError,
            Self::Unreadable { .. } | Self::Unverified { .. } => Reason::VersionUnreadable,
        }
    }
}

fn failed(doing: &'static str) -> impl FnOnce(kube::Error) -> VersionError {
    move |source| VersionError::Api { doing, source: Box::new(source) }
}

/// Number of attempts to store a version while another client stores other content.
const ATTEMPTS: usize = 3;

/// Version that this process has stored or read, and verified if its name has a digest.
#[derive(Clone)]
struct Known {
    stored: Arc<Stored>,
    /// ConfigMap as it is stored, so that it can be restored.
    config_map: ConfigMap,
}

/// Versions that are stored as ConfigMaps.
pub(crate) struct Versions {
    api: Api<ConfigMap>,
    roles: Api<Role>,
    namespace: String,
    /// Reporter of replaced versions. `None` in a command that runs once, which replaces nothing.
    events: Option<Events>,
    /// Cache of versions that this process has read or stored. Content that matches its digest never changes.
    known: Mutex<HashMap<String, Known>>,
    /// Lock for the only writer of the Role with the versions that wicd may read.
    listing: tokio::sync::Mutex<()>,
}

impl Versions {
    /// Returns the versions of this namespace.
    pub(crate) fn new(client: Client, namespace: &str, events: Option<Events>) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            roles: Api::namespaced(client, namespace),
            namespace: namespace.into(),
            events,
            known: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    fn known(&self, version: &str) -> Option<Known> {
        self.known.lock().get(version).cloned()
    }

    fn learn(&self, version: &str, stored: Stored, config_map: ConfigMap) -> Arc<Stored> {
        let stored = Arc::new(stored);
        self.known.lock().insert(version.into(), Known { stored: stored.clone(), config_map });
        stored
    }

    /// Returns the content of a version, or `None` if it is not stored or does not match its name. A ConfigMap that does not match its name is
    /// deleted, except by a command that runs once.
    pub(crate) async fn get(&self, version: &str) -> Result<Option<Arc<Stored>>, VersionError> {
        if let Some(known) = self.known(version) {
            return Ok(Some(known.stored));
        }
        let name = name(version);
        let Some(mut config_map) = self.api.get_opt(&name).await.map_err(failed("get a services ConfigMap"))? else {
            return Ok(None);
        };
        match Rendered::verify(version, &config_map) {
            Ok(()) => {}
            Err(problem @ UnverifiedError::Differs) => {
                self.discard(&config_map, problem).await?;
                return Ok(None);
            }
            // For a version of WMCO, no digest in the name proves the annotations.
            Err(UnverifiedError::NoDigest) => config_map.metadata.annotations = None,
        }
        let stored =
            Rendered::from_config_map(&config_map).map_err(|problem| VersionError::Unreadable { name, problem })?;
        Ok(Some(self.learn(version, stored, config_map)))
    }

    /// Stores a version, and permits the hosts' daemons to read it.
    pub(crate) async fn publish(&self, version: &str, rendered: &Rendered) -> Result<(), VersionError> {
        if self.known(version).is_some() {
            return Ok(());
        }
        let _one = self.listing.lock().await;
        let config_map = self.create(version, &rendered.to_config_map(version, &self.namespace)).await?;
        self.permit(&self.live().await?).await?;
        self.learn(version, Stored::Ours(rendered.clone()), config_map);
        Ok(())
    }

    /// Deletes unused versions of the operator that are older than `age`; a newer version may not be referenced yet. Restores needed versions that
    /// this process has read or stored, and that another client has deleted or replaced.
    pub(crate) async fn keep(&self, needed: &BTreeSet<String>, age: Duration) -> Result<(), VersionError> {
        let _one = self.listing.lock().await;
        let mut live = self.live().await?;
        let mut again = Vec::new();
        for version in needed {
            let Some(known) = self.known(version).filter(|k| matches!(*k.stored, Stored::Ours(_))) else { continue };
            let there = live.iter().find(|l| l.version == *version);
            // An unchanged resource version means unchanged content.
            if there.is_some_and(|l| l.resource_version == known.config_map.metadata.resource_version) {
                continue;
            }
            let is_new = there.is_none();
            let config_map = self.create(version, &known.config_map).await?;
            self.known.lock().insert(version.clone(), Known { config_map, ..known });
            if is_new {
                let (version, age) = (version.clone(), Duration::ZERO);
                again.push(Live { version, ours: true, age, resource_version: None });
            }
        }
        let mut changed = !again.is_empty();
        live.extend(again);
        let old = live.iter().filter(|l| l.age > age);
        let old: Vec<StoredVersion> = old.map(|l| StoredVersion { name: l.version.clone(), is_ours: l.ours }).collect();
        for version in collectable(&old, needed) {
            let name = name(&version);
            match self.api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => tracing::info!(name, "deleted an unused services ConfigMap"),
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(failed("delete a services ConfigMap")(error)),
            }
            live.retain(|l| l.version != version);
            self.known.lock().remove(&version);
            changed = true;
        }
        if changed { self.permit(&live).await } else { Ok(()) }
    }

    /// Creates a ConfigMap if it does not exist. Other content under its name is deleted first.
    async fn create(&self, version: &str, wanted: &ConfigMap) -> Result<ConfigMap, VersionError> {
        let unverified = |problem| VersionError::Unverified { name: name(version), problem };
        Rendered::verify(version, wanted).map_err(unverified)?;
        let mut wanted = wanted.clone();
        let ObjectMeta { name, namespace, labels, annotations, .. } = wanted.metadata;
        wanted.metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
        for _ in 0..ATTEMPTS {
            match self.api.create(&PostParams::default(), &wanted).await {
                Ok(stored) => {
                    tracing::info!(version, "stored the services ConfigMap");
                    return Ok(stored);
                }
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(failed("store the services ConfigMap")(error)),
            }
            let there = self.api.get_opt(&self::name(version)).await;
            let Some(there) = there.map_err(failed("get a services ConfigMap"))? else { continue };
            match Rendered::verify(version, &there) {
                Ok(()) => return Ok(there),
                Err(problem) => self.discard(&there, problem).await?,
            }
        }
        Err(unverified(UnverifiedError::Differs))
    }

    /// Deletes a ConfigMap whose content does not match its name, and reports an event. Does nothing in a command that runs once.
    async fn discard(&self, config_map: &ConfigMap, problem: UnverifiedError) -> Result<(), VersionError> {
        // A command that runs once leaves this to the operator.
        let Some(events) = &self.events else { return Ok(()) };
        let note = format!(
            "the ConfigMap is not used: {problem}. The operator deletes it, and stores it again if it is needed"
        );
        events.say(config_map, EventReason::ServicesReplaced, "Verify", &note);
        let only_this = Preconditions { uid: config_map.metadata.uid.clone(), ..Preconditions::default() };
        let params = DeleteParams::default().preconditions(only_this);
        match self.api.delete(&config_map.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(failed("delete a services ConfigMap that another client has written")(error)),
        }
    }

    /// Lists the stored versions, also those of WMCO.
    async fn live(&self) -> Result<Vec<Live>, VersionError> {
        let all = self.api.list_metadata(&ListParams::default()).await.map_err(failed("list the ConfigMaps"))?;
        let now = clock::now();
        let live = |c: &kube::core::PartialObjectMeta<ConfigMap>| {
            let age = c.creation_timestamp().map(|t| Duration::try_from(now.duration_since(t.0)).unwrap_or_default());
            Some(Live {
                version: c.name_any().strip_prefix(SERVICES_CONFIG_MAP_PREFIX)?.to_string(),
                ours: is_ours(c.labels()),
                resource_version: c.resource_version(),
                age: age.unwrap_or_default(),
            })
        };
        Ok(all.items.iter().filter_map(live).collect())
    }

    /// Permits the hosts' daemons to read these versions, except those without a digest in the name, and no others.
    async fn permit(&self, live: &[Live]) -> Result<(), VersionError> {
        let followed = live.iter().filter(|l| services_version::carried(&l.version).is_some());
        let names = followed.map(|l| name(&l.version)).collect();
        let role = wicd_rbac::services_role(&self.namespace, &names);
        let params = PatchParams::apply(MANAGER_POOL).force();
        let doing = failed("store the right of the hosts' daemons to read services ConfigMaps");
        self.roles.patch(&role.name_any(), &params, &Patch::Apply(&role)).await.map_err(doing)?;
        Ok(())
    }
}

/// Returns the ConfigMap name of a version.
fn name(version: &str) -> String {
    format!("{SERVICES_CONFIG_MAP_PREFIX}{version}")
}

/// Metadata of a stored version.
struct Live {
    version: String,
    ours: bool,
    resource_version: Option<String>,
    age: Duration,
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;
