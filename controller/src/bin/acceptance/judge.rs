//! Judges of the output of commands on the host. Pure functions. A host may print anything, so a row passes only with the texts and exit statuses
//! that prove its subject, and never with unexpected output.

/// Outcome of a row, with its evidence or the reason, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Result: [`PASSED`], [`FAILED`] or [`SKIPPED`].
    pub(crate) result: &'static str,
    pub(crate) text: String,
}

/// Result of a row whose evidence shows that its subject works.
pub(crate) const PASSED: &str = "passed";
/// Result of a row whose subject does not work, or whose output is unexpected.
pub(crate) const FAILED: &str = "failed";
/// Result of a row that was not run, or could not be observed.
pub(crate) const SKIPPED: &str = "skipped";

pub(crate) fn passed(evidence: impl AsRef<str>) -> Outcome {
    Outcome { result: PASSED, text: short(evidence.as_ref()) }
}

/// Returns a text as one line that is not too long.
pub(crate) fn short(text: &str) -> String {
    api::text::line(text, MAX_EVIDENCE_CHARS)
}

pub(crate) fn failed(why: impl AsRef<str>) -> Outcome {
    Outcome { result: FAILED, ..passed(why) }
}

pub(crate) fn skipped(why: impl AsRef<str>) -> Outcome {
    Outcome { result: SKIPPED, ..passed(why) }
}

/// Maximum number of characters of the evidence, enough for the operator's message about a failed host.
const MAX_EVIDENCE_CHARS: usize = 400;

/// Output of one command, and its exit status: `None` if it was killed, or the host went away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) status: Option<u32>,
    pub(crate) text: String,
}

impl Output {
    /// Returns the text of a command that succeeded.
    pub(crate) fn ok(&self) -> Option<&str> {
        (self.status == Some(0)).then_some(self.text.as_str())
    }
}

/// Registry key below `HKLM` that exists while Windows Update waits for a restart.
pub(crate) const RESTART_REQUIRED: &str =
    r"SOFTWARE\Microsoft\Windows\CurrentVersion\WindowsUpdate\Auto Update\RebootRequired";
/// Name of the value that marks the registry key as set by a run.
pub(crate) const MARK: &str = "WindowsNodePoolsAcceptance";
/// Proxy of the row `proxy`. Only plain HTTP goes to it, which no program of a node needs.
pub(crate) const PROXY: &str = "http://acceptance.invalid:3128";
/// SHA-1 of the certificate of the row `trusted-certificates`, as certutil prints it.
pub(crate) const THUMBPRINT: &str = "3bb1582d319ffed7adfd0bf58077497a884f9b15";
/// Registry of the row `image-mirrors`.
pub(crate) const MIRRORED: &str = "registry.acceptance.invalid";

/// Function that judges the outputs of a row's commands, one for each. `None`: the outputs are not what Windows prints when it works.
pub(crate) type Judge = fn(&[Output]) -> Option<Outcome>;

/// Returns the text of the only command of a row, if it succeeded.
pub(crate) fn only(outputs: &[Output]) -> Option<&str> {
    let [output] = outputs else { return None };
    output.ok()
}

/// Returns the judge's outcome of a row. Without one, the row has failed with the unexpected outputs, those of failed commands first.
pub(crate) fn outcome(judge: impl Fn(&[Output]) -> Option<Outcome>, outputs: &[Output]) -> Outcome {
    judge(outputs).unwrap_or_else(|| {
        let mut printed: Vec<&Output> = outputs.iter().collect();
        printed.sort_by_key(|output| output.ok().is_some());
        let said = printed.into_iter().map(|Output { status, text }| {
            let status = status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"));
            format!("({status}): {}", api::text::line(text, MAX_EVIDENCE_CHARS / outputs.len()))
        });
        failed(format!("unexpected output {}", said.collect::<Vec<_>>().join("; ")))
    })
}

/// Returns the value of the only line `name : value`. `None` if several lines have the name, because Windows prints one.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut values = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim));
    values.next().filter(|_| values.next().is_none())
}

