//! `support`: collects data about a fault of the host in one archive. Changes nothing else on the host.
//!
//! The last entry, `index.json`, lists the parts, and the reasons why parts are missing. Known secrets are left out; the operator redacts the archive
//! when it unpacks it. Logs of workloads are not sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use api::host::{HostState, Outcome, Support, path, support_path};
use serde::Serialize;
use serde_json::{Value, json};
use x509_parser::pem::Pem;
use zstd::stream::write::Encoder;

use super::{Failure, chain, observe};
use crate::files;
use crate::host::{HnsRequest, Host, HostError, Kind};

/// Maximum size of the collected end of a log, in bytes: about one hour of kubelet's log at its usual level.
const MAX_LOG_BYTES: u64 = 2 << 20;
/// Maximum number of logs, including rotated ones.
const MAX_LOGS: usize = 200;
/// Maximum number of index entries. A directory may have any number of links, each with an entry.
const MAX_INDEX_ENTRIES: usize = 2000;
/// Maximum size of the events of each query, in bytes. The newest are collected.
const MAX_EVENTS_BYTES: usize = 8 << 20;
/// Maximum total size of all parts, in bytes: less than the operator's limit for unpacking.
const MAX_TOTAL_BYTES: u64 = 48 << 20;
/// Size that is reserved for the parts from Windows, in bytes: two kinds of events, and small parts.
const RESERVED_WINDOWS_BYTES: u64 = 20 << 20;
/// Maximum number of events for each of the queries `System` and `Application`. A repeated problem causes some thousand events a day.
const MAX_EVENTS: usize = 2000;
/// Maximum depth of log directories: `C:\var\log\<service>\<file>`, and one more level.
const DEPTH: usize = 3;
/// Directories with logs of workloads.
const OF_WORKLOADS: [&str; 2] = [r"C:\var\log\pods", r"C:\var\log\containers"];
/// Directories of the most useful logs.
const FIRST: [&str; 2] = ["kubelet", "wicd"];
/// Directories with certificates.
const CERTIFICATES: [&str; 3] = [path::WICD_CERTS, path::KUBELET_PKI, r"C:\k\tls\certs"];
/// Files with certificates.
const AUTHORITIES: [&str; 3] = [path::API_CA, path::KUBELET_CA, r"C:\k\ca-bundle.crt"];
/// Query for starts and stops of Windows: event log started and stopped, unexpected shutdown, initiator of a restart, power loss.
const BOOTS: &str = "*[System[(EventID=6005 or EventID=6006 or EventID=6008 or EventID=1074 or EventID=41)]]";
const MAX_BOOTS: usize = 100;
/// Compression level, which reduces text to a tenth within seconds.
const LEVEL: i32 = 3;

/// Time limits for Windows. The operator waits five minutes for the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Limit for each part.
    pub(super) part: Duration,
    /// Limit for all parts, after which no further part begins.
    all: Duration,
}

pub(super) const LIMITS: Limits = Limits { part: Duration::from_secs(30), all: Duration::from_mins(3) };

/// Archive that is being written, with the result for each part.
struct Archive {
    tar: tar::Builder<Encoder<'static, File>>,
    bytes: u64,
    index: Vec<Value>,
}

/// Collects support data in an archive. wicd's files and the most useful logs come first, so that a slow Windows does not displace them. The
/// remaining logs come last.
pub(super) fn collect(limits: Limits, host: &dyn Host, operation: &str, asked: &Support) -> Result<Outcome, Failure> {
    let target = support_path(operation);
    let failed = |e| HostError::system("write", &target)(e);
    let _held = files::parents(host, &target)?;
    let file = files::make(&host.path(&target)?).map_err(failed)?;
    let tar = tar::Builder::new(Encoder::new(file, LEVEL).map_err(failed)?);
    let mut archive = Archive { tar, bytes: 0, index: Vec::new() };
    of_ours(host, &mut archive).map_err(failed)?;
    let mut logs = logs(host, &mut archive).into_iter();
    add_logs(host, &mut logs, MAX_TOTAL_BYTES - RESERVED_WINDOWS_BYTES, &mut archive).map_err(failed)?;
    of_windows(limits, host, asked, &mut archive).map_err(failed)?;
    add_logs(host, &mut logs, u64::MAX, &mut archive).map_err(failed)?;
    archive.finish_index().map_err(failed)?;
    archive.tar.into_inner().and_then(Encoder::finish).and_then(|file| file.sync_all()).map_err(failed)?;
    Ok(Outcome::Done)
}

