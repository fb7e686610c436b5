//! Collection of data from hosts over SSH, even from hosts whose kubelet does not run. Data from a host is untrusted until it is unpacked within
//! limits and redacted.

use std::{sync::Arc, time::Duration};

use api::{
    SecretKeyRef, WindowsInstance, WindowsNodePool,
    host::{self, Verb},
    names::key,
};
use futures::{StreamExt as _, stream};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use remote::{
    Operator, Session,
    ssh::{HostKeyCheck, Identity, JumpHost, Target},
    support::{self, Unpacked},
};

use super::write::Folder;
use crate::{
    args::{
        Gather,
        host_key_policy::{HostKeySource, KnownKeys, host_key_source},
    },
    cluster::secrets::{SecretError, Secrets},
    commands::host_session,
    instance::CONNECT_TIMEOUT,
};

/// Maximum number of hosts that are queried at the same time: each answer is kept in memory until its files are written.
const AT_ONCE: usize = 4;
/// Timeout for a host to read its event log, its logs and its networks.
const LIMIT: Duration = Duration::from_mins(5);
/// Age of the oldest events, in hours.
const HOURS: u32 = 24;

/// Keys and programs for the sessions with hosts.
struct Access {
    secrets: Secrets,
    /// Private key of `--identity`.
    identity: Option<Arc<Identity>>,
    operator: Arc<Operator>,
    operation: String,
}

/// Gathers data from the hosts that `asked` names: `all`, or host names separated by commas.
pub(super) async fn gather(client: &Client, args: &Gather, asked: &str, folder: &mut Folder) {
    let access = match Access::new(client, args) {
        Ok(access) => access,
        Err(error) => return folder.failed("hosts", &format!("{error:#}")),
    };
    let all = ListParams::default();
    let (instances, pools) = (Api::all(client.clone()), Api::<WindowsNodePool>::all(client.clone()));
    let (instances, pools) = match tokio::try_join!(instances.list(&all), pools.list(&all)) {
        Ok((instances, pools)) => (instances.items, pools.items),
        Err(error) => return folder.failed("hosts", &api::text::line(&error.to_string(), 500)),
    };
    let (chosen, unknown) = choose(instances, asked);
    for name in unknown {
        folder.failed(
            &format!("host {name}"),
            "there is no WindowsInstance of this name; see: kubectl get windowsinstances",
        );
    }
    let (access, pools, all) = (&access, &pools, chosen.len());
    let answers = stream::iter(chosen).map(|instance| async move {
        let pool = pools.iter().find(|pool| pool.name_any() == instance.spec.pool_ref.name);
        // Boxed, because the future is large and there are several.
        let answer = Box::pin(access.ask(&instance, pool)).await;
        (instance.name_any(), answer)
    });
    let mut answers = Box::pin(answers.buffer_unordered(AT_ONCE).enumerate());
    while let Some((n, (name, answer))) = answers.next().await {
        eprintln!("[{}/{all}] host {name}", n + 1);
        match answer {
            Ok((answer, unpacked)) => write(&name, &answer, unpacked, folder),
            Err(error) => folder.failed(&format!("host {name}"), &api::text::line(&format!("{error:#}"), 1000)),
        }
    }
}

/// Returns the requested instances, and the names without an instance.
fn choose(instances: Vec<WindowsInstance>, asked: &str) -> (Vec<WindowsInstance>, Vec<String>) {
    if asked == "all" {
        return (instances, Vec::new());
    }
    let names: Vec<&str> = asked.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_there = |name: &str| instances.iter().any(|instance| instance.name_any() == name);
    let unknown = names.iter().filter(|name| !is_there(name)).map(|name| (*name).to_owned()).collect();
    (instances.into_iter().filter(|instance| names.contains(&instance.name_any().as_str())).collect(), unknown)
}

impl Access {
    fn new(client: &Client, args: &Gather) -> anyhow::Result<Self> {
        Ok(Self {
            secrets: Secrets::new(client.clone(), &args.namespace),
            identity: args.identity.as_deref().map(host_session::identity).transpose()?,
            operator: host_session::operator(&args.wicd)?,
            operation: format!("gather-{:08x}", rand::random::<u32>()),
        })
    }

