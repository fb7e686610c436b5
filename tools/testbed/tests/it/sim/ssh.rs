//! Tests of SSH, SFTP and the verbs of a simulated host.

use std::time::{Duration, Instant};

use anyhow::Result;
use api::{
    host::{Apply, Body, Cleanup, Desired, Outcome, ServiceState, Start},
    services::{Service, ServicesConfig},
};
use testbed::sim::{HostOptions, Link, Sim, SimHost, SimOptions};

use super::operator::{CLUSTER, Connection, EXE, eventually, facts, key, lonely_host, options, put, sftp_path};

#[tokio::test]
async fn files_go_to_drive_c_and_come_back() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let sftp = connection.sftp().await?;
    assert_eq!(sftp.canonicalize(".").await?, "/C:/Users/Administrator");
    assert!(sftp.metadata("/C:/windows/system32").await?.is_dir());
    assert!(sftp.metadata("/c:/WINDOWS/System32").await?.is_dir());
    assert!(!sftp.try_exists("/D:/").await?);

    sftp.create_dir("/C:/k").await?;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    put(&sftp, r"C:\k\big.partial", &content).await?;
    sftp.rename("/C:/k/big.partial", "/C:/k/big").await?;
    assert!(sftp.read("/C:/K/Big").await? == content);
    assert!(std::fs::read(host.drive_c().join("k/big"))? == content);

    put(&sftp, r"C:\k\other", b"x").await?;
    assert!(sftp.rename("/C:/k/other", "/C:/k/big").await.is_err(), "version 3 renames onto nothing");
    let names: Vec<String> = sftp.read_dir("/C:/k").await?.map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    sftp.remove_file("/C:/k/other").await?;
    sftp.remove_file("/C:/k/big").await?;
    sftp.remove_dir("/C:/k").await?;
    assert!(!host.drive_c().join("k").exists());
    assert!(host.stats().bytes_received > 3_000_000);
    assert_eq!(host.stats().connections, 1);
    Ok(())
}

#[tokio::test]
async fn a_key_file_decides_who_gets_in() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let user = "Administrator";
    Connection::open_as(&host, user, key(1)).await?;
    for file in ["ProgramData/ssh/administrators_authorized_keys", "Users/Administrator/.ssh/authorized_keys"] {
        let path = host.drive_c().join(file);
        std::fs::create_dir_all(path.parent().expect("it has a directory"))?;
        let [first, second] = [1, 2].map(|n| key(n).public_key().to_openssh());
        std::fs::write(&path, format!("# {}\r\nfrom=\"a b\" {} c\r\n", first?, second?))?;
        Connection::open_as(&host, user, key(2)).await?;
        assert!(Connection::open_as(&host, user, key(1)).await.is_err(), "{file}");

        let mut permissions = std::fs::metadata(&path)?.permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions)?;
        let sftp = Connection::open_as(&host, user, key(2)).await?.sftp().await?;
        let remote = format!("/C:/{file}");
        assert!(!sftp.read(&remote).await?.is_empty());
        assert!(sftp.write(&remote, b"x").await.is_err() && sftp.remove_file(&remote).await.is_err(), "{file}");
        std::fs::remove_file(&path)?;
    }
    Connection::open_as(&host, user, key(1)).await?;
    Ok(())
}

#[tokio::test]
async fn facts_are_answered_by_a_whole_program_only() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    let answer = connection.verb(&exe, "try-1", facts()).await?;
    assert_eq!(answer.outcome, Outcome::Done);
    let machine = answer.state.expect("facts report the state of the host").machine;
    assert_eq!((machine.hostname.as_str(), machine.boot_id.as_str()), ("win-1", "1"));
    assert_eq!(machine.default_address, Some(host.address().to_string()));
    assert_eq!(host.stats().processes, 1);

    let sftp = connection.sftp().await?;
    put(&sftp, &api::host::launcher_path(&exe), &EXE[..5]).await?;
    assert!(connection.verb(&exe, "try-2", facts()).await.is_err(), "a program that is cut off is not run");
    let (status, _) = connection.exec("powershell.exe -Command dir").await?;
    assert_eq!(status, 1);
    Ok(())
}

