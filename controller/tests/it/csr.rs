//! Certificate requests on a real API server: decided by the operator's controller, signed by kube-controller-manager.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use controller::csr::{
    Claim, CsrError, Hosts, Issuing, Kind, OwnRequests, ReevaluationTriggers, Verdict, request_and_sign, run,
};
use futures::StreamExt as _;
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use kube::{Api, Client, api::PostParams, runtime::wait::await_condition};
use serde_json::json;
use testbed::{ControlPlane, deployment};
use tokio_util::sync::CancellationToken;

use crate::{
    access::bind_wicd_role,
    cluster::{OPERATOR, eventually, kubelet, operator, shared, wicd},
};

#[path = "../../core/src/csr/forge.rs"]
#[expect(dead_code, reason = "shared with the unit tests, which forge more")]
pub(crate) mod forge;

use forge::{BASIC_CONSTRAINTS, Forged, Name, der};

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Flag that is set once the host `csr-dark` has been reached over SSH.
static DARK_IS_PROVEN: AtomicBool = AtomicBool::new(false);

fn claim(node: &str) -> Claim {
    Claim {
        node_name: node.into(),
        addresses: vec![IpAddr::from([10, 0, 0, 1])],
        dns_names: vec![node.into()],
        joined: !["csr-new", "csr-dark"].contains(&node),
        proven: node != "csr-dark" || DARK_IS_PROVEN.load(Ordering::Relaxed),
        ..Claim::default()
    }
}

/// Test double for the caches of hosts and the Nodes of the API server.
struct Known;

impl Hosts for Known {
    fn lookup(&self, node: &str) -> Option<Claim> {
        // An inventory lists the host `taken-1`, and a Linux node has the same name.
        let all = ["csr-1", "csr-2", "csr-new", "csr-dark", "first-1", "taken-1"];
        all.contains(&node).then(|| claim(node))
    }

    async fn confirm(&self, node: &str, _kind: Option<Kind>) -> kube::Result<Option<Claim>> {
        Ok(self.lookup(node).filter(|_| node != "taken-1"))
    }
}

fn node(name: &str) -> Forged {
    Forged::new(&format!("system:node:{name}"), &["system:nodes"])
}

fn wicd_node(name: &str) -> Forged {
    Forged::new(&format!("system:wicd-node:{name}"), &["system:wicd-nodes"])
}

pub(crate) struct Post {
    what: &'static str,
    client: Client,
    signer: &'static str,
    usages: Vec<&'static str>,
    pem: String,
    seconds: Option<i32>,
}

impl Post {
    pub(crate) fn of(kind: Kind, what: &'static str, client: &Client, pem: String) -> Self {
        let usages = vec!["digital signature", kind.purpose()];
        Self { what, client: client.clone(), signer: kind.signer_name(), usages, pem, seconds: Some(3600) }
    }

    pub(crate) async fn send(&self) -> kube::Result<CertificateSigningRequest> {
        let csr: CertificateSigningRequest = serde_json::from_value(json!({
            "metadata": {"generateName": "it-"},
            "spec": {
                "request": ByteString(self.pem.clone().into()), "signerName": self.signer,
                "usages": self.usages, "expirationSeconds": self.seconds,
            },
        }))
        .unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &csr).await
    }
}

pub(crate) fn conditions(csr: &CertificateSigningRequest) -> Vec<(String, String)> {
    let conditions = csr.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.map(|c| (c.type_.clone(), c.reason.clone().unwrap_or_default())).collect()
}

