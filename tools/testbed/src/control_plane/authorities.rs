//! Authorities of a control plane, their certificates, and their rotation.
//!
//! | file | content |
//! |---|---|
//! | `ca.crt`, `ca.key` | authority of clients and of the certificates for nodes, and of the API server until it is rotated |
//! | `roots.crt` | authorities that clients of the API server trust: `kube-root-ca.crt` in every namespace |
//! | `server.crt`, `server.key` | serving certificate of the API server |
//! | `clients.crt` | authorities of clients that the API server and kubelets trust |
//! | `kubelet-client.crt`, `kubelet-client.key` | client certificate of the API server for kubelets |
//! | `token.key`, `token.pub` | keys that sign and verify tokens of service accounts |

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use super::{ControlPlane, START, succeeded};
use crate::{
    lock::lock,
    pki::{self, Authority, Identity},
};

/// Progress of a rotation of two authorities: that of the API server's serving certificate, and that of its client certificate for kubelets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaRotation {
    /// The old authorities are in use.
    #[default]
    NotBegun,
    /// The old authorities are in use, and the new ones are trusted.
    BothTrusted,
    /// The new authorities are in use, and the old ones are still trusted.
    NewInUse,
    /// The old authorities are no longer trusted.
    Done,
}

/// Authorities of a control plane.
#[derive(Debug)]
pub(super) struct Authorities {
    /// Authority of clients and nodes, and of the API server at first.
    pub(super) first: Authority,
    next_server: Authority,
    kubelet_clients: [Authority; 2],
}

impl Authorities {
    pub(super) fn new() -> Result<Self> {
        let new = Authority::new;
        Ok(Self {
            first: new("testbed")?,
            next_server: new("testbed-next")?,
            kubelet_clients: [new("kubelet-clients")?, new("kubelet-clients-next")?],
        })
    }

    /// Returns all authorities that may sign the API server's certificate at some time, so that an administrator's client keeps working.
    pub(super) fn all_roots(&self) -> String {
        pem(&self.first) + &pem(&self.next_server)
    }

    /// Returns a client certificate with which the API server connects to kubelets, from the authority after the rotation if `next` is true, and
    /// otherwise from the one before it.
    pub(super) fn kubelet_client(&self, next: bool) -> Result<Identity> {
        self.kubelet_clients[usize::from(next)].client("kube-apiserver-kubelet-client", &["system:masters"])
    }

    /// Returns the authorities of the API server's clients.
    pub(super) fn clients(&self, at: CaRotation) -> String {
        let [old, new] = &self.kubelet_clients;
        pem(&self.first) + &trusted(at, old, new)
    }

    /// Writes all files for an API server at this address.
    pub(super) fn write(&self, dir: &Path, ip: IpAddr) -> Result<()> {
        let ca = self.first.identity();
        let (token_key, token_public_key) = pki::token_keys()?;
        for (name, content) in
            [("ca.crt", ca.certificate), ("ca.key", ca.key), ("token.key", token_key), ("token.pub", token_public_key)]
        {
            replace(dir, name, &content)?;
        }
        self.trust(dir, CaRotation::NotBegun)?;
        self.take(dir, ip, CaRotation::NotBegun)
    }

    /// Writes the authorities to trust, `clients.crt` and `roots.crt`.
    pub(super) fn trust(&self, dir: &Path, at: CaRotation) -> Result<()> {
        replace(dir, "clients.crt", &self.clients(at))?;
        replace(dir, "roots.crt", &trusted(at, &self.first, &self.next_server))
    }

    /// Writes the serving certificate of the API server, and its client certificate for kubelets.
    pub(super) fn take(&self, dir: &Path, ip: IpAddr, at: CaRotation) -> Result<()> {
        let is_new = at >= CaRotation::NewInUse;
        let signer = if is_new { &self.next_server } else { &self.first };
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let server = signer.server("kube-apiserver", &[ip, Ipv4Addr::new(10, 96, 0, 1).into()], &names)?;
        let client = self.kubelet_client(is_new)?;
        for (name, content) in [
            ("server.crt", server.certificate),
            ("server.key", server.key),
            ("kubelet-client.crt", client.certificate),
            ("kubelet-client.key", client.key),
        ] {
            replace(dir, name, &content)?;
        }
        Ok(())
    }
}

