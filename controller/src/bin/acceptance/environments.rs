//! Rows of the acceptance test that need what most hosts lack: a servicing operation, another antivirus product, an ordinary user, another VXLAN
//! port, or a plugin for credentials.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::{
    acts::{NotHere, Run, evidence},
    judge::{self, Outcome, Output, passed, skipped},
    networks::overlay,
    world::HostObjects,
};

/// Command that checks all components of Windows with the servicing stack, which also installs updates, for at most two minutes.
const SCAN: &str = "powershell.exe -NoProfile -Command \"$p = Start-Process dism.exe -ArgumentList '/online /cleanup-image /scanhealth' -PassThru -WindowStyle Hidden; if (-not $p.WaitForExit(120000)) { $p.Kill() }\"";
/// Time in which the scan has begun.
const SCAN_BEGINS: Duration = Duration::from_secs(10);
/// Altitudes of antivirus filters.
const ANTIVIRUS: std::ops::RangeInclusive<f64> = 320_000.0..=329_998.0;
/// Filter of Defender.
const DEFENDER: &str = "WdFilter";
/// Directory with the libraries of plugins.
const PLUGINS: &str = api::host::path::CREDENTIAL_PLUGINS;

impl Run {
    /// Checks that a host gives the same results while Windows services its components.
    pub(crate) async fn facts_while_servicing(&self) -> anyhow::Result<String> {
        let begin = Instant::now();
        let alone = self.check_results(None).await?;
        let took_alone = begin.elapsed().as_secs();
        let has_ended = AtomicBool::new(false);
        let scan = async {
            let outputs = self.host.run(&[SCAN]).await;
            has_ended.store(true, Ordering::Relaxed);
            outputs
        };
        let check = async {
            sleep(SCAN_BEGINS).await;
            let begin = Instant::now();
            let results = self.check_results(None).await?;
            anyhow::Ok((results, begin.elapsed().as_secs(), has_ended.load(Ordering::Relaxed)))
        };
        let (scanned, checked) = tokio::join!(scan, check);
        let (during, took, was_late) = checked?;
        judge::only(&scanned?).context("dism.exe did not run")?;
        ensure!(!was_late, NotHere("the scan of Windows' components ended before the check"));
        let other = differing(&alone, &during);
        ensure!(other.is_empty(), "during a scan of Windows' components, these checks differ: {}", other.join(", "));
        Ok(format!(
            "{} checks gave the same results during a scan of Windows' components, in {took} s; without it, in {took_alone} s",
            during.len()
        ))
    }

    /// Checks that a check of the host names the filters of antivirus products other than Defender.
    pub(crate) async fn other_antivirus(&self) -> anyhow::Result<String> {
        let outputs = self.host.run(&["fltmc.exe filters"]).await?;
        let filters = antivirus_filters(judge::only(&outputs).context("fltmc.exe did not list the filters")?);
        ensure!(!filters.is_empty(), NotHere("the host has no antivirus product but Defender"));
        let results = self.check_results(None).await?;
        let row = results.iter().find(|row| row["check"] == "antivirus").context("check host has no row antivirus")?;
        let message = row["message"].as_str().unwrap_or_default();
        let missing: Vec<&str> = filters.iter().copied().filter(|name| !message.contains(name)).collect();
        ensure!(
            row["result"] == "warning" && missing.is_empty(),
            "check host does not name {}: {row}",
            missing.join(", ")
        );
        Ok(format!("check host names {}", filters.join(", ")))
    }

    /// Checks the host as an ordinary user, whose rights do not suffice.
    pub(crate) async fn ordinary_user(&self) -> anyhow::Result<String> {
        let user = self.args.ordinary_user.clone().ok_or(NotHere("needs --ordinary-user"))?;
        let results = self.check_results_as(user).await?;
        let row = results.iter().find(|row| row["reason"] == "NotAdministrator");
        let message = row.and_then(|row| row["message"].as_str());
        message.map(ToOwned::to_owned).with_context(|| format!("the check found no lack of rights: {results:?}"))
    }

