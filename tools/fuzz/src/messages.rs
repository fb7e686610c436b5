//! Fuzz targets for hosts' answers and support data, certificate requests, push events, and an annotation of Nodes.

use std::net::IpAddr;

use api::{
    Time,
    host::{Answer, Verb},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use remote::{RemoteError, facts};
use wnp_core::{
    csr::{Claim, Outstanding, Verdict, request::Request, verdict},
    operation::join::{DesiredJoin, HostSeen, NodeSeen, is_placed, on_host},
};

/// Operation id, as in the seeds.
const OPERATION: &str = "join-win-1-0";
const NODE: &str = "win-1";

/// Fuzzes the archive with a host's support data.
pub fn support(data: &[u8]) {
    let unpacked = remote::support::unpack(data);
    for (name, _) in &unpacked.files {
        let parts = std::path::Path::new(name).components();
        assert!(parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))), "{name:?} leads out");
    }
    unpacked.refused.iter().for_each(|line| crate::assert_fit_for_people(line, 200));
}

/// Fuzzes a host's answer, from the bytes to their interpretation.
pub fn answer(data: &[u8]) {
    let Answer { state: Some(state), requests, warnings, .. } = (match facts::parse_answer(data, OPERATION, Verb::Apply)
    {
        Ok(answer) => answer,
        Err(error) => return fit(&error),
    }) else {
        return;
    };
    warnings.iter().for_each(|warning| fit(&RemoteError::host("Warning", warning)));
    let peer = IpAddr::from([10, 0, 0, 1]);
    match facts::parse_facts(&state.machine, "10.0.0.1", peer, Timestamp::UNIX_EPOCH) {
        Ok(facts) => {
            for text in [&facts.hostname, &facts.machine_id, &facts.os_build, &facts.os_name, &facts.boot_id] {
                crate::assert_fit_for_people(text, 128);
            }
            assert!(facts.addresses.contains(&facts.node_ip), "the node IP is not an address of the host");
            let again = |time: Time| time.to_string().parse().ok();
            assert!(
                facts.boot_time.is_none_or(|time| again(time) == Some(time)),
                "a boot time changes when it is written and parsed"
            );
        }
        Err(error) => fit(&error),
    }
    let wanted = DesiredJoin {
        cluster_id: "cluster".into(),
        node_name: NODE.into(),
        version: "1-a".into(),
        payload: "p".into(),
        configs: "c".into(),
        wicd: "w".into(),
        restarts: false,
        moves: false,
        leaves_boot: None,
    };
    let _ = is_placed(&wanted, &state);
    let node = NodeSeen { ready: true, version: Some("1-a".into()), boot_id: String::new(), asks_restart: false };
    let seen = HostSeen { state, requests, ..HostSeen::default() };
    for node in [None, Some(&node)] {
        let _ = on_host(&wanted, node, &seen, Timestamp::UNIX_EPOCH);
    }
}

fn fit(error: &RemoteError) {
    crate::assert_fit_for_people(&error.to_string(), 1000);
}

/// Fuzzes a certificate request, as PEM or as the content of a PEM block.
pub fn csr(data: &[u8]) {
    let pem = if data.starts_with(b"-----") {
        data.to_vec()
    } else {
        let body = BASE64_STANDARD.encode(data);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n").into_bytes()
    };
    let claims = |node: &str| {
        (node == NODE).then(|| Claim {
            node_name: NODE.into(),
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
            dns_names: vec![NODE.into()],
            joined: true,
            proven: true,
            ..Claim::default()
        })
    };
    for (user, group, signer, usage) in [
        ("system:node:win-1", "system:nodes", "kubernetes.io/kube-apiserver-client-kubelet", "client auth"),
        ("system:node:win-1", "system:nodes", "kubernetes.io/kubelet-serving", "server auth"),
        ("system:wicd-node:win-1", "system:wicd-nodes", "kubernetes.io/kube-apiserver-client", "client auth"),
        ("system:node:win-2", "system:nodes", "kubernetes.io/kubelet-serving", "server auth"),
    ] {
        let strings = |texts: [&str; 2]| Some(texts.map(str::to_owned).to_vec());
        let spec = CertificateSigningRequestSpec {
            request: ByteString(pem.clone()),
            signer_name: signer.into(),
            usages: strings(["digital signature", usage]),
            username: Some(user.into()),
            groups: strings([group, "system:authenticated"]),
            expiration_seconds: Some(3600),
            ..Default::default()
        };
        let csr = CertificateSigningRequest { spec, ..Default::default() };
        let request = Request::read(&csr.spec.request.0);
        match verdict(&csr, &request, &claims, &Outstanding::default(), "system:serviceaccount:a:b") {
            Verdict::Approve(_) => assert!(user.ends_with(NODE), "{user} got a certificate of {NODE}"),
            Verdict::Deny { message, .. } | Verdict::Wait { message, .. } => {
                crate::assert_fit_for_people(&message, 2000)
            }
            Verdict::NotOurs | Verdict::Queue { .. } => {}
        }
        let unlisted = verdict(&csr, &request, &|_| None, &Outstanding::default(), "system:serviceaccount:a:b");
        assert!(!matches!(unlisted, Verdict::Approve(_)), "approved for a host that is in no pool");
    }
}

/// Fuzzes a push event: as its body, and as its signature.
pub fn webhook(data: &[u8]) {
    for place in gitops::push::repositories(data).into_iter().flatten() {
        let (host, path) = place.split_once('/').unwrap_or_default();
        assert!(!host.is_empty() && !path.is_empty(), "{place:?}");
    }
    assert!(
        !gitops::push::is_signed(b"token", b"body", &String::from_utf8_lossy(data)),
        "an invalid signature was accepted"
    );
}

/// Fuzzes the annotation with an encrypted username, as text or as decoded content.
pub fn username(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    for annotation in [text, BASE64_STANDARD.encode(data)] {
        // The seeds encrypt this name with the key. Changes without the key are detected.
        if let Ok(name) = wnp_core::node::username::decrypt_username(&annotation, b"secret key") {
            assert_eq!(name, "Administrator");
        }
    }
}
