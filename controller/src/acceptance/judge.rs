//! What the output of commands on the host shows. Pure: a host may print anything, so that a row passes only by text that Windows prints in
//! exactly this case, and never because a text is missing or cannot be read.

/// How a row ended, with its evidence or the reason, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It works, as this evidence shows.
    Passed(String),
    /// It does not.
    Failed(String),
    /// It was not tried, or could not be seen.
    Skipped(String),
}

impl Outcome {
    pub(super) fn passed(evidence: impl AsRef<str>) -> Self {
        Self::Passed(short(evidence.as_ref()))
    }

    pub(super) fn failed(why: impl AsRef<str>) -> Self {
        Self::Failed(short(why.as_ref()))
    }

    pub(super) fn skipped(why: impl AsRef<str>) -> Self {
        Self::Skipped(short(why.as_ref()))
    }
}

/// Characters of an evidence. What an operator reports of a failed host fits.
const MOST: usize = 400;

fn short(text: &str) -> String {
    api::text::line(text, MOST)
}

/// What one command printed, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    /// Exit status. `None`: it was killed, or the host went away.
    pub(super) status: Option<u32>,
    /// All that it printed.
    pub(super) text: String,
}

/// Key of the registry by which Windows Update waits for a restart, below `HKLM`.
pub(super) const RESTART_REQUIRED: &str =
    r"SOFTWARE\Microsoft\Windows\CurrentVersion\WindowsUpdate\Auto Update\RebootRequired";
/// Value that the key has only if a run made it.
pub(super) const MARK: &str = "WindowsNodePoolsAcceptance";

/// Judges the outputs of a row's commands, one for each.
pub(super) type Judge = fn(&[Output]) -> Outcome;

/// The text of a command that succeeded.
fn succeeded(output: &Output) -> Result<&str, Outcome> {
    if output.status == Some(0) { Ok(&output.text) } else { Err(unexpected(output)) }
}

fn unexpected(output: &Output) -> Outcome {
    let status = output.status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"));
    Outcome::failed(format!("unexpected ({status}): {}", output.text))
}

/// The value of the one line `name : value`. A text in which two lines have the name is not one of Windows.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut values = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim));
    values.next().filter(|_| values.next().is_none())
}

fn either(result: Result<Outcome, Outcome>) -> Outcome {
    result.unwrap_or_else(|outcome| outcome)
}

/// `sc qfailure` and `sc qfailureflag`.
pub(super) fn service_recovery(outputs: &[Output]) -> Outcome {
    let [actions, flag] = outputs else { return Outcome::failed("no output") };
    either((|| {
        let (actions_text, flag_text) = (succeeded(actions)?, succeeded(flag)?);
        let delays: Vec<&str> = actions_text
            .lines()
            .filter_map(|line| line.split_once("RESTART -- Delay = ")?.1.trim().strip_suffix(" milliseconds."))
            .collect();
        let resets = field(actions_text, "RESET_PERIOD (in seconds)") == Some("3600");
        if delays != ["10000", "60000", "300000"] || !resets {
            return Err(unexpected(actions));
        }
        match field(flag_text, "FAILURE_ACTIONS_ON_NONCRASH_FAILURES") {
            Some("TRUE") => Ok(Outcome::passed("restarts after 10000, 60000, 300000 ms, reset 3600 s, flag TRUE")),
            _ => Err(unexpected(flag)),
        }
    })())
}

/// The process id of a service that runs, by `sc queryex`.
fn running(output: &Output) -> Result<u32, Outcome> {
    let text = succeeded(output)?;
    let runs = field(text, "STATE").is_some_and(|state| state.split_whitespace().eq(["4", "RUNNING"]));
    field(text, "PID").and_then(|pid| pid.parse().ok()).filter(|pid| runs && *pid > 0).ok_or_else(|| unexpected(output))
}

/// `sc queryex`, `taskkill`, a pause, `sc queryex`.
pub(super) fn killed_service(outputs: &[Output]) -> Outcome {
    let [before, kill, _, after] = outputs else { return Outcome::failed("no output") };
    either((|| {
        let before = running(before)?;
        succeeded(kill)?;
        match running(after)? {
            same if same == before => Err(Outcome::failed(format!("the process {before} was not ended"))),
            new => Ok(Outcome::passed(format!("process {before} was killed, {new} runs in its place"))),
        }
    })())
}

