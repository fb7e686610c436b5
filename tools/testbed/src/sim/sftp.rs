//! SFTP subsystem of a test host: version 3 with the OpenSSH extensions that clients need, over a directory.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use russh_sftp::{
    protocol::{
        Attrs, Data, ExtendedReply, File as Entry, FileAttributes, Handle, Name, OpenFlags, Packet, Status, StatusCode,
        Version,
    },
    server::StatusReply,
};

use super::drive::{self, SftpPath, place, spell};
use crate::lock::lock;

/// Maximum size of a read or write, as in OpenSSH. A packet has 1 KiB more.
const MAX_DATA: u32 = (256 << 10) - 1024;

/// Extension that reports the free space of the disk.
const STATVFS: &str = "statvfs@openssh.com";

/// Extension that reports the maximum length of requests.
const LIMITS: &str = "limits@openssh.com";

/// Disk of a host, with its faults.
pub trait Disk: Send + Sync + 'static {
    /// Returns the directory with the files: drive C: on Windows, the root on another host.
    fn root(&self) -> PathBuf;

    /// Returns the number of free bytes.
    fn free(&self) -> u64;

    /// Reports whether the host is a Windows host.
    fn is_windows(&self) -> bool {
        true
    }

    /// Reports whether the extensions of OpenSSH are offered.
    fn has_extensions(&self) -> bool {
        true
    }

    /// Reports whether the server is that of OpenSSH 7.7: without the extension that reports [`Disk::largest`], and a file that is open for writing
    /// cannot be opened again.
    fn is_old(&self) -> bool {
        false
    }

    /// Returns the maximum size of a read or write that the host announces.
    fn largest(&self) -> u32 {
        MAX_DATA
    }

    /// Takes space for written bytes. With 0, takes space for a new file or directory.
    ///
    /// # Errors
    /// Fails when the disk is full, or the connection breaks.
    fn take(&self, bytes: usize) -> Result<(), StatusCode>;

    /// Checks that a file may be renamed, replaced or removed.
    ///
    /// # Errors
    /// Fails when another program holds the file.
    fn release(&self, _path: &Path) -> Result<(), StatusCode> {
        Ok(())
    }

    /// Checks that a file may be opened.
    ///
    /// # Errors
    /// Fails when another program holds the file.
    fn open(&self, _path: &Path) -> Result<(), StatusCode> {
        Ok(())
    }

    /// Returns names that each listing has in addition to those of files.
    fn more_names(&self) -> &'static [&'static str] {
        &[]
    }
}

/// SFTP session.
pub struct Session<D> {
    disk: Arc<D>,
    root: PathBuf,
    windows: bool,
    open: HashMap<String, Open>,
    next: u64,
}

/// Open file or directory.
enum Open {
    File {
        file: File,
        path: PathBuf,
        _writer: Option<Writer>,
    },
    /// Entries that are not listed yet.
    Dir(Vec<Entry>),
}

/// Files that are open for writing without sharing, of all hosts of this process.
static WRITERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Entry in [`WRITERS`], removed on drop.
struct Writer(PathBuf);

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&WRITERS).remove(&self.0);
    }
}

type Reply<T> = Result<T, StatusReply>;

impl<D: Disk> Session<D> {
    /// Begins a session.
    pub fn new(disk: Arc<D>) -> Self {
        let (root, windows) = (disk.root(), disk.is_windows());
        Self { disk, root, windows, open: HashMap::new(), next: 0 }
    }

    fn path(&self, path: &str) -> Reply<PathBuf> {
        match place(path, self.windows) {
            SftpPath::Below(parts) if self.windows => Ok(drive::find(&self.root, &parts)),
            SftpPath::Below(parts) => Ok(parts.iter().fold(self.root.clone(), |dir, part| dir.join(part))),
            SftpPath::Root if !self.windows => Ok(self.root.clone()),
            SftpPath::Root | SftpPath::Nowhere => Err(StatusCode::NoSuchFile.into()),
        }
    }

