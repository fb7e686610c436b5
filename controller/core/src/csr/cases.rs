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

/// Returns the claim of a test host. `win-new` and `win-dark` have not joined. `win-dark`, `wmco-1` and `wmco-2` are not proven. No host has the
/// name `win-1x`.
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
        "win-dark" => (vec![], false, false),
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

/// Renewal of a client certificate by the kubelet of win-1.
fn renewal(pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    node_client(W1, NODES, pem)
}

fn serving(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, SERVING, &["digital signature", "server auth"], pem)
}

fn wicd(user: &str, groups: &[&str], pem: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    csr(user, groups, CLIENT, &["digital signature", "client auth", "key encipherment"], pem)
}

/// Request to the signer that also serves other clients than hosts.
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
    ("asks for ", "UnexpectedExtension"),
    (" bytes after the request", "BadEncoding"),
    (" bytes", "TooLarge"),
    ("cannot be parsed", "BadEncoding"),
    ("PEM block", "BadEncoding"),
    ("DER", "BadEncoding"),
    ("PKCS #10", "BadEncoding"),
];

/// Short form of a verdict; for a denial, the rule.
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

const W1: &str = "system:node:win-1";
const D1: &str = "system:wicd-node:win-1";
const TOKEN: &str = "system:bootstrap:abcdef";
const OPENSHIFT: &str = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper";

