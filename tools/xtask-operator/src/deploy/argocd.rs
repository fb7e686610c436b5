//! Health and actions of this project's kinds for Argo CD, in Lua: in the folders of Argo CD, and as merge patches of its ConfigMap and of the
//! `ArgoCD` object of OpenShift GitOps. The folders are written by hand. Patches have no kind, so that `kubectl apply`,
//! which would remove other keys, refuses them.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use api::names::GROUP;
use serde_json::{Map, Value, json};

use super::HEADER;

/// Folder of the files for Argo CD, from the root of the repository.
pub(crate) const FOLDER: &str = "deploy/argocd";

/// Customization of Argo CD for a kind.
pub(crate) struct Customization {
    /// Name of the kind.
    pub kind: &'static str,
    /// Names of the actions.
    pub actions: &'static [&'static str],
}

/// Customizations of all kinds.
pub(crate) const ALL: [Customization; 2] = [
    Customization { kind: "WindowsNodePool", actions: &["approve", "confirm-removal", "fetch", "pause", "resume"] },
    Customization { kind: "WindowsInstance", actions: &["retry"] },
];

const CONFIG_MAP: &str = "# Health and actions of our kinds for Argo CD: a patch that adds keys to its ConfigMap, and leaves all else as it is.
# kubectl patch configmap argocd-cm -n argocd --type merge --patch-file argocd-cm-patch.yaml";

const OPENSHIFT: &str = "# Health and actions of our kinds for OpenShift GitOps, whose operator writes these keys into the ConfigMap of Argo CD: a patch
# that adds keys, and leaves all else as it is.
# kubectl patch argocd openshift-gitops -n openshift-gitops --type merge --patch-file openshift-gitops-patch.yaml";

impl Customization {
    /// Returns the folder of the kind, in the layout of Argo CD.
    pub(super) fn folder(&self) -> String {
        format!("{FOLDER}/resource_customizations/{GROUP}/{}", self.kind)
    }

    /// Returns a script in the folder of the kind.
    pub(super) fn script(&self, path: &str) -> Result<String> {
        let path = devenv::workspace_root().join(self.folder()).join(path);
        let script = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(script.trim_end().to_owned())
    }

    /// Returns the actions in the text form of Argo CD's settings.
    fn actions(&self) -> Result<String> {
        let definition = |name: &&str| -> Result<Value> {
            Ok(json!({"name": name, "action.lua": self.script(&format!("actions/{name}/action.lua"))?}))
        };
        let definitions = self.actions.iter().map(definition).collect::<Result<Vec<_>>>()?;
        let actions = json!({"discovery.lua": self.script("actions/discovery.lua")?, "definitions": definitions});
        Ok(serde_yaml::to_string(&actions)?.trim_end().to_owned())
    }
}

/// Returns the generated files for Argo CD, by path from the root of the repository.
pub(super) fn files() -> Result<BTreeMap<String, String>> {
    let settings = settings()?;
    let nothing: Map<_, _> = settings.keys().map(|key| (key.clone(), Value::Null)).collect();
    let mut files = BTreeMap::new();
    for (name, about, value) in [
        ("argocd-cm-patch.yaml", CONFIG_MAP, json!({"data": settings})),
        ("argocd-cm-remove.yaml", "# Removes the keys that argocd-cm-patch.yaml adds.", json!({"data": nothing})),
        ("openshift-gitops-patch.yaml", OPENSHIFT, json!({"spec": {"extraConfig": settings}})),
        (
            "openshift-gitops-remove.yaml",
            "# Removes the keys that openshift-gitops-patch.yaml adds.",
            json!({"spec": {"extraConfig": nothing}}),
        ),
    ] {
        files.insert(format!("{FOLDER}/{name}"), format!("{HEADER}{about}\n{}", serde_yaml::to_string(&value)?));
    }
    Ok(files)
}

/// Returns the settings of Argo CD, by their keys.
fn settings() -> Result<Map<String, Value>> {
    let key = |what: &str, kind: &str| format!("resource.customizations.{what}.{GROUP}_{kind}");
    let mut settings = Map::new();
    for one in ALL {
        settings.insert(key("health", one.kind), one.script("health.lua")?.into());
        settings.insert(key("actions", one.kind), one.actions()?.into());
    }
    Ok(settings)
}
