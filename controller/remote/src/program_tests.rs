//! Tests of the program that the operator starts on a host.

use sha2::{Digest as _, Sha256};

use super::*;
use crate::ssh::tests::host::{Host, Running};

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

/// Program with its content, and a host.
struct Bed {
    _dir: tempfile::TempDir,
    host: Running,
    wicd: Wicd,
    content: Vec<u8>,
}

impl Bed {
    async fn new() -> Self {
        let (dir, content) = (tempfile::tempdir().unwrap(), bytes(4 * 1024 * 1024 + 17));
        let own = dir.path().join("wicd.exe");
        std::fs::write(&own, &content).unwrap();
        let wicd = Wicd::open(&own).unwrap();
        assert_eq!(wicd.sha256, hex::encode(Sha256::digest(&content)));
        Self { _dir: dir, host: Host::default().start().await, wicd, content }
    }

    fn path(&self, suffix: &str) -> std::path::PathBuf {
        self.host.file(&format!("windows/wicd/{}/wicd.exe{suffix}", self.wicd.sha256))
    }

    fn put(&self, suffix: &str, content: &[u8]) {
        std::fs::create_dir_all(self.path("").parent().unwrap()).unwrap();
        std::fs::write(self.path(suffix), content).unwrap();
    }

    async fn ensure(&self) -> Result<u64, RemoteError> {
        let connection = Connection::connect(&self.host.target()).await.unwrap();
        if is_there(&connection, &self.wicd).await? {
            return Ok(0);
        }
        send(&connection, &self.wicd, "Administrator").await
    }

    fn assert_right(&self) {
        assert!(std::fs::read(self.path("")).unwrap() == self.content);
        assert!(!self.path(".partial").exists());
    }
}

#[tokio::test]
async fn an_unchanged_program_is_sent_once() {
    let bed = Bed::new().await;
    assert_eq!(bed.ensure().await.unwrap(), bed.wicd.size);
    bed.assert_right();
    assert_eq!(bed.ensure().await.unwrap(), 0);
}

/// Another user or a power failure may have left a program with wrong content.
#[tokio::test]
async fn a_program_with_other_bytes_is_replaced() {
    let bed = Bed::new().await;
    let (mut other, half) = (bed.content.clone(), bed.content.len() / 2);
    *other.last_mut().unwrap() ^= 1;
    let zeros = [&bed.content[..half], &vec![0; bed.content.len() - half]].concat();
    for wrong in [other, zeros, bed.content[1..].to_vec(), Vec::new()] {
        bed.put("", &wrong);
        assert_eq!(bed.ensure().await.unwrap(), bed.wicd.size);
        bed.assert_right();
    }
}

#[tokio::test]
async fn a_partial_upload_is_resumed_and_replaced_if_it_has_wrong_bytes() {
    let bed = Bed::new().await;
    let most = bed.content.len() - 10;
    bed.put(".partial", &bed.content[..most]);
    let sent = bed.ensure().await.unwrap();
    assert!(sent < bed.wicd.size, "{sent}");
    bed.assert_right();

    // A resumed upload does not send the beginning again, so a wrong beginning is found only by the hash.
    for tampered in [vec![0x90; most], vec![0x90; bed.content.len()], vec![0x90; bed.content.len() + 1]] {
        std::fs::remove_file(bed.path("")).unwrap();
        bed.put(".partial", &tampered);
        assert!(bed.ensure().await.unwrap() >= bed.wicd.size);
        bed.assert_right();
    }
}

#[tokio::test]
async fn a_changed_file_of_the_operator_is_the_operators_fault() {
    let bed = Bed::new().await;
    let mut other = bed.content.clone();
    other[0] ^= 1;
    std::fs::write(&bed.wicd.path, other).unwrap();
    let error = bed.ensure().await.unwrap_err();
    assert!(matches!(error, RemoteError::OwnFile { .. }), "{error}");
    assert!(!bed.path("").exists());
}

#[test]
fn a_user_without_write_permission_is_not_an_administrator() {
    let failed = |why: &str| {
        let (address, path) = ("10.0.0.1".to_owned(), host::path::LAUNCH.to_owned());
        refused(SshError::TransferFailed { address, action: "upload", path, why: why.to_owned() }, "guest").reason()
    };
    assert_eq!(failed(PERMISSION_DENIED), "NotAdministrator");
    assert_eq!(failed("the host reports \"Failure\""), "TransferFailed");
}
