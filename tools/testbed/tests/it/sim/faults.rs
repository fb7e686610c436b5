//! Tests of each fault, and of its removal.

use std::time::Duration;

use anyhow::Result;
use api::host::Feature;
use testbed::sim::{Fault, HostOptions};

use super::operator::{Connection, eventually, facts, lonely_host, options, put};

/// Time without an event after which a test assumes that none will come.
const QUIET: Duration = Duration::from_millis(300);

#[tokio::test]
async fn refuse() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let before = Connection::open(&host).await?;
    host.fault(Fault::Refuse);
    eventually("the port is closed", || async { Ok(Connection::open(&host).await.err()) }).await?;
    assert!(before.sftp().await.is_err());
    host.mend();
    eventually("the port is open", || async { Ok(Connection::open(&host).await.ok()) }).await?;
    Ok(())
}

#[tokio::test]
async fn hang() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    host.fault(Fault::Hang);
    assert!(tokio::time::timeout(QUIET, Connection::open(&host)).await.is_err());
    assert_eq!(host.stats().connections, 1, "it was accepted");
    host.mend();
    Connection::open(&host).await?;
    Ok(())
}

#[tokio::test]
async fn hang_in_command() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    host.fault(Fault::HangInCommand);
    let mut answer = std::pin::pin!(connection.verb(&exe, "try-1", facts()));
    assert!(tokio::time::timeout(QUIET, &mut answer).await.is_err());
    host.mend();
    answer.await?;
    Ok(())
}

#[tokio::test]
async fn cut_in_the_middle_of_a_transfer() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    host.fault(Fault::CutAfterBytes { bytes: 1 << 20, once: true });
    let connection = Connection::open(&host).await?;
    let content = vec![7; 3 << 20];
    assert!(put(&connection.sftp().await?, r"C:\x", &content).await.is_err());
    let there = std::fs::metadata(host.drive_c().join("x"))?.len();
    assert!(there > 0 && there < 2 << 20, "{there}");
    // The fault disappears after one cut.
    let connection = Connection::open(&host).await?;
    put(&connection.sftp().await?, r"C:\x", &content).await?;

    host.fault(Fault::CutAfterBytes { bytes: 1 << 20, once: false });
    for _ in 0..2 {
        let connection = Connection::open(&host).await?;
        assert!(put(&connection.sftp().await?, r"C:\x", &content).await.is_err());
    }
    Ok(())
}

#[tokio::test]
async fn disk_full() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    let sftp = connection.sftp().await?;
    host.fault(Fault::DiskFull);
    assert!(put(&sftp, r"C:\x", b"x").await.is_err());
    assert!(sftp.create_dir("/C:/y").await.is_err());
    assert!(sftp.try_exists("/C:/windows").await?, "reading goes on");
    host.mend();
    put(&sftp, r"C:\x", b"x").await?;
    assert!(connection.verb(&exe, "try-1", facts()).await?.state.unwrap().machine.disk_free > 0);
    Ok(())
}

#[tokio::test]
async fn the_server_of_7_7_shares_no_file_that_is_written() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    for (faults, is_shared) in [(vec![], true), (vec![Fault::OldSftp], false)] {
        host.mend();
        for fault in faults {
            host.fault(fault);
        }
        let [writer, other] =
            [Connection::open(&host).await?.sftp().await?, Connection::open(&host).await?.sftp().await?];
        let file = writer.create("/C:/x").await?;
        assert_eq!(other.create("/C:/x").await.is_ok(), is_shared);
        assert_eq!(other.read("/C:/x").await.is_ok(), is_shared);
        drop(file);
        eventually("the file is closed", || async { Ok(other.read("/C:/x").await.ok()) }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn wrong_key() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    host.fault(Fault::WrongKey);
    assert!(Connection::open(&host).await.is_err());
    host.mend();
    Connection::open(&host).await?;
    Ok(())
}

#[tokio::test]
async fn changed_host_key() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    let key = host.host_key();
    host.fault(Fault::ChangedHostKey);
    let other = host.host_key();
    assert_ne!(other, key);
    assert_eq!(Connection::open(&host).await?.host_key, other);
    host.mend();
    assert_eq!(Connection::open(&host).await?.host_key, key);
    Ok(())
}

#[tokio::test]
async fn not_windows() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    host.fault(Fault::NotWindows);
    let connection = Connection::open(&host).await?;
    let sftp = connection.sftp().await?;
    assert!(!sftp.try_exists("/C:/windows/system32").await?);
    assert!(sftp.try_exists("/etc").await?);
    assert!(sftp.create_dir("/C:").await.is_err());
    assert_eq!(connection.exec(&api::host::command(&"a".repeat(64), api::host::Verb::Facts, "x")).await?.0, 127);
    Ok(())
}

#[tokio::test]
async fn clock_feature_and_noise() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    for fault in [Fault::ClockAhead(Duration::from_hours(2)), Fault::NeedsReboot, Fault::GarbledOutput] {
        host.fault(fault);
    }
    let connection = Connection::open(&host).await?;
    let exe = connection.upload_exe().await?;
    let machine = connection.verb(&exe, "try-1", facts()).await?.state.unwrap().machine;
    let ahead = machine.clock_ms - k8s_openapi::jiff::Timestamp::now().as_millisecond();
    assert!((7_100_000..=7_200_000).contains(&ahead), "{ahead}");
    assert_eq!(machine.containers_feature, Feature::Disabled);
    let (_, output) = connection.exec("x").await?;
    assert!(String::from_utf8(output).is_err(), "noise is no text");

    host.reboot();
    let back =
        eventually("it is back", || async { Ok(Connection::open(&host).await.ok().filter(|_| host.boots() == 2)) });
    let machine = back.await?.verb(&exe, "try-2", facts()).await?.state.unwrap().machine;
    assert_eq!(machine.containers_feature, Feature::Enabled);
    Ok(())
}

#[tokio::test]
async fn programs_fail() -> Result<()> {
    let (_sim, host) = lonely_host(options()).await?;
    host.fault(Fault::ProgramsFail(0xC000_0135));
    let connection = Connection::open(&host).await?;
    assert_eq!(connection.exec("x").await?.0, 0xC000_0135);
    Ok(())
}

#[tokio::test]
async fn slow_reboot() -> Result<()> {
    let (sim, host) = lonely_host(options()).await?;
    host.fault(Fault::SlowReboot(Duration::from_hours(1)));
    host.reboot();
    eventually("it is down", || async { Ok(Connection::open(&host).await.err()) }).await?;
    let other = sim.host(HostOptions::named("sim-quick")).await?;
    other.reboot();
    eventually("another one is back", || async {
        Ok(Connection::open(&other).await.ok().filter(|_| other.boots() == 2))
    })
    .await?;
    assert!(Connection::open(&host).await.is_err());
    assert_eq!(host.boots(), 1);
    host.mend();
    eventually("it is back", || async { Ok(Connection::open(&host).await.ok()) }).await?;
    assert_eq!(host.boots(), 2);
    Ok(())
}