impl Archive {
    fn append(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        self.tar.append_data(&mut header, name, content)
    }

    /// Adds the index even to a full archive: only the index shows what is missing.
    fn finish_index(&mut self) -> io::Result<()> {
        let mut index = std::mem::take(&mut self.index);
        if let Some(more) = index.len().checked_sub(MAX_INDEX_ENTRIES).filter(|more| *more > 0) {
            index.truncate(MAX_INDEX_ENTRIES);
            index.push(json!({"failed": format!("the index has {more} more entries, which are left out")}));
        }
        self.append("index.json", &pretty(&index))
    }

    fn failed(&mut self, part: &str, why: &str) {
        self.index.push(json!({"part": part, "failed": why}));
    }

    /// Adds a part, or the reason why it is missing.
    fn part(&mut self, name: &str, content: Result<Vec<u8>, HostError>) -> io::Result<()> {
        match content {
            Ok(content) if self.bytes + content.len() as u64 <= MAX_TOTAL_BYTES => {
                self.append(name, &content)?;
                self.bytes += content.len() as u64;
                self.index.push(json!({"part": name, "bytes": content.len()}));
            }
            Ok(_) => self.failed(name, "the archive is full"),
            Err(error) => self.failed(name, &chain(&error)),
        }
        Ok(())
    }
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// Part of the archive from Windows: name and query.
type Part = (String, Box<dyn FnOnce(&dyn Host) -> Result<Vec<u8>, HostError> + Send>);

/// Adds the parts from Windows. A call that hangs, as to HNS or the event log, loses only its own part.
fn of_windows(limits: Limits, host: &dyn Host, asked: &Support, archive: &mut Archive) -> io::Result<()> {
    let end = Instant::now() + limits.all;
    for (name, call) in parts_of_windows(asked) {
        if Instant::now() >= end {
            archive.failed(&name, &format!("left out: the parts before it took {} s", limits.all.as_secs()));
            continue;
        }
        match answer_within(limits.part, host, call) {
            Some(content) => archive.part(&name, content)?,
            None => archive.failed(&name, &format!("no answer within {} s", limits.part.as_secs())),
        }
    }
    Ok(())
}

/// State of the host, for the answer to the request.
pub(super) fn state(limit: Duration, host: &dyn Host) -> Result<HostState, HostError> {
    let timeout = || Err(HostError::Timeout { what: "Windows to describe the host".into(), seconds: limit.as_secs() });
    answer_within(limit, host, |host| observe(host, &[])).unwrap_or_else(timeout)
}

/// Makes a call on a new thread. A call that does not return in time is abandoned, and ends with the process.
fn answer_within<T: Send + 'static>(
    limit: Duration,
    host: &dyn Host,
    call: impl FnOnce(&dyn Host) -> T + Send + 'static,
) -> Option<T> {
    let (host, (sender, receiver)) = (host.detached(), mpsc::channel());
    let run = move || drop(sender.send(call(host.as_ref())));
    thread::Builder::new().name("support".into()).spawn(run).ok()?;
    receiver.recv_timeout(limit).ok()
}

fn parts_of_windows(asked: &Support) -> Vec<Part> {
    fn part(name: &str, call: impl FnOnce(&dyn Host) -> Result<Vec<u8>, HostError> + Send + 'static) -> Part {
        (name.to_owned(), Box::new(call))
    }
    let mut parts = vec![
        part("machine.json", |host| host.machine().map(|machine| pretty(&machine))),
        part("services.json", services),
    ];
    let recent = format!("*[System[TimeCreated[timediff(@SystemTime) <= {}]]]", u64::from(asked.hours) * 3_600_000);
    for (name, channel, query, most) in [
        ("events/System.xml", "System", recent.clone(), MAX_EVENTS),
        ("events/Application.xml", "Application", recent, MAX_EVENTS),
        ("events/boots.xml", "System", BOOTS.to_owned(), MAX_BOOTS),
    ] {
        parts.push(part(name, move |host| host.events(channel, &query, most).map(newest_events)));
    }
    for what in ["networks", "endpoints", "policylists"] {
        let asked = HnsRequest { method: "GET", path: format!("/{what}"), body: String::new() };
        parts.push(part(&format!("hns/{what}.json"), move |host| host.hns(&asked).map(|answer| pretty(&answer))));
    }
    parts.push(part("updates.json", |host| host.updates().map(|updates| pretty(&updates))));
    parts.push(part("restart-causes.json", |host| Ok(pretty(&host.restart_causes()))));
    parts
}

