//! Files and directories of a host, over SFTP. Paths are Windows paths ([`sftp_path`](super::sftp_path)).

use std::{io::Cursor, iter};

use futures::future::join_all;
use russh_sftp::{
    client::error::Error,
    protocol::{FileAttributes, Handle, OpenFlags, Status, StatusCode},
};

use super::error::Doing;
use super::{Connection, SshError, path, sftp, sftp::Sftp, upload};

/// Maximum number of entries that are read from a directory, so that an endless listing stops. The operator's directories have fewer.
const MAX_ENTRIES: usize = 10_000;

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the entry, which [`sftp_path`](super::sftp_path) accepts.
    pub name: String,
    /// True if the entry is a directory.
    pub is_directory: bool,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Connection {
    /// Sends one SFTP request. Fails as soon as the connection closes.
    async fn request<T>(
        &self,
        doing: Doing<'_>,
        ask: impl AsyncFnOnce(&Sftp) -> Result<T, Error>,
    ) -> Result<T, SshError> {
        let work = async { ask(self.sftp().await?).await.map_err(|error| self.failed(&error, doing)) };
        self.while_open(work).await
    }

    /// Reads a file of at most `limit` bytes. Returns `None` if the file is missing.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TooLarge`] when the file has
    /// more than `limit` bytes. [`SshError::TransferFailed`] when the host refuses the request or does not answer in time.
    /// [`SshError::NotASftpServer`] when the host offers no SFTP. [`SshError::Disconnected`] when the connection breaks.
    pub async fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SshError> {
        let doing = Doing { action: "read", path };
        let remote = path::checked(path)?;
        let open = async |sftp: &Sftp| sftp.raw.open(remote, OpenFlags::READ, FileAttributes::empty()).await;
        self.with_open(doing, open, async |sftp, handle| self.read_open(sftp, handle, limit, doing).await).await
    }

    /// Opens a file or directory to read it, runs `work` on its handle, and closes it. Returns `None` if it is missing. The answer to the
    /// close is not awaited, because it does not affect the data that were read.
    pub(super) async fn with_open<T>(
        &self,
        doing: Doing<'_>,
        open: impl AsyncFnOnce(&Sftp) -> Result<Handle, Error>,
        work: impl AsyncFnOnce(&Sftp, &str) -> Result<T, SshError>,
    ) -> Result<Option<T>, SshError> {
        let run = async {
            let sftp = self.sftp().await?;
            let opened = sftp::found(open(sftp).await).map_err(|error| self.failed(&error, doing))?;
            let Some(Handle { handle, .. }) = opened else { return Ok(None) };
            let result = work(sftp, &handle).await;
            sftp.leave(handle);
            result.map(Some)
        };
        self.while_open(run).await
    }

    async fn read_open(&self, sftp: &Sftp, handle: &str, limit: usize, doing: Doing<'_>) -> Result<Vec<u8>, SshError> {
        let chunk = u32::try_from(sftp.chunk).unwrap_or(1);
        // The size is requested together with the first read, so that a small file takes one round trip.
        let (size, mut read) = tokio::join!(sftp.raw.fstat(handle), sftp.raw.read(handle, 0, chunk));
        let size = size.ok().and_then(|attributes| attributes.attrs.size);
        let mut bytes = Vec::new();
        loop {
            match read {
                Ok(data) if data.data.is_empty() => break,
                Ok(data) => bytes.extend_from_slice(&data.data),
                Err(Error::Status(Status { status_code: StatusCode::Eof, .. })) => break,
                Err(error) => return Err(self.failed(&error, doing)),
            }
            if bytes.len() > limit {
                return Err(self.too_large(doing, limit));
            }
            if size == Some(bytes.len() as u64) {
                break;
            }
            read = sftp.raw.read(handle, bytes.len() as u64, chunk).await;
        }
        Ok(bytes)
    }

    /// Writes a file and creates its parent directories. A reader never sees a part of the content, because the bytes are written to `path.partial`,
    /// which then replaces the file. The file is missing for a moment if the server cannot replace it atomically.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path` or `path.partial`. [`SshError::DiskFull`]
    /// when the host has no space for the file. [`SshError::TransferFailed`] when the host does not make a directory, does
    /// not write the file or put it in its place, or does not answer in time. [`SshError::NotASftpServer`] when the host
    /// offers no SFTP. [`SshError::Disconnected`] when the connection breaks.
    pub async fn write(&self, path: &str, bytes: &[u8]) -> Result<(), SshError> {
        let doing = Doing { action: "write", path };
        let remote = path::checked(path)?;
        let partial = path::checked(&format!("{path}.partial"))?;
        let write = async {
            let sftp = self.sftp().await?;
            let handle = self.create(sftp, &partial, true, doing).await?;
            let sent = upload::send(sftp, handle, 0, bytes.len() as u64, &mut Cursor::new(bytes)).await;
            self.written(sftp, sent, &partial, doing).await?;
            match sftp.replace(&partial, &remote).await {
                Ok(()) => Ok(()),
                Err(error) => Err(self.write_failed(sftp, &error, &remote, doing).await),
            }
        };
        self.while_open(write).await
    }

    /// Changes a small file in place, which keeps its owner and access list. `old` is the current content. A single write request overwrites surplus
    /// bytes with newlines before the file is truncated, so that the end of the old text never follows the new text.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TooLarge`] when the change does
    /// not fit into one request, or the file has more bytes than `new` afterwards. [`SshError::DiskFull`] when the host has
    /// no space for it. [`SshError::TransferFailed`] when the file is missing, the host does not write it, does not answer in
    /// time, or has other bytes than `new` afterwards. [`SshError::NotASftpServer`] when the host offers no SFTP.
    /// [`SshError::Disconnected`] when the connection breaks.
    pub async fn rewrite(&self, path: &str, old: &[u8], new: &[u8]) -> Result<(), SshError> {
        self.while_open(self.rewrite_in_place(path, old, new)).await
    }

    async fn rewrite_in_place(&self, path: &str, old: &[u8], new: &[u8]) -> Result<(), SshError> {
        let doing = Doing { action: "change", path };
        let remote = path::checked(path)?;
        let sftp = self.sftp().await?;
        let (offset, data) = difference(old, new);
        if data.len() > sftp.chunk {
            return Err(self.too_large(doing, sftp.chunk));
        }
        let opened = sftp.raw.open(&remote, OpenFlags::WRITE, FileAttributes::empty()).await;
        let handle = opened.map_err(|error| self.failed(&error, doing))?.handle;
        let written = async {
            sftp.raw.write(&handle, offset as u64, data).await?;
            if new.len() < old.len() {
                let size = FileAttributes { size: Some(new.len() as u64), ..FileAttributes::empty() };
                sftp.raw.fsetstat(&handle, size).await?;
            }
            Ok(())
        };
        let written = written.await;
        let closed = sftp.raw.close(handle).await;
        let written = written.and(closed.map(drop)).map_err(upload::Failure::Remote);
        self.written(sftp, written, &remote, doing).await?;
        if self.read(path, new.len()).await?.as_deref() == Some(new) {
            return Ok(());
        }
        Err(self.transfer_failed(doing, "the host stored other bytes than the operator wrote".to_owned()))
    }

    /// Returns the directory in which an SFTP session of the user begins: the user's profile. Returns `None` if [`sftp_path`](super::sftp_path)
    /// refuses its path.
    ///
    /// # Errors
    /// [`SshError::TransferFailed`] when the host refuses the request or does not answer in time.
    /// [`SshError::NotASftpServer`] when the host offers no SFTP. [`SshError::Disconnected`] when the connection breaks.
    pub async fn home(&self) -> Result<Option<String>, SshError> {
        let doing = Doing { action: "look up", path: "the profile directory of the user" };
        let found = self.request(doing, async |sftp| sftp.raw.realpath(".").await).await?;
        Ok(found.files.first().and_then(|home| path::windows_path(&home.filename)))
    }

    /// Returns the size of a file in bytes, or `None` if the file is missing.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TransferFailed`] when the host
    /// refuses the request or does not answer in time. [`SshError::NotASftpServer`] when the host offers no SFTP.
    /// [`SshError::Disconnected`] when the connection breaks.
    pub async fn size(&self, path: &str) -> Result<Option<u64>, SshError> {
        let doing = Doing { action: "look up", path };
        let remote = path::checked(path)?;
        let found = self.request(doing, async |sftp| sftp::found(sftp.raw.stat(remote).await)).await?;
        Ok(found.map(|a| a.attrs.size.unwrap_or_default()))
    }

    /// Removes a file. A missing file is not an error.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TransferFailed`] when the host
    /// refuses the request or does not answer in time. [`SshError::NotASftpServer`] when the host offers no SFTP.
    /// [`SshError::Disconnected`] when the connection breaks.
    pub async fn remove(&self, path: &str) -> Result<(), SshError> {
        let doing = Doing { action: "remove", path };
        let remote = path::checked(path)?;
        self.request(doing, async |sftp| sftp::found(sftp.raw.remove(remote).await)).await.map(drop)
    }

    /// Removes a directory if it is empty. Reports whether the directory is missing afterwards.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TransferFailed`] when the host does not answer in time.
    /// [`SshError::NotASftpServer`] when the host offers no SFTP. [`SshError::Disconnected`] when the connection breaks. A refusal by the host is not
    /// an error.
    pub async fn remove_dir(&self, path: &str) -> Result<bool, SshError> {
        let doing = Doing { action: "remove the directory", path };
        let remote = path::checked(path)?;
        let remove = async |sftp: &Sftp| match sftp::found(sftp.raw.rmdir(remote).await) {
            Ok(_) => Ok(true),
            // The protocol has no status code for a directory that is not empty.
            Err(Error::Status(_)) => Ok(false),
            Err(error) => Err(error),
        };
        self.request(doing, remove).await
    }

    /// Renames a file, and replaces an existing file at `to`.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `from` or `to`. [`SshError::TransferFailed`] when
    /// `from` is missing, or the host refuses the request or does not answer in time. [`SshError::NotASftpServer`] when the
    /// host offers no SFTP. [`SshError::Disconnected`] when the connection breaks.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), SshError> {
        let doing = Doing { action: "rename", path: from };
        let (from, to) = (path::checked(from)?, path::checked(to)?);
        self.request(doing, async |sftp| sftp.replace(&from, &to).await).await
    }

    /// Lists the entries of a directory in no particular order. A missing directory has none. Entries with names that
    /// [`sftp_path`](super::sftp_path) refuses are left out.
    ///
    /// # Errors
    /// [`SshError::BadPath`] when [`sftp_path`](super::sftp_path) refuses `path`. [`SshError::TooManyEntries`] when the
    /// directory has more than 10,000 entries. [`SshError::TransferFailed`] when the host refuses the request or does not
    /// answer in time. [`SshError::NotASftpServer`] when the host offers no SFTP. [`SshError::Disconnected`] when the
    /// connection breaks.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, SshError> {
        let doing = Doing { action: "list", path };
        let remote = path::checked(path)?;
        let open = async |sftp: &Sftp| sftp.raw.opendir(remote).await;
        let entries = self.with_open(doing, open, async |sftp, handle| self.list_open(sftp, handle, doing).await);
        Ok(entries.await?.unwrap_or_default())
    }

    async fn list_open(&self, sftp: &Sftp, handle: &str, doing: Doing<'_>) -> Result<Vec<Entry>, SshError> {
        let mut entries = Vec::new();
        let mut seen = 0;
        loop {
            let files = match sftp.raw.readdir(handle).await {
                Ok(name) => name.files,
                Err(Error::Status(Status { status_code: StatusCode::Eof, .. })) => return Ok(entries),
                Err(error) => return Err(self.failed(&error, doing)),
            };
            seen += files.len().max(1);
            if seen > MAX_ENTRIES {
                return Err(SshError::TooManyEntries {
                    address: self.address().to_owned(),
                    path: doing.path.to_owned(),
                    limit: MAX_ENTRIES,
                });
            }
            entries.extend(files.into_iter().filter(|file| path::check_name(&file.filename).is_ok()).map(|file| {
                Entry {
                    is_directory: file.attrs.is_dir(),
                    size: file.attrs.size.unwrap_or_default(),
                    name: file.filename,
                }
            }));
        }
    }

    /// Opens a file for writing, and creates missing parent directories.
    pub(super) async fn create(
        &self,
        sftp: &Sftp,
        remote: &str,
        truncate: bool,
        doing: Doing<'_>,
    ) -> Result<String, SshError> {
        let mut flags = OpenFlags::WRITE | OpenFlags::CREATE;
        if truncate {
            flags |= OpenFlags::TRUNCATE;
        }
        let open = || sftp.raw.open(remote, flags, FileAttributes::empty());
        // All requests are sent together, which saves round trips: the host handles them in order, and refuses to create a directory that exists.
        let directories: Vec<&str> =
            iter::successors(path::parent(remote), |directory| path::parent(directory)).collect();
        let made = directories.into_iter().rev().map(|directory| sftp.raw.mkdir(directory, FileAttributes::empty()));
        let (_, mut opened) = tokio::join!(biased; join_all(made), open());
        if let (Err(Error::Status(Status { status_code: StatusCode::NoSuchFile, .. })), Some(directory)) =
            (&opened, path::parent(remote))
        {
            // The directories are created one by one, so that the error names the one that the host does not create.
            self.make_directories(sftp, directory, doing).await?;
            opened = open().await;
        }
        match opened {
            Ok(handle) => Ok(handle.handle),
            Err(error) => Err(self.write_failed(sftp, &error, remote, doing).await),
        }
    }

    /// Converts the error of a write, and queries whether the disk of the host is full.
    pub(super) async fn written<T>(
        &self,
        sftp: &Sftp,
        written: Result<T, upload::Failure>,
        remote: &str,
        doing: Doing<'_>,
    ) -> Result<T, SshError> {
        match written {
            Ok(value) => Ok(value),
            Err(upload::Failure::Remote(error)) => Err(self.write_failed(sftp, &error, remote, doing).await),
            Err(upload::Failure::Source(source)) => Err(SshError::Source { path: doing.path.to_owned(), source }),
        }
    }

    async fn make_directories(&self, sftp: &Sftp, remote: &str, doing: Doing<'_>) -> Result<(), SshError> {
        // Walk up to the first directory that exists, then create the missing ones.
        let mut missing = Vec::new();
        let mut next = Some(remote);
        while let Some(directory) = next {
            match sftp::found(sftp.raw.stat(directory).await).map_err(|error| self.failed(&error, doing))? {
                Some(attributes) if attributes.attrs.is_dir() => break,
                Some(_) => return Err(self.transfer_failed(doing, format!("{directory} is not a directory"))),
                None => missing.push(directory),
            }
            next = path::parent(directory);
        }
        for directory in missing.into_iter().rev() {
            if let Err(error) = sftp.raw.mkdir(directory, FileAttributes::empty()).await {
                // Another process may have created it; SFTP version 3 has no status code for that.
                if !sftp.raw.stat(directory).await.is_ok_and(|attributes| attributes.attrs.is_dir()) {
                    return Err(self.write_failed(sftp, &error, directory, doing).await);
                }
            }
        }
        Ok(())
    }

    pub(super) fn failed(&self, error: &Error, doing: Doing<'_>) -> SshError {
        if self.is_closed() {
            return self.disconnected(&sftp::why(error));
        }
        self.transfer_failed(doing, sftp::why(error))
    }

    pub(super) fn transfer_failed(&self, Doing { action, path }: Doing<'_>, why: String) -> SshError {
        SshError::TransferFailed { address: self.address().to_owned(), action, path: path.to_owned(), why }
    }

    fn too_large(&self, doing: Doing<'_>, limit: usize) -> SshError {
        SshError::TooLarge { address: self.address().to_owned(), path: doing.path.to_owned(), limit }
    }

    async fn write_failed(&self, sftp: &Sftp, error: &Error, remote: &str, doing: Doing<'_>) -> SshError {
        let directory = path::parent(remote).unwrap_or("/C:/");
        if !self.is_closed() && sftp.is_full(error, directory).await {
            return SshError::DiskFull { address: self.address().to_owned(), path: doing.path.to_owned() };
        }
        self.failed(error, doing)
    }
}

/// Returns the offset and the bytes of a write that turns `old` into `new`, followed by newlines if `new` is shorter.
pub(super) fn difference(old: &[u8], new: &[u8]) -> (usize, Vec<u8>) {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let mut data = new[same..].to_vec();
    data.resize(data.len().max(old.len() - same), b'\n');
    (same, data)
}