/// `sc qc kubelet`.
pub(super) fn service_dependencies(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    match succeeded(output).map(|text| field(text, "DEPENDENCIES")) {
        Ok(Some("containerd")) => Outcome::passed("DEPENDENCIES: containerd"),
        _ => unexpected(output),
    }
}

/// `sc query` of services that must not exist.
pub(super) fn services_removed(outputs: &[Output]) -> Outcome {
    if outputs.is_empty() {
        return Outcome::failed("no output");
    }
    match outputs.iter().find(|output| !is_no_service(output)) {
        None => Outcome::passed(format!("none of {} services exists", outputs.len())),
        Some(output) => unexpected(output),
    }
}

fn is_no_service(output: &Output) -> bool {
    output.status == Some(1060) && output.text.contains("OpenService FAILED 1060:")
}

/// The events in `wevtutil qe /f:text`, each with its id.
fn events(text: &str) -> Vec<(&str, &str)> {
    text.split("Event[").skip(1).filter_map(|event| Some((field(event, "Event ID")?, event))).collect()
}

/// Events 1074 of the System log.
pub(super) fn restart_event(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let is_ours = |(id, event): &(&str, &str)| *id == "1074" && event.contains("wicd.exe");
    match succeeded(output) {
        Ok(text) if events(text).iter().any(is_ours) => Outcome::passed("event 1074 names wicd.exe"),
        _ => unexpected(output),
    }
}

/// Events 7043 and 6005 of the System log. 6005, the start of the log, shows that the host has started and that its events are read.
pub(super) fn clean_shutdown(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let Ok(text) = succeeded(output) else { return unexpected(output) };
    let events = events(text);
    if !events.iter().any(|(id, _)| *id == "6005") {
        return unexpected(output);
    }
    match events.iter().find(|(id, event)| *id == "7043" && event.contains("windows-instance-config-daemon")) {
        None => Outcome::passed("the host has started, and no event 7043 names the service"),
        Some((_, event)) => Outcome::failed(event),
    }
}

/// `reg query` of the variables of a service: one line, with `\0` between them.
pub(super) fn service_variables(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let Ok(text) = succeeded(output) else { return unexpected(output) };
    let variable = format!("HTTP_PROXY={}", super::spec::PROXY);
    match value_of(text, "Environment") {
        Some(list) if list.split(r"\0").any(|v| v == variable) => Outcome::passed(variable),
        _ => unexpected(output),
    }
}

/// `reg query` of the policies of Defender.
pub(super) fn antivirus_exclusion(outputs: &[Output]) -> Outcome {
    registry_value(outputs, r"C:\k\containerd\containerd.exe", "")
}

/// A value of this name in an output of `reg query`, with this text if it is not empty.
fn registry_value(outputs: &[Output], name: &str, expected: &str) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let Ok(text) = succeeded(output) else { return unexpected(output) };
    match value_of(text, name) {
        Some(value) if expected.is_empty() || value == expected => Outcome::passed(format!("{name} = {value}")),
        _ => unexpected(output),
    }
}

fn value_of(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_named = words.next().is_some_and(|word| word.eq_ignore_ascii_case(name));
        let is_typed = words.next().is_some_and(|word| word.starts_with("REG_"));
        (is_named && is_typed).then(|| words.collect::<Vec<_>>().join(" "))
    })
}

/// `dism /online /get-featureinfo`.
pub(super) fn feature_containers(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    match succeeded(output).map(|text| (field(text, "Feature Name"), field(text, "State"))) {
        Ok((Some("Containers"), Some("Enabled"))) => Outcome::passed("Containers: Enabled"),
        _ => unexpected(output),
    }
}

