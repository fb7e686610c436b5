//! Test cases for certificate requests: valid ones, invalid ones, and those that the operator ignores.

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
        CertificateSigningRequestStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::ObjectMeta;
use proptest::prelude::*;

#[path = "denied_tests.rs"]
mod denied;

use super::{
    Claim, Kind, Outstanding, Verdict,
    forge::{
        BASIC_CONSTRAINTS, BMP, CN, EXTENDED_KEY_USAGE, Forged, KEY_USAGE, NAME_CONSTRAINTS, Name, O, OU, SAN, UTF8,
        armour, attribute, der,
    },
    request::Request,
    verdict,
};

const OPERATOR: &str = "system:serviceaccount:windows:windows-node-pools";
const LEGACY_DAEMON: &str = "system:serviceaccount:windows:windows-instance-config-daemon";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const NODES: &[&str] = &["system:nodes", "system:authenticated"];
const WICDS: &[&str] = &["system:wicd-nodes", "system:authenticated"];
const BOOTSTRAP: &[&str] = &["system:bootstrappers", "system:authenticated"];

/// Returns the claim of a test host. `win-new` and `win-unproven` have not joined. `win-unproven`, `wmco-1` and `wmco-2` are not proven. No host has
/// the name `win-1x`.
fn claims(node: &str) -> Option<Claim> {
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let (addresses, joined, proven) = match node {
        "win-1" => (vec![ip("10.0.0.1"), ip("fd00::1")], true, true),
        "win-2" => (vec![ip("10.0.0.2")], true, true),
        // Adopted from the legacy operator and not changed yet.
        "win-old" => (vec![ip("10.0.0.4")], true, true),
        // Being removed.
        "win-gone" => (vec![ip("10.0.0.5")], true, true),
        "win-new" => (vec![ip("10.0.0.3")], false, true),
        "win-unproven" => (vec![], false, false),
        // Nodes of WMCO: the first has no instance, and the second is not proven.
        "wmco-1" | "wmco-2" => {
            return Some(Claim {
                node_name: node.to_owned(),
                addresses: vec![ip("10.0.1.1")],
                dns_names: vec![node.to_owned()],
                joined: true,
                renews: true,
                unclaimed: node == "wmco-1",
                ..Claim::default()
            });
        }
        _ => return None,
    };
    let says = node == "win-1";
    Some(Claim {
        node_name: node.to_owned(),
        addresses,
        dns_names: vec![node.to_owned(), format!("{node}.corp.example")],
        reported_addresses: says.then(|| ip("172.16.0.1")).into_iter().collect(),
        reported_names: says.then(|| "ip-172-16-0-1.internal".to_owned()).into_iter().collect(),
        legacy_daemon: (node == "win-old").then(|| LEGACY_DAEMON.to_owned()),
        joined,
        proven,
        ended: node == "win-gone",
        ..Claim::default()
    })
}

fn csr(
    user: &str,
    groups: &[&str],
    signer: &str,
    usages: &[&str],
    pem: impl Into<Vec<u8>>,
) -> CertificateSigningRequest {
    let strings = |texts: &[&str]| Some(texts.iter().map(|s| (*s).to_owned()).collect());
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some("csr-1".into()), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into()),
            signer_name: signer.into(),
            usages: strings(usages),
            username: Some(user.into()),
            groups: strings(groups),
            expiration_seconds: Some(3600),
            ..Default::default()
        },
        status: None,
    }
}

fn node_client(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, KUBELET_CLIENT, &["digital signature", "client auth"], pem)
}

/// Returns the request with which the kubelet of win-1 renews its client certificate.
fn renewal(pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    node_client(KUBELET_USER, NODES, pem)
}

fn serving(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, SERVING, &["digital signature", "server auth"], pem)
}

fn wicd(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, CLIENT, &["digital signature", "client auth", "key encipherment"], pem)
}

/// Returns a request for a client certificate, to the signer for clients of any kind.
fn client_of(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, CLIENT, &["digital signature", "client auth"], pem)
}

fn node(name: &str) -> Forged {
    Forged::new(&format!("system:node:{name}"), &["system:nodes"])
}

fn wicd_node(name: &str) -> Forged {
    Forged::new(&format!("system:wicd-node:{name}"), &["system:wicd-nodes"])
}