    /// Returns the path at which something is to be created. Fails for the root (on a host without Windows, also directly below it), and if
    /// the disk is full.
    fn path_to_write(&self, path: &str) -> Reply<PathBuf> {
        let found = self.path(path)?;
        if found == self.root || (!self.windows && found.parent() == Some(&self.root)) {
            return Err(StatusCode::PermissionDenied.into());
        }
        self.disk.take(0)?;
        Ok(found)
    }

    fn keep(&mut self, id: u32, what: Open) -> Handle {
        self.next += 1;
        let handle = self.next.to_string();
        self.open.insert(handle.clone(), what);
        Handle { id, handle }
    }

    fn file(&self, handle: &str) -> Reply<&File> {
        match self.open.get(handle) {
            Some(Open::File { file, .. }) => Ok(file),
            _ => Err(StatusCode::Failure.with_message("no such handle")),
        }
    }

    /// Checks that a file may be renamed, replaced or removed. OpenSSH on Windows opens files so that this fails while they are open.
    fn release(&self, path: &Path) -> Reply<()> {
        let is_open = |open: &Open| matches!(open, Open::File { path: of, .. } if of == path);
        if self.windows && self.open.values().any(is_open) {
            return Err(StatusCode::Failure.into());
        }
        Ok(self.disk.release(path)?)
    }

    /// Applies the share modes of OpenSSH 7.7, see [`Disk::is_old`]: fails if the file is open for writing, and registers a file that is opened
    /// for writing. Newer servers share all files.
    fn share(&self, path: &Path, flags: OpenFlags) -> Reply<Option<Writer>> {
        if !self.disk.is_old() {
            return Ok(None);
        }
        let mut writers = lock(&WRITERS);
        if writers.contains(path) {
            return Err(StatusCode::Failure.into());
        }
        Ok(flags.contains(OpenFlags::WRITE).then(|| {
            writers.insert(path.to_owned());
            Writer(path.to_owned())
        }))
    }

    fn rename_over(&self, old: &str, new: &str, replace: bool) -> Reply<()> {
        let (old, new) = (self.path(old)?, self.path_to_write(new)?);
        self.release(&old)?;
        self.release(&new)?;
        // Version 3 of SFTP cannot replace a file by a rename, so OpenSSH refuses such a rename.
        if !replace && new.exists() {
            return Err(StatusCode::Failure.into());
        }
        writable(&new)?;
        fs::rename(old, new).map_err(status)
    }
}

/// Returns the status with which OpenSSH reports an error of the operating system.
fn status(error: io::Error) -> StatusReply {
    match error.kind() {
        io::ErrorKind::NotFound => StatusCode::NoSuchFile,
        io::ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
        _ => StatusCode::Failure,
    }
    .into()
}

/// Fails for a read-only file. Windows refuses to write, replace or remove such a file for any user; here the process may be root, without
/// restrictions.
fn writable(path: &Path) -> Reply<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.permissions().readonly() => Err(StatusCode::PermissionDenied.into()),
        _ => Ok(()),
    }
}

fn done(id: u32) -> Status {
    Status { id, status_code: StatusCode::Ok, error_message: "Success".into(), language_tag: String::new() }
}

fn attributes(path: &PathBuf) -> Reply<FileAttributes> {
    Ok(FileAttributes::from(&fs::metadata(path).map_err(status)?))
}

/// Returns the strings at the beginning of an extended request.
fn strings(mut data: &[u8]) -> Reply<Vec<String>> {
    let mut found = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let text = rest.get(..u32::from_be_bytes(*length) as usize).ok_or(StatusCode::BadMessage)?;
        found.push(String::from_utf8(text.to_vec()).map_err(|_| StatusCode::BadMessage)?);
        data = &rest[text.len()..];
    }
    Ok(found)
}

impl<D: Disk> russh_sftp::server::Handler for Session<D> {
    type Error = StatusReply;

    fn unimplemented(&self) -> StatusReply {
        StatusCode::OpUnsupported.into()
    }

