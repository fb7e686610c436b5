//! Stream of the files that a host lacks, which can be resumed at any byte.
//!
//! The stream is a POSIX ustar archive. Each entry is named by the SHA-256 of its content and holds the zstd frame of
//! the payload unchanged. The manifest alone determines the layout: the length and all offsets are known without
//! reading a file.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncSeek, ReadBuf},
    sync::Semaphore,
    task::{JoinHandle, spawn_blocking},
};

use super::{Payload, PayloadError};

/// Size of a tar block. A header takes one block, contents are padded to whole blocks, and two zero blocks end the stream.
const BLOCK_LEN: usize = 512;
const BLOCK: u64 = BLOCK_LEN as u64;
/// Maximum number of bytes that are read from a file at once and held in memory for each archive.
const CHUNK: u64 = 64 << 10;

/// Limit of concurrent file reads. Each read is short, because all hosts get the same files, which stay in the page cache. But each read needs a
/// thread with its own memory.
static READS: Semaphore = Semaphore::const_new(4);

/// Stream of payload files. Many streams can be read at once: each holds one chunk and at most one open file.
#[derive(Debug)]
pub struct Archive {
    name: String,
    segments: Arc<[Segment]>,
    len: u64,
    position: u64,
    state: State,
}

/// Part of the stream, up to the start of the next segment.
#[derive(Debug)]
struct Segment {
    start: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Tar header.
    Header(Box<[u8; BLOCK_LEN]>),
    /// Whole compressed file.
    File(PathBuf),
    /// Zeros that pad a block or end the stream.
    Zeros,
}

#[derive(Debug)]
enum State {
    /// Bytes at the current position, and the open file. Both may be empty.
    Ready(Bytes, Option<Open>),
    /// A chunk is being read.
    Reading(JoinHandle<io::Result<(Bytes, Open)>>),
}

/// Open file with the index of its segment.
#[derive(Debug)]
struct Open {
    segment: usize,
    file: fs::File,
}

impl Archive {
    /// Returns an archive of the payload files with the hashes in `missing`.
    ///
    /// # Errors
    /// [`PayloadError::NotInPayload`] for the first hash that is not in the payload.
    pub fn new(payload: &Payload, missing: &BTreeSet<String>) -> Result<Self, PayloadError> {
        let mut builder = Builder::default();
        let mut list = Sha256::new();
        for sha256 in missing {
            let blob = payload.blob(sha256)?;
            // The name depends on the compressed size as well, because a partial upload fits only the same frame, not just the same content.
            list.update(format!("{sha256} {}\n", blob.compressed));
            builder.add(BLOCK, Source::Header(Box::new(header(sha256, blob.compressed))));
            builder.add(blob.compressed, Source::File(blob.path.clone()));
            builder.add(blob.compressed.next_multiple_of(BLOCK) - blob.compressed, Source::Zeros);
        }
        builder.add(2 * BLOCK, Source::Zeros);
        let mut name = hex::encode(list.finalize());
        name.truncate(32);
        name.push_str(".tar");
        Ok(Self {
            name,
            segments: builder.segments.into(),
            len: builder.len,
            position: 0,
            state: State::Ready(Bytes::new(), None),
        })
    }

    /// Returns the file name, `<32 hex digits>.tar`. It is derived from the content, so a file of this name on a host, however short, is the
    /// beginning of this stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of the stream in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Returns the index of the segment at the current position and its end, or `None` at the end of the stream.
    fn here(&self) -> Option<(usize, u64)> {
        if self.position >= self.len {
            return None;
        }
        let number = self.segments.partition_point(|s| s.start <= self.position) - 1;
        Some((number, self.segments.get(number + 1).map_or(self.len, |next| next.start)))
    }
}

#[derive(Default)]
struct Builder {
    segments: Vec<Segment>,
    len: u64,
}

impl Builder {
    /// Adds a segment. Empty segments are left out, so that every position is in exactly one segment.
    fn add(&mut self, len: u64, source: Source) {
        if len > 0 {
            self.segments.push(Segment { start: self.len, source });
            self.len += len;
        }
    }
}

fn header(name: &str, size: u64) -> [u8; BLOCK_LEN] {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    *header.as_bytes()
}

impl AsyncRead for Archive {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match &mut this.state {
                State::Ready(chunk, _) if chunk.has_remaining() => {
                    let n = chunk.len().min(out.remaining());
                    out.put_slice(&chunk[..n]);
                    chunk.advance(n);
                    this.position += n as u64;
                    return Poll::Ready(Ok(()));
                }
                State::Ready(_, open) => {
                    let open = open.take();
                    let segments = Arc::clone(&this.segments);
                    let Some((number, end)) = this.here() else { return Poll::Ready(Ok(())) };
                    let Segment { start, source } = &segments[number];
                    let left = end - this.position;
                    let inside = this.position - start;
                    let piece: &[u8] = match source {
                        Source::Header(bytes) => &bytes[to_usize(inside)..],
                        Source::Zeros => &[0; 2 * BLOCK_LEN][..to_usize(left)],
                        Source::File(path) => {
                            let path = path.clone();
                            let read = move || read_chunk(open, number, &path, inside, left.min(CHUNK));
                            this.state = State::Reading(tokio::spawn(in_turn(read)));
                            continue;
                        }
                    };
                    let n = piece.len().min(out.remaining());
                    out.put_slice(&piece[..n]);
                    this.position += n as u64;
                    return Poll::Ready(Ok(()));
                }
                State::Reading(task) => {
                    let result = ready!(Pin::new(task).poll(cx)).map_err(io::Error::other);
                    this.state = State::Ready(Bytes::new(), None);
                    let (chunk, open) = result??;
                    this.state = State::Ready(chunk, Some(open));
                }
            }
        }
    }
}

/// Runs blocking work once a permit of [`READS`] is free.
async fn in_turn<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let _turn = READS.acquire().await.map_err(io::Error::other)?;
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Converts a number of at most [`CHUNK`], for which the conversion is lossless.
fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Reads exactly `size` bytes at `offset` of a file. Blocks the thread.
fn read_chunk(open: Option<Open>, segment: usize, path: &PathBuf, offset: u64, size: u64) -> io::Result<(Bytes, Open)> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot read payload file {}: {e}", path.display()));
    let mut file = match open {
        Some(open) if open.segment == segment => open.file,
        _ => fs::File::open(path).map_err(named)?,
    };
    let mut chunk = vec![0; to_usize(size)];
    file.seek(SeekFrom::Start(offset)).map_err(named)?;
    file.read_exact(&mut chunk).map_err(named)?;
    Ok((chunk.into(), Open { segment, file }))
}

impl AsyncSeek for Archive {
    /// Seeks immediately. A position beyond the end is an error.
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let position = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::End(n) => self.len.checked_add_signed(n),
            SeekFrom::Current(n) => self.position.checked_add_signed(n),
        };
        match position {
            Some(position) if position <= self.len => {
                self.position = position;
                // A chunk that is still being read belongs to the old position, so its result is dropped.
                self.state = State::Ready(Bytes::new(), None);
                Ok(())
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the position is outside the archive")),
        }
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position))
    }
}