/// Lets bootstrap tokens and a user post requests, and returns the client of the user, who may do nothing else.
async fn alice(control_plane: &ControlPlane) -> Result<Client> {
    let rbac = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: it-requests}\n\
        rules: [{apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create]}]\n---\n\
        apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: it-requests}\n\
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: it-requests}\n\
        subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: it-requests}, \
        {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:bootstrappers'}]\n";
    control_plane.apply_yaml(rbac).await?;
    let alice = control_plane.client_as("alice", &["it-requests"]).await?;
    let probe = Post::of(Kind::WicdClient, "probe", &alice, Forged::new("alice", &["dev"]).pem());
    eventually(|| async { probe.send().await.is_ok() }).await?;
    Ok(alice)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn forged_requests_are_denied_and_valid_ones_approved() -> Result<()> {
    use Kind::{KubeletClient, KubeletServing, WicdClient};
    let control_plane = shared().await?;
    let alice = alice(control_plane).await?;
    let token = control_plane.client_as("system:bootstrap:abcdef", &["system:bootstrappers"]).await?;
    let operator = operator(control_plane).await?;
    let [k1, k2, linux, taken, dark] = [
        kubelet(control_plane, "csr-1").await?,
        kubelet(control_plane, "csr-2").await?,
        kubelet(control_plane, "linux-1").await?,
        kubelet(control_plane, "taken-1").await?,
        kubelet(control_plane, "csr-dark").await?,
    ];
    let [w1, w2] = [wicd(control_plane, "csr-1").await?, wicd(control_plane, "csr-2").await?];
    // Without these rights, the API server refuses all requests of wicd, valid or not.
    let admin = control_plane.client().await?;
    bind_wicd_role(&admin, &operator).await?;
    for (wicd, node) in [(&w1, "csr-1"), (&w2, "csr-2")] {
        let probe = Post::of(WicdClient, "probe", wicd, wicd_node(node).pem());
        eventually(|| async { probe.send().await.is_ok() }).await?;
    }
    let admin: Api<CertificateSigningRequest> = Api::all(admin);

    let told = Arc::new(Mutex::new(Vec::new()));
    let (prove, proven) = futures::channel::mpsc::unbounded();
    let shutdown = CancellationToken::new();
    let on_verdict = {
        let told = told.clone();
        move |verdict: &Verdict, csr: &CertificateSigningRequest| {
            told.lock().unwrap().push((csr.metadata.name.clone().unwrap(), verdict.clone()));
        }
    };
    let running = tokio::spawn(run(
        operator.clone(),
        Known,
        |verdict| verdict,
        on_verdict,
        OwnRequests { user: OPERATOR.into(), issuing: Issuing::default() },
        ReevaluationTriggers { waiting: proven.boxed(), ..ReevaluationTriggers::default() },
        shutdown.clone(),
    ));

    // Requests of others go first: once all later ones are decided, the controller has seen these and left them alone.
    let foreign = [
        Post::of(KubeletClient, "a Linux node renews", &linux, node("linux-1").pem()),
        Post::of(KubeletServing, "a Linux node serves", &linux, node("linux-1").names(&[Name::Ip("10.9.9.9")]).pem()),
        Post::of(KubeletClient, "a Linux node renews under a name that a list has", &taken, node("taken-1").pem()),
        Post::of(
            KubeletServing,
            "a Linux node serves under a name that a list has",
            &taken,
            node("taken-1").names(&[Name::Ip("10.9.9.9")]).pem(),
        ),
        Post::of(KubeletClient, "a machine bootstraps under a name that a list has", &token, node("csr-dark").pem()),
        Post::of(KubeletClient, "a Linux node bootstraps", &token, node("linux-2").pem()),
        Post::of(WicdClient, "a user", &alice, Forged::new("alice", &["dev"]).pem()),
        Post::of(
            WicdClient,
            "a plug-in on our host",
            &k1,
            Forged::new("system:ovn-node:csr-1", &["system:ovn-nodes"]).pem(),
        ),
        Post::of(WicdClient, "a look-alike", &alice, Forged::new("system:wicd-nodex:csr-1", &["x"]).pem()),
    ];
    let ca = der(0x30, &[&der(1, &[&[0xff]])]);
    let win1 = || node("csr-1");
    let served = |what, names: &[Name<'_>]| Post::of(KubeletServing, what, &k1, node("csr-1").names(names).pem());
    // These attacks cover the requesters, the signers and the kinds of faults. `controller/core/src/csr/cases.rs` has all attacks.
    let attacks = [
        Post::of(KubeletClient, "another node renews", &k2, win1().pem()),
        Post::of(KubeletClient, "a user", &alice, win1().pem()),
        Post::of(KubeletClient, "wicd asks for kubelet's", &w1, win1().pem()),
        Post::of(KubeletClient, "token while the host joins", &token, node("csr-new").pem()),
        Post::of(KubeletServing, "operator asks for serving", &operator, win1().names(&[Name::Dns("csr-1")]).pem()),
        Post::of(WicdClient, "another wicd renews", &w2, wicd_node("csr-1").pem()),
        Post::of(WicdClient, "kubelet asks for wicd", &k1, wicd_node("csr-1").pem()),
        Post::of(WicdClient, "unknown host", &alice, wicd_node("gone").pem()),
        Post::of(WicdClient, "wicd becomes admin", &w1, Forged::new("admin", &["dev"]).pem()),
        Post::of(KubeletClient, "system:masters", &k1, Forged::new("system:node:csr-1", &["system:masters"]).pem()),
        Post::of(KubeletClient, "certificate authority", &k1, win1().extension(BASIC_CONSTRAINTS, &ca).pem()),
        served("another host's name", &[Name::Dns("csr-1"), Name::Dns("csr-2")]),
        served("another host's address", &[Name::Ip("10.0.0.2")]),
        Post {
            usages: vec!["digital signature", "server auth"],
            ..Post::of(KubeletClient, "wrong usages", &k1, win1().pem())
        },
        Post { signer: CLIENT, ..Post::of(KubeletClient, "wrong signer", &k1, win1().pem()) },
        Post { seconds: None, ..Post::of(WicdClient, "for a year", &w1, wicd_node("csr-1").pem()) },
    ];
    let right = [
        Post::of(KubeletClient, "operator, first certificate", &operator, node("csr-new").pem()),
        Post::of(KubeletClient, "kubelet renews", &k1, win1().pem()),
        served("kubelet serves", &[Name::Dns("csr-1"), Name::Ip("10.0.0.1")]),
        Post::of(WicdClient, "wicd renews", &w1, wicd_node("csr-1").pem()),
        Post::of(WicdClient, "operator for wicd", &operator, wicd_node("csr-2").pem()),
        Post::of(KubeletClient, "one of two", &k2, node("csr-2").pem()),
        Post::of(KubeletClient, "two of two", &k2, node("csr-2").pem()),
    ];

    let mut left_alone = vec![];
    for post in &foreign {
        left_alone.push((post.what, post.send().await.context(post.what)?));
    }
    let mut denied = vec![];
    for post in &attacks {
        // A refusal by the API server or a policy is as good as a denial.
        match post.send().await {
            Ok(csr) => denied.push((post.what, csr.metadata.name.unwrap())),
            Err(kube::Error::Api(status)) => assert!([403, 422].contains(&status.code), "{}: {status:?}", post.what),
            Err(error) => return Err(error).context(post.what),
        }
    }
    let mut approved = vec![];
    for post in &right {
        approved.push((post.what, post.send().await.context(post.what)?.metadata.name.unwrap()));
    }

    for (what, name) in &approved {
        let issued = |csr: Option<&CertificateSigningRequest>| {
            csr.and_then(|c| c.status.as_ref()?.certificate.as_ref()).is_some()
        };
        let wait = await_condition(admin.clone(), name, issued);
        let csr = tokio::time::timeout(deployment::LIMIT, wait).await.with_context(|| (*what).to_owned())??;
        assert_eq!(
            conditions(&csr.unwrap()),
            [("Approved".to_owned(), "WindowsNodePoolApproved".to_owned())],
            "{what}"
        );
    }
    for (what, name) in &denied {
        let decided = |csr: Option<&CertificateSigningRequest>| csr.is_some_and(|csr| !conditions(csr).is_empty());
        let wait = await_condition(admin.clone(), name, decided);
        let csr = tokio::time::timeout(deployment::LIMIT, wait).await.with_context(|| (*what).to_owned())??.unwrap();
        let found = conditions(&csr);
        assert!(matches!(found.as_slice(), [(type_, _)] if type_ == "Denied"), "{what}: {found:?}");
    }
    assert!(denied.len() >= 10, "only {} attacks came as far as the controller", denied.len());
    for (what, csr) in &left_alone {
        let now = admin.get(csr.metadata.name.as_deref().unwrap()).await?;
        assert_eq!(conditions(&now), [], "{what}");
    }
    // Each decision of this controller was reported once. (`told` may also hold decisions on requests of other tests.)
    eventually(|| async { told.lock().unwrap().len() >= denied.len() + approved.len() }).await?;
    for (what, name) in denied.iter().chain(&approved) {
        let told = told.lock().unwrap();
        let times = told.iter().filter(|(n, verdict)| n == name && !matches!(verdict, Verdict::Wait { .. })).count();
        assert_eq!(times, 1, "{what}");
    }

    // A request for a host that is not proven waits, and is approved as soon as the host is proven.
    let early =
        Post::of(KubeletClient, "not proven yet", &dark, node("csr-dark").pem()).send().await?.metadata.name.unwrap();
    let waits =
        || told.lock().unwrap().iter().any(|(name, verdict)| *name == early && matches!(verdict, Verdict::Wait { .. }));
    eventually(|| async { waits() }).await?;
    assert_eq!(conditions(&admin.get(&early).await?), []);
    DARK_IS_PROVEN.store(true, Ordering::Relaxed);
    prove.unbounded_send(())?;
    // The timeout is shorter than the interval of the periodic sweep, which would approve the request, too.
    let approved = |csr: Option<&CertificateSigningRequest>| csr.is_some_and(|csr| !conditions(csr).is_empty());
    let csr = tokio::time::timeout(Duration::from_secs(30), await_condition(admin.clone(), &early, approved))
        .await??
        .unwrap();
    assert_eq!(conditions(&csr)[0].0, "Approved");

    shutdown.cancel();
    running.await?;
    Ok(())
}

#[tokio::test]
async fn first_certificates_are_signed_and_returned_again() -> Result<()> {
    let control_plane = shared().await?;
    let operator = operator(control_plane).await?;
    let claim = claim("first-1");
    let hour = Duration::from_hours(1);
    let sign = |kind, pem: String, lifetime| {
        let (operator, claim) = (operator.clone(), claim.clone());
        async move { request_and_sign(operator, &claim, kind, &pem, lifetime, &Issuing::default()).await }
    };
    for (kind, pem) in [(Kind::KubeletClient, node("first-1").pem()), (Kind::WicdClient, wicd_node("first-1").pem())] {
        let certificate = sign(kind, pem.clone(), hour).await?;
        assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(sign(kind, pem.clone(), hour).await?, certificate, "asked again");
        let other = sign(kind, pem, hour * 2).await;
        assert!(matches!(other, Err(CsrError::NameTaken { .. })), "{other:?}");
    }
    // Requests that would be denied are not posted: a client without the right to post gets the same answer.
    let stranger = control_plane.client_as("stranger", &[]).await?;
    for (kind, forged, reason) in [
        (Kind::KubeletClient, node("csr-1"), "RequestDenied"),
        (Kind::WicdClient, wicd_node("csr-1"), "UnknownHost"),
        (Kind::KubeletClient, Forged::new("system:node:first-1", &["system:masters"]), "RequestDenied"),
        (Kind::KubeletServing, node("first-1").names(&[Name::Dns("first-1")]), "RequestDenied"),
    ] {
        let issuing = Issuing::default();
        let error = request_and_sign(stranger.clone(), &claim, kind, &forged.pem(), hour, &issuing).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
    }
    Ok(())
}