    /// Returns the key of `--identity`, or else the keys of the Secrets.
    async fn keys(&self, references: &[SecretKeyRef]) -> anyhow::Result<Vec<Arc<Identity>>> {
        if let Some(identity) = &self.identity {
            return Ok(vec![identity.clone()]);
        }
        let keys = self.secrets.keys(references).await.map_err(named)?;
        Ok(keys.0.iter().map(|key| key.identity.clone()).collect())
    }

    /// Logs in and lets the host collect the data. The host is left unchanged.
    async fn ask(
        &self,
        instance: &WindowsInstance,
        pool: Option<&WindowsNodePool>,
    ) -> anyhow::Result<(host::Answer, Unpacked)> {
        let target = self.target(instance, pool).await?;
        let session = Session::open(&self.operator, &target, &instance.spec.host.name, &self.operation, None).await?;
        let answer = session.support(host::Support { hours: HOURS });
        let collected = Box::pin(host_session::query_host(&session, &self.operation, Verb::Support, answer)).await;
        session.close().await;
        let (answer, archive) = collected?;
        Ok((answer, tokio::task::spawn_blocking(move || support::unpack(&archive)).await?))
    }

    async fn target(&self, instance: &WindowsInstance, pool: Option<&WindowsNodePool>) -> anyhow::Result<Target> {
        let (host, ssh) = (&instance.spec.host, pool.map(|pool| pool.spec.ssh()).unwrap_or_default());
        let port = u16::try_from(host.port).unwrap_or(22);
        let host_key = match host_key(instance, &ssh)? {
            HostKeySource::Check(check) => check,
            HostKeySource::KnownHosts(secret) => {
                HostKeyCheck::AnyOf(self.secrets.known_hosts(&secret, &host.address, port).await?)
            }
            HostKeySource::FirstUse => anyhow::bail!(
                "no host key of this host is on record yet, so another machine may answer in its place; declare hostKey in the entry of the host, or gather again once it has joined"
            ),
        };
        let keys = self.keys(&host.private_keys).await?;
        let jump_host = match &ssh.jump_host {
            Some(declared) => {
                // `--identity` is the key for hosts, so it is not a remedy here.
                let key = self.secrets.key(&declared.private_key_secret_ref).await?.identity.clone();
                Some(JumpHost::new(&declared.address, declared.port(), &declared.username, key, &declared.host_key)?)
            }
            None => None,
        };
        Ok(Target {
            address: host.address.clone(),
            port,
            username: host.username.clone(),
            keys,
            host_key,
            jump_host,
            connect_timeout: CONNECT_TIMEOUT,
            command_timeout: LIMIT,
        })
    }
}

fn named(error: SecretError) -> anyhow::Error {
    anyhow::anyhow!("{error}; or name a file with --identity")
}

/// Returns the source of trust for the host key. The Node is not a source, because other clients may write to it.
fn host_key(instance: &WindowsInstance, ssh: &api::Ssh) -> anyhow::Result<HostKeySource> {
    let known = KnownKeys {
        address: &instance.spec.host.address,
        declared: instance.spec.host.host_key.as_deref(),
        allowed: instance.annotations().get(key::TRUST_HOST_KEY).map(String::as_str),
        pinned: instance.status.as_ref().and_then(|status| status.host_key.as_ref()),
        ..KnownKeys::default()
    };
    Ok(host_key_source(&known, ssh)?)
}

fn write(name: &str, answer: &host::Answer, unpacked: Unpacked, folder: &mut Folder) {
    let Unpacked { files, refused } = unpacked;
    folder.note(&format!("host {name}"), &format!("{} files", files.len()));
    for line in &refused {
        folder.failed(&format!("host {name}"), line);
    }
    // The answer in JSON, which came with the archive.
    let answer = serde_json::json!({"outcome": answer.outcome, "state": answer.state, "warnings": answer.warnings});
    for (part, content) in std::iter::once(("answer.json".to_owned(), answer.to_string().into_bytes())).chain(files) {
        let path = format!("hosts/{name}/{part}");
        match text(&content) {
            Some(text) => folder.text(&path, &text),
            None => folder.failed(&path, "the file is not text, so its secrets cannot be removed, and it is left out"),
        }
    }
}