/// Judges `sc qfailure` and `sc qfailureflag`: the service must restart after each failure, with the expected delays.
pub(crate) fn service_recovery(outputs: &[Output]) -> Option<Outcome> {
    let [actions, flag] = outputs else { return None };
    let delays: Vec<&str> = actions
        .ok()?
        .lines()
        .filter_map(|line| line.split_once("RESTART -- Delay = ")?.1.trim().strip_suffix(" milliseconds."))
        .collect();
    (delays == ["10000", "60000", "300000"]
        && field(&actions.text, "RESET_PERIOD (in seconds)") == Some("3600")
        && field(flag.ok()?, "FAILURE_ACTIONS_ON_NONCRASH_FAILURES") == Some("TRUE"))
    .then(|| passed("the service restarts after 10000, 60000 and 300000 ms, also after it ends with an error; its failures are forgotten after 3600 s"))
}

/// Returns the process id of a running service from `sc queryex`.
pub(crate) fn running_process(output: &Output) -> Option<u32> {
    let text = output.ok()?;
    let runs = field(text, "STATE")?.split_whitespace().eq(["4", "RUNNING"]);
    field(text, "PID")?.parse().ok().filter(|pid| runs && *pid > 0)
}

/// Judges `sc queryex`, `taskkill`, a pause, `sc queryex`: the service must run in a new process.
pub(crate) fn killed_service(outputs: &[Output]) -> Option<Outcome> {
    let [before, kill, _, after] = outputs else { return None };
    kill.ok()?;
    let (before, after) = (running_process(before)?, running_process(after)?);
    (before != after).then(|| passed(format!("process {before} was killed, {after} runs in its place")))
}

/// Returns the process ids of a program from `tasklist /fo csv /nh`. Its message that there is no process has another format.
pub(super) fn processes(output: &Output, program: &str) -> Option<Vec<u32>> {
    let id = |line: &str| {
        let (name, rest) = line.trim().strip_prefix('"')?.split_once("\",\"")?;
        rest.split('"').next()?.parse().ok().filter(|_| name.eq_ignore_ascii_case(program))
    };
    Some(output.ok()?.lines().filter_map(id).collect())
}

/// Judges `sc queryex kubelet`, and `tasklist` of `kubelet.exe` and `kube-log-runner.exe`: the service must run one of them, with one kubelet.
pub(crate) fn service_process(outputs: &[Output]) -> Option<Outcome> {
    let [service, kubelets, runners] = outputs else { return None };
    let (id, kubelets) = (running_process(service)?, processes(kubelets, "kubelet.exe")?);
    let runners = processes(runners, "kube-log-runner.exe")?;
    match kubelets[..] {
        [kubelet] if kubelet == id => Some(passed(format!("process {id} of the service is kubelet.exe"))),
        [kubelet] if runners.contains(&id) => {
            Some(passed(format!("process {id} of the service is kube-log-runner.exe, and {kubelet} is kubelet.exe")))
        }
        _ => None,
    }
}

/// Judges `sc queryex`, `taskkill`, a pause, `sc queryex`, `tasklist` of `kubelet.exe`: the service must run in a new process, with one kubelet.
pub(crate) fn lost_log_runner(outputs: &[Output]) -> Option<Outcome> {
    /// Exit status of `taskkill` if no such process runs.
    const NOT_FOUND: u32 = 128;
    let [before, kill, pause, after, kubelets] = outputs else { return None };
    let before = running_process(before)?;
    if kill.status == Some(NOT_FOUND) {
        return Some(skipped("no kube-log-runner.exe runs on the host"));
    }
    kill.ok()?;
    pause.ok()?;
    let (after, kubelets) = (running_process(after)?, processes(kubelets, "kubelet.exe")?);
    (before != after && kubelets.len() == 1)
        .then(|| passed(format!("process {before} was killed, {after} runs in its place, with one kubelet.exe")))
}

/// Judges whether the programs in the command line of kubelet's service know its flags, by their help.
pub(crate) fn command_lines(outputs: &[Output]) -> Option<Outcome> {
    let [service, help @ ..] = outputs else { return None };
    flags(&value_of(service.ok()?, "ImagePath")?, help)
}

