//! Tests of keys, requests and certificates.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use crate::operation::tests::{NODE_KUBECONFIG, ca_pem};

#[test]
fn a_damaged_bundle_is_refused() {
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

#[test]
fn certificate_and_key_are_distinguished() {
    let pem = "junk\n-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nBB\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nCC\n-----END CERTIFICATE-----\n";
    let (chain, key) = split(pem).unwrap();
    assert!(chain.contains("AA") && chain.contains("CC") && !chain.contains("BB") && !chain.contains("junk"));
    assert!(key.contains("BB") && !key.contains("CERTIFICATE"));
    assert_eq!(split(&chain), None);
}

/// Earlier certificates do not accumulate.
#[test]
fn only_the_newest_certificates_are_kept() {
    let host = FakeHost::temporary();
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

#[test]
fn the_newest_certificates_of_the_overlay_and_other_files_are_kept() {
    let host = FakeHost::temporary();
    prune_overlay(&host).unwrap();
    let others = ["cni.conf", "ovnkube-client-current.pem", "ovnkube-client-old.pem"].map(str::to_owned);
    let dated = (1..6).map(|day| format!("ovnkube-client-2026-01-0{day}-00-00-00.pem"));
    for name in dated.clone().chain(others.clone()) {
        let file = format!(r"{}\{name}", path::OVERLAY_CERTS);
        files::write(&host, &file, b"", Access::Protected).unwrap();
    }
    prune_overlay(&host).unwrap();
    let mut expected: Vec<String> = dated.skip(2).chain(others).collect();
    expected.sort();
    assert_eq!(files::list(&host, path::OVERLAY_CERTS).unwrap(), expected);
}

/// kubelet prefers its stored certificate to that of the kubeconfig.
#[test]
fn stored_certificates_of_kubelet_are_removed_before_it_gets_another() {
    let test_host = crate::operation::tests::TestHost::new();
    test_host.write(path::NODE_KUBECONFIG, NODE_KUBECONFIG.as_bytes());
    let sign = |node: &str| test_host.sign(&request(&test_host.host, CertificateKind::Kubelet, node).unwrap(), 86_400);
    let now = jiff::Timestamp::now().as_second();
    let put = |chain: &str| {
        let pem = with_key(&test_host.host, CertificateKind::Kubelet, "win-1", chain, now).unwrap();
        install(&test_host.host, CertificateKind::Kubelet, pem.as_deref(), now).unwrap();
    };
    // Certificates of another Node, of another cluster with a Node of this name, and a damaged one. An interrupted rotation
    // leaves `updated`.
    for stored in [sign("win-2"), sign("win-1"), "damaged".into()] {
        for name in ["current", "updated", "2026-01-01-00-00-00"] {
            test_host.write(&format!(r"{}\kubelet-client-{name}.pem", path::KUBELET_PKI), stored.as_bytes());
        }
        test_host.write(r"C:\var\lib\kubelet\pki\kubelet-server-current.pem", b"serving");
        let chain = sign("win-1");
        put(&chain);
        assert_eq!(files::list(&test_host.host, path::KUBELET_PKI).unwrap(), ["kubelet-server-current.pem"]);
        // After the installation, files that kubelet stores stay.
        test_host.write(path::KUBELET_CURRENT_CERT, b"renewed");
        put(&chain);
        assert_eq!(test_host.read(path::KUBELET_CURRENT_CERT).unwrap(), "renewed");
    }
}

#[test]
fn credentials_are_embedded_only_in_a_kubeconfig_of_one_user() {
    for (about, kubeconfig, expected) in [
        ("one user", json!({"users": [{"name": "a", "user": {"client-key": "x"}}]}), true),
        ("no user", json!({"users": []}), false),
        ("two users", json!({"users": [{"name": "a", "user": {}}, {"name": "b", "user": {}}]}), false),
        ("no kubeconfig", json!([]), false),
    ] {
        let inlined = inline(kubeconfig, "chain", "key");
        assert_eq!(inlined.is_some(), expected, "{about}");
        if let Some(config) = inlined {
            let user = json!({"client-certificate-data": "Y2hhaW4=", "client-key-data": "a2V5"});
            assert_eq!(config["users"], json!([{"name": "a", "user": user}]), "{about}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), begin in any::<bool>()) {
        let text = if begin { [b"-----BEGIN CERTIFICATE-----\n".as_slice(), &bytes].concat() } else { bytes };
        let _ = bundle(&text);
    }
}
