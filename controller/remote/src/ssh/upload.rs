//! Pipelined and resumable uploads within a memory budget.

use std::io::{self, SeekFrom};

use futures::{FutureExt, StreamExt, TryStreamExt, stream::FuturesUnordered};
use russh_sftp::{client::error::Error, protocol::FileAttributes};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt},
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
};

use super::{
    Connection, SshError,
    error::Doing,
    path::checked,
    sftp::{CHUNK, Sftp},
};

/// Maximum number of write requests of one upload in flight: 3 MiB. OpenSSH's server accepts 2 MiB ahead on a channel, and that window must always be
/// full. Time for 256 MiB on loopback against OpenSSH 9.2 with 20 ms round-trip time (without delay in parentheses): 64 requests 5.1 s, 96 requests
/// 3.7 s (1.3 s), 128 requests 3.8 s; OpenSSH's own sftp and scp 4.2 s (1.4 to 1.9 s).
const DEPTH: usize = 96;

/// Number of requests that each upload may always have in flight, so that no upload waits for another host.
const GUARANTEED: usize = 2;

/// Number of further requests that all uploads of the process share: 6 MiB. The limit bounds the memory of concurrent uploads.
const SHARED: usize = 192;

static BUDGET: Semaphore = Semaphore::const_new(SHARED);

/// Side of an upload that failed, with its error.
pub(super) enum Failure {
    Remote(Error),
    Source(io::Error),
}

impl Connection {
    /// Uploads `total` bytes of `source` to `path`, creates missing parent directories, and returns the number of bytes sent. Resumes an earlier
    /// upload of the same bytes: the caller derives the file name from the content, so that a shorter file is the beginning of it. Bytes that the
    /// host lost in a crash are not detected: the caller verifies the hash of the whole file, and removes it if it is wrong.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::Source`] when `source` cannot
    /// be read or ends before `total` bytes. [`SshError::DiskFull`] when the host has no space for the file.
    /// [`SshError::TransferFailed`] when the host refuses a request, does not answer in time, or does not have `total` bytes
    /// in the end. [`SshError::NotASftpServer`] when the host offers no SFTP. [`SshError::Disconnected`] when the connection
    /// breaks.
    pub async fn upload(
        &self,
        path: &str,
        total: u64,
        source: &mut (impl AsyncRead + AsyncSeek + Unpin),
    ) -> Result<u64, SshError> {
        let doing = Doing { action: "upload", path };
        let remote = checked(path)?;
        let upload = async {
            let sftp = self.sftp().await?;
            // The host handles requests in order, so it reports the size before it opens the file.
            let (there, opened) = tokio::join!(biased; self.size(path), self.create(sftp, &remote, false, doing));
            let there = there?;
            if there == Some(total) {
                if let Ok(handle) = opened {
                    sftp.leave(handle);
                }
                return Ok(0);
            }
            let handle = opened?;
            if there > Some(total) {
                let emptied = sftp.raw.fsetstat(&handle, FileAttributes { size: Some(0), ..FileAttributes::empty() });
                emptied.await.map_err(|error| self.failed(&error, doing))?;
            }
            let resumed_at = resume_at(there, total);
            source
                .seek(SeekFrom::Start(resumed_at))
                .await
                .map_err(|source| SshError::Source { path: path.to_owned(), source })?;
            let sent = send(sftp, handle, resumed_at, total, source).await;
            let size = self.written(sftp, sent, &remote, doing).await?;
            if size != total {
                let why = format!("the host has {size} bytes of it, instead of {total}");
                return Err(self.transfer_failed(doing, why));
            }
            Ok(total - resumed_at)
        };
        self.while_open(upload).await
    }
}

/// Returns the offset at which to resume a file that has `there` bytes already. The last [`DEPTH`] chunks are sent again, because not all of them had
/// been confirmed, and a server that writes out of order may have left holes.
fn resume_at(there: Option<u64>, total: u64) -> u64 {
    match there {
        Some(there) if there < total => there.saturating_sub((DEPTH * CHUNK) as u64),
        _ => 0,
    }
}

/// Writes `source` from its current position to the range `offset..total` of an open file, closes the file, and returns its size. The host handles
/// the requests in order, so that the last ones take one round trip together. An error of closing matters, because a server may report only then that
/// its disk is full.
pub(super) async fn send(
    sftp: &Sftp,
    handle: String,
    offset: u64,
    total: u64,
    source: &mut (impl AsyncRead + Unpin),
) -> Result<u64, Failure> {
    let mut writes = FuturesUnordered::new();
    let send = async {
        let mut offset = offset;
        while offset < total {
            let mut chunk = vec![0; sftp.chunk.min(usize::try_from(total - offset).unwrap_or(usize::MAX))];
            source.read_exact(&mut chunk).await.map_err(Failure::Source)?;
            let permit = loop {
                if let Some(permit) = admit(writes.len()) {
                    break permit;
                }
                writes.try_next().await?;
            };
            let length = chunk.len() as u64;
            writes.push(write(sftp, &handle, offset, chunk, permit));
            offset += length;
            // A request is sent when it is first polled.
            while let Some(Some(written)) = writes.next().now_or_never() {
                written?;
            }
            // The connection's task encrypts all waiting data into one buffer, which never shrinks. The task runs here, so that little data waits.
            yield_now().await;
        }
        Ok(())
    };
    let sent = send.await;
    let (written, size, closed) =
        tokio::join!(biased; writes.try_collect::<()>(), sftp.raw.fstat(&handle), sftp.raw.close(&handle));
    sent.and(written)?;
    closed.map_err(Failure::Remote)?;
    Ok(size.map_err(Failure::Remote)?.attrs.size.unwrap_or_default())
}

/// Permit to send one more write request, held for as long as the request is in flight.
enum Permit {
    Guaranteed,
    Shared(#[expect(dead_code, reason = "given back when dropped")] SemaphorePermit<'static>),
}

/// Returns a permit, or `None` if a request must end first.
fn admit(in_flight: usize) -> Option<Permit> {
    match in_flight {
        0..GUARANTEED => Some(Permit::Guaranteed),
        GUARANTEED..DEPTH => BUDGET.try_acquire().ok().map(Permit::Shared),
        _ => None,
    }
}

async fn write(sftp: &Sftp, handle: &str, offset: u64, data: Vec<u8>, _permit: Permit) -> Result<(), Failure> {
    sftp.raw.write(handle, offset, data).await.map(drop).map_err(Failure::Remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_resumes_before_unconfirmed_chunks() {
        let window = (DEPTH * CHUNK) as u64;
        for (there, total, at) in [
            (None, 10, 0),
            (Some(0), 10, 0),
            (Some(5), 10, 0),
            (Some(window + 5), 2 * window, 5),
            // The file is longer than the content and thus not the operator's, so it is replaced.
            (Some(11), 10, 0),
        ] {
            assert_eq!(resume_at(there, total), at, "{there:?} of {total}");
        }
    }
}