    /// Installs a plugin of Container Credential Guard and removes it again.
    pub(crate) async fn credential_plugin(&self) -> anyhow::Result<String> {
        let plugin = self.args.credential_plugin.as_deref().ok_or(NotHere("needs --credential-plugin"))?;
        let (file, class) = plugin.split_once('=').context("--credential-plugin must be FILE=CLSID")?;
        let first = self.world.see().await?.follows().context("the node is not Ready")?;
        let query = format!(r#"reg.exe query "HKLM\SYSTEM\CurrentControlSet\Control\CCG\COMClasses\{class}""#);
        let list = format!("icacls.exe {PLUGINS}");
        let installed = async {
            self.change(json!({"gmsa": {"plugin": {"file": file, "clsid": class}}})).await?;
            self.host.run(&[&query, &list]).await
        };
        let installed = installed.await;
        // Later rows need the settings as they were, whatever the result.
        self.edit(|pool| {
            if let Some(spec) = pool["spec"]["template"]["spec"].as_object_mut() {
                spec.remove("gmsa");
            }
        })
        .await?;
        let is_first = |seen: &HostObjects| seen.follows().filter(|version| *version == first);
        self.world.until_seen("the node follows the version without a plugin", is_first).await?;
        let mut outputs = installed?;
        outputs.extend(self.host.run(&[&query]).await?);
        evidence(|outputs| plugin_came_and_went(class, outputs), &outputs)
    }
}

/// Returns the names of the checks whose result or reason differs.
fn differing(alone: &[Value], during: &[Value]) -> Vec<String> {
    let of = |results: &[Value]| -> BTreeSet<(String, String)> {
        let part = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        results.iter().map(|row| (part(row, "check"), part(row, "result") + &part(row, "reason"))).collect()
    };
    let (alone, during) = (of(alone), of(during));
    let names: BTreeSet<String> = alone.symmetric_difference(&during).map(|(check, _)| check.clone()).collect();
    names.into_iter().collect()
}

/// Returns the antivirus filters, without Defender's, that `fltmc filters` lists.
fn antivirus_filters(text: &str) -> Vec<&str> {
    let name = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, .., altitude, _] = words[..] else { return None };
        let is_antivirus = altitude.parse().is_ok_and(|altitude: f64| ANTIVIRUS.contains(&altitude));
        line.find(name).filter(|_| is_antivirus && name != DEFENDER).map(|at| (at, name.len()))
    };
    text.lines().filter_map(|line| name(line).map(|(at, length)| &line[at..at + length])).collect()
}

/// Judges the registration of a plugin, `icacls` of its directory, and the registration after its removal.
fn plugin_came_and_went(class: &str, outputs: &[Output]) -> Option<Outcome> {
    let [registered, list, removed] = outputs else { return None };
    registered.ok()?.to_lowercase().contains(&class.to_lowercase()).then_some(())?;
    judge::users_may_only_read(&judge::entries(list, PLUGINS)?).then_some(())?;
    (removed.status == Some(1)).then(|| {
        passed(format!(
            "Windows had the class {class}; users may only read {PLUGINS}; after the removal the class is gone"
        ))
    })
}

/// Judges the desired state of the host, which has the VXLAN port if it is not the usual one, and `hnsdiag list networks -d`.
pub(crate) fn vxlan_port(outputs: &[Output]) -> Option<Outcome> {
    overlay(outputs, |outputs| {
        let [desired, networks] = outputs else { return None };
        let Some((_, rest)) = desired.ok()?.split_once("--hybrid-overlay-vxlan-port ") else {
            return Some(skipped("the hybrid overlay of the cluster has the usual VXLAN port"));
        };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        let port: u16 = digits.parse().ok()?;
        let compact: String = networks.ok()?.split_whitespace().collect();
        let is_there = compact
            .to_lowercase()
            .split("\"port\":")
            .skip(1)
            .any(|rest| rest.split(|c: char| !c.is_ascii_digit()).next() == Some(digits));
        is_there.then(|| passed(format!("HNS has a network with the VXLAN port {port}")))
    })
}

/// File with the public keys of administrators.
const AUTHORIZED_KEYS: &str = r"C:\ProgramData\ssh\administrators_authorized_keys";

/// Judges `sc queryex sshd`, and `icacls` of the file with the public keys of administrators.
pub(crate) fn authorized_keys(outputs: &[Output]) -> Option<Outcome> {
    let [service, list] = outputs else { return None };
    judge::running_process(service)?;
    if list.status != Some(0) {
        return Some(skipped("the public keys of administrators are in another file"));
    }
    judge::is_administrators_alone(&judge::entries(list, AUTHORIZED_KEYS)?)
        .then(|| passed(format!("sshd runs, and only SYSTEM and Administrators have access to {AUTHORIZED_KEYS}")))
}

/// Command that tries to rename the directories above wicd's. It undoes a rename that succeeds, and tries to do so until that succeeds.
pub(crate) const RENAME: &str = r#"powershell.exe -NoProfile -Command "foreach ($d in 'C:\var\log','C:\var') { if (Test-Path ($d + '-acceptance')) { $d + '-acceptance is left'; continue }; try { [IO.Directory]::Move($d, $d + '-acceptance') } catch { 'refused'; continue }; $d + ' was renamed'; while (Test-Path ($d + '-acceptance')) { try { [IO.Directory]::Move($d + '-acceptance', $d) } catch { Start-Sleep 1 } } }""#;