/// `sc queryex hns`, `hnsdiag list networks` and `hnsdiag list endpoints`. HNS must run, for otherwise an empty list shows nothing.
pub(super) fn hns_removed(outputs: &[Output]) -> Outcome {
    let [service, networks, endpoints] = outputs else { return Outcome::failed("no output") };
    either((|| {
        running(service)?;
        let (networks_text, endpoints_text) = (succeeded(networks)?, succeeded(endpoints)?);
        if networks_text.contains("OVNKubernetesHybridOverlayNetwork") {
            return Err(unexpected(networks));
        }
        if endpoints_text.contains("VIPEndpoint") {
            return Err(unexpected(endpoints));
        }
        Ok(Outcome::passed("HNS runs, and has no network and no endpoint of the hybrid overlay"))
    })())
}

/// `sc query kube-proxy` and `hnsdiag list endpoints`.
pub(super) fn hybrid_endpoint(outputs: &[Output]) -> Outcome {
    let [service, endpoints] = outputs else { return Outcome::failed("no output") };
    if is_no_service(service) {
        return Outcome::skipped("the host has no kube-proxy of a hybrid overlay");
    }
    match succeeded(service).and_then(|_| succeeded(endpoints)) {
        Ok(text) if text.matches("VIPEndpoint").count() == 1 => Outcome::passed("one VIPEndpoint"),
        Ok(_) => unexpected(endpoints),
        Err(outcome) => outcome,
    }
}

/// An entry of an access list: account, and its rights such as `OI`, `CI`, `F`. The last is what it may do.
type Entry<'a> = (&'a str, Vec<&'a str>);

/// The entries of `icacls <path>`. `None` if a line is none.
fn entries<'a>(output: &'a Output, path: &str) -> Option<Vec<Entry<'a>>> {
    let (list, summary) = succeeded(output).ok()?.trim().rsplit_once('\n')?;
    if summary.trim() != "Successfully processed 1 files; Failed processing 0 files" {
        return None;
    }
    let entry = |line: &'a str| {
        let (account, rights) = line.trim().strip_suffix(')')?.split_once(":(")?;
        Some((account, rights.split(")(").collect()))
    };
    list.trim().strip_prefix(path)?.strip_prefix(' ')?.lines().map(entry).collect()
}

