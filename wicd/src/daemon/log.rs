//! wicd's log files, under the names that kubelet's log endpoint serves and other tools expect: information, warnings and errors in `.INFO`,
//! warnings and errors also in `.WARNING`, and errors also in `.ERROR`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::LevelFilter, layer::SubscriberExt as _, registry::Registry};

/// Path of wicd's log file. The name is a legacy of WMCO.
pub const FILE: &str = r"C:\var\log\wicd\windows-instance-config-daemon.exe.INFO";
/// Extensions of the additional log files, each with the least severe level of its lines.
pub const SEVERE: [(&str, Level); 2] = [("WARNING", Level::WARN), ("ERROR", Level::ERROR)];
/// Size in bytes at which a log file is rotated.
const LIMIT: u64 = 10 << 20;
/// Maximum number of files of a log, including the current one.
const FILES: u32 = 3;

/// Log file that is renamed to `<name>.1` (and that to `<name>.2`) when it reaches its size limit.
pub struct RotatingFile {
    path: PathBuf,
    limit: u64,
    file: Option<File>,
    size: u64,
}

impl RotatingFile {
    /// Opens a file for appending. The directory is created.
    ///
    /// # Errors
    /// Fails when the directory cannot be created, or the file cannot be opened.
    pub fn open(path: PathBuf, limit: u64) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut this = Self { path, limit, file: None, size: 0 };
        this.reopen()?;
        Ok(this)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        // The file is closed first, because Windows may refuse to rename an open file.
        self.file = None;
        for n in (1..FILES).rev() {
            let from = if n == 1 { self.path.clone() } else { numbered(&self.path, n - 1) };
            // The rename may fail while a reader has the file open: then the current file keeps growing, and rotation is retried with the next line.
            let _ = fs::rename(from, numbered(&self.path, n));
        }
        self.reopen()
    }
}

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    PathBuf::from(name)
}

/// Returns the subscriber that writes log lines to `info`, the main log, and to the additional files beside it. An additional file that
/// cannot be opened is skipped.
///
/// # Errors
/// Fails when the main log cannot be opened.
pub fn subscriber(info: &Path) -> io::Result<impl Subscriber + Send + Sync> {
    let mut layers = vec![layer(RotatingFile::open(info.to_owned(), LIMIT)?, Level::INFO)];
    for (extension, level) in SEVERE {
        let file = RotatingFile::open(info.with_extension(extension), LIMIT);
        layers.extend(file.ok().map(|file| layer(file, level)));
    }
    Ok(Registry::default().with(layers))
}

fn layer(file: RotatingFile, level: Level) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = tracing_subscriber::fmt::layer().with_writer(Mutex::new(file)).with_ansi(false);
    lines.with_filter(LevelFilter::from_level(level)).boxed()
}

impl Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.file.is_none() || (self.size > 0 && self.size + line.len() as u64 > self.limit) {
            self.rotate()?;
        }
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let written = file.write(line)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_in_the_files_of_its_level_and_those_below() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("windows-instance-config-daemon.exe.INFO");
        tracing::subscriber::with_default(subscriber(&path).unwrap(), || {
            tracing::debug!("a detail");
            tracing::info!("it runs");
            tracing::warn!("it is slow");
            tracing::error!("it failed");
        });
        for (extension, expected) in [
            ("INFO", &["it runs", "it is slow", "it failed"][..]),
            ("WARNING", &["it is slow", "it failed"]),
            ("ERROR", &["it failed"]),
        ] {
            let text = fs::read_to_string(path.with_extension(extension)).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), expected.len(), "{extension}: {text}");
            assert!(lines.iter().zip(expected).all(|(line, end)| line.ends_with(end)), "{extension}: {text}");
        }
    }

    #[test]
    fn at_most_three_log_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wicd").join("x.INFO");
        let mut log = RotatingFile::open(path.clone(), 10).unwrap();
        for n in 0..5 {
            writeln!(log, "line {n}").unwrap();
            log = RotatingFile::open(path.clone(), 10).unwrap();
        }
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(path.clone()), "line 4\n");
        assert_eq!(read(numbered(&path, 1)), "line 3\n");
        assert_eq!(read(numbered(&path, 2)), "line 2\n");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3);
    }
}
