//! `support`: what a person needs who looks for the cause of a fault of the host, in one archive. Changes the host in no other way.
//!
//! Each part may fail: `index.json`, the last entry, reports it. Secrets are left out as far as this side knows them; the operator redacts
//! all that it unpacks. Logs of workloads are not ours to send.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use api::host::{Outcome, Support, path, support_path};
use serde::Serialize;
use serde_json::{Value, json};
use x509_parser::pem::Pem;
use zstd::stream::write::Encoder;

use super::{Failure, chain};
use crate::files;
use crate::host::{HnsRequest, Host, HostError, Kind};

/// Of each log, its newest end, in bytes: an hour of kubelet at its usual level.
const MOST_OF_A_LOG: u64 = 2 << 20;
/// Logs. Rotated ones are among them.
const MOST_LOGS: usize = 200;
/// All parts together, in bytes: fewer than the operator unpacks.
const MOST_OF_ALL: u64 = 48 << 20;
/// Events of each query. Windows writes some thousand a day where something repeats.
const MOST_EVENTS: usize = 2000;
/// How deep logs lie: `C:\var\log\<service>\<file>`, and one more.
const DEPTH: usize = 3;
/// Logs of workloads.
const OF_WORKLOADS: [&str; 2] = [r"C:\var\log\pods", r"C:\var\log\containers"];
/// Directories with certificates.
const CERTIFICATES: [&str; 3] = [path::WICD_CERTS, path::KUBELET_PKI, r"C:\k\tls\certs"];
/// Files with certificates.
const AUTHORITIES: [&str; 3] = [path::API_CA, path::KUBELET_CA, r"C:\k\ca-bundle.crt"];
/// Starts and ends of Windows: event log began and ended, unexpected end, who restarted, power was lost.
const BOOTS: &str = "*[System[(EventID=6005 or EventID=6006 or EventID=6008 or EventID=1074 or EventID=41)]]";
const MOST_BOOTS: usize = 100;
/// Level of compression: texts are a tenth of their size, in seconds.
const LEVEL: i32 = 3;

/// An archive that grows, and what became of each part.
struct Archive {
    tar: tar::Builder<Encoder<'static, File>>,
    bytes: u64,
    index: Vec<Value>,
}

/// Collects, and answers whether there is an archive.
pub(super) fn collect(host: &dyn Host, operation: &str, asked: &Support) -> Result<Outcome, Failure> {
    let target = support_path(operation);
    let failed = |e| HostError::system("write", &target)(e);
    let _held = files::parents(host, &target)?;
    let file = files::make(&host.path(&target)?).map_err(failed)?;
    let tar = tar::Builder::new(Encoder::new(file, LEVEL).map_err(failed)?);
    let mut archive = Archive { tar, bytes: 0, index: Vec::new() };
    of_windows(host, asked, &mut archive).map_err(failed)?;
    of_ours(host, &mut archive).map_err(failed)?;
    logs(host, path::LOGS, DEPTH, &mut archive).map_err(failed)?;
    let index = std::mem::take(&mut archive.index);
    archive.add("index.json", &pretty(&index)).map_err(failed)?;
    archive.tar.into_inner().and_then(Encoder::finish).and_then(|file| file.sync_all()).map_err(failed)?;
    Ok(Outcome::Done)
}

impl Archive {
    /// Adds an entry, unless the archive is full.
    fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        if self.bytes + content.len() as u64 > MOST_OF_ALL {
            self.failed(name, "the archive is full");
            return Ok(());
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        self.tar.append_data(&mut header, name, content)?;
        self.bytes += content.len() as u64;
        self.index.push(json!({"part": name, "bytes": content.len()}));
        Ok(())
    }

    fn failed(&mut self, part: &str, why: &str) {
        self.index.push(json!({"part": part, "failed": why}));
    }