/// Judges whether kube-log-runner and kubelet know the flags in a command line of kubelet's service, by their help.
pub(crate) fn flags(line: &str, outputs: &[Output]) -> Option<Outcome> {
    let [runner, kubelet] = outputs else { return None };
    let is = |word: &str, program: &str| word.trim_matches('"').to_ascii_lowercase().ends_with(program);
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| is(word, r"\kubelet.exe"))?;
    let (before, after) = words.split_at(at);
    let mut unknown = unknown_flags("kubelet.exe", &after[1..], kubelet.ok()?);
    if let [program, flags @ ..] = before {
        is(program, r"\kube-log-runner.exe").then_some(())?;
        unknown.extend(unknown_flags("kube-log-runner.exe", flags, runner.ok()?));
    }
    Some(match unknown.first() {
        None => passed(format!("the programs know each flag of the command line: {line}")),
        Some(flag) => failed(format!("{flag}; command line: {line}")),
    })
}

/// Returns the flags that the help of a Go program does not name.
fn unknown_flags(program: &str, words: &[&str], help: &str) -> Vec<String> {
    let known: Vec<&str> =
        help.lines().flat_map(|line| line.split_whitespace().take(2)).map(|word| word.trim_end_matches(',')).collect();
    let flags = words.iter().filter(|word| word.starts_with('-')).filter_map(|word| word.split('=').next());
    flags.filter(|flag| !known.contains(flag)).map(|flag| format!("{program} does not know {flag}")).collect()
}