#[test]
fn right_requests_are_approved() {
    use Kind::{KubeletClient, KubeletServing, WicdClient};
    let names = || node("win-1").names(&[Name::Dns("win-1"), Name::Ip("10.0.0.1"), Name::Ip("fd00::1")]);
    let eku_client = der(0x30, &[&der(6, &[&[0x2b, 6, 1, 5, 5, 7, 3, 2]])]);
    let key_usage = der(3, &[&[5, 0b1010_0000]]);
    let crlf = node("win-1").pem().replace('\n', "\r\n");
    let long_usages = ["client auth", "key encipherment", "digital signature"];
    let mut no_expiry = renewal(node("win-1"));
    no_expiry.spec.expiration_seconds = None;
    let mut a_week = wicd(D1, WICDS, wicd_node("win-1"));
    a_week.spec.expiration_seconds = Some(604_800);
    let table = [
        ("first kubelet certificate, by the operator", node_client(OPERATOR, &[], node("win-new")), KubeletClient),
        ("again for a host that has joined", node_client(OPERATOR, &[], node("win-1")), KubeletClient),
        ("kubelet renews", renewal(node("win-1")), KubeletClient),
        ("with key encipherment", csr(W1, NODES, KUBELET_CLIENT, &long_usages, node("win-1")), KubeletClient),
        ("signer's own lifetime", no_expiry, KubeletClient),
        ("P-384", renewal(node("win-1").key(&rcgen::PKCS_ECDSA_P384_SHA384)), KubeletClient),
        ("RSA 2048", renewal(include_str!("fixtures/rsa-2048.pem")), KubeletClient),
        ("made by openssl", renewal(include_str!("fixtures/p256.pem")), KubeletClient),
        ("lines end as on Windows", renewal(crlf), KubeletClient),
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
        ("serving", serving(W1, NODES, names()), KubeletServing),
        (
            "serving, host name as proven",
            serving(W1, NODES, node("win-1").names(&[Name::Dns("win-1.corp.example")])),
            KubeletServing,
        ),
        ("first wicd certificate, by the operator", wicd(OPERATOR, &[], wicd_node("win-new")), WicdClient),
        ("wicd renews", wicd(D1, WICDS, wicd_node("win-1")), WicdClient),
        ("wicd for a week", a_week, WicdClient),
    ];
    for (what, csr, kind) in table {
        assert_eq!(judge(&csr), Verdict::Approve(kind), "{what}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn wrong_requests_of_ours_are_denied() {
    let one = || node("win-1");
    let with = |change: &dyn Fn(&mut CertificateSigningRequest), mut csr: CertificateSigningRequest| {
        change(&mut csr);
        csr
    };
    let usages = |usages: &[&str]| csr(W1, NODES, KUBELET_CLIENT, usages, node("win-1"));
    let served = |names: &[Name<'_>]| serving(W1, NODES, node("win-1").names(names));
    let mut spoilt = one().der();
    *spoilt.last_mut().unwrap() ^= 1;
    let trailing = [one().der(), vec![0]].concat();
    let eku = |last: u8| der(0x30, &[&der(6, &[&[0x2b, 6, 1, 5, 5, 7, 3, last]])]);
    let ca = der(0x30, &[&der(1, &[&[0xff]])]);
    let not_ca = der(0x30, &[]);
    let foreign_san = der(0x30, &[&der(0x82, &[b"win-2"])]);
    let both_in_one = Forged {
        subject: vec![vec![attribute(O, UTF8, b"system:nodes"), attribute(CN, UTF8, W1.as_bytes())]],
        ..one()
    };
    let wide: Vec<u8> = W1.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let table = vec![
        // The requester.
        ("another node renews", node_client("system:node:win-2", NODES, one()), "WrongRequester"),
        ("a Linux node renews", node_client("system:node:linux-1", NODES, one()), "WrongRequester"),
        ("host asks for another host", renewal(node("win-2")), "WrongRequester"),
        ("host asks for a Linux node", renewal(node("linux-1")), "UnknownHost"),
        ("a user", node_client("alice", &["system:authenticated"], one()), "WrongRequester"),
        ("no user name", node_client("", &[], one()), "WrongRequester"),
        ("wicd asks for kubelet's", node_client(D1, WICDS, one()), "WrongRequester"),
        (
            "another service account",
            node_client("system:serviceaccount:default:windows-node-pools", &[], one()),
            "WrongRequester",
        ),
        ("right name, wrong groups", node_client(W1, &["system:authenticated"], one()), "WrongRequester"),
        ("bootstrap token after joining", node_client(TOKEN, BOOTSTRAP, one()), "WrongRequester"),
        ("OpenShift's bootstrapper after joining", node_client(OPENSHIFT, &[], one()), "WrongRequester"),
        ("bootstrap token while the host joins", node_client(TOKEN, BOOTSTRAP, node("win-new")), "WrongRequester"),
        (
            "OpenShift's bootstrapper while the host joins",
            node_client(OPENSHIFT, &[], node("win-new")),
            "WrongRequester",
        ),
        ("the legacy daemon for a host of ours", wicd(LEGACY_DAEMON, &[], wicd_node("win-1")), "WrongRequester"),
        ("the legacy daemon asks for kubelet's", node_client(LEGACY_DAEMON, &[], node("win-old")), "WrongRequester"),
        (
            "a daemon of that name in another namespace",
            wicd("system:serviceaccount:default:windows-instance-config-daemon", &[], wicd_node("win-old")),
            "WrongRequester",
        ),
        (
            "the legacy daemon for longer than it asks for",
            with(&|c| c.spec.expiration_seconds = Some(3601), wicd(LEGACY_DAEMON, &[], wicd_node("win-old"))),
            "LifetimeTooLong",
        ),
        (
            "kubelet of a host that is being cleaned",
            node_client("system:node:win-gone", NODES, node("win-gone")),
            "HostLeaves",
        ),
        (
            "wicd of a host that is being cleaned",
            wicd("system:wicd-node:win-gone", WICDS, wicd_node("win-gone")),
            "HostLeaves",
        ),
        ("token user without the group", node_client(TOKEN, &[], node("win-new")), "WrongRequester"),
        (
            "bootstrap token asks for serving",
            serving(TOKEN, BOOTSTRAP, node("win-new").names(&[Name::Dns("win-new")])),
            "WrongRequester",
        ),
        ("bootstrap token asks for wicd", wicd(TOKEN, BOOTSTRAP, wicd_node("win-new")), "WrongRequester"),
        ("operator asks for serving", serving(OPERATOR, &[], one().names(&[Name::Dns("win-1")])), "WrongRequester"),
        (
            "another node asks for serving",
            serving("system:node:win-2", NODES, one().names(&[Name::Dns("win-1")])),
            "WrongRequester",
        ),
        (
            "serving without the node group",
            serving(W1, &["system:authenticated"], one().names(&[Name::Dns("win-1")])),
            "WrongRequester",
        ),
        ("another wicd renews", wicd("system:wicd-node:win-2", WICDS, wicd_node("win-1")), "WrongRequester"),
        ("wicd without its group", wicd(D1, &["system:authenticated"], wicd_node("win-1")), "WrongRequester"),
        ("kubelet asks for wicd's", wicd(W1, NODES, wicd_node("win-1")), "WrongRequester"),
        ("wicd of a host that no pool has", wicd("system:wicd-node:gone", WICDS, wicd_node("gone")), "UnknownHost"),
        ("operator for an unknown host", wicd(OPERATOR, &[], wicd_node("gone")), "UnknownHost"),
        // The subject.
        ("longer name", renewal(node("win-1x")), "UnknownHost"),
        ("shorter name", renewal(node("win-")), "UnknownHost"),
        ("no name", renewal(node("")), "WrongSubject"),
        ("upper case name", renewal(node("WIN-1")), "UnknownHost"),
        ("upper case prefix", renewal(Forged::new("SYSTEM:NODE:win-1", &["system:nodes"])), "WrongSubject"),
        ("upper case, by a stranger", node_client("alice", &[], node("WIN-1")), "UnknownHost"),
        ("NUL behind the name", node_client("alice", &[], node("win-1\0.evil")), "UnknownHost"),
        ("space behind the name", node_client("alice", &[], node("win-1 ")), "UnknownHost"),
        (
            "prefix without a colon",
            wicd(D1, WICDS, Forged::new("system:wicd-nodex:win-1", &["system:wicd-nodes"])),
            "WrongSubject",
        ),
        ("prefix twice", renewal(node("system:node:win-1")), "UnknownHost"),
        ("two common names", renewal(one().also(CN, UTF8, b"system:node:win-2")), "WrongSubject"),
        (
            "two common names, ours last",
            node_client("alice", &[], Forged::new("alice", &["system:nodes"]).also(CN, UTF8, W1.as_bytes())),
            "WrongSubject",
        ),
        (
            "no common name",
            renewal(Forged { subject: vec![vec![attribute(O, UTF8, b"system:nodes")]], ..one() }),
            "WrongSubject",
        ),
        ("empty subject", renewal(Forged { subject: vec![], ..one() }), "WrongSubject"),
        ("extra organisation", renewal(Forged::new(W1, &["system:nodes", "system:masters"])), "WrongOrganisation"),
        ("system:masters alone", renewal(Forged::new(W1, &["system:masters"])), "WrongOrganisation"),
        (
            "system:masters for wicd",
            wicd(D1, WICDS, Forged::new(D1, &["system:wicd-nodes", "system:masters"])),
            "WrongOrganisation",
        ),
        (
            "the same organisation twice",
            renewal(Forged::new(W1, &["system:nodes", "system:nodes"])),
            "WrongOrganisation",
        ),
        ("no organisation", renewal(Forged::new(W1, &[])), "WrongOrganisation"),
        ("upper case organisation", renewal(Forged::new(W1, &["System:Nodes"])), "WrongOrganisation"),
        ("wicd's organisation for kubelet", renewal(Forged::new(W1, &["system:wicd-nodes"])), "WrongOrganisation"),
        (
            "wicd's organisation for a stranger",
            client_of("alice", &[], Forged::new("alice", &["system:wicd-nodes"])),
            "WrongSubject",
        ),
        (
            "many other parts in the subject of a stranger",
            client_of(
                "alice",
                &[],
                (0..100).fold(Forged::new("alice", &["system:wicd-nodes"]), |f, _| f.also(OU, UTF8, b"a")),
            ),
            "WrongSubject",
        ),
        ("many organisations", renewal(Forged::new(W1, &["system:nodes"; 101])), "WrongSubject"),
        ("organisational unit", renewal(one().also(OU, UTF8, b"system:masters")), "WrongSubject"),
        ("both in one part", renewal(both_in_one), "WrongSubject"),
        (
            "wide characters",
            renewal(Forged {
                subject: vec![vec![attribute(O, UTF8, b"system:nodes")], vec![attribute(CN, BMP, &wide)]],
                ..one()
            }),
            "WrongSubject",
        ),
        // Signer, usages, lifetime.
        (
            "other signer",
            csr(W1, NODES, "kubernetes.io/legacy-unknown", &["digital signature", "client auth"], one()),
            "WrongSigner",
        ),
        (
            "signer of a third party",
            csr(W1, NODES, "example.com/signer", &["digital signature", "client auth"], one()),
            "WrongSigner",
        ),
        ("kubelet's name for wicd's signer", wicd(W1, NODES, one()), "WrongSubject"),
        ("wicd's name for kubelet's signer", node_client(D1, WICDS, wicd_node("win-1")), "WrongSubject"),
        (
            "client's usages for serving",
            csr(W1, NODES, SERVING, &["digital signature", "client auth"], one().names(&[Name::Dns("win-1")])),
            "WrongUsages",
        ),
        ("server auth for a client", usages(&["digital signature", "server auth"]), "WrongUsages"),
        ("both auths", usages(&["digital signature", "client auth", "server auth"]), "WrongUsages"),
        ("no signature", usages(&["client auth"]), "WrongUsages"),
        ("no purpose", usages(&["digital signature", "key encipherment"]), "WrongUsages"),
        ("any", usages(&["digital signature", "client auth", "any"]), "WrongUsages"),
        ("cert sign", usages(&["digital signature", "client auth", "cert sign"]), "WrongUsages"),
        ("no usages", usages(&[]), "WrongUsages"),
        ("extended usage differs", renewal(one().extension(EXTENDED_KEY_USAGE, &eku(1))), "WrongUsages"),
        (
            "key usage to sign certificates",
            renewal(one().extension(KEY_USAGE, &der(3, &[&[2, 0b1000_0100]]))),
            "WrongUsages",
        ),
        (
            "wicd for longer than a week",
            with(&|c| c.spec.expiration_seconds = Some(604_801), wicd(D1, WICDS, wicd_node("win-1"))),
            "LifetimeTooLong",
        ),
        (
            "wicd for as long as the signer likes",
            with(&|c| c.spec.expiration_seconds = None, wicd(D1, WICDS, wicd_node("win-1"))),
            "LifetimeTooLong",
        ),
        // Names.
        ("client with a DNS name", renewal(one().names(&[Name::Dns("win-1")])), "WrongNames"),
        ("client with an empty list of names", renewal(one().names(&[])), "WrongNames"),
        ("wicd with an address", wicd(D1, WICDS, wicd_node("win-1").names(&[Name::Ip("10.0.0.1")])), "WrongNames"),
        ("serving without names", serving(W1, NODES, one()), "WrongNames"),
        ("serving with an empty list of names", served(&[]), "WrongNames"),
        ("another host's name", served(&[Name::Dns("win-1"), Name::Dns("win-2")]), "ForeignName"),
        ("another host's address", served(&[Name::Ip("10.0.0.1"), Name::Ip("10.0.0.2")]), "ForeignName"),
        ("an address of a Service", served(&[Name::Ip("10.0.0.1"), Name::Ip("10.96.0.1")]), "ForeignName"),
        (
            "one name that cannot be judged and a wrong one",
            served(&[Name::Ip("172.16.0.1"), Name::Dns("kubernetes.default.svc")]),
            "ForeignName",
        ),
        ("the API server's name", served(&[Name::Dns("kubernetes.default.svc")]), "ForeignName"),
        ("wildcard", served(&[Name::Dns("*.corp.example")]), "ForeignName"),
        ("upper case DNS name", served(&[Name::Dns("WIN-1")]), "ForeignName"),
        ("DNS name with a dot behind", served(&[Name::Dns("win-1.")]), "ForeignName"),
        ("empty DNS name", served(&[Name::Dns("")]), "ForeignName"),
        ("DNS name that is the address", served(&[Name::Dns("10.0.0.1")]), "ForeignName"),
        ("suffix of a proven name", served(&[Name::Dns("corp.example")]), "ForeignName"),
        ("IPv4 in IPv6", served(&[Name::Ip("::ffff:10.0.0.1")]), "ForeignName"),
        ("neighbour in IPv6", served(&[Name::Ip("fd00::2")]), "ForeignName"),
        ("loopback", served(&[Name::Ip("127.0.0.1")]), "ForeignName"),
        ("address with a mask", served(&[Name::RawIp(&[10, 0, 0, 1, 255, 255, 255, 255])]), "WrongNames"),
        ("e-mail", served(&[Name::Dns("win-1"), Name::Email("admin@corp.example")]), "WrongNames"),
        ("URI", served(&[Name::Dns("win-1"), Name::Uri("spiffe://corp.example/admin")]), "WrongNames"),
        // Extensions and attributes.
        ("certificate authority", renewal(one().extension(BASIC_CONSTRAINTS, &ca)), "UnexpectedExtension"),
        ("basic constraints at all", renewal(one().extension(BASIC_CONSTRAINTS, &not_ca)), "UnexpectedExtension"),
        ("name constraints", renewal(one().extension(NAME_CONSTRAINTS, &not_ca)), "UnexpectedExtension"),
        ("unknown extension", renewal(one().extension(&[0x2a, 3, 4], &not_ca)), "UnexpectedExtension"),
        (
            "names twice",
            serving(W1, NODES, one().names(&[Name::Dns("win-2")]).names(&[Name::Dns("win-1")])),
            "UnexpectedExtension",
        ),
        ("extension that is no DER", serving(W1, NODES, one().extension(SAN, b"\x30\x7f")), "UnexpectedExtension"),
        ("challenge password", renewal(one().challenge_password()), "UnexpectedAttribute"),
        (
            "two lists of extensions",
            serving(W1, NODES, one().names(&[Name::Dns("win-1")]).second_list(SAN, &foreign_san)),
            "UnexpectedAttribute",
        ),
        (
            "two values of one list",
            serving(W1, NODES, one().names(&[Name::Dns("win-1")]).second_value(SAN, &foreign_san)),
            "UnexpectedAttribute",
        ),
        // Key and signature.
        ("RSA 1024", renewal(include_str!("fixtures/rsa-1024.pem")), "KeyNotAllowed"),
        ("P-224", renewal(include_str!("fixtures/p224.pem")), "KeyNotAllowed"),
        ("P-521", renewal(include_str!("fixtures/p521.pem")), "KeyNotAllowed"),
        ("Ed25519", renewal(one().key(&rcgen::PKCS_ED25519)), "KeyNotAllowed"),
        ("SHA-1", renewal(include_str!("fixtures/rsa-2048-sha1.pem")), "BadSignature"),
        ("bad signature", renewal(armour(&spoilt)), "BadSignature"),
        // The encoding.
        ("empty", renewal(""), "BadEncoding"),
        ("no PEM", renewal(one().der()), "BadEncoding"),
        ("another type", renewal(one().pem().replace("CERTIFICATE REQUEST", "CERTIFICATE")), "BadEncoding"),
        ("text before", renewal(format!("hello\n{}", one().pem())), "BadEncoding"),
        ("text after", renewal(format!("{}hello", one().pem())), "BadEncoding"),
        ("second block", renewal(one().pem() + &node("win-2").pem()), "BadEncoding"),
        ("second block, by a stranger", node_client("alice", &[], one().pem() + &one().pem()), "BadEncoding"),
        ("headers", renewal(one().pem().replacen("-----\n", "-----\nA: b\n\n", 1)), "BadEncoding"),
        ("bytes after the request", renewal(armour(&trailing)), "BadEncoding"),
        ("a fourth part", renewal(armour(&with_part(&one().der(), &[4, 0]))), "BadEncoding"),
        ("NULL behind the signature", renewal(armour(&with_part(&one().der(), &[5, 0]))), "BadEncoding"),
        ("a fifth part of what is signed", renewal(one().part(&[5, 0])), "BadEncoding"),
        ("a compressed point", renewal(one().compressed()), "KeyNotAllowed"),
        ("no DER", renewal(armour(b"hello")), "BadEncoding"),
        ("many names", serving(W1, NODES, node("win-1").names(&[const { Name::Dns("win-1") }; 101])), "WrongNames"),
        ("huge", renewal(one().pem() + &"\n".repeat(16 * 1024)), "TooLarge"),
    ];
    assert!(table.len() >= 25);
    let mut wrong = vec![];
    for (what, csr, expected) in &table {
        let verdict = judge(csr);
        if reason(&verdict) != *expected {
            wrong.push(format!("{what}: wanted {expected}, got {verdict:?}"));
        }
        if let Verdict::Deny { message, .. } = &verdict {
            assert!(!message.is_empty() && !message.contains(char::is_control) && message.len() < 300, "{message}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn requests_of_others_are_left_alone() {
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
        ("a machine bootstraps under a name that a list has", node_client(TOKEN, BOOTSTRAP, node("win-dark"))),
        ("the same on OpenShift", node_client(OPENSHIFT, &[], node("win-dark"))),
        ("a Linux node bootstraps", node_client(TOKEN, BOOTSTRAP, node("linux-2"))),
        ("a Linux node whose name begins like ours", node_client("system:node:win-1x", NODES, node("win-1x"))),
        ("a user's client certificate", client_of("alice", &[], Forged::new("alice", &["dev"]))),
        (
            "a user's certificate, by an operator who is an administrator",
            client_of(OPERATOR, &[], Forged::new("alice", &["dev"])),
        ),
        // A network plug-in obtains its certificate with kubelet's identity, and has its own approver.
        ("a plug-in on our host", client_of(W1, NODES, Forged::new("system:ovn-node:win-1", &["system:ovn-nodes"]))),
        ("a stranger's look-alike of wicd", client_of("alice", &[], Forged::new("system:wicd-nodex:win-1", &["x"]))),
        ("a stranger's rubbish", node_client("alice", &[], "rubbish")),
        ("a stranger's huge request", node_client("alice", &[], node("win-1").pem() + &"\n".repeat(16 * 1024))),
        ("approved", decided("Approved")),
        ("denied", decided("Denied")),
        ("failed", decided("Failed")),
    ];
    for (what, csr) in table {
        assert_eq!(judge(&csr), Verdict::NotOurs, "{what}");
    }
}

#[test]
fn an_unproven_host_waits_if_its_request_is_right() {
    let right = node_client(OPERATOR, &[], node("win-dark"));
    let names = node("win-dark").names(&[Name::Ip("10.0.0.9")]);
    let right_but_for_proof = serving("system:node:win-dark", NODES, names);
    let wrong = node_client("alice", &[], node("win-dark"));
    assert_eq!(reason(&judge(&right)), "Wait");
    assert_eq!(reason(&judge(&right_but_for_proof)), "Wait");
    assert_eq!(reason(&judge(&wrong)), "WrongRequester");
}

#[test]
fn a_node_of_another_operator_renews_what_it_has_and_nothing_of_it_is_denied() {
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
        ("its daemon's", &daemon, own_daemon, "Approve wicd-client", "Approve wicd-client"),
        ("its serving certificate", &own_name, own, "Approve kubelet-serving", "Approve kubelet-serving"),
        ("one with an address of another", &served(&[Name::Ip("10.0.0.1")]), own, "Wait", "Wait"),
        ("one with a name of another", &served(&[Name::Dns("win-1")]), own, "Wait", "Wait"),
        ("one without names", &served(&[]), own, "Wait", "WrongNames"),
        ("without its group", &no_group, own, "Wait", "WrongRequester"),
        ("more rights than it has", &to_master, own, "Wait", "WrongOrganisation"),
        ("the certificate of a host of ours", &of_another, own, "Wait", "WrongRequester"),
        ("that of another node", &of_a_third, own, "Wait", "UnknownHost"),
        ("another node asks", &client, "system:node:win-2", "NotOurs", "WrongRequester"),
        ("a user asks", &client, "alice", "NotOurs", "WrongRequester"),
        ("a bootstrap token asks", &bootstrap, TOKEN, "NotOurs", "WrongRequester"),
        ("a user asks for its daemon's", &daemon, "alice", "NotOurs", "WrongRequester"),
        ("WMCO's account asks for its daemon's", &daemon, LEGACY_DAEMON, "NotOurs", "WrongRequester"),
        ("the operator asks", &client, OPERATOR, "NotOurs", "Wait"),
    ] {
        assert_eq!(with(kind, user), [unclaimed, unproven], "{about}");
    }
}

/// A user or another approver may know that the address is the host's, and a denial is final.
#[test]
fn an_address_that_the_node_has_and_nothing_proves_is_neither_approved_nor_denied() {
    for names in [
        &[Name::Ip("172.16.0.1")][..],
        &[Name::Dns("win-1"), Name::Ip("10.0.0.1"), Name::Ip("172.16.0.1")],
        &[Name::Dns("ip-172-16-0-1.internal")],
    ] {
        let verdict = judge(&serving(W1, NODES, node("win-1").names(names)));
        let Verdict::Wait { message, node: Some(_) } = verdict else { panic!("{verdict:?}") };
        assert!(message.contains("172") && message.contains("is not proven to belong to node win-1"), "{message}");
    }
}

/// Adds an element to the outermost sequence.
fn with_part(request: &[u8], part: &[u8]) -> Vec<u8> {
    let header = request.len() - Forged::content_of(request).len();
    der(0x30, &[&request[header..], part])
}

#[test]
fn of_several_for_one_host_and_kind_the_oldest_stands() {
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
    let other_kind = at("csr-e", 12, wicd(D1, WICDS, wicd_node("win-1")));

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
    assert_eq!(judge(&serving(W1, NODES, armour(&right))), Verdict::Approve(Kind::KubeletServing));
    for bit in 0..right.len() * 8 {
        let mut changed = right.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let verdict = judge(&serving(W1, NODES, armour(&changed)));
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