impl ControlPlane {
    /// Rotates the authorities of the API server and of its client certificate for kubelets by one step, to `to`. As in a real
    /// cluster, the controller manager and the API server publish the trusted authorities. The API server keeps running, except for a restart
    /// with its new certificates.
    ///
    /// # Errors
    /// Fails when a file cannot be written, or the control plane is not ready within 3 minutes.
    pub async fn rotate(&self, to: CaRotation) -> Result<()> {
        self.is_changed.store(true, Ordering::Relaxed);
        self.authorities.trust(self.dir.path(), to)?;
        if to == CaRotation::NewInUse {
            self.authorities.take(self.dir.path(), self.address.ip(), to)?;
            self.restart_apiserver().await?;
        }
        *lock(&self.controller_manager) = None;
        *lock(&self.controller_manager) = Some(self.start_controller_manager()?);
        self.wait_until_ready().await?;
        if to == CaRotation::Done {
            self.wait_until_refused(&self.kubelet_client(false)?).await?;
            // The API server itself removes no authority before it has expired.
            let map = json!({"data": {"client-ca-file": self.authorities.clients(to)}}).to_string();
            let name = "extension-apiserver-authentication";
            succeeded(self.kubectl(&["patch", "configmap", "-n", "kube-system", name, "-p", &map]).await?)?;
        }
        Ok(())
    }

    /// Waits until the API server, which reloads its trusted authorities, refuses a client. Fails after [`START`].
    async fn wait_until_refused(&self, identity: &Identity) -> Result<()> {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let mut kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        for user in kubeconfig.auth_infos.iter_mut().filter_map(|u| u.auth_info.as_mut()) {
            user.client_certificate_data = Some(BASE64_STANDARD.encode(&identity.certificate));
            user.client_key_data = Some(BASE64_STANDARD.encode(&identity.key).into());
        }
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let deadline = Instant::now() + START;
        loop {
            // Each attempt has a new client, because existing connections stay authenticated.
            let client = Client::try_from(config.clone())?;
            match client.request_text(http::Request::get("/api/v1/namespaces").body(Vec::new())?).await {
                Err(kube::Error::Api(status)) if status.code == 401 => return Ok(()),
                _ if Instant::now() > deadline => bail!("the API server still admits a client after {START:?}"),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Returns a client certificate of the API server for kubelets, from the authority after the rotation if `next` is true, and otherwise from the
    /// one before it.
    ///
    /// # Errors
    /// Fails when it cannot be made.
    pub fn kubelet_client(&self, next: bool) -> Result<Identity> {
        self.authorities.kubelet_client(next)
    }

    /// Returns a client certificate as [`ControlPlane::client_certificate`] does, issued `age` ago and valid for `life`.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::client_certificate`] does.
    pub fn old_certificate(&self, user: &str, groups: &[&str], age: Duration, life: Duration) -> Result<Identity> {
        self.authorities.first.old_client(user, groups, age, life)
    }
}

fn pem(authority: &Authority) -> String {
    authority.identity().certificate
}

fn trusted(at: CaRotation, old: &Authority, new: &Authority) -> String {
    match at {
        CaRotation::NotBegun => pem(old),
        CaRotation::BothTrusted | CaRotation::NewInUse => pem(old) + &pem(new),
        CaRotation::Done => pem(new),
    }
}

/// Replaces a file atomically: the API server reloads some files while it runs.
fn replace(dir: &Path, name: &str, content: &str) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    fs::write(&new, content)
        .and_then(|()| fs::rename(&new, dir.join(name)))
        .with_context(|| format!("cannot write {name}"))
}