fn read(csr: &CertificateSigningRequest) -> Request {
    Request::read(&csr.spec.request.0)
}

fn judge(csr: &CertificateSigningRequest) -> Verdict {
    verdict(csr, &read(csr), &claims, &Outstanding::default(), OPERATOR)
}

/// Parts of denial messages, each with the rule that denied. The first match counts.
const RULES: &[(&str, &str)] = &[
    ("no pool has a host for", "UnknownHost"),
    ("is being removed", "HostLeaves"),
    ("requester ", "WrongRequester"),
    ("the organisations ", "WrongOrganisation"),
    ("subject alternative name", "WrongNames"),
    ("may not name", "WrongNames"),
    ("the subject must", "WrongSubject"),
    ("common name ", "WrongSubject"),
    ("has a subject ", "WrongSubject"),
    ("has the subject attribute", "WrongSubject"),
    ("does not issue certificates", "WrongSigner"),
    ("usages must be", "WrongUsages"),
    ("usage extension", "WrongUsages"),
    ("expirationSeconds", "LifetimeTooLong"),
    ("is not proven to belong", "ForeignName"),
    ("must have a key", "KeyNotAllowed"),
    ("is not signed by its own key", "BadSignature"),
    ("has the attribute", "UnexpectedAttribute"),
    ("more than one list of extensions", "UnexpectedAttribute"),
    ("has the extension", "UnexpectedExtension"),
    ("requests ", "UnexpectedExtension"),
    (" bytes after the request", "BadEncoding"),
    (" bytes", "TooLarge"),
    ("cannot be parsed", "BadEncoding"),
    ("PEM block", "BadEncoding"),
    ("DER", "BadEncoding"),
    ("PKCS #10", "BadEncoding"),
];

/// Returns the name of a verdict, or for a denial the rule that denied.
fn reason(verdict: &Verdict) -> String {
    match verdict {
        Verdict::NotOurs => "NotOurs".into(),
        Verdict::Approve(kind) => format!("Approve {}", kind.as_str()),
        Verdict::Deny { message, .. } => RULES
            .iter()
            .find(|(part, _)| message.contains(part))
            .map_or_else(|| message.clone(), |(_, rule)| (*rule).into()),
        Verdict::Wait { .. } => "Wait".into(),
        Verdict::Queue { behind } => format!("Queue behind {behind}"),
    }
}

const KUBELET_USER: &str = "system:node:win-1";
const WICD_USER: &str = "system:wicd-node:win-1";
const BOOTSTRAP_USER: &str = "system:bootstrap:abcdef";
const OPENSHIFT_BOOTSTRAP_USER: &str = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper";

#[test]
fn valid_requests_are_approved() {
    use Kind::{KubeletClient, KubeletServing, WicdClient};
    let names = || node("win-1").names(&[Name::Dns("win-1"), Name::Ip("10.0.0.1"), Name::Ip("fd00::1")]);
    let eku_client = der(0x30, &[&der(6, &[&[0x2b, 6, 1, 5, 5, 7, 3, 2]])]);
    let key_usage = der(3, &[&[5, 0b1010_0000]]);
    let crlf = node("win-1").pem().replace('\n', "\r\n");
    let long_usages = ["client auth", "key encipherment", "digital signature"];
    let mut no_expiry = renewal(node("win-1"));
    no_expiry.spec.expiration_seconds = None;
    let mut a_week = wicd(WICD_USER, WICDS, wicd_node("win-1"));
    a_week.spec.expiration_seconds = Some(604_800);
    let table = [
        ("first kubelet certificate, by the operator", node_client(OPERATOR, &[], node("win-new")), KubeletClient),
        (
            "another kubelet certificate for a host that has joined, by the operator",
            node_client(OPERATOR, &[], node("win-1")),
            KubeletClient,
        ),
        ("kubelet renews", renewal(node("win-1")), KubeletClient),
        (
            "usages with key encipherment",
            csr(KUBELET_USER, NODES, KUBELET_CLIENT, &long_usages, node("win-1")),
            KubeletClient,
        ),
        ("no lifetime, so that the signer's own applies", no_expiry, KubeletClient),
        ("P-384", renewal(node("win-1").key(&rcgen::PKCS_ECDSA_P384_SHA384)), KubeletClient),
        ("RSA 2048", renewal(include_str!("fixtures/rsa-2048.pem")), KubeletClient),
        ("made by openssl", renewal(include_str!("fixtures/p256.pem")), KubeletClient),
        ("lines that end as on Windows", renewal(crlf), KubeletClient),
        (
            "extensions that agree",
            renewal(node("win-1").extension(EXTENDED_KEY_USAGE, &eku_client).extension(KEY_USAGE, &key_usage)),
            KubeletClient,
        ),
        (
            "the legacy daemon whose certificate has ended",
            wicd(LEGACY_DAEMON, &["system:serviceaccounts"], wicd_node("win-old")),
            WicdClient,
        ),
        ("serving certificate", serving(KUBELET_USER, NODES, names()), KubeletServing),
        (
            "serving certificate with a proven DNS name",
            serving(KUBELET_USER, NODES, node("win-1").names(&[Name::Dns("win-1.corp.example")])),
            KubeletServing,
        ),
        ("first wicd certificate, by the operator", wicd(OPERATOR, &[], wicd_node("win-new")), WicdClient),
        ("wicd renews", wicd(WICD_USER, WICDS, wicd_node("win-1")), WicdClient),
        ("wicd certificate for a week", a_week, WicdClient),
    ];
    for (what, csr, kind) in table {
        assert_eq!(judge(&csr), Verdict::Approve(kind), "{what}");
    }
}

