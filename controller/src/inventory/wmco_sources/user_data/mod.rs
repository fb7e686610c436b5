//! User data of new Machines: a script that enables SSH and authorizes the operator's key at their first start. MachineSets name the Secret with it.
//!
//! User data that authorizes the current key is not changed, whoever wrote it: a change would not affect running Machines, and tools that compare
//! bytes would replace them all.

use std::borrow::Cow;

use api::{SecretKeyRef, names::MANAGER_ADAPTER, names::USER_DATA_SECRET};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{cluster::secrets::SecretError, context::Context, runtime::events::EventReason};
use wnp_core::{
    machines::{CLUSTER_API, MACHINE_API},
    render::Platform,
};

/// Key of the user data in the Secret.
const KEY: &str = "userData";
const HOST: &str = include_str!("host.ps1");
const AWS: &str = include_str!("aws.ps1");

/// Returns the user data for a platform. `public_key` is one line as in an `authorized_keys` file.
pub(crate) fn render(platform: Platform, public_key: &str) -> String {
    let mut script = HOST.replace("@PUBLIC_KEY@", public_key);
    if platform == Platform::Aws {
        script += AWS;
    }
    match platform {
        // On GCP, user data is a bare script.
        Platform::Gcp => script,
        _ => format!("<powershell>\n{script}</powershell>\n<persist>true</persist>\n"),
    }
}

/// Reports whether user data authorizes a key. `public_key` is one line as in an `authorized_keys` file; in the user data, a comment may follow it.
pub(crate) fn carries(user_data: &str, public_key: &str) -> bool {
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '-');
    !public_key.is_empty()
        && user_data.match_indices(public_key).any(|(at, _)| {
            let (before, after) = (&user_data[..at], &user_data[at + public_key.len()..]);
            !before.ends_with(is_of_a_key) && !after.starts_with(is_of_a_key)
        })
}

/// Reports whether Machines with this user data accept passwords over SSH. The user data of older releases of WMCO does not change sshd's default,
/// which accepts them.
fn lets_passwords_in(user_data: &str) -> bool {
    let words: String = user_data.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    !words.contains("passwordauthentication no")
}

/// Reports whether new Machines of a namespace accept one of these keys. Reads from the API server, because a Machine may be deleted as a result.
pub(super) async fn lets_in(cx: &Context, namespace: &str, keys: &[SecretKeyRef]) -> kube::Result<bool> {
    let api: Api<Secret> = Api::namespaced(cx.cluster.client.clone(), namespace);
    let secret = api.get_opt(USER_DATA_SECRET).await?;
    let Some(text) = secret.as_ref().and_then(text) else { return Ok(false) };
    let readable = cx.hosts.secrets.keys(keys).await.map(|(keys, _)| keys).unwrap_or_default();
    Ok(readable.iter().any(|key| carries(&text, &key.identity.authorized_key())))
}

fn text(secret: &Secret) -> Option<Cow<'_, str>> {
    api::text::decode(&secret.data.as_ref()?.get(KEY)?.0).ok()
}

/// Writes the Secret in each existing namespace of Machines whose user data lacks the default key. Without that key, makes no change, because the
/// current content may be right. Returns true if a Secret was written.
pub(super) async fn keep(cx: &Context) -> bool {
    let default = SecretKeyRef { name: api::names::DEFAULT_KEY_SECRET.into(), ..SecretKeyRef::default() };
    let public_key = match cx.hosts.secrets.key(&default).await {
        Ok(key) => key.identity.authorized_key(),
        // Without a default key, pools name their own keys, and the user data is left to users.
        Err(SecretError::Missing { .. }) => return false,
        Err(error) => {
            tracing::warn!(%error, "the private key for the user data of Machines cannot be read; the user data stays unchanged");
            return false;
        }
    };
    let mut changed = false;
    for namespace in [MACHINE_API, CLUSTER_API] {
        match keep_in(cx, namespace, &public_key).await {
            Ok(written) => changed |= written,
            Err(error) => {
                let error = crate::runtime::errors::api_message(&error);
                tracing::warn!(
                    error,
                    namespace,
                    "the Secret {USER_DATA_SECRET} could not be read or written, so new Machines may refuse the operator's key; the operator retries"
                );
            }
        }
    }
    changed
}

