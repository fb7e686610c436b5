//! Tests of the renewal of wicd's certificate.

use std::sync::Mutex;

use proptest::prelude::*;
use rcgen::CertificateParams;

use super::super::fake_cluster::FakeCluster;
use super::*;
use crate::fake::FakeHost;
use crate::files::Access;
use crate::operation::tests::TestHost;

#[test]
fn a_certificate_is_renewed_between_its_renewal_time_and_its_end() {
    let current = Current { not_before: 1000, not_after: 2000, seed: 100 };
    assert_eq!(current.renew_at(), 1300);
    for (now, due) in [(0, Due::Later), (1299, Due::Later), (1300, Due::Now), (1999, Due::Now), (2000, Due::Over)] {
        assert_eq!(current.due(now), due, "{now}");
    }
}

/// Cases with the default certificate lifetime: age of the certificate in hours when the host is switched off, hours for which the host is
/// off, and the state of the renewal afterwards, for the earliest and the latest renewal time.
#[test]
fn a_host_may_be_off_for_the_rest_of_the_lifetime() {
    const HOUR: i64 = 3600;
    let life = i64::try_from(WICD_CERTIFICATE_LIFE.as_secs()).unwrap();
    let after = |hours: i64, seed: u64| Current { not_before: 0, not_after: life, seed }.due(hours * HOUR);
    // Seed 0 has the earliest renewal, seed 200 the latest.
    for (age, off, earliest, latest) in [
        (0, 33, Due::Later, Due::Later),
        (0, 34, Due::Now, Due::Later),
        (0, 68, Due::Now, Due::Now),
        (0, 167, Due::Now, Due::Now),
        // While a host runs, its certificate is at most 67 h old, so that it outlasts a long weekend of four days.
        (67, 96, Due::Now, Due::Now),
        (67, 100, Due::Now, Due::Now),
        (68, 100, Due::Over, Due::Over),
    ] {
        assert_eq!((after(age + off, 0), after(age + off, 200)), (earliest, latest), "{age} + {off}");
    }
}

/// The host was switched off for four days when its certificate had the maximum age on a running host.
#[tokio::test]
async fn a_host_that_was_off_for_four_days_renews_by_itself() {
    let (test_host, host, cluster) = test_host(|signer, request| Issue::Issued(signer.sign(request, 86_400)));
    let (age, left) = (Duration::from_hours(67 + 96), Duration::from_hours(5));
    assert_eq!(age + left, WICD_CERTIFICATE_LIFE);
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let now = jiff::Timestamp::now().as_second();
    let old = certificates::joined(&test_host.issue_backdated(&request, age, left), &key).unwrap().unwrap();
    certificates::install_wicd(&test_host.host, old.as_bytes(), now).unwrap();
    let (changed, mut seen) = watch::channel(0);
    let renewed = async {
        while files::read(&test_host.host, path::WICD_CERT).unwrap().unwrap() == old.as_bytes() {
            seen.changed().await.unwrap();
        }
    };
    tokio::select! {
        () = rotate(host, Arc::new(cluster.clone()), changed) => unreachable!(),
        () = renewed => {}
    }
    assert_eq!(cluster.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(certificates::has_good(&test_host.host, CertificateKind::Wicd, "win-1", now).unwrap());
}

proptest! {
    #[test]
    fn renewal_is_after_20_to_40_percent_of_the_life(not_before in 0_i64..1 << 40, life in 0_i64..1 << 40, seed in any::<u64>()) {
        let at = Current { not_before, not_after: not_before + life, seed }.renew_at();
        prop_assert!(at >= not_before + life / 5 && at <= not_before + life * 2 / 5);
    }

    #[test]
    fn any_file_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Current::read(&bytes);
    }
}

/// Creates a host with a desired state, and an API server that answers certificate requests with `issuing`.
fn test_host(
    issuing: impl Fn(&TestHost, &str) -> Issue + Send + Sync + 'static,
) -> (TestHost, Arc<dyn Host>, FakeCluster) {
    let (test_host, signer) = (TestHost::new(), Mutex::new(TestHost::new()));
    let host: FakeHost = test_host.host.clone();
    let desired = Desired { node_name: "win-1".into(), ..Desired::default() };
    files::write_json(&host, path::DESIRED, &desired, Access::Protected).unwrap();
    let cluster = FakeCluster::new();
    *cluster.issuing.lock().unwrap() = Box::new(move |request| issuing(&signer.lock().unwrap(), request));
    (test_host, Arc::new(host), cluster)
}

#[tokio::test]
async fn a_certificate_is_renewed() {
    let (test_host, host, cluster) = test_host(|signer, request| Issue::Issued(signer.sign(request, 86_400)));
    for day in 1..=5 {
        test_host.write(&format!(r"{}\ovnkube-client-2026-01-0{day}-00-00-00.pem", path::OVERLAY_CERTS), b"");
    }
    assert!(renew(&host, &cluster).await.unwrap());
    assert_eq!(files::list(&test_host.host, path::OVERLAY_CERTS).unwrap().len(), 3, "those of the overlay are pruned");
    let pem = files::read(&test_host.host, path::WICD_CERT).unwrap().unwrap();
    let now = jiff::Timestamp::now().as_second();
    assert_eq!(Current::read(&pem).unwrap().due(now), Due::Later);
    let text = String::from_utf8(pem).unwrap();
    let key = KeyPair::from_pem(&text[text.find("-----BEGIN PRIVATE KEY").unwrap()..]).unwrap();
    assert_eq!(key.algorithm(), &rcgen::PKCS_ECDSA_P256_SHA256);
    assert!(
        certificates::has_good(&test_host.host, CertificateKind::Wicd, "win-1", now).unwrap(),
        "name and validity are right"
    );
}

#[tokio::test]
async fn an_unusable_certificate_is_not_installed() {
    let (test_host, host, cluster) = test_host(|signer, _| {
        let other = KeyPair::generate().unwrap();
        Issue::Issued(signer.sign(&CertificateParams::default().serialize_request(&other).unwrap().pem().unwrap(), 60))
    });
    assert_eq!(renew(&host, &cluster).await.unwrap_err().reason(), "CertificateInvalid");
    *cluster.issuing.lock().unwrap() = Box::new(|_| Issue::Refused("Denied: no".into()));
    assert_eq!(renew(&host, &cluster).await.unwrap_err().reason(), "CertificateNotIssued");
    *cluster.issuing.lock().unwrap() = Box::new(|_| Issue::Issued("junk".into()));
    assert_eq!(renew(&host, &cluster).await.unwrap_err().reason(), "CertificateInvalid");
    assert_eq!(files::read(&test_host.host, path::WICD_CERT).unwrap(), None);
}

#[test]
fn the_delay_doubles_with_each_failure() {
    let seconds: Vec<u64> = [0, 1, 2, 4, 5, u32::MAX].map(|failures| retry_after(failures).as_secs()).to_vec();
    assert_eq!(seconds, [30, 60, 120, 480, 600, 600]);
}
