//! Rows of the acceptance test in which a service hangs, containerd's exclusion is lost, and support data is collected.

use std::fs;

use anyhow::ensure;
use controller::{args::Gather, commands::gather};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    acts::{NotHere, PODS, Run, evidence},
    judge::{self, Outcome, Output, field, passed},
};

/// Command that prints whether Defender checks files when they are used.
const PROTECTION: &str = "powershell.exe -NoProfile -Command (Get-MpComputerStatus).RealTimeProtectionEnabled";
/// Registry value with containerd's exclusion, as arguments of `reg.exe`.
const EXCLUSION: &str =
    r#""HKLM\SOFTWARE\Policies\Microsoft\Windows Defender\Exclusions\Processes" /v C:\k\containerd\containerd.exe"#;
/// Commands that query kubelet's service, and suspend its process, which then cannot end by itself.
const SUSPEND: [&str; 2] = [
    "sc.exe queryex kubelet",
    r#"powershell.exe -NoProfile -Command "Add-Type -Namespace A -Name P -MemberDefinition '[DllImport(\"ntdll.dll\")] public static extern int NtSuspendProcess(IntPtr h);'; [A.P]::NtSuspendProcess((Get-Process -Name kubelet).Handle)""#,
];
/// Commands that query kubelet's service and its processes.
const KUBELET: [&str; 2] = ["sc.exe queryex kubelet", r#"tasklist.exe /fo csv /nh /fi "imagename eq kubelet.exe""#];
/// Files of the support data, each with the command that shows the same.
const SUPPORT: [(&str, &str); 4] = [
    ("events/System.xml", "wevtutil.exe qe System /rd:true /c:5 /f:xml"),
    ("updates.json", "powershell.exe -NoProfile -Command (Get-HotFix).HotFixID"),
    ("hns/networks.json", "powershell.exe -NoProfile -Command (Get-HnsNetwork).Id"),
    ("services.json", "sc.exe query kubelet"),
];

impl Run {
    /// Removes containerd's exclusion for the time of a check of the host, which must warn.
    pub(crate) async fn lost_exclusion(&self) -> anyhow::Result<String> {
        ensure!(self.args.wicd.is_some(), NotHere("needs --wicd"));
        let protection = self.host.run(&[PROTECTION]).await?;
        let is_on = judge::only(&protection).is_some_and(|text| text.trim() == "True");
        ensure!(is_on, NotHere("the host has no real-time protection of Defender"));
        *self.lacks_exclusion.lock() = true;
        let removed = self.succeed(&[&format!("reg.exe delete {EXCLUSION} /f")]).await;
        // A value that was not there must not be added.
        *self.lacks_exclusion.lock() = removed.is_ok();
        let results = if removed.is_ok() { self.check_results(None).await } else { Ok(Vec::new()) };
        self.restore_exclusion().await?;
        removed?;
        let results = results?;
        let warning = results.iter().find(|row| row["check"] == "antivirus" && row["result"] == "warning");
        let message = warning.and_then(|row| row["message"].as_str());
        ensure!(message.is_some_and(|message| message.contains("containerd")), "check host does not warn: {results:?}");
        Ok(message.unwrap_or_default().to_owned())
    }

    /// Restores containerd's exclusion, if the row `lost-exclusion` has removed it.
    pub(crate) async fn restore_exclusion(&self) -> anyhow::Result<()> {
        if *self.lacks_exclusion.lock() {
            self.succeed(&[&format!("reg.exe add {EXCLUSION} /t REG_SZ /d 0 /f")]).await?;
            *self.lacks_exclusion.lock() = false;
        }
        Ok(())
    }

    /// Suspends kubelet and changes its settings, so that its service must be stopped. Then undoes the change.
    pub(crate) async fn hung_service(&self) -> anyhow::Result<String> {
        let suspended = self.host.run(&SUSPEND).await;
        let begin = Instant::now();
        let changed = self.change(json!({"kubelet": {"maxPods": PODS + 1}})).await;
        let seconds = begin.elapsed().as_secs();
        let after = self.host.run(&KUBELET).await;
        if suspended.is_err() || changed.is_err() {
            // The service manager starts kubelet again.
            self.host.run(&["taskkill.exe /f /im kubelet.exe"]).await?;
        }
        // Later rows need the first version, whatever the result.
        let restored = self.rollback().await;
        let mut outputs = suspended?;
        changed?;
        restored?;
        outputs.extend(after?);
        evidence(|outputs| ended(seconds, outputs), &outputs)
    }

    /// Collects support data of the host as `gather --hosts` does, and compares some of it with Windows.
    pub(crate) async fn support_data(&self) -> anyhow::Result<String> {
        let Some(wicd) = self.args.wicd.clone() else { return Err(NotHere("needs --wicd").into()) };
        let outputs = self.host.run(&SUPPORT.map(|(_, command)| command)).await?;
        let name = self.world.names.name();
        let folder = tempfile::tempdir()?;
        let asked = Gather {
            dest: Some(folder.path().to_owned()),
            namespace: self.world.namespace.clone(),
            since: None,
            since_time: None,
            hosts: Some(name.clone()),
            identity: Some(self.args.login.identity.clone()),
            wicd,
        };
        gather::run(asked, &self.args.cluster).await?;
        let read = |(file, _): (&str, _)| fs::read_to_string(folder.path().join("hosts").join(&name).join(file));
        let files: Vec<String> = SUPPORT.into_iter().map(|part| read(part).unwrap_or_default()).collect();
        evidence(|outputs| support(&files, outputs), &outputs)
    }
}

/// Judges [`SUSPEND`] before, and [`KUBELET`] after a change: one new process of kubelet runs.
fn ended(seconds: u64, outputs: &[Output]) -> Option<Outcome> {
    let [before, suspended, after, processes] = outputs else { return None };
    // The status of the call, which is 0 after a success.
    (suspended.ok()?.trim() == "0").then_some(())?;
    let (before, after) = (judge::running_process(before)?, judge::running_process(after)?);
    let kubelets = judge::processes(processes, "kubelet.exe")?;
    (before != after && kubelets.len() == 1)
        .then(|| passed(format!("the suspended kubelet was ended, and one kubelet runs; the change took {seconds} s")))
}

/// Judges the commands of [`SUPPORT`]: what they print is in the files.
fn support(files: &[String], outputs: &[Output]) -> Option<Outcome> {
    let [events, updates, networks, service] = outputs else { return None };
    let [in_events, in_updates, in_networks, in_services] = files else { return None };
    let ids: Vec<&str> = events
        .ok()?
        .split("<EventRecordID>")
        .skip(1)
        .filter_map(|rest| rest.split_once('<'))
        .map(|(id, _)| id)
        .collect();
    let has_event = |id: &&str| in_events.contains(&format!("<EventRecordID>{id}</EventRecordID>"));
    let is_in =
        |text: &str, file: &str| text.split_whitespace().all(|word| file.to_lowercase().contains(&word.to_lowercase()));
    let services: Vec<Value> = serde_json::from_str(in_services).ok()?;
    let kubelet = services.iter().find(|service| service["name"] == "kubelet")?;
    let code: u64 = field(service.ok()?, "WIN32_EXIT_CODE")?.split_whitespace().next()?.parse().ok()?;
    let fits = !ids.is_empty()
        && ids.iter().all(has_event)
        && is_in(updates.ok()?, in_updates)
        && is_in(networks.ok()?, in_networks)
        && kubelet["exitCode"] == code;
    fits.then(|| {
        passed("the support data has the newest events, the updates, the networks of HNS and kubelet's exit code")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> Output {
        Output { status: Some(0), text: text.to_owned() }
    }

    fn service(pid: u32) -> Output {
        ok(&format!(
            "SERVICE_NAME: kubelet\n        STATE              : 4  RUNNING\n        WIN32_EXIT_CODE    : 0  (0x0)\n        PID                : {pid}"
        ))
    }

    #[test]
    fn a_hung_kubelet_must_be_replaced_by_one_other() {
        let task = |pid: &u32| format!("\"kubelet.exe\",\"{pid}\",\"Services\",\"0\",\"50,000 K\"\n");
        let tasks = |pids: &[u32]| ok(&pids.iter().map(task).collect::<Vec<_>>().concat());
        let good = [service(1), ok("0"), service(2), tasks(&[2])];
        assert!(ended(130, &good).is_some());
        for (n, bad) in [(1, ok("-1073741790")), (2, service(1)), (3, tasks(&[1, 2])), (3, ok(""))] {
            let mut outputs = good.clone();
            outputs[n] = bad;
            assert_eq!(ended(130, &outputs), None, "{n}: {:?}", outputs[n]);
        }
    }

    #[test]
    fn support_data_must_have_what_windows_prints() {
        let event = |id: u32| format!("<Event><System><EventRecordID>{id}</EventRecordID></System></Event>");
        let files = |exit_code: u32| {
            let services = json!([{"name": "containerd", "exitCode": 1}, {"name": "kubelet", "exitCode": exit_code}]);
            [event(7) + &event(6), r#"["KB5034439"]"#.into(), r#"[{"ID": "0F4A1C5E-1"}]"#.into(), services.to_string()]
        };
        let good = [ok(&event(7)), ok("KB5034439"), ok("0f4a1c5e-1"), service(2)];
        assert!(support(&files(0), &good).is_some());
        assert_eq!(support(&files(2), &good), None, "another exit code");
        for (n, bad) in [(0, ok(&event(8))), (0, ok("")), (1, ok("KB1")), (2, ok("0f4a1c5e-2")), (3, ok(""))] {
            let mut outputs = good.clone();
            outputs[n] = bad;
            assert_eq!(support(&files(0), &outputs), None, "{n}: {:?}", outputs[n]);
        }
    }
}