    /// Adds a part, or why there is none.
    fn part(&mut self, name: &str, content: Result<Vec<u8>, HostError>) -> io::Result<()> {
        match content {
            Ok(content) => self.add(name, &content),
            Err(error) => {
                self.failed(name, &chain(&error));
                Ok(())
            }
        }
    }
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

fn of_windows(host: &dyn Host, asked: &Support, archive: &mut Archive) -> io::Result<()> {
    archive.part("machine.json", host.machine().map(|machine| pretty(&machine)))?;
    archive.part("services.json", services(host))?;
    let recent = format!("*[System[TimeCreated[timediff(@SystemTime) <= {}]]]", u64::from(asked.hours) * 3_600_000);
    for (name, channel, query, most) in [
        ("events/System.xml", "System", recent.as_str(), MOST_EVENTS),
        ("events/Application.xml", "Application", &recent, MOST_EVENTS),
        ("events/boots.xml", "System", BOOTS, MOST_BOOTS),
    ] {
        archive.part(name, host.events(channel, query, most).map(|events| events.join("\n").into_bytes()))?;
    }
    for what in ["networks", "endpoints", "policylists"] {
        let asked = HnsRequest { method: "GET", path: format!("/{what}"), body: String::new() };
        archive.part(&format!("hns/{what}.json"), host.hns(&asked).map(|answer| pretty(&answer)))?;
    }
    archive.part("updates.json", host.updates().map(|updates| pretty(&updates)))?;
    let causes = pretty(&host.restart_causes());
    archive.part("restart-causes.json", Ok(causes))
}

/// Every service with its state. Variables may hold secrets: their names alone.
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

/// Leaves the names of variables, and not their values.
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

/// Subjects and ends of all certificates, and of no key.
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

/// The logs below a directory. Links are left out: who may write there may not have others' files sent.
fn logs(host: &dyn Host, directory: &str, depth: usize, archive: &mut Archive) -> io::Result<()> {
    let names = match files::list(host, directory) {
        Ok(names) => names,
        Err(error) => {
            archive.failed(directory, &chain(&error));
            return Ok(());
        }
    };
    for name in names {
        let file = format!(r"{directory}\{name}");
        let kind = host.path(&file).and_then(|real| host.place(&real)).map(|place| place.map(|p| p.kind));
        match kind {
            Ok(Some(Kind::Directory)) if OF_WORKLOADS.iter().any(|other| file.eq_ignore_ascii_case(other)) => {
                archive.failed(&file, "logs of workloads are not collected");
            }
            Ok(Some(Kind::Directory)) if depth > 1 => logs(host, &file, depth - 1, archive)?,
            Ok(Some(Kind::Directory)) => archive.failed(&file, "lies too deep"),
            Ok(Some(Kind::Link)) => archive.failed(&file, "is a link"),
            Ok(Some(Kind::File)) => {
                let logs =
                    archive.index.iter().filter(|part| part["part"].as_str().is_some_and(|p| p.starts_with("logs/")));
                if logs.count() >= MOST_LOGS {
                    archive.failed(&file, "there are too many logs");
                    return Ok(());
                }
                let entry =
                    format!("logs/{}", file.trim_start_matches(path::LOGS).trim_start_matches('\\').replace('\\', "/"));
                archive.part(&entry, tail(host, &file).map(Option::unwrap_or_default))?;
            }
            Ok(None) => {}
            Err(error) => archive.failed(&file, &chain(&error)),
        }
    }
    Ok(())
}

/// The newest end of a file, from the beginning of a line. `None` if there is no file.
fn tail(host: &dyn Host, path: &str) -> Result<Option<Vec<u8>>, HostError> {
    let Some(size) = files::size(host, path)? else { return Ok(None) };
    let (real, mut content) = (host.path(path)?, Vec::new());
    let from = size.saturating_sub(MOST_OF_A_LOG);
    let mut read = || -> io::Result<()> {
        let mut file = files::open(&real)?;
        file.seek(SeekFrom::Start(from))?;
        file.take(MOST_OF_A_LOG).read_to_end(&mut content)?;
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