#[test]
fn requests_of_other_clients_are_ignored() {
    let decided = |type_: &str| {
        let mut csr = renewal(node("win-1"));
        let condition =
            CertificateSigningRequestCondition { type_: type_.into(), status: "True".into(), ..Default::default() };
        csr.status = Some(CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate: None });
        csr
    };
    let linux = "system:node:linux-1";
    let table = [
        ("a Linux node renews", node_client(linux, NODES, node("linux-1"))),
        ("a Linux node's serving", serving(linux, NODES, node("linux-1").names(&[Name::Ip("10.9.9.9")]))),
        ("a Linux node's wrong request", node_client(linux, NODES, Forged::new(linux, &["system:masters"]))),
        (
            "a machine bootstraps under a name that a list has",
            node_client(BOOTSTRAP_USER, BOOTSTRAP, node("win-unproven")),
        ),
        (
            "a machine bootstraps on OpenShift under a name that a list has",
            node_client(OPENSHIFT_BOOTSTRAP_USER, &[], node("win-unproven")),
        ),
        ("a Linux node bootstraps", node_client(BOOTSTRAP_USER, BOOTSTRAP, node("linux-2"))),
        ("a Linux node whose name begins like ours", node_client("system:node:win-1x", NODES, node("win-1x"))),
        ("a user's client certificate", client_of("alice", &[], Forged::new("alice", &["dev"]))),
        (
            "a user's certificate, by an operator who is an administrator",
            client_of(OPERATOR, &[], Forged::new("alice", &["dev"])),
        ),
        // A network plug-in obtains its certificate with kubelet's identity, and has its own approver.
        (
            "a plug-in on our host",
            client_of(KUBELET_USER, NODES, Forged::new("system:ovn-node:win-1", &["system:ovn-nodes"])),
        ),
        (
            "a user's request with a name similar to wicd's",
            client_of("alice", &[], Forged::new("system:wicd-nodex:win-1", &["x"])),
        ),
        ("a user's request that cannot be parsed", node_client("alice", &[], "rubbish")),
        (
            "a user's request that is too large",
            node_client("alice", &[], node("win-1").pem() + &"\n".repeat(16 * 1024)),
        ),
        ("approved", decided("Approved")),
        ("denied", decided("Denied")),
        ("failed", decided("Failed")),
    ];
    for (what, csr) in table {
        assert_eq!(judge(&csr), Verdict::NotOurs, "{what}");
    }
}

#[test]
fn a_valid_request_of_an_unproven_host_waits() {
    let right = node_client(OPERATOR, &[], node("win-unproven"));
    let names = node("win-unproven").names(&[Name::Ip("10.0.0.9")]);
    let right_but_for_proof = serving("system:node:win-unproven", NODES, names);
    let wrong = node_client("alice", &[], node("win-unproven"));
    assert_eq!(reason(&judge(&right)), "Wait");
    assert_eq!(reason(&judge(&right_but_for_proof)), "Wait");
    assert_eq!(reason(&judge(&wrong)), "WrongRequester");
}

