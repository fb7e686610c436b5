use proptest::prelude::*;

use super::*;
use crate::fake::FakeHost;
use crate::operation::tests::ca_pem;

#[test]
fn bundles() {
    let ((a, _), (b, _)) = (ca_pem("a"), ca_pem("b"));
    let key = KeyPair::generate().unwrap().serialize_pem();
    for (name, text, expected) in [
        ("none", String::new(), Some(0)),
        ("text", "# nothing here".to_string(), Some(0)),
        ("two with comments", format!("# a\n{a}\n\n# b\n{b}# end"), Some(2)),
        ("with a key", format!("{a}{key}"), Some(1)),
        ("cut off", format!("{a}{}", &b[..b.len() - 30]), None),
        ("cut off in the middle", format!("{}{b}", &a[..a.len() - 30]), None),
        ("no certificate in it", format!("{a}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), None),
    ] {
        assert_eq!(bundle(text.as_bytes()).ok().map(|ders| ders.len()), expected, "{name}");
    }
}

/// Contract section 8, item 23: certificates that are over do not pile up.
#[test]
fn only_the_newest_certificates_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let host = FakeHost::new(dir.path());
    for day in 0..5 {
        install_wicd(&host, format!("{day}").as_bytes(), 1_767_225_600 + day * 86_400).unwrap();
    }
    let expected = [
        "wicd-client-2026-01-03-00-00-00.pem",
        "wicd-client-2026-01-04-00-00-00.pem",
        "wicd-client-2026-01-05-00-00-00.pem",
        "wicd-client-current.pem",
    ];
    assert_eq!(files::list(&host, path::WICD_CERTS).unwrap(), expected);
    assert_eq!(files::read(&host, path::WICD_CERT).unwrap().unwrap(), b"4");
}

/// kubelet prefers the certificate that it has rotated to, so one of another name must not stay.
#[test]
fn a_rotated_certificate_of_another_node_goes() {
    let bed = crate::operation::tests::Bed::new();
    let sign = |node: &str| bed.sign(&request(&bed.host, CertificateKind::Kubelet, node).unwrap(), 86_400);
    let now = jiff::Timestamp::now().as_second();
    for (rotated_node, stays) in [("win-2", false), ("win-1", true)] {
        bed.write(KUBELET_CURRENT, sign(rotated_node).as_bytes());
        let chain = sign("win-1");
        install(&bed.host, CertificateKind::Kubelet, "win-1", &chain, now).unwrap();
        assert_eq!(bed.exists(KUBELET_CURRENT), stays, "{rotated_node}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), begin in any::<bool>()) {
        let text = if begin { [b"-----BEGIN CERTIFICATE-----\n".as_slice(), &bytes].concat() } else { bytes };
        let _ = bundle(&text);
    }
}