/// Decodes a Windows file, which may be UTF-16. `None` if it is not text.
fn text(content: &[u8]) -> Option<String> {
    // Zero bytes come from UTF-16 whose beginning was cut off, or from a log that its service truncated.
    let text = api::text::decode(content)
        .map_or_else(|_| String::from_utf8_lossy(content).replace('\0', ""), |text| text.replace('\0', ""));
    let strange = text.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
    (strange * 20 <= text.chars().count()).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(name: &str, status: serde_json::Value) -> WindowsInstance {
        let host =
            json!({"name": name, "address": "10.0.0.1", "port": 22, "username": "Administrator", "privateKeys": []});
        let object =
            json!({"metadata": {"name": name}, "spec": {"poolRef": {"name": "p"}, "host": host}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_key_that_was_never_proven_is_not_trusted() {
        let fingerprint = "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
        let pinned = json!({"hostKey": {"publicKey": "AAAA", "keyType": "ssh-ed25519", "fingerprint": fingerprint}});
        let ssh = api::Ssh::default();
        let new = instance("new", serde_json::Value::Null);
        assert_eq!(host_key(&new, &ssh).unwrap(), HostKeySource::FirstUse);
        let mut declared = new.clone();
        declared.spec.host.host_key = Some(fingerprint.into());
        assert!(matches!(host_key(&declared, &ssh).unwrap(), HostKeySource::Check(HostKeyCheck::PinnedFingerprint(_))));
        let known = instance("known", pinned);
        assert!(matches!(host_key(&known, &ssh).unwrap(), HostKeySource::Check(HostKeyCheck::Pinned(_))));
    }

    #[test]
    fn data_from_a_host_is_written_without_secrets() {
        const SECRET: &str = "hunter2Hunter2";
        let command = format!("agent.exe --password={SECRET}");
        let password = format!("<Data Name='Password'>{SECRET}</Data><Data Name='a'>other</Data>");
        let files = [
            ("machine.json", json!([{"command": command}]).to_string()),
            ("events/System.xml", format!("<Event><EventData>{password}<Data>{command}</Data></EventData></Event>\n")),
            ("logs/sshd.log", format!("sshd: Authorization: Basic {SECRET}\n")),
        ];
        let files = files.into_iter().map(|(name, text)| (name.to_owned(), text.into_bytes())).collect();
        let (dir, answer) = (tempfile::tempdir().unwrap(), json!({"protocol": 1, "operation": "x", "outcome": "done"}));
        let mut folder = Folder::create(&dir.path().join("x")).unwrap();
        let sent = Unpacked { files, refused: vec![format!("token={SECRET}")] };
        write("win-1", &serde_json::from_value(answer).unwrap(), sent, &mut folder);
        folder.finish().unwrap();
        let read = |path: &str| std::fs::read_to_string(dir.path().join("x").join(path)).unwrap();
        for path in
            ["gather.log", "hosts/win-1/machine.json", "hosts/win-1/events/System.xml", "hosts/win-1/logs/sshd.log"]
        {
            let text = read(path);
            assert!(!text.contains(SECRET) && text.contains(super::super::redact::REDACTED), "{path}: {text}");
        }
        let events = read("hosts/win-1/events/System.xml");
        assert!(events.contains("<Data Name='a'>other</Data>"), "{events}");
    }

    #[test]
    fn hosts_are_chosen_by_name() {
        let all = || vec![instance("win-1", json!(null)), instance("win-2", json!(null))];
        let names = |(chosen, unknown): (Vec<WindowsInstance>, Vec<String>)| {
            (chosen.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>().join(","), unknown.join(","))
        };
        for (asked, chosen, unknown) in [("all", "win-1,win-2", ""), ("win-2, win-3", "win-2", "win-3"), ("", "", "")] {
            assert_eq!(names(choose(all(), asked)), (chosen.to_owned(), unknown.to_owned()), "{asked}");
        }
    }

    #[test]
    fn only_text_is_written() {
        let utf16: Vec<u8> = "\u{feff}password=x".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (content, expected) in [
            (utf16.clone(), Some("password=x")),
            (utf16[2..].to_vec(), Some("password=x")),
            (b"plain".to_vec(), Some("plain")),
            (Vec::new(), Some("")),
            (vec![0x1f, 0x8b, 0xff, 0xfa, 0x80], None),
        ] {
            assert_eq!(text(&content).as_deref(), expected, "{content:?}");
        }
    }
}