/// Whether only SYSTEM and administrators have rights, and all of them.
fn is_administrators_alone(list: &[Entry<'_>]) -> bool {
    let mut accounts: Vec<&str> = list.iter().map(|(account, _)| *account).collect();
    accounts.sort_unstable();
    accounts.dedup();
    accounts == [r"BUILTIN\Administrators", r"NT AUTHORITY\SYSTEM"]
        && list.iter().all(|(_, rights)| rights.last() == Some(&"F"))
}

/// Whether a directory above passes it on.
fn is_inherited(list: &[Entry<'_>]) -> bool {
    list.iter().any(|(_, rights)| rights.contains(&"I"))
}

/// Directories of [`access_lists`], in the order of its commands.
pub(super) const OURS: [&str; 5] =
    [r"C:\k", r"C:\windows\wicd", r"C:\var\lib\kubelet", r"C:\var\lib\kubelet\pki", r"C:\k\volume-plugins"];

/// `icacls` of [`OURS`].
pub(super) fn access_lists(outputs: &[Output]) -> Outcome {
    let fits = |path: &str, output: &Output| {
        entries(output, path).is_some_and(|list| is_administrators_alone(&list) && !is_inherited(&list))
    };
    if outputs.len() != OURS.len() {
        return Outcome::failed("no output");
    }
    match OURS.iter().zip(outputs).find(|(path, output)| !fits(path, output)) {
        None => Outcome::passed(format!("only SYSTEM and Administrators: {}", OURS.join(", "))),
        Some((_, output)) => unexpected(output),
    }
}

/// `dir /q C:\`.
pub(super) fn owner(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let Ok(text) = succeeded(output) else { return unexpected(output) };
    let mut lines =
        text.lines().filter(|line| line.contains("<DIR>") && line.split_whitespace().next_back() == Some("k"));
    match (lines.next().map(|line| line.split_whitespace().rev().nth(1)), lines.next()) {
        (Some(Some(r"BUILTIN\Administrators")), None) => Outcome::passed(r"C:\k belongs to BUILTIN\Administrators"),
        _ => unexpected(output),
    }
}

/// Directories of [`directories_above`], in the order of its commands.
pub(super) const ABOVE: [&str; 3] = [r"C:\var", r"C:\var\lib", r"C:\var\log"];

/// `icacls` of [`ABOVE`]: users may read, and no more.
pub(super) fn directories_above(outputs: &[Output]) -> Outcome {
    let may_only_read = |(account, rights): &Entry<'_>| {
        matches!(*account, r"BUILTIN\Administrators" | r"NT AUTHORITY\SYSTEM" | "CREATOR OWNER")
            || rights.last() == Some(&"RX") && !rights.contains(&"IO")
    };
    let fits = |path: &str, output: &Output| entries(output, path).is_some_and(|list| list.iter().all(may_only_read));
    if outputs.len() != ABOVE.len() {
        return Outcome::failed("no output");
    }
    match ABOVE.iter().zip(outputs).find(|(path, output)| !fits(path, output)) {
        None => Outcome::passed(format!("users may only read: {}", ABOVE.join(", "))),
        Some((_, output)) => unexpected(output),
    }
}

/// `icacls C:\var\lib\kubelet\pods`.
pub(super) fn pod_volumes(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let accounts = entries(output, r"C:\var\lib\kubelet\pods").unwrap_or_default();
    let has = |account: &str| accounts.iter().any(|(found, _)| *found == account);
    if has(r"BUILTIN\Users") && has(r"NT AUTHORITY\Authenticated Users") {
        Outcome::passed(r"BUILTIN\Users and NT AUTHORITY\Authenticated Users have entries")
    } else {
        unexpected(output)
    }
}

/// The desired state of the host, which says whether it is in a cloud, and `route print -4 169.254.169.254`.
pub(super) fn metadata_route(outputs: &[Output]) -> Outcome {
    let [desired, output] = outputs else { return Outcome::failed("no output") };
    let read = |text| serde_json::from_str::<api::host::Desired>(text).ok();
    let Some(desired) = succeeded(desired).ok().and_then(read) else {
        return Outcome::failed(r"C:\k\wicd\desired.json cannot be read");
    };
    if desired.metadata_address.is_none() {
        return Outcome::skipped("the host is in no cloud with a metadata service");
    }
    let active = |text| Some(str::split_once(text, "Active Routes:")?.1.split_once("Persistent Routes:")?.0);
    let Some(active) = succeeded(output).ok().and_then(active) else { return unexpected(output) };
    let is_address = |word: &str| word.parse::<std::net::Ipv4Addr>().is_ok();
    for line in active.lines() {
        if let ["169.254.169.254", "255.255.255.255", gateway, ..] = line.split_whitespace().collect::<Vec<_>>()[..]
            && is_address(gateway)
        {
            return Outcome::passed(format!("through {gateway}"));
        }
    }
    unexpected(output)
}

/// `dir /b C:\k\containerd\registries`.
pub(super) fn mirrors_on_host(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    match succeeded(output) {
        Ok(text) if text.lines().any(|line| line.trim() == super::spec::MIRRORED) => {
            Outcome::passed(format!("the directory {}", super::spec::MIRRORED))
        }
        _ => unexpected(output),
    }
}

/// `icacls` of kubelet's logins.
pub(super) fn logins(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    if output.status != Some(0) && output.text.contains("The system cannot find the file specified.") {
        return Outcome::skipped("the host has no logins of registries");
    }
    match entries(output, r"C:\var\lib\kubelet\config.json") {
        Some(list) if is_administrators_alone(&list) => Outcome::passed("only SYSTEM and Administrators"),
        _ => unexpected(output),
    }
}

/// `tasklist` with a filter.
pub(super) fn shims_ended(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    match succeeded(output).map(str::trim) {
        Ok("INFO: No tasks are running which match the specified criteria.") => Outcome::passed("no shim runs"),
        _ => unexpected(output),
    }
}

/// `dir` of kubelet's certificates, and `icacls` of its kubeconfig.
pub(super) fn client_certificate(outputs: &[Output]) -> Outcome {
    let [listing, kubeconfig] = outputs else { return Outcome::failed("no output") };
    let links =
        |text: &str| text.lines().any(|l| l.contains("<SYMLINK>") && l.contains(" kubelet-client-current.pem ["));
    match succeeded(listing) {
        Ok(text) if links(text) => {}
        _ => return unexpected(listing),
    }
    match entries(kubeconfig, r"C:\k\kubeconfig") {
        Some(list) if is_administrators_alone(&list) => {
            Outcome::passed("kubelet-client-current.pem is a <SYMLINK>; only administrators read the kubeconfig")
        }
        _ => unexpected(kubeconfig),
    }
}

/// `certutil -store Root <thumbprint>`.
pub(super) fn certificate_store(outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let hash = |line: &str| line.trim().strip_prefix("Cert Hash(sha1):").map(|hash| hash.replace(' ', ""));
    match succeeded(output) {
        Ok(text) if text.lines().filter_map(hash).any(|hash| hash == super::spec::THUMBPRINT) => {
            Outcome::passed(format!("Root has {}", super::spec::THUMBPRINT))
        }
        _ => unexpected(output),
    }
}

/// wicd's record of what it has put on the host. It pins an image after containerd has reported its id.
pub(super) fn images_pinned(image: &str, outputs: &[Output]) -> Outcome {
    let [output] = outputs else { return Outcome::failed("no output") };
    let read = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    let Some(record) = succeeded(output).ok().and_then(read) else {
        return Outcome::failed(r"C:\k\wicd\owned.json cannot be read");
    };
    let id = record["pinned"][image].as_str();
    match id.and_then(|id| id.strip_prefix("sha256:")).filter(|sha256| api::payload::is_sha256(sha256)) {
        Some(sha256) => Outcome::passed(format!("{image} is pinned: sha256:{sha256}")),
        None => Outcome::failed(format!("{image} is not pinned: {}", record["pinned"])),
    }
}

/// The `wicd.exe` of the service, by `reg query`: what it names is run, so that it must be in its place.
pub(super) fn path_of_wicd(outputs: &[Output]) -> Option<String> {
    let [output] = outputs else { return None };
    let command = value_of(succeeded(output).ok()?, "ImagePath")?;
    let path = command.strip_suffix(" service")?.trim_matches('"').to_owned();
    let sha256 = path.strip_prefix(api::host::path::WICD)?.strip_prefix('\\')?.strip_suffix(r"\wicd.exe")?;
    api::payload::is_sha256(sha256).then_some(path)
}

/// `wicd.exe maintenance` with `begin`, `status`, `end` and `status`.
pub(super) fn host_maintenance(reason: &str, outputs: &[Output]) -> Outcome {
    let [begun, during, ended, after] = outputs else { return Outcome::failed("no output") };
    // Before it, they print what they wait for.
    let ends_with = |output: &Output, line: &str| {
        succeeded(output)
            .is_ok_and(|text| text.lines().rev().find(|l| !l.trim().is_empty()).map(str::trim) == Some(line))
    };
    let is = |output: &Output, lines: [&str; 2]| {
        succeeded(output).is_ok_and(|text| text.trim().lines().map(str::trim).eq(lines))
    };
    let request = format!("request: {reason}");
    let drained = "the node is drained: patch and restart the host, then run `maintenance end`";
    for (output, fits) in [
        (begun, ends_with(begun, drained)),
        (during, is(during, ["state: Drained", &request])),
        (ended, ends_with(ended, "the node is Ready, and its maintenance is over")),
        (after, is(after, ["state: None", "request: none"])),
    ] {
        if !fits {
            return unexpected(output);
        }
    }
    Outcome::passed("begin: the node is drained; end: the node is Ready, and its maintenance is over")
}

/// Whether `reg query /v` of [`MARK`] shows it. `None`: the answer cannot be read, which shows neither. That there is none, reg.exe says in the
/// language of Windows, so that it is known by the exit status and by an answer that lists no key.
pub(super) fn has_mark(outputs: &[Output]) -> Option<bool> {
    let [Output { status, text }] = outputs else { return None };
    match status {
        Some(0) => value_of(text, MARK).map(|_| true),
        Some(1) if !text.trim().is_empty() && !text.contains("REG_") && !text.contains("HKEY_") => Some(false),
        _ => None,
    }
}

/// Whether `reg query` shows a key without values and keys: its name at most.
pub(super) fn is_empty_key(output: &Output) -> bool {
    succeeded(output).is_ok_and(|text| text.lines().filter(|line| !line.trim().is_empty()).count() <= 1)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