/// Judges the output of [`RENAME`].
pub(crate) fn parents_held(outputs: &[Output]) -> Option<Outcome> {
    let says = judge::only(outputs)?;
    (says.split_whitespace().eq(["refused", "refused"]))
        .then(|| passed(r"C:\var and C:\var\log cannot be renamed while the node runs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(status: u32, text: &str) -> Output {
        Output { status: Some(status), text: text.to_owned() }
    }

    #[test]
    fn checks_are_compared_by_result_and_reason() {
        let row =
            |check: &str, result: &str, message: &str| json!({"check": check, "result": result, "message": message});
        let alone = [row("disk", "passed", "9 GiB"), row("clock", "passed", "1 s")];
        assert_eq!(differing(&alone, &[row("clock", "passed", "2 s"), row("disk", "passed", "8 GiB")]), [""; 0]);
        assert_eq!(differing(&alone, &[row("disk", "failed", "9 GiB"), row("clock", "passed", "1 s")]), ["disk"]);
        assert_eq!(differing(&alone, &alone[..1]), ["clock"]);
    }

    #[test]
    fn antivirus_filters_are_found_by_their_altitude() {
        let text = "\nFilter Name                     Num Instances    Altitude    Frame\n------------------------------  -------------  ------------  -----\nWdFilter                                5       328010         0\nbindflt                                 1       409800         0\nVendorAv                                5       321410.5       0\n";
        assert_eq!(antivirus_filters(text), ["VendorAv"]);
        assert_eq!(antivirus_filters("Access is denied."), [""; 0]);
    }

    #[test]
    fn a_plugin_must_come_and_go() {
        let class = "{CCC2A336-D7F3-4818-A213-272B7924213E}";
        let acl = |user: &str| {
            output(
                0,
                &format!(
                    "{PLUGINS} NT AUTHORITY\\SYSTEM:(OI)(CI)(F)\n    BUILTIN\\Administrators:(OI)(CI)(F)\n    BUILTIN\\Users:(OI)(CI)({user})\n\nSuccessfully processed 1 files; Failed processing 0 files"
                ),
            )
        };
        let good = [
            output(0, &format!(r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Control\CCG\COMClasses\{class}")),
            acl("RX"),
            output(1, "ERROR: The system was unable to find the specified registry key or value."),
        ];
        assert!(plugin_came_and_went(class, &good).is_some());
        for (n, bad) in [(0, output(1, "ERROR")), (1, acl("M")), (2, good[0].clone())] {
            let mut outputs = good.clone();
            outputs[n] = bad;
            assert_eq!(plugin_came_and_went(class, &outputs), None, "{n}");
        }
    }

    #[test]
    fn another_vxlan_port_must_be_in_a_network() {
        let running = output(0, "SERVICE_NAME: kube-proxy\n        STATE              : 4  RUNNING");
        let desired =
            |more: &str| output(0, &format!("{{\"command\": \"hybrid-overlay-node.exe --k8s-cacert x{more}\"}}"));
        let hns = |port: u16| {
            output(
                0,
                &format!("{{\"Policies\": [{{\"Type\": \"VxlanPort\", \"Settings\": {{\"Port\" : {port} }} }}]}}"),
            )
        };
        let judged =
            |more: &str, port| vxlan_port(&[running.clone(), desired(more), hns(port)]).map(|outcome| outcome.result);
        assert_eq!(judged(" --hybrid-overlay-vxlan-port 9898", 9898), Some(judge::PASSED));
        assert_eq!(judged(" --hybrid-overlay-vxlan-port 9898", 4789), None);
        assert_eq!(judged(" --hybrid-overlay-vxlan-port 9898", 9899), None);
        assert_eq!(judged("", 4789), Some(judge::SKIPPED));
    }

    #[test]
    fn the_keys_of_administrators_are_theirs_alone() {
        let running =
            output(0, "SERVICE_NAME: sshd\n        STATE              : 4  RUNNING\n        PID                : 4711");
        let acl = |user: &str| {
            output(
                0,
                &format!(
                    "{AUTHORIZED_KEYS} NT AUTHORITY\\SYSTEM:(F)\n    BUILTIN\\{user}:(F)\n\nSuccessfully processed 1 files; Failed processing 0 files"
                ),
            )
        };
        let judged = |list: Output| authorized_keys(&[running.clone(), list]).map(|outcome| outcome.result);
        assert_eq!(judged(acl("Administrators")), Some(judge::PASSED));
        assert_eq!(judged(acl("Users")), None);
        assert_eq!(judged(output(2, "The system cannot find the file specified.")), Some(judge::SKIPPED));
        assert_eq!(authorized_keys(&[output(1, ""), acl("Administrators")]), None);
    }

    #[test]
    fn a_rename_of_a_parent_must_be_refused() {
        assert!(parents_held(&[output(0, "refused\nrefused")]).is_some());
        for bad in ["refused", "refused\nC:\\var was renamed", "C:\\var\\log was renamed\nrefused", ""] {
            assert_eq!(parents_held(&[output(0, bad)]), None, "{bad}");
        }
    }
}