#[test]
fn a_wmco_node_renews_its_own_certificates_only() {
    let with = |kind: &dyn Fn(&str, &str) -> CertificateSigningRequest, user: &str| {
        ["wmco-1", "wmco-2"].map(|node| reason(&judge(&kind(&user.replace("NODE", node), node))))
    };
    let client = |user: &str, name: &str| node_client(user, NODES, node(name));
    let daemon = |user: &str, name: &str| wicd(user, WICDS, wicd_node(name));
    let served =
        |names: &'static [Name<'static>]| move |user: &str, name: &str| serving(user, NODES, node(name).names(names));
    let own_name =
        |user: &str, name: &str| serving(user, NODES, node(name).names(&[Name::Dns(name), Name::Ip("10.0.1.1")]));
    let no_group = |user: &str, name: &str| node_client(user, &["system:authenticated"], node(name));
    let of_another = |user: &str, _: &str| node_client(user, NODES, node("win-2"));
    let of_a_third = |user: &str, _: &str| node_client(user, NODES, node("linux-1"));
    let to_master = |user: &str, name: &str| {
        node_client(user, NODES, Forged::new(&format!("system:node:{name}"), &["system:masters"]))
    };
    let bootstrap = |user: &str, name: &str| node_client(user, BOOTSTRAP, node(name));
    let (own, own_daemon) = ("system:node:NODE", "system:wicd-node:NODE");
    for (about, kind, user, unclaimed, unproven) in [
        (
            "its client certificate",
            &client as &dyn Fn(&str, &str) -> _,
            own,
            "Approve kubelet-client",
            "Approve kubelet-client",
        ),
        ("its daemon's certificate", &daemon, own_daemon, "Approve wicd-client", "Approve wicd-client"),
        ("its serving certificate", &own_name, own, "Approve kubelet-serving", "Approve kubelet-serving"),
        (
            "a serving certificate with an address of another host",
            &served(&[Name::Ip("10.0.0.1")]),
            own,
            "Wait",
            "Wait",
        ),
        ("a serving certificate with a name of another host", &served(&[Name::Dns("win-1")]), own, "Wait", "Wait"),
        ("a serving certificate without names", &served(&[]), own, "Wait", "WrongNames"),
        ("a requester without its group", &no_group, own, "Wait", "WrongRequester"),
        ("a certificate with more rights than the Node has", &to_master, own, "Wait", "WrongOrganisation"),
        ("the certificate of a host of ours", &of_another, own, "Wait", "WrongRequester"),
        ("the certificate of another node", &of_a_third, own, "Wait", "UnknownHost"),
        ("another node asks", &client, "system:node:win-2", "NotOurs", "WrongRequester"),
        ("a user asks", &client, "alice", "NotOurs", "WrongRequester"),
        ("a bootstrap token asks", &bootstrap, BOOTSTRAP_USER, "NotOurs", "WrongRequester"),
        ("a user asks for its daemon's certificate", &daemon, "alice", "NotOurs", "WrongRequester"),
        ("WMCO's account asks for its daemon's certificate", &daemon, LEGACY_DAEMON, "NotOurs", "WrongRequester"),
        ("the operator asks", &client, OPERATOR, "NotOurs", "Wait"),
    ] {
        assert_eq!(with(kind, user), [unclaimed, unproven], "{about}");
    }
}

/// Checks that the operator leaves the decision to a user or another approver, who may know the address: a denial is final.
#[test]
fn a_request_with_an_unproven_address_waits() {
    for names in [
        &[Name::Ip("172.16.0.1")][..],
        &[Name::Dns("win-1"), Name::Ip("10.0.0.1"), Name::Ip("172.16.0.1")],
        &[Name::Dns("ip-172-16-0-1.internal")],
    ] {
        let verdict = judge(&serving(KUBELET_USER, NODES, node("win-1").names(names)));
        let Verdict::Wait { message, node: Some(_) } = verdict else { panic!("{verdict:?}") };
        assert!(message.contains("172") && message.contains("is not proven to belong to node win-1"), "{message}");
    }
}