    async fn init(&mut self, _version: u32, _extensions: HashMap<String, String>) -> Reply<Version> {
        let mut version = Version::new();
        let extensions = [("posix-rename@openssh.com", "1"), (LIMITS, "1"), ("fsync@openssh.com", "1"), (STATVFS, "2")];
        let is_offered = |name| self.disk.has_extensions() && !(name == LIMITS && self.disk.is_old());
        for (name, number) in extensions.into_iter().filter(|(name, _)| is_offered(*name)) {
            version.extensions.insert(name.into(), number.into());
        }
        Ok(version)
    }

    async fn open(&mut self, id: u32, filename: String, flags: OpenFlags, _: FileAttributes) -> Reply<Handle> {
        let path =
            if flags.contains(OpenFlags::CREATE) { self.path_to_write(&filename)? } else { self.path(&filename)? };
        // Neither Windows nor OpenSSH opens a directory as a file.
        if path.is_dir() {
            return Err(StatusCode::Failure.into());
        }
        if flags.contains(OpenFlags::WRITE) {
            writable(&path)?;
        }
        self.disk.open(&path)?;
        let writer = self.share(&path, flags)?;
        let file = OpenOptions::from(flags).open(&path).map_err(status)?;
        Ok(self.keep(id, Open::File { file, path, _writer: writer }))
    }

    async fn close(&mut self, id: u32, handle: String) -> Reply<Status> {
        self.open.remove(&handle).ok_or(StatusCode::Failure)?;
        Ok(done(id))
    }

    async fn read(&mut self, id: u32, handle: String, offset: u64, len: u32) -> Reply<Data> {
        let mut data = vec![0; len.min(MAX_DATA) as usize];
        let n = self.file(&handle)?.read_at(&mut data, offset).map_err(status)?;
        if n == 0 {
            return Err(StatusCode::Eof.into());
        }
        data.truncate(n);
        Ok(Data { id, data })
    }

    async fn write(&mut self, id: u32, handle: String, offset: u64, data: Vec<u8>) -> Reply<Status> {
        self.disk.take(data.len())?;
        self.file(&handle)?.write_all_at(&data, offset).map_err(status)?;
        Ok(done(id))
    }

    async fn lstat(&mut self, id: u32, path: String) -> Reply<Attrs> {
        self.stat(id, path).await
    }

    async fn stat(&mut self, id: u32, path: String) -> Reply<Attrs> {
        if place(&path, self.windows) == SftpPath::Root {
            return Ok(Attrs { id, attrs: FileAttributes::dummy() });
        }
        Ok(Attrs { id, attrs: attributes(&self.path(&path)?)? })
    }

    async fn fstat(&mut self, id: u32, handle: String) -> Reply<Attrs> {
        let metadata = self.file(&handle)?.metadata().map_err(status)?;
        Ok(Attrs { id, attrs: FileAttributes::from(&metadata) })
    }

    async fn setstat(&mut self, id: u32, path: String, attrs: FileAttributes) -> Reply<Status> {
        let path = self.path(&path)?;
        if let Some(size) = attrs.size {
            let file = OpenOptions::new().write(true).open(&path).map_err(status)?;
            file.set_len(size).map_err(status)?;
        }
        attributes(&path)?;
        Ok(done(id))
    }

    async fn fsetstat(&mut self, id: u32, handle: String, attrs: FileAttributes) -> Reply<Status> {
        let file = self.file(&handle)?;
        if let Some(size) = attrs.size {
            file.set_len(size).map_err(status)?;
        }
        Ok(done(id))
    }

    async fn opendir(&mut self, id: u32, path: String) -> Reply<Handle> {
        if self.windows && place(&path, true) == SftpPath::Root {
            return Ok(self.keep(id, Open::Dir(vec![Entry::new("C:", FileAttributes::dummy())])));
        }
        let names = self.disk.more_names().iter();
        let mut entries: Vec<_> = names.map(|name| Entry::new(*name, FileAttributes::dummy())).collect();
        for entry in fs::read_dir(self.path(&path)?).map_err(status)? {
            let entry = entry.map_err(status)?;
            let metadata = entry.metadata().map_err(status)?;
            entries.push(Entry::new(entry.file_name().to_string_lossy(), FileAttributes::from(&metadata)));
        }
        Ok(self.keep(id, Open::Dir(entries)))
    }