async fn keep_in(cx: &Context, namespace: &str, public_key: &str) -> kube::Result<bool> {
    let namespaces: Api<Namespace> = Api::all(cx.cluster.client.clone());
    if namespaces.get_metadata_opt(namespace).await?.is_none() {
        // No Machines would read the Secret, and the operator has no rights in the namespace.
        return Ok(false);
    }
    let api: Api<Secret> = Api::namespaced(cx.cluster.client.clone(), namespace);
    let before = api.get_opt(USER_DATA_SECRET).await?;
    if let Some(before) = before.as_ref()
        && let Some(text) = text(before).filter(|text| carries(text, public_key))
    {
        if lets_passwords_in(&text) {
            let note = "new Machines accept passwords over SSH, because this user data does not disable them; the operator leaves it unchanged, because it has the current public key. Delete the Secret, and the operator writes it again; running Machines are not replaced";
            cx.events.say(before, EventReason::PasswordLogInAllowed, "KeepUserData", note);
        }
        return Ok(false);
    }
    let text = render(cx.hosts.release.get().cluster.platform, public_key);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": USER_DATA_SECRET, "namespace": namespace},
        "data": {KEY: k8s_openapi::ByteString(text.into_bytes())},
    });
    // Forced, because user data with another key does not let the operator log in.
    let params = PatchParams::apply(MANAGER_ADAPTER).force();
    match api.patch(USER_DATA_SECRET, &params, &Patch::Apply(secret)).await {
        Ok(written) => {
            tracing::info!(
                namespace,
                name = written.name_any(),
                is_new = before.is_none(),
                "wrote the user data of Machines"
            );
            Ok(true)
        }
        // The namespace was deleted in the meantime.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PUBLIC: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    #[test]
    fn the_user_data_of_each_platform_is_unchanged() {
        for (platform, golden) in [
            (Platform::None, include_str!("golden/other.txt")),
            (Platform::Azure, include_str!("golden/other.txt")),
            (Platform::Vsphere, include_str!("golden/other.txt")),
            (Platform::Nutanix, include_str!("golden/other.txt")),
            (Platform::Gcp, include_str!("golden/gcp.txt")),
            (Platform::Aws, include_str!("golden/aws.txt")),
        ] {
            let text = render(platform, PUBLIC);
            assert_eq!(
                text, golden,
                "{platform:?}: the user data has changed. If that is intended, change the golden file, and check whether running \
                 Machines need the change"
            );
            assert!(carries(&text, PUBLIC), "{platform:?}");
        }
    }

    /// Key rotation reads the record: see `instance/rotate.rs`.
    #[test]
    fn the_script_leaves_a_record_beside_the_keys() {
        assert!(HOST.contains("Join-Path $ssh 'windows-node-pools-machine.txt'"));
    }

    #[test]
    fn user_data_that_allows_passwords_is_detected() {
        for platform in [Platform::None, Platform::Gcp, Platform::Aws] {
            assert!(!lets_passwords_in(&render(platform, PUBLIC)), "{platform:?}");
        }
        let newer = "(Get-Content $c) -replace '#PasswordAuthentication yes','PasswordAuthentication  no'";
        for (text, expected) in
            [(newer, false), ("Start-Service sshd", true), ("#PasswordAuthentication yes", true), ("", true)]
        {
            assert_eq!(lets_passwords_in(text), expected, "{text}");
        }
    }

    #[test]
    fn only_the_whole_key_counts() {
        for (about, text, expected) in [
            ("by itself", PUBLIC.to_string(), true),
            ("as the legacy operator has it", format!("$publicKey = \"{PUBLIC}\"\n"), true),
            ("with a comment", format!("'{PUBLIC} operator@example.com'"), true),
            ("nothing", String::new(), false),
            ("a longer key", format!("{PUBLIC}AA"), false),
            ("its head", PUBLIC[..PUBLIC.len() - 4].to_string(), false),
            ("another type", PUBLIC.replace("ssh-ed25519", "sk-ssh-ed25519"), false),
            ("another key", PUBLIC.replace("AEBAQ", "AECAQ"), false),
            ("after a longer one", format!("{PUBLIC}AA\n{PUBLIC}\n"), true),
        ] {
            assert_eq!(carries(&text, PUBLIC), expected, "{about}");
        }
        assert!(!carries("anything", ""), "an empty key is in no user data");
    }

    proptest! {
        #[test]
        fn what_is_rendered_carries_its_key_and_no_other(a in "[A-Za-z0-9+/]{40,80}", b in "[A-Za-z0-9+/]{40,80}") {
            let [a, b] = [format!("ssh-ed25519 {a}"), format!("ssh-ed25519 {b}")];
            let text = render(Platform::Aws, &a);
            prop_assert!(carries(&text, &a));
            prop_assert_eq!(carries(&text, &b), a == b);
        }
    }
}