/// Events, newest first, up to the size limit, so that one application cannot fill the archive.
fn newest_events(events: Vec<String>) -> Vec<u8> {
    let mut text = String::new();
    for event in events {
        if text.len() + event.len() > MAX_EVENTS_BYTES {
            break;
        }
        text.push_str(&event);
        text.push('\n');
    }
    text.into_bytes()
}

/// All services with their states, and with the names of the variables that the operator has set for them. The values may be secret and are left out.
fn services(host: &dyn Host) -> Result<Vec<u8>, HostError> {
    let describe = |service: crate::host::ServiceInfo| {
        let exit_code = match host.exit_code(&service.name) {
            Ok(code) => json!(code),
            Err(error) => json!(chain(&error)),
        };
        json!({
            "name": service.name, "description": service.description, "command": service.command, "state": service.state,
            "dependencies": service.dependencies, "environment": service.environment.keys().collect::<Vec<_>>(), "exitCode": exit_code,
        })
    };
    Ok(pretty(&host.services()?.into_iter().map(describe).collect::<Vec<_>>()))
}

fn of_ours(host: &dyn Host, archive: &mut Archive) -> io::Result<()> {
    for (name, path) in [("owned.json", path::OWNED), ("state.json", path::STATE), ("desired.json", path::DESIRED)] {
        let content = files::read_json::<Value>(host, path).map(|found| {
            let mut found = found.unwrap_or_default();
            without_values(&mut found);
            pretty(&found)
        });
        archive.part(name, content)?;
    }
    archive.part("certificates.json", certificates(host))
}

/// Removes the values of variables, and keeps their names.
fn without_values(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let holds_variables =
                    matches!(name.as_str(), "environment" | "environmentVars" | "envVars" | "environment-vars");
                match value {
                    Value::Object(variables) if holds_variables => {
                        variables.values_mut().for_each(|v| *v = json!("(left out)"));
                    }
                    other => without_values(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_values),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Subjects, issuers and validity of the certificates in [`CERTIFICATES`] and [`AUTHORITIES`], without any keys.
fn certificates(host: &dyn Host) -> Result<Vec<u8>, HostError> {
    let mut files: Vec<String> = AUTHORITIES.map(str::to_owned).into();
    for directory in CERTIFICATES {
        files.extend(files::list(host, directory)?.into_iter().map(|name| format!(r"{directory}\{name}")));
    }
    let mut found = Vec::new();
    for file in files {
        let content = match tail(host, &file) {
            Ok(Some(content)) => content,
            Ok(None) => continue,
            Err(error) => {
                found.push(json!({"file": file, "failed": chain(&error)}));
                continue;
            }
        };
        for pem in Pem::iter_from_buffer(&content).flatten().filter(|pem| pem.label == "CERTIFICATE") {
            if let Ok(certificate) = pem.parse_x509() {
                let validity = certificate.validity();
                found.push(json!({
                    "file": file, "subject": certificate.subject().to_string(), "issuer": certificate.issuer().to_string(),
                    "serial": certificate.raw_serial_as_string(), "notBefore": validity.not_before.timestamp(),
                    "notAfter": validity.not_after.timestamp(),
                }));
            }
        }
    }
    Ok(pretty(&found))
}

/// Log that may be added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Log {
    directory: String,
    file: String,
    modified: u64,
}

/// Logs that may be added, the most useful ones for a present fault first.
fn logs(host: &dyn Host, archive: &mut Archive) -> Vec<Log> {
    let mut found = Vec::new();
    find_logs(host, path::LOGS, DEPTH, archive, &mut found);
    let mut logs = in_order(found);
    for Log { file, .. } in logs.split_off(logs.len().min(MAX_LOGS)) {
        archive.failed(&file, "there are too many logs");
    }
    logs
}

/// Adds the next logs, until another one may exceed `most` bytes.
fn add_logs(host: &dyn Host, logs: &mut impl Iterator<Item = Log>, most: u64, archive: &mut Archive) -> io::Result<()> {
    while archive.bytes.saturating_add(MAX_LOG_BYTES) <= most
        && let Some(Log { file, .. }) = logs.next()
    {
        let entry = format!("logs/{}", file.trim_start_matches(path::LOGS).trim_start_matches('\\').replace('\\', "/"));
        archive.part(&entry, tail(host, &file).map(Option::unwrap_or_default))?;
    }
    Ok(())
}

/// Orders logs: the newest log of each directory, then the second newest of each, and so on, so that limits drop old logs, and a service with many
/// logs does not displace others. Logs of kubelet and wicd are first in each rank.
fn in_order(mut logs: Vec<Log>) -> Vec<Log> {
    logs.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.file.cmp(&b.file)));
    let mut ranks: BTreeMap<String, usize> = BTreeMap::new();
    let rank = |log: Log| {
        let rank = ranks.entry(log.directory.to_lowercase()).or_default();
        *rank += 1;
        let is_first = FIRST.iter().any(|name| log.directory.eq_ignore_ascii_case(&format!(r"{}\{name}", path::LOGS)));
        (*rank, !is_first, log)
    };
    let mut ranked: Vec<_> = logs.into_iter().map(rank).collect();
    // A stable sort keeps the newest first in each rank.
    ranked.sort_by_key(|(rank, is_later, _)| (*rank, *is_later));
    ranked.into_iter().map(|(_, _, log)| log).collect()
}