/// Judges the paths of the libraries that wicd has loaded, as PowerShell prints them.
pub(crate) fn libraries(outputs: &[Output]) -> Option<Outcome> {
    let paths = only(outputs)?.lines().map(str::trim).filter(|line| !line.is_empty());
    let (wicd, libraries): (Vec<&str>, Vec<&str>) = paths.partition(|path| path.ends_with(r"\wicd.exe"));
    let is_other = |path: &&&str| !path.to_ascii_lowercase().starts_with(r"c:\windows\system32\");
    (!wicd.is_empty() && !libraries.is_empty()).then(|| match libraries.iter().find(is_other) {
        None => passed(format!("wicd.exe has loaded {} libraries, all from System32", libraries.len())),
        Some(path) => failed(format!("wicd.exe has loaded {path}")),
    })
}

/// Judges whether the registry of Windows has the language and the domain of the host's facts.
pub(crate) fn windows_facts(language: &str, domain: Option<&str>, outputs: &[Output]) -> Option<Outcome> {
    let [languages, parameters] = outputs else { return None };
    let named = format!(r"\{language}");
    languages.ok()?.lines().find(|line| line.trim_end().ends_with(&named))?;
    let of_windows = value_of(parameters.ok()?, "Domain")?;
    of_windows.eq_ignore_ascii_case(domain.unwrap_or_default()).then(|| {
        passed(format!(
            "the registry has the language {language} and the domain {}, as the facts of the host",
            domain.unwrap_or("none")
        ))
    })
}

/// Command that prints containerd's configuration.
pub(crate) const CONFIG_DUMP: &str =
    r"C:\k\containerd\containerd.exe --config C:\k\containerd\containerd_conf.toml config dump";

/// Judges `containerd config dump`: containerd must ignore no key.
pub(crate) fn containerd_config(outputs: &[Output]) -> Option<Outcome> {
    let text = only(outputs)?;
    let version = text.lines().find(|line| line.starts_with("version = "))?;
    // For a key that no plugin knows, containerd prints this and continues.
    Some(match text.lines().find(|line| line.contains("Ignoring unknown key in TOML")) {
        None => passed(format!("containerd ignores no key of its configuration ({version})")),
        Some(line) => failed(line),
    })
}

/// Services that [`after_restart`] judges. The last exists only with a hybrid overlay.
pub(crate) const SERVICES: [&str; 4] = ["windows-instance-config-daemon", "containerd", "kubelet", "kube-proxy"];
/// Times at which [`after_restart`] judges the services, in seconds after the host answers again.
pub(crate) const TIMES: [u64; 3] = [60, 120, 300];

/// Reports whether a service runs, or is kube-proxy and missing, as without a hybrid overlay.
fn runs_or_is_not_needed(name: &str, output: &Output) -> Option<bool> {
    if is_no_service(output) {
        return Some(name == SERVICES[3]);
    }
    Some(field(output.ok()?, "STATE")?.split_whitespace().next()? == "4")
}

/// Reports whether `sc query` of each of [`SERVICES`] shows that it runs or is not needed.
pub(crate) fn all_run(outputs: &[Output]) -> bool {
    outputs.len() == SERVICES.len()
        && SERVICES.iter().zip(outputs).all(|(name, output)| runs_or_is_not_needed(name, output) == Some(true))
}

/// Judges `sc query` of each of [`SERVICES`] at [`TIMES`], or at the first of them until all run: all services must run at the last one.
pub(crate) fn after_restart(outputs: &[Output]) -> Option<Outcome> {
    let (last, mut seen, mut missing) = (outputs.len().checked_sub(SERVICES.len())?, Vec::new(), Vec::new());
    let is_whole = outputs.len().is_multiple_of(SERVICES.len()) && outputs.len() <= SERVICES.len() * TIMES.len();
    is_whole.then_some(())?;
    for (number, (output, name)) in outputs.iter().zip(SERVICES.iter().cycle()).enumerate() {
        let runs = runs_or_is_not_needed(name, output)?;
        if number % SERVICES.len() == 0 {
            seen.push((TIMES[number / SERVICES.len()], SERVICES.len()));
        }
        if !runs {
            seen.last_mut()?.1 -= 1;
            missing.extend((number >= last).then_some(*name));
        }
    }
    let seen = seen.into_iter().map(|(second, count)| format!("{count} of {} after {second} s", SERVICES.len()));
    let seen = seen.collect::<Vec<_>>().join(", ");
    Some(if missing.is_empty() {
        passed(format!("services that run or are not needed: {seen}"))
    } else {
        failed(format!("not running: {}; services that run or are not needed: {seen}", missing.join(", ")))
    })
}

/// Returns the number of Windows starts from `reg query`.
pub(crate) fn boot_count(outputs: &[Output]) -> Option<String> {
    value_of(only(outputs)?, "BootId").filter(|count| count.starts_with("0x"))
}

/// Reports whether two outputs of `certutil -hashfile` have the same hash.
pub(crate) fn is_same_file(outputs: &[Output]) -> bool {
    let hash = |output: &Output| {
        let hash = output.ok()?.lines().map(|line| line.replace(' ', "")).find(|line| api::payload::is_sha256(line));
        hash.filter(|hash| !hash.is_empty())
    };
    matches!(outputs, [one, other] if hash(one).is_some() && hash(one) == hash(other))
}

/// Judges outputs that are `none` if nothing is left, and otherwise list what is left.
pub(crate) fn none_left(outputs: &[Output]) -> Option<Outcome> {
    let texts = outputs.iter().map(|output| output.ok().map(str::trim)).collect::<Option<Vec<_>>>()?;
    (!texts.is_empty() && texts.iter().all(|text| *text == "none")).then(|| passed("nothing is left"))
}

/// Judges `sc qc kubelet`: the service must depend on containerd.
pub(crate) fn service_dependencies(outputs: &[Output]) -> Option<Outcome> {
    (field(only(outputs)?, "DEPENDENCIES")? == "containerd")
        .then(|| passed("the service kubelet depends on containerd"))
}

pub(crate) fn is_no_service(output: &Output) -> bool {
    // The word between the two texts is in the language of Windows.
    output.status == Some(1060) && output.text.contains("OpenService ") && output.text.contains(" 1060:")
}

/// Judges `sc query` of services that must not exist.
pub(crate) fn services_removed(outputs: &[Output]) -> Option<Outcome> {
    (!outputs.is_empty() && outputs.iter().all(is_no_service))
        .then(|| passed(format!("none of the {} services exists", outputs.len())))
}

/// Returns the events in `wevtutil qe /f:text`, each with its id.
fn events(outputs: &[Output]) -> Option<Vec<(&str, &str)>> {
    Some(only(outputs)?.split("Event[").skip(1).filter_map(|event| Some((field(event, "Event ID")?, event))).collect())
}

/// Judges the events 1074 of the System log: one must name `wicd.exe`.
pub(crate) fn restart_event(outputs: &[Output]) -> Option<Outcome> {
    let is_ours = |(id, event): &(&str, &str)| *id == "1074" && event.contains("wicd.exe");
    events(outputs)?.iter().any(is_ours).then(|| passed("event 1074 of the System log names wicd.exe"))
}

/// Judges the events 7043 and 6005 of the System log. 6005, the start of the log, shows that the host has started and that its events are read.
pub(crate) fn clean_shutdown(outputs: &[Output]) -> Option<Outcome> {
    let events = events(outputs)?;
    events.iter().find(|(id, _)| *id == "6005")?;
    Some(match events.iter().find(|(id, event)| *id == "7043" && event.contains("windows-instance-config-daemon")) {
        None => passed("the host has started, and no event 7043 of the System log names the service of wicd"),
        Some((_, event)) => failed(event),
    })
}

/// Returns the value with this name from an output of `reg query`.
fn value_of(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_named = words.next().is_some_and(|word| word.eq_ignore_ascii_case(name));
        let is_typed = words.next().is_some_and(|word| word.starts_with("REG_"));
        (is_named && is_typed).then(|| words.collect::<Vec<_>>().join(" "))
    })
}