#[tokio::test]
async fn each_host_has_an_address_and_keys_of_its_own() -> Result<()> {
    let sim = Sim::without_cluster(options())?;
    let own = HostOptions {
        user: Some("admin".into()),
        authorized_keys: Some(vec![key(2).public_key().clone()]),
        ..HostOptions::named("own")
    };
    let (one, other) = (sim.host(HostOptions::named("one")).await?, sim.host(own).await?);
    assert_ne!(one.address(), other.address());
    assert_eq!(one.port(), other.port());
    assert_ne!(one.host_key(), other.host_key());
    assert_eq!(Connection::open(&one).await?.host_key, one.host_key());
    Connection::open_as(&one, "ADMINISTRATOR", key(1)).await?;
    Connection::open_as(&other, "admin", key(2)).await?;
    assert!(Connection::open_as(&other, "admin", key(1)).await.is_err());
    assert!(Connection::open_as(&other, "Administrator", key(2)).await.is_err());
    assert!(sim.host(HostOptions::named("one")).await.is_err(), "names are taken once");
    Ok(())
}

#[tokio::test]
async fn a_restart_cuts_connections_and_changes_the_boot_id() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    let reboot = Body::Reboot(api::host::Reboot { boot_id: "1".into() });
    assert_eq!(connection.verb(&exe, "try-1", reboot).await?.outcome, Outcome::Done);
    let again = eventually("the host is back", || async {
        Ok(Connection::open(&host).await.ok().filter(|_| host.boots() == 2))
    });
    let again = again.await?;
    assert!(connection.sftp().await.is_err(), "the old connection is gone");
    let answer = again.verb(&exe, "try-2", facts()).await?;
    assert_eq!(answer.state.expect("state").machine.boot_id, "2");
    Ok(())
}

#[tokio::test]
async fn services_run_after_start_and_are_gone_after_cleanup() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    let service = |name: &str, needs: &[&str]| Service {
        name: name.into(),
        path: format!(r"C:\k\{name}.exe"),
        dependencies: needs.iter().map(ToString::to_string).collect(),
        ..Service::default()
    };
    let services = vec![service("kubelet", &["containerd"]), service("containerd", &[])];
    let desired = Desired {
        cluster_id: CLUSTER.into(),
        node_name: "win-1".into(),
        node_ip: host.address().to_string(),
        version: "1".into(),
        services: ServicesConfig { services, ..ServicesConfig::default() },
        ..Desired::default()
    };
    let apply = Apply { desired, wicd_sha256: exe.clone(), ..Apply::default() };
    connection.verb(&exe, "join", Body::Apply(Box::new(apply))).await?;
    let start = Start { wicd_sha256: exe.clone(), certificate_seconds: 3600, ..Start::default() };
    assert_eq!(connection.verb(&exe, "join", Body::Start(start)).await?.outcome, Outcome::Done);
    let running = |host: &SimHost| host.services().values().filter(|s| **s == ServiceState::Running).count();
    assert_eq!(running(&host), 3, "{:?}", host.services());

    host.power_off();
    assert_eq!(running(&host), 0);
    host.power_on();
    assert_eq!(running(&host), 3, "{:?}", host.services());

    let back = eventually("it is back", || async { Ok(Connection::open(&host).await.ok()) }).await?;
    let answer = back.verb(&exe, "leave", Body::Cleanup(Cleanup {})).await?;
    assert_eq!(answer.outcome, Outcome::Done);
    assert!(host.services().is_empty(), "{:?}", host.services());
    Ok(())
}

/// Latency counts per round trip, not per packet: what is sent without waiting is not slowed down.
#[tokio::test]
async fn latency_is_added_once_for_what_is_under_way_together() -> Result<()> {
    let rtt = Duration::from_millis(100);
    let link = Link { rtt, bandwidth: None };
    let (_sim, host) = lonely_host(SimOptions { link, ..options() }).await?;
    let connection = Connection::open(&host).await?;
    let sftp = connection.sftp().await?;
    let asked = Instant::now();
    sftp.metadata("/C:/windows").await?;
    // A lower bound holds even on a busy machine.
    assert!(asked.elapsed() >= rtt);
    let packets = 200;
    let asked = Instant::now();
    let all: Vec<_> = (0..packets).map(|_| sftp.metadata("/C:/windows")).collect();
    futures::future::try_join_all(all).await?;
    assert!(asked.elapsed() < rtt * packets / 4, "200 questions at once took {:?}", asked.elapsed());
    Ok(())
}

#[tokio::test]
async fn bandwidth_is_limited() -> Result<()> {
    let link = Link { rtt: Duration::ZERO, bandwidth: Some(1 << 20) };
    let (_sim, host) = lonely_host(SimOptions { link, ..options() }).await?;
    let connection = Connection::open(&host).await?;
    let sftp = connection.sftp().await?;
    sftp.create_dir(sftp_path(r"C:\k")).await?;
    let begun = Instant::now();
    put(&sftp, r"C:\k\x", &vec![7; 512 << 10]).await?;
    assert!(begun.elapsed() >= Duration::from_millis(400), "took {:?}", begun.elapsed());
    Ok(())
}