#[test]
fn the_oldest_request_of_a_host_and_kind_is_decided_first() {
    let at = |name: &str, second: i64, mut csr: CertificateSigningRequest| {
        csr.metadata.name = Some(name.into());
        csr.metadata.creation_timestamp = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
        csr
    };
    let wrong_and_oldest = at("csr-0", 1, node_client("alice", &[], node("win-1")));
    let mut first = at("csr-b", 10, renewal(node("win-1")));
    let second = at("csr-a", 11, renewal(node("win-1")));
    let same_second = at("csr-c", 10, renewal(node("win-1")));
    let other_host = at("csr-d", 12, node_client("system:node:win-2", NODES, node("win-2")));
    let other_kind = at("csr-e", 12, wicd(WICD_USER, WICDS, wicd_node("win-1")));

    let mut outstanding = Outstanding::default();
    for csr in [&second, &wrong_and_oldest, &first, &same_second, &other_host, &other_kind] {
        assert_eq!(outstanding.observe(csr, &read(csr), &claims, OPERATOR), None);
    }
    let judge = |csr: &CertificateSigningRequest, outstanding: &_| {
        reason(&verdict(csr, &read(csr), &claims, outstanding, OPERATOR))
    };
    assert_eq!(judge(&first, &outstanding), "Approve kubelet-client");
    assert_eq!(judge(&second, &outstanding), "Queue behind csr-b");
    assert_eq!(judge(&same_second, &outstanding), "Queue behind csr-b");
    assert_eq!(judge(&other_host, &outstanding), "Approve kubelet-client");
    assert_eq!(judge(&other_kind, &outstanding), "Approve wicd-client");

    // Approved, but not issued: the others continue waiting.
    let condition = CertificateSigningRequestCondition { type_: "Approved".into(), ..Default::default() };
    first.status = Some(CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate: None });
    assert_eq!(outstanding.observe(&first, &read(&first), &claims, OPERATOR), None);
    assert_eq!(judge(&same_second, &outstanding), "Queue behind csr-b");

    first.status.as_mut().unwrap().certificate = Some(ByteString(b"issued".to_vec()));
    assert_eq!(outstanding.observe(&first, &read(&first), &claims, OPERATOR).as_deref(), Some("csr-c"));
    assert_eq!(judge(&same_second, &outstanding), "Approve kubelet-client");
    assert_eq!(judge(&second, &outstanding), "Queue behind csr-c");
    assert_eq!(outstanding.forget("csr-c").as_deref(), Some("csr-a"));
    assert_eq!(judge(&second, &outstanding), "Approve kubelet-client");
}

/// Flips each bit of a valid request. The signature covers most bits, and strict parsing the rest.
#[test]
fn a_changed_bit_is_never_approved() {
    let right = node("win-1").names(&[Name::Dns("win-1"), Name::Ip("10.0.0.1")]).der();
    assert_eq!(judge(&serving(KUBELET_USER, NODES, armour(&right))), Verdict::Approve(Kind::KubeletServing));
    for bit in 0..right.len() * 8 {
        let mut changed = right.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let verdict = judge(&serving(KUBELET_USER, NODES, armour(&changed)));
        assert!(!matches!(verdict, Verdict::Approve(_)), "bit {} of byte {}: {verdict:?}", bit % 8, bit / 8);
    }
}

proptest! {
    #[test]
    fn noise_is_never_approved(noise in proptest::collection::vec(any::<u8>(), 0..600)) {
        for pem in [noise.clone(), armour(&noise).into_bytes()] {
            let ours = reason(&judge(&renewal(pem.clone())));
            prop_assert_eq!(ours, "BadEncoding");
            let foreign = reason(&judge(&node_client("alice", &[], pem)));
            prop_assert_eq!(foreign, "NotOurs");
        }
    }

    #[test]
    fn cut_or_garbled_text_is_never_approved(at in any::<prop::sample::Index>(), text in "[^\\s]{1,4}") {
        let pem = node("win-1").pem();
        let at = at.index(pem.len() - 2);
        for garbled in [pem[..at].to_owned(), format!("{}{text}{}", &pem[..at], &pem[at..])] {
            let verdict = judge(&renewal(garbled));
            prop_assert!(!matches!(verdict, Verdict::Approve(_)), "{verdict:?}");
        }
    }
}
