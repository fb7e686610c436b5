//! Test cases for certificate requests that are denied, by the rule that denies them.

use super::*;

const W2: &str = "system:node:win-2";
const D2: &str = "system:wicd-node:win-2";
const AUTHENTICATED: &[&str] = &["system:authenticated"];

fn assert_denied(rule: &str, what: &str, csr: &CertificateSigningRequest) {
    let verdict = judge(csr);
    assert_eq!(reason(&verdict), rule, "{what}: {verdict:?}");
    let Verdict::Deny { message, .. } = &verdict else { panic!("{what}: {verdict:?}") };
    assert!(!message.is_empty() && !message.contains(char::is_control) && message.len() < 300, "{message}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_requests_of_hosts_are_denied() {
    let one = || node("win-1");
    let for_seconds = |seconds, mut csr: CertificateSigningRequest| {
        csr.spec.expiration_seconds = seconds;
        csr
    };
    let named = || one().names(&[Name::Dns("win-1")]);
    let usages = |usages: &[&str]| csr(KUBELET_USER, NODES, KUBELET_CLIENT, usages, node("win-1"));
    let served = |names: &[Name<'_>]| serving(KUBELET_USER, NODES, node("win-1").names(names));
    let mut spoilt = one().der();
    *spoilt.last_mut().unwrap() ^= 1;
    let trailing = [one().der(), vec![0]].concat();
    let eku = |last: u8| der(0x30, &[&der(6, &[&[0x2b, 6, 1, 5, 5, 7, 3, last]])]);
    let ca = der(0x30, &[&der(1, &[&[0xff]])]);
    let not_ca = der(0x30, &[]);
    let foreign_san = der(0x30, &[&der(0x82, &[b"win-2"])]);
    let both_in_one = vec![vec![attribute(O, UTF8, b"system:nodes"), attribute(CN, UTF8, KUBELET_USER.as_bytes())]];
    let wide: Vec<u8> = KUBELET_USER.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let wide_name = vec![vec![attribute(O, UTF8, b"system:nodes")], vec![attribute(CN, BMP, &wide)]];
    let with_subject = |subject| renewal(Forged { subject, ..one() });
    let with_organisations = |organisations: &[&str]| renewal(Forged::new(KUBELET_USER, organisations));
    for (what, csr) in [
        ("another node renews", node_client(W2, NODES, one())),
        ("a Linux node renews", node_client("system:node:linux-1", NODES, one())),
        ("a host asks for the certificate of another host", renewal(node("win-2"))),
        ("a user asks for the certificate of a host", node_client("alice", AUTHENTICATED, one())),
        ("no user name", node_client("", &[], one())),
        ("wicd asks for kubelet's certificate", node_client(WICD_USER, WICDS, one())),
        ("another service account", node_client("system:serviceaccount:default:windows-node-pools", &[], one())),
        ("right user name, wrong groups", node_client(KUBELET_USER, AUTHENTICATED, one())),
        ("bootstrap token after joining", node_client(BOOTSTRAP_USER, BOOTSTRAP, one())),
        ("OpenShift's bootstrapper after joining", node_client(OPENSHIFT_BOOTSTRAP_USER, &[], one())),
        ("bootstrap token while the host joins", node_client(BOOTSTRAP_USER, BOOTSTRAP, node("win-new"))),
        ("OpenShift's bootstrapper while the host joins", node_client(OPENSHIFT_BOOTSTRAP_USER, &[], node("win-new"))),
        ("the legacy daemon for a host of ours", wicd(LEGACY_DAEMON, &[], wicd_node("win-1"))),
        ("the legacy daemon asks for kubelet's certificate", node_client(LEGACY_DAEMON, &[], node("win-old"))),
        (
            "a daemon of that name in another namespace",
            wicd("system:serviceaccount:default:windows-instance-config-daemon", &[], wicd_node("win-old")),
        ),
        ("token user without the group", node_client(BOOTSTRAP_USER, &[], node("win-new"))),
        (
            "bootstrap token asks for a serving certificate",
            serving(BOOTSTRAP_USER, BOOTSTRAP, node("win-new").names(&[Name::Dns("win-new")])),
        ),
        ("bootstrap token asks for a wicd certificate", wicd(BOOTSTRAP_USER, BOOTSTRAP, wicd_node("win-new"))),
        ("operator asks for a serving certificate", serving(OPERATOR, &[], named())),
        ("another node asks for a serving certificate", serving(W2, NODES, named())),
        ("serving certificate for a requester without the node group", serving(KUBELET_USER, AUTHENTICATED, named())),
        ("another wicd renews", wicd(D2, WICDS, wicd_node("win-1"))),
        ("wicd without its group", wicd(WICD_USER, AUTHENTICATED, wicd_node("win-1"))),
        ("kubelet asks for wicd's certificate", wicd(KUBELET_USER, NODES, wicd_node("win-1"))),
    ] {
        assert_denied("WrongRequester", what, &csr);
    }
    for (what, csr) in [
        ("a host asks for the certificate of a Linux node", renewal(node("linux-1"))),
        ("wicd of a host that no pool has", wicd("system:wicd-node:gone", WICDS, wicd_node("gone"))),
        ("operator for an unknown host", wicd(OPERATOR, &[], wicd_node("gone"))),
        ("longer name", renewal(node("win-1x"))),
        ("shorter name", renewal(node("win-"))),
        ("upper case name", renewal(node("WIN-1"))),
        ("upper case, by another user", node_client("alice", &[], node("WIN-1"))),
        ("NUL behind the name", node_client("alice", &[], node("win-1\0.evil"))),
        ("space behind the name", node_client("alice", &[], node("win-1 "))),
        ("prefix twice", renewal(node("system:node:win-1"))),
    ] {
        assert_denied("UnknownHost", what, &csr);
    }
    for (what, csr) in [
        (
            "the legacy daemon for longer than it asks for",
            for_seconds(Some(3601), wicd(LEGACY_DAEMON, &[], wicd_node("win-old"))),
        ),
        ("wicd for longer than a week", for_seconds(Some(604_801), wicd(WICD_USER, WICDS, wicd_node("win-1")))),
        ("wicd without a lifetime", for_seconds(None, wicd(WICD_USER, WICDS, wicd_node("win-1")))),
    ] {
        assert_denied("LifetimeTooLong", what, &csr);
    }
    for (what, csr) in [
        ("kubelet of a host that is being cleaned", node_client("system:node:win-gone", NODES, node("win-gone"))),
        ("wicd of a host that is being cleaned", wicd("system:wicd-node:win-gone", WICDS, wicd_node("win-gone"))),
    ] {
        assert_denied("HostLeaves", what, &csr);
    }
    for (what, csr) in [
        ("no name", renewal(node(""))),
        ("upper case prefix", renewal(Forged::new("SYSTEM:NODE:win-1", &["system:nodes"]))),
        (
            "prefix without a colon",
            wicd(WICD_USER, WICDS, Forged::new("system:wicd-nodex:win-1", &["system:wicd-nodes"])),
        ),
        ("two common names", renewal(one().also(CN, UTF8, W2.as_bytes()))),
        (
            "two common names, ours last",
            node_client("alice", &[], Forged::new("alice", &["system:nodes"]).also(CN, UTF8, KUBELET_USER.as_bytes())),
        ),
        ("no common name", with_subject(vec![vec![attribute(O, UTF8, b"system:nodes")]])),
        ("empty subject", with_subject(vec![])),
        ("wicd's organisation for another user", client_of("alice", &[], Forged::new("alice", &["system:wicd-nodes"]))),
        (
            "many other parts in the subject of another user",
            client_of(
                "alice",
                &[],
                (0..100).fold(Forged::new("alice", &["system:wicd-nodes"]), |f, _| f.also(OU, UTF8, b"a")),
            ),
        ),
        ("more than 100 organisations", with_organisations(&["system:nodes"; 101])),
        ("an organisational unit", renewal(one().also(OU, UTF8, b"system:masters"))),
        ("organisation and common name in one part", with_subject(both_in_one)),
        ("a common name in UTF-16", with_subject(wide_name)),
        ("kubelet's name for wicd's signer", wicd(KUBELET_USER, NODES, one())),
        ("wicd's name for kubelet's signer", node_client(WICD_USER, WICDS, wicd_node("win-1"))),
    ] {
        assert_denied("WrongSubject", what, &csr);
    }
    for (what, csr) in [
        ("extra organisation", with_organisations(&["system:nodes", "system:masters"])),
        ("system:masters alone", with_organisations(&["system:masters"])),
        (
            "system:masters for wicd",
            wicd(WICD_USER, WICDS, Forged::new(WICD_USER, &["system:wicd-nodes", "system:masters"])),
        ),
        ("the same organisation twice", with_organisations(&["system:nodes", "system:nodes"])),
        ("no organisation", with_organisations(&[])),
        ("upper case organisation", with_organisations(&["System:Nodes"])),
        ("wicd's organisation for kubelet", with_organisations(&["system:wicd-nodes"])),
    ] {
        assert_denied("WrongOrganisation", what, &csr);
    }
    for (what, csr) in [
        (
            "another signer",
            csr(KUBELET_USER, NODES, "kubernetes.io/legacy-unknown", &["digital signature", "client auth"], one()),
        ),
        (
            "signer of a third party",
            csr(KUBELET_USER, NODES, "example.com/signer", &["digital signature", "client auth"], one()),
        ),
    ] {
        assert_denied("WrongSigner", what, &csr);
    }
    for (what, csr) in [
        (
            "a client's usages for a serving certificate",
            csr(KUBELET_USER, NODES, SERVING, &["digital signature", "client auth"], named()),
        ),
        ("server auth for a client", usages(&["digital signature", "server auth"])),
        ("client auth and server auth", usages(&["digital signature", "client auth", "server auth"])),
        ("no digital signature", usages(&["client auth"])),
        ("no purpose", usages(&["digital signature", "key encipherment"])),
        ("the usage any", usages(&["digital signature", "client auth", "any"])),
        ("the usage cert sign", usages(&["digital signature", "client auth", "cert sign"])),
        ("no usages", usages(&[])),
        ("another extended key usage", renewal(one().extension(EXTENDED_KEY_USAGE, &eku(1)))),
        ("key usage to sign certificates", renewal(one().extension(KEY_USAGE, &der(3, &[&[2, 0b1000_0100]])))),
    ] {
        assert_denied("WrongUsages", what, &csr);
    }
    for (what, csr) in [
        ("client with a DNS name", renewal(named())),
        ("client with an empty list of names", renewal(one().names(&[]))),
        ("wicd with an address", wicd(WICD_USER, WICDS, wicd_node("win-1").names(&[Name::Ip("10.0.0.1")]))),
        ("serving without names", serving(KUBELET_USER, NODES, one())),
        ("serving with an empty list of names", served(&[])),
        ("an IP address with a mask", served(&[Name::RawIp(&[10, 0, 0, 1, 255, 255, 255, 255])])),
        ("an e-mail address", served(&[Name::Dns("win-1"), Name::Email("admin@corp.example")])),
        ("a URI", served(&[Name::Dns("win-1"), Name::Uri("spiffe://corp.example/admin")])),
        (
            "more than 100 names",
            serving(KUBELET_USER, NODES, node("win-1").names(&[const { Name::Dns("win-1") }; 101])),
        ),
    ] {
        assert_denied("WrongNames", what, &csr);
    }
    for (what, csr) in [
        ("another host's name", served(&[Name::Dns("win-1"), Name::Dns("win-2")])),
        ("another host's address", served(&[Name::Ip("10.0.0.1"), Name::Ip("10.0.0.2")])),
        ("an address of a Service", served(&[Name::Ip("10.0.0.1"), Name::Ip("10.96.0.1")])),
        (
            "one name that cannot be judged and a wrong one",
            served(&[Name::Ip("172.16.0.1"), Name::Dns("kubernetes.default.svc")]),
        ),
        ("the API server's name", served(&[Name::Dns("kubernetes.default.svc")])),
        ("a wildcard", served(&[Name::Dns("*.corp.example")])),
        ("upper case DNS name", served(&[Name::Dns("WIN-1")])),
        ("DNS name with a dot behind", served(&[Name::Dns("win-1.")])),
        ("empty DNS name", served(&[Name::Dns("")])),
        ("DNS name that is the address", served(&[Name::Dns("10.0.0.1")])),
        ("suffix of a proven name", served(&[Name::Dns("corp.example")])),
        ("a proven IPv4 address in the form of IPv6", served(&[Name::Ip("::ffff:10.0.0.1")])),
        ("an IPv6 address of another host", served(&[Name::Ip("fd00::2")])),
        ("a loopback address", served(&[Name::Ip("127.0.0.1")])),
    ] {
        assert_denied("ForeignName", what, &csr);
    }
    for (what, csr) in [
        ("a CA certificate", renewal(one().extension(BASIC_CONSTRAINTS, &ca))),
        ("basic constraints without a CA", renewal(one().extension(BASIC_CONSTRAINTS, &not_ca))),
        ("name constraints", renewal(one().extension(NAME_CONSTRAINTS, &not_ca))),
        ("unknown extension", renewal(one().extension(&[0x2a, 3, 4], &not_ca))),
        (
            "two extensions with names",
            serving(KUBELET_USER, NODES, one().names(&[Name::Dns("win-2")]).names(&[Name::Dns("win-1")])),
        ),
        ("extension that is not DER", serving(KUBELET_USER, NODES, one().extension(SAN, b"\x30\x7f"))),
    ] {
        assert_denied("UnexpectedExtension", what, &csr);
    }
    for (what, csr) in [
        ("challenge password", renewal(one().challenge_password())),
        ("two lists of extensions", serving(KUBELET_USER, NODES, named().second_list(SAN, &foreign_san))),
        ("two values of one list", serving(KUBELET_USER, NODES, named().second_value(SAN, &foreign_san))),
    ] {
        assert_denied("UnexpectedAttribute", what, &csr);
    }
    for (what, csr) in [
        ("RSA 1024", renewal(include_str!("fixtures/rsa-1024.pem"))),
        ("P-224", renewal(include_str!("fixtures/p224.pem"))),
        ("P-521", renewal(include_str!("fixtures/p521.pem"))),
        ("Ed25519", renewal(one().key(&rcgen::PKCS_ED25519))),
        ("a compressed point", renewal(one().compressed())),
    ] {
        assert_denied("KeyNotAllowed", what, &csr);
    }
    for (what, csr) in
        [("SHA-1", renewal(include_str!("fixtures/rsa-2048-sha1.pem"))), ("bad signature", renewal(armour(&spoilt)))]
    {
        assert_denied("BadSignature", what, &csr);
    }
    for (what, csr) in [
        ("an empty text", renewal("")),
        ("not PEM", renewal(one().der())),
        ("another PEM type", renewal(one().pem().replace("CERTIFICATE REQUEST", "CERTIFICATE"))),
        ("text before", renewal(format!("hello\n{}", one().pem()))),
        ("text after", renewal(format!("{}hello", one().pem()))),
        ("second block", renewal(one().pem() + &node("win-2").pem())),
        ("second block, by another user", node_client("alice", &[], one().pem() + &one().pem())),
        ("PEM headers", renewal(one().pem().replacen("-----\n", "-----\nA: b\n\n", 1))),
        ("bytes after the request", renewal(armour(&trailing))),
        ("a fourth part", renewal(armour(&with_part(&one().der(), &[4, 0])))),
        ("NULL behind the signature", renewal(armour(&with_part(&one().der(), &[5, 0])))),
        ("a fifth part of what is signed", renewal(one().part(&[5, 0]))),
        ("not DER", renewal(armour(b"hello"))),
    ] {
        assert_denied("BadEncoding", what, &csr);
    }
    assert_denied("TooLarge", "more than 16 KiB", &renewal(one().pem() + &"\n".repeat(16 * 1024)));
}

/// Adds an element to the outermost sequence.
fn with_part(request: &[u8], part: &[u8]) -> Vec<u8> {
    let header = request.len() - Forged::content_of(request).len();
    der(0x30, &[&request[header..], part])
}