/// Judges `reg query` of the environment variables of a service: one line, separated by `\0`.
pub(crate) fn service_variables(outputs: &[Output]) -> Option<Outcome> {
    let variable = format!("HTTP_PROXY={PROXY}");
    value_of(only(outputs)?, "Environment")?.split(r"\0").any(|v| v == variable).then(|| passed(variable))
}

/// Judges `reg query` of Defender's policies: containerd must be excluded.
pub(crate) fn antivirus_exclusion(outputs: &[Output]) -> Option<Outcome> {
    let name = r"C:\k\containerd\containerd.exe";
    value_of(only(outputs)?, name).map(|value| passed(format!("Windows Defender has the exclusion {name} = {value}")))
}

/// Judges `dism /online /get-featureinfo`: the feature Containers must be enabled.
pub(crate) fn feature_containers(outputs: &[Output]) -> Option<Outcome> {
    let text = only(outputs)?;
    (field(text, "Feature Name")? == "Containers" && field(text, "State")? == "Enabled")
        .then(|| passed("the Windows feature Containers is enabled"))
}

/// Entry of an access list: the account, and its flags such as `OI`, `CI` and `F`. The last one is the permission, the others are about inheritance.
pub(super) type Entry<'a> = (&'a str, Vec<&'a str>);

/// Returns the entries of `icacls <path>`. `None` if a line is not an entry.
pub(super) fn entries<'a>(output: &'a Output, path: &str) -> Option<Vec<Entry<'a>>> {
    let (list, summary) = output.ok()?.trim().rsplit_once('\n')?;
    if summary.trim() != "Successfully processed 1 files; Failed processing 0 files" {
        return None;
    }
    let entry = |line: &'a str| {
        let (account, rights) = line.trim().strip_suffix(')')?.split_once(":(")?;
        Some((account, rights.split(")(").collect()))
    };
    list.trim().strip_prefix(path)?.strip_prefix(' ')?.lines().map(entry).collect()
}