/// Finds the logs below a directory. Skips links, with which a user could make wicd send files of other users.
fn find_logs(host: &dyn Host, directory: &str, depth: usize, archive: &mut Archive, found: &mut Vec<Log>) {
    let names = match files::list(host, directory) {
        Ok(names) => names,
        Err(error) => return archive.failed(directory, &chain(&error)),
    };
    for name in names {
        let file = format!(r"{directory}\{name}");
        let kind = host.path(&file).and_then(|real| host.place(&real)).map(|place| place.map(|p| p.kind));
        match kind {
            Ok(Some(Kind::Directory)) if OF_WORKLOADS.iter().any(|other| file.eq_ignore_ascii_case(other)) => {
                archive.failed(&file, "logs of workloads are not collected");
            }
            Ok(Some(Kind::Directory)) if depth > 1 => find_logs(host, &file, depth - 1, archive, found),
            Ok(Some(Kind::Directory)) => archive.failed(&file, "is nested too deeply"),
            Ok(Some(Kind::Link)) => archive.failed(&file, "is a link"),
            Ok(Some(Kind::File)) => match files::stamp(host, &file) {
                Ok(stamp) => {
                    let modified = stamp.map(|stamp| stamp.modified).unwrap_or_default();
                    found.push(Log { directory: directory.to_owned(), file, modified });
                }
                Err(error) => archive.failed(&file, &chain(&error)),
            },
            Ok(None) => {}
            Err(error) => archive.failed(&file, &chain(&error)),
        }
    }
}

/// Last [`MAX_LOG_BYTES`] bytes of a file, without the rest of a line that began before. `None` if there is no file.
fn tail(host: &dyn Host, path: &str) -> Result<Option<Vec<u8>>, HostError> {
    let Some(size) = files::size(host, path)? else { return Ok(None) };
    let (real, mut content) = (host.path(path)?, Vec::new());
    let from = size.saturating_sub(MAX_LOG_BYTES);
    let mut read = || -> io::Result<()> {
        let mut file = files::open(&real)?;
        file.seek(SeekFrom::Start(from))?;
        file.take(MAX_LOG_BYTES).read_to_end(&mut content)?;
        Ok(())
    };
    read().map_err(HostError::system("read", path))?;
    if from > 0 {
        let line = content.iter().position(|&b| b == b'\n').map_or(0, |at| at + 1);
        content.drain(..line);
    }
    Ok(Some(content))
}

#[cfg(test)]
#[path = "support_tests.rs"]
mod tests;
