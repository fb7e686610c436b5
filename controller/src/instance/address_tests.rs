//! Tests of hosts whose address or host key changes in the list.

use std::time::Duration;

use serde_json::json;

use super::super::test_bed::Bed;
use super::*;
use crate::runtime::ssh_slots::SshSlot;

/// Many entries may change at once. Verifying them must delay neither granted work nor other work on the host.
#[tokio::test]
async fn address_checks_have_their_own_ssh_slots() {
    let mut bed = Bed::new().await;
    let address = bed.host.address().to_string();
    bed.node("n-1", &address, &json!({}));
    let status = json!({
        "currentVersion": "1-a",
        "nodeRef": {"name": "win-1", "uid": "n-1"},
        "provenAt": {"address": address, "port": 22},
    });
    let instance = bed.instance(&json!({}), &json!({}), &status);

    // Granted work holds all connections.
    let free = u32::try_from(bed.cx.hosts.connections.all()).unwrap();
    let granted: Vec<SshSlot> = (0..free).filter_map(|n| bed.cx.hosts.connections.take(&format!("pool-{n}"))).collect();
    let mut scope = bed.scope(instance.clone());
    let looked = tokio::time::timeout(Duration::from_secs(30), verify(&mut scope)).await;
    assert_eq!(looked.expect("it waits for the connections of others").unwrap(), None);
    assert_eq!(scope.status.proven_at.as_ref().map(|p| p.port), Some(i32::from(bed.host.port())));
    drop(granted);

    // All slots for such checks are taken: the host is verified later, and other work on the host does not wait.
    let connections = bed.host.stats().connections;
    let taken: Vec<SshSlot> = (0..free).map_while(|_| bed.cx.hosts.looks.take("p")).collect();
    assert!(!taken.is_empty() && u32::try_from(taken.len()).unwrap() < free, "{} at once", taken.len());
    let mut scope = bed.scope(instance);
    let wait = verify(&mut scope).await.unwrap().expect("it is verified without a slot");
    assert!(wait >= Duration::from_secs(10), "{wait:?}");
    assert_eq!(bed.host.stats().connections, connections);
    assert!(scope.status.address_failures.is_none(), "nothing has failed");
    drop(taken);
}

#[test]
fn the_note_says_what_could_not_be_verified() {
    for (known_key, is_moved, expected) in [
        (
            Some("SHA256:a"),
            true,
            "the entry of the host declares another host key than the known one, SHA256:a; the node stays as it is, and the operator retries",
        ),
        (
            None,
            true,
            "the host could not be verified at its new address win-1 port 22; the node stays as it is, and the operator retries",
        ),
        (
            None,
            false,
            "the name win-1 resolves to another IP address than before, and the host could not be verified there; the node stays as it is, and the \
             operator retries",
        ),
    ] {
        assert_eq!(unverified(known_key, is_moved, "win-1", 22), expected);
    }
}

/// The author of a list may change the address of an entry just before removing the entry. The host is still at the proven address.
#[tokio::test]
async fn a_leaving_host_is_contacted_at_its_last_proven_address() {
    let bed = Bed::new().await;
    let (address, port) = (bed.host.address().to_string(), bed.host.port());
    let proven_at = json!({"address": address, "port": i32::from(port)});
    let status = json!({"currentVersion": "1-a", "hostKey": bed.pinned_key(), "provenAt": proven_at});
    let mut instance = bed.instance(&json!({}), &json!({}), &status);
    instance.spec.host.port = 1; // no listener
    instance.spec.host.host_key = Some("SHA256:AAAAvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE".into());

    let mut scope = bed.scope(instance.clone());
    verify_before_removal(&mut scope).await.unwrap();
    assert_eq!(scope.instance.spec.host.port, i32::from(port));
    assert_eq!(scope.status.proven_at.as_ref().map(|p| p.port), Some(i32::from(port)));

    // Another host answers at the proven address. The error names the address that the list's author can correct.
    let mut status = instance.status.clone().unwrap();
    status.host_key.as_mut().unwrap().public_key =
        "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB".into();
    instance.status = Some(status);
    let mut scope = bed.scope(instance.clone());
    let error = verify_before_removal(&mut scope).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(scope.instance.spec.host, instance.spec.host);
}

/// Forwards connections from a loopback address with a DNS name to the host. Returns the port.
async fn behind_a_name(host: std::net::SocketAddr) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut host = tokio::net::TcpStream::connect(host).await.unwrap();
                let _ended = tokio::io::copy_bidirectional(&mut client, &mut host).await;
            });
        }
    });
    port
}

/// The list keeps the DNS name, and a DHCP server has given the host another address.
#[tokio::test]
async fn a_name_that_leads_elsewhere_is_verified() {
    let mut bed = Bed::new().await;
    let port = behind_a_name((bed.host.address(), bed.host.port()).into()).await;
    bed.node("n-1", "127.0.0.9", &json!({}));
    let own = "10.77.0.6".to_owned();
    bed.host.windows().state().machine.addresses = vec![own.clone()];
    bed.host.windows().state().machine.default_address = Some(own.clone());
    for (proven, looks) in [("127.0.0.1", false), ("127.0.0.9", true)] {
        let status = json!({
            "currentVersion": "1-a",
            "nodeRef": {"name": "win-1", "uid": "n-1"},
            "nodeIp": "127.0.0.9",
            "provenAt": {"address": "localhost", "port": port},
            "provenAddress": proven,
        });
        let mut instance = bed.instance(&json!({}), &json!({}), &status);
        (instance.spec.host.address, instance.spec.host.port) = ("localhost".into(), i32::from(port));
        let mut scope = bed.scope(instance);
        let again = verify(&mut scope).await.unwrap().expect("a name is looked up again");
        assert!(again >= NAME_INTERVAL && again <= NAME_INTERVAL * 2, "{again:?}");
        assert_eq!(scope.status.proven_address.as_deref(), Some("127.0.0.1"));
        assert_eq!(scope.moved().map(|m| (m.from, m.to)), looks.then(|| ("127.0.0.9".into(), own.clone())), "{proven}");
    }
}

/// A failed lookup does not clear an address failure.
#[tokio::test]
async fn a_failure_stays_as_long_as_the_name_has_no_answer() {
    let bed = Bed::new().await;
    let failures = json!({"count": 1, "step": "VerifyAddress", "lastReason": "Unreachable", "lastMessage": "no answer",
        "lastFailureTime": "2026-01-01T00:00:00Z"});
    let status = json!({
        "currentVersion": "1-a",
        "provenAt": {"address": "nobody.invalid", "port": 22},
        "provenAddress": "127.0.0.9",
        "addressFailures": failures,
    });
    let mut instance = bed.instance(&json!({}), &json!({}), &status);
    (instance.spec.host.address, instance.spec.host.port) = ("nobody.invalid".into(), 22);
    let mut scope = bed.scope(instance);
    assert!(scope.status.address_failures.is_some());
    let again = verify(&mut scope).await.unwrap().expect("a name is looked up again");
    assert!(again >= NAME_INTERVAL, "{again:?}");
    assert!(scope.status.address_failures.is_some(), "the failure is forgotten");
}