/// Reports whether only SYSTEM and administrators have access, and both have full access.
pub(super) fn is_administrators_alone(list: &[Entry<'_>]) -> bool {
    let mut accounts: Vec<&str> = list.iter().map(|(account, _)| *account).collect();
    accounts.sort_unstable();
    accounts.dedup();
    accounts == [r"BUILTIN\Administrators", r"NT AUTHORITY\SYSTEM"]
        && list.iter().all(|(_, rights)| rights.last() == Some(&"F"))
}

/// Judges the `icacls` output of each path with `fits`. The first that does not fit is shown.
fn lists(outputs: &[Output], paths: &[&str], says: &str, fits: fn(&[Entry<'_>]) -> bool) -> Option<Outcome> {
    let is_wrong = |(path, output): &(&&str, &Output)| !entries(output, path).is_some_and(|list| fits(&list));
    if outputs.len() != paths.len() {
        return None;
    }
    let wrong = paths.iter().zip(outputs).find(is_wrong);
    Some(match wrong {
        None => passed(format!("{says}: {}", paths.join(", "))),
        Some((path, output)) => failed(format!("unexpected access list of {path}: {}", output.text)),
    })
}

/// Returns the CNI directories in `containerd config dump`.
pub(crate) fn cni_directories(dump: &Output) -> Option<Vec<String>> {
    let text = dump.ok()?;
    let is_of_cni = |line: &&str| line.starts_with("bin_dirs = ") || line.starts_with("conf_dir = ");
    let quoted = |line: &str| {
        let mark = line.chars().find(|c| matches!(c, '\'' | '"'))?;
        let paths = line.split(mark).skip(1).step_by(2);
        Some(
            paths.map(|path| if mark == '"' { path.replace(r"\\", r"\") } else { path.to_owned() }).collect::<Vec<_>>(),
        )
    };
    let found: Vec<String> = text.lines().map(str::trim).filter(is_of_cni).filter_map(quoted).flatten().collect();
    let is_path = |path: &String| path.starts_with(r"C:\") && !path.contains(['"', '&', '|', '<', '>', '^', '%']);
    (found.len() >= 2 && found.iter().all(is_path)).then_some(found)
}

/// Judges `icacls` of each CNI directory.
pub(crate) fn cni_access(directories: &[String], outputs: &[Output]) -> Option<Outcome> {
    let directories: Vec<&str> = directories.iter().map(String::as_str).collect();
    lists(outputs, &directories, "only SYSTEM and Administrators have access", is_administrators_alone)
}

/// Directories that [`access_lists`] judges, in the order of its commands.
const OURS: [&str; 5] =
    [r"C:\k", r"C:\windows\wicd", r"C:\var\lib\kubelet", r"C:\var\lib\kubelet\pki", r"C:\k\volume-plugins"];

/// Judges `icacls` of [`OURS`]: no entry may be inherited.
pub(crate) fn access_lists(outputs: &[Output]) -> Option<Outcome> {
    lists(outputs, &OURS, "only SYSTEM and Administrators have access", |list| {
        is_administrators_alone(list) && !list.iter().any(|(_, rights)| rights.contains(&"I"))
    })
}

/// Judges `dir /q C:\`: administrators must own `C:\k`.
pub(crate) fn owner(outputs: &[Output]) -> Option<Outcome> {
    let mut lines = only(outputs)?
        .lines()
        .filter(|line| line.contains("<DIR>") && line.split_whitespace().next_back() == Some("k"));
    let owner = lines.next()?.split_whitespace().rev().nth(1)?;
    (owner == r"BUILTIN\Administrators" && lines.next().is_none())
        .then(|| passed(r"C:\k belongs to BUILTIN\Administrators"))
}

/// Directories that [`directories_above`] judges, in the order of its commands.
const ABOVE: [&str; 3] = [r"C:\var", r"C:\var\lib", r"C:\var\log"];

/// Judges `icacls` of [`ABOVE`]: users may only read.
pub(crate) fn directories_above(outputs: &[Output]) -> Option<Outcome> {
    lists(outputs, &ABOVE, "users may only read", users_may_only_read)
}

/// Reports whether all but SYSTEM and administrators may only read.
pub(super) fn users_may_only_read(list: &[Entry<'_>]) -> bool {
    list.iter().all(|(account, rights)| {
        matches!(*account, r"BUILTIN\Administrators" | r"NT AUTHORITY\SYSTEM" | "CREATOR OWNER")
            || rights.last() == Some(&"RX") && !rights.contains(&"IO")
    })
}

/// Judges `icacls` of kubelet's directory for pods: users must have entries.
pub(crate) fn pod_volumes(outputs: &[Output]) -> Option<Outcome> {
    lists(outputs, &[r"C:\var\lib\kubelet\pods"], "users have an entry in the access list", |list| {
        [r"BUILTIN\Users", r"NT AUTHORITY\Authenticated Users"]
            .iter()
            .all(|account| list.iter().any(|(found, _)| found == account))
    })
}

/// Judges `dir /b C:\k\containerd\registries`: the mirrored registry must have a directory.
pub(crate) fn mirrors_on_host(outputs: &[Output]) -> Option<Outcome> {
    let is_there = only(outputs)?.lines().any(|line| line.trim() == MIRRORED);
    is_there.then(|| passed(format!("containerd has the directory {MIRRORED} with the mirrors")))
}

/// Judges `icacls` of kubelet's registry credentials: only SYSTEM and administrators may have access.
pub(crate) fn logins(outputs: &[Output]) -> Option<Outcome> {
    let [output] = outputs else { return None };
    if output.status != Some(0) && output.text.contains("The system cannot find the file specified.") {
        return Some(skipped("the host has no credentials for registries"));
    }
    lists(
        outputs,
        &[r"C:\var\lib\kubelet\config.json"],
        "only SYSTEM and Administrators have access",
        is_administrators_alone,
    )
}

/// Judges `tasklist` with a filter: no shim of containerd may run.
pub(crate) fn shims_ended(outputs: &[Output]) -> Option<Outcome> {
    (only(outputs)?.trim() == "INFO: No tasks are running which match the specified criteria.")
        .then(|| passed("no shim of containerd runs"))
}

/// Judges `dir` of kubelet's certificates, and `icacls` of its kubeconfig, which only administrators may read.
pub(crate) fn client_certificate(outputs: &[Output]) -> Option<Outcome> {
    let [listing, kubeconfig] = outputs else { return None };
    let is_link = |l: &str| l.contains("<SYMLINK>") && l.contains(" kubelet-client-current.pem [");
    listing.ok()?.lines().find(|line| is_link(line))?;
    is_administrators_alone(&entries(kubeconfig, r"C:\k\kubeconfig")?)
        .then(|| passed("kubelet-client-current.pem is a <SYMLINK>; only administrators read the kubeconfig"))
}

/// Judges `certutil -store Root <thumbprint>`: the certificate must be in the store.
pub(crate) fn certificate_store(outputs: &[Output]) -> Option<Outcome> {
    let hash = |line: &str| line.trim().strip_prefix("Cert Hash(sha1):").map(|hash| hash.replace(' ', ""));
    only(outputs)?
        .lines()
        .filter_map(hash)
        .find(|hash| hash == THUMBPRINT)
        .map(|hash| passed(format!("the certificate store Root has the certificate {hash}")))
}

/// Judges wicd's record of its changes on the host. wicd pins an image after containerd has reported its id.
pub(crate) fn images_pinned(image: &str, outputs: &[Output]) -> Option<Outcome> {
    let record: serde_json::Value = serde_json::from_str(only(outputs)?).ok()?;
    let sha256 = record["pinned"][image].as_str()?.strip_prefix("sha256:")?;
    api::payload::is_sha256(sha256).then(|| passed(format!("{image} is pinned: sha256:{sha256}")))
}

/// Returns the path of the service's `wicd.exe` from `reg query`. Only the expected path is returned, because the program is run.
pub(crate) fn path_of_wicd(outputs: &[Output]) -> Option<String> {
    let command = value_of(only(outputs)?, "ImagePath")?;
    let path = command.strip_suffix(" service")?.trim_matches('"').to_owned();
    let sha256 = path.strip_prefix(api::host::path::WICD)?.strip_prefix('\\')?.strip_suffix(r"\wicd.exe")?;
    api::payload::is_sha256(sha256).then_some(path)
}

/// Judges `wicd.exe maintenance` with `begin`, `status`, `end` and `status`: the node must be drained and then Ready.
pub(crate) fn host_maintenance(reason: &str, outputs: &[Output]) -> Option<Outcome> {
    let [begun, during, ended, after] = outputs else { return None };
    // The lines before the last one say what the command waits for.
    let last =
        |output: &Output| output.ok()?.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    let is = |output: &Output, lines: [&str; 2]| Some(output.ok()?.trim().lines().map(str::trim).eq(lines));
    (last(begun)? == "the node is drained: patch and restart the host, then run `wicd.exe maintenance end`"
        && is(during, ["state: Drained", &format!("request: {reason}")])?
        && last(ended)? == "the node is Ready, and its maintenance is over"
        && is(after, ["state: None", "request: none"])?)
    .then(|| passed("begin: the node is drained; end: the node is Ready, and its maintenance is over"))
}

/// Reports whether `reg query /v` shows the value [`MARK`]; `None` if the answer cannot be read. reg.exe reports a missing value in the language of
/// Windows, so it is recognised by the exit status and by an answer that lists no key.
pub(crate) fn has_mark(outputs: &[Output]) -> Option<bool> {
    let [output] = outputs else { return None };
    match (output.status, &output.text) {
        (Some(0), text) => value_of(text, MARK).map(|_| true),
        (Some(1), text) if !text.trim().is_empty() && !text.contains("REG_") && !text.contains("HKEY_") => Some(false),
        _ => None,
    }
}

/// Reports whether `reg query` shows a registry key without values and subkeys: its name at most.
pub(crate) fn is_empty_key(output: &Output) -> bool {
    output.ok().is_some_and(|text| text.lines().filter(|line| !line.trim().is_empty()).count() <= 1)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