    async fn readdir(&mut self, id: u32, handle: String) -> Reply<Name> {
        match self.open.get_mut(&handle) {
            Some(Open::Dir(entries)) if entries.is_empty() => Err(StatusCode::Eof.into()),
            Some(Open::Dir(entries)) => {
                let rest = entries.split_off(entries.len().min(100));
                Ok(Name { id, files: std::mem::replace(entries, rest) })
            }
            _ => Err(StatusCode::Failure.into()),
        }
    }

    async fn remove(&mut self, id: u32, filename: String) -> Reply<Status> {
        let path = self.path(&filename)?;
        self.release(&path)?;
        writable(&path)?;
        fs::remove_file(path).map_err(status)?;
        Ok(done(id))
    }

    async fn mkdir(&mut self, id: u32, path: String, _attrs: FileAttributes) -> Reply<Status> {
        fs::create_dir(self.path_to_write(&path)?).map_err(status)?;
        Ok(done(id))
    }

    async fn rmdir(&mut self, id: u32, path: String) -> Reply<Status> {
        fs::remove_dir(self.path(&path)?).map_err(status)?;
        Ok(done(id))
    }

    async fn realpath(&mut self, id: u32, path: String) -> Reply<Name> {
        let spelt = spell(&place(&path, self.windows), self.windows);
        Ok(Name { id, files: vec![Entry::dummy(spelt)] })
    }

    async fn rename(&mut self, id: u32, old: String, new: String) -> Reply<Status> {
        self.rename_over(&old, &new, false)?;
        Ok(done(id))
    }

    async fn extended(&mut self, id: u32, request: String, data: Vec<u8>) -> Reply<Packet> {
        match (request.as_str(), strings(&data)?.as_slice()) {
            (LIMITS, _) => {
                let largest = u64::from(self.disk.largest());
                let limits = [largest + 1024, largest, largest, 1000];
                Ok(ExtendedReply { id, data: limits.iter().flat_map(|n| n.to_be_bytes()).collect() }.into())
            }
            ("posix-rename@openssh.com", [old, new]) => {
                self.rename_over(old, new, true)?;
                Ok(done(id).into())
            }
            (STATVFS, _) => {
                let free = self.disk.free();
                let numbers = [1, 1, free, free, free, 0, 0, 0, 0, 0, 255];
                Ok(ExtendedReply { id, data: numbers.iter().flat_map(|n| n.to_be_bytes()).collect() }.into())
            }
            // There is nothing to do: a simulated host keeps written data when it is switched off.
            ("fsync@openssh.com", [handle]) => self.file(handle).map(|_| done(id).into()),
            _ => Err(StatusCode::OpUnsupported.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use russh_sftp::server::Handler as _;

    use super::*;

    struct Folder {
        root: PathBuf,
        is_old: bool,
    }

    impl Disk for Folder {
        fn root(&self) -> PathBuf {
            self.root.clone()
        }

        fn free(&self) -> u64 {
            0
        }

        fn is_old(&self) -> bool {
            self.is_old
        }

        fn take(&self, _: usize) -> Result<(), StatusCode> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_old_server_shares_no_file_that_is_open_for_writing() {
        const TO_WRITE: OpenFlags = OpenFlags::CREATE.union(OpenFlags::WRITE);
        for is_old in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let disk = Arc::new(Folder { root: dir.path().to_owned(), is_old });
            let (mut writer, mut other) = (Session::new(disk.clone()), Session::new(disk));
            let open = async |session: &mut Session<Folder>, flags| {
                session.open(1, "/C:/x".into(), flags, FileAttributes::dummy()).await.ok().map(|opened| opened.handle)
            };
            let written = open(&mut writer, TO_WRITE).await.unwrap();
            for flags in [TO_WRITE, OpenFlags::READ] {
                assert_eq!(open(&mut other, flags).await.is_some(), !is_old, "{flags:?}");
            }
            assert!(writer.close(2, written).await.is_ok());
            assert!(open(&mut other, OpenFlags::READ).await.is_some());
        }
    }
}
