//! Connection to the API server, and the command line of the kubectl plugin: its grouped help, and its completion by kubectl, which starts the
//! program under the name `kubectl_complete-windows_node_pools`.

pub mod api_server;
pub(crate) mod cluster_view;
pub(crate) mod write_count;

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    path::Path,
    time::Duration,
};

use api::{WindowsInstance, WindowsNodePool};
use clap::{Arg, Command, FromArgMatches as _};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;

use crate::args::{self, output};

/// Name under which kubectl finds the program: kubectl writes the dashes of a command as underscores.
pub const PROGRAM: &str = "kubectl-windows_node_pools";
/// Name under which kubectl starts the program for completions.
pub const COMPLETION: &str = "kubectl_complete-windows_node_pools";

/// Groups of commands in the help.
const GROUPS: [(&str, &[&str]); 4] = [
    ("View", &["status", "ui", "explain", "plan"]),
    ("Act", &["approve", "pause", "resume", "retry", "trust-host-key", "abandon"]),
    ("Check", &["check", "gather"]),
    ("Other", &["machineset", "version"]),
];
/// Timeout of a completion that needs names from the cluster.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the command line, with grouped help and completion of names.
pub fn command() -> Command {
    let command = args::client().mut_subcommands(|command| command.mut_args(with_names));
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}", groups(&command));
    command.help_template(template)
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for below in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:<16}{}", below.get_name(), about.split(". ").next().unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

/// Adds completion with the cluster's names to an argument for pools or hosts.
fn with_names(arg: Arg) -> Arg {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    match value.unwrap_or_else(|| arg.get_id().as_str().to_uppercase()).as_str() {
        "POOL" => arg.add(ArgValueCandidates::new(names::<WindowsNodePool>)),
        "HOST" => arg.add(ArgValueCandidates::new(names::<WindowsInstance>)),
        _ => arg,
    }
}

/// Lists the names of objects in the cluster that the command line selects. The list is empty if they cannot be listed in time.
fn names<K>() -> Vec<CompletionCandidate>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let list = async || {
        let given = args::client().ignore_errors(true).try_get_matches().ok();
        let cluster = given.and_then(|given| args::Cluster::from_arg_matches(&given).ok()).unwrap_or_default();
        let client = Client::try_from(api_server::config(&cluster).await?)?;
        let found = Api::<K>::all(client).list_metadata(&ListParams::default()).await?;
        anyhow::Ok(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
    };
    let found = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, list()).await.ok()?.ok() })
    };
    // In its own thread: the completion engine is synchronous, and no runtime can block on the thread of another one.
    let found = std::thread::scope(|scope| scope.spawn(found).join()).ok().flatten();
    found.into_iter().flatten().map(CompletionCandidate::new).collect()
}

/// Reports whether the program was started under the name that kubectl uses for completions.
pub fn is_completion(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_stem()).is_some_and(|name| name == COMPLETION)
}

/// Prints the completions of the last word, as kubectl expects them.
///
/// # Errors
/// Fails when the completions cannot be printed.
pub fn complete(words: impl Iterator<Item = OsString>) -> std::io::Result<()> {
    let words: Vec<OsString> = words.collect();
    output::print(&candidates(&words))
}

fn candidates(words: &[OsString]) -> String {
    let last = words.last().cloned().unwrap_or_default();
    let line = [PROGRAM.into()].into_iter().chain(words.iter().cloned()).collect();
    let folder = env::current_dir().ok();
    let found = clap_complete::engine::complete(&mut command(), line, words.len(), folder.as_deref());
    let is_option = |text: &OsStr| text.to_string_lossy().starts_with('-');
    let mut lines = BTreeSet::new();
    for candidate in found.into_iter().flatten() {
        let value = candidate.get_value();
        if is_option(value) && !is_option(&last) || words.iter().rev().skip(1).any(|word| word == value) {
            continue;
        }
        let about = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let about = about.lines().next().and_then(|line| line.split(". ").next()).unwrap_or_default();
        lines.insert(format!("{}\t{about}", value.display()).trim_end().to_owned());
    }
    // The last line keeps kubectl from completing file names itself, and from adding a space after a folder.
    let is_folder = lines.iter().any(|line| line.ends_with('/'));
    lines.into_iter().chain([if is_folder { ":6" } else { ":4" }.to_owned()]).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use api::names::PLUGIN;

    use super::*;

    #[test]
    fn the_name_of_the_program_selects_completion() {
        for (name, completes) in [
            (Some("/opt/bin/kubectl_complete-windows_node_pools"), true),
            (Some("kubectl_complete-windows_node_pools.exe"), true),
            (Some("kubectl-windows_node_pools"), false),
            (None, false),
        ] {
            assert_eq!(is_completion(name.map(OsStr::new)), completes, "{name:?}");
        }
    }

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        command().debug_assert();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let client = args::client();
        let all: Vec<&str> = client.get_subcommands().map(Command::get_name).collect();
        assert_eq!(grouped.len(), all.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), all.into_iter().collect());
        let help =
            |words: &[&str]| command().try_get_matches_from([PROGRAM].iter().chain(words)).unwrap_err().to_string();
        let text = help(&["--help"]);
        assert!(text.contains("\nAct:\n  approve         Approve what waits") && text.contains("--context"), "{text}");
        let usage = format!("Usage: {PLUGIN} status [OPTIONS] [POOL]...");
        assert!(help(&["status", "--help"]).contains(&usage), "{}", help(&["status", "--help"]));
        assert!(help(&["--version"]).starts_with(PLUGIN));
    }

    /// Completes no names, because there is no cluster.
    #[test]
    fn commands_and_options_are_completed() {
        for (line, expected) in [
            ("re", "resume retry :4"),
            ("pa", "pause :4"),
            ("check h", "help host :4"),
            ("status -o ", "json name table wide yaml :4"),
            ("status --output j", "json :4"),
            ("approve a --r", "--removals --request-timeout :4"),
            ("status --con", "--context :4"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let found = candidates(&words);
            let found: Vec<&str> = found.lines().map(|line| line.split('\t').next().unwrap()).collect();
            assert_eq!(found.join(" "), expected, "{line}");
        }
        let names = |command: &str, arg: &str| {
            let client = super::command();
            let below = client.find_subcommand(command).unwrap();
            let arg = below.get_arguments().find(|found| found.get_id() == arg).unwrap();
            arg.get::<ArgValueCandidates>().is_some()
        };
        for (command, arg, has_names) in [
            ("status", "pools", true),
            ("approve", "pool", true),
            ("pause", "host", true),
            ("retry", "hosts", true),
            ("explain", "host", true),
            ("trust-host-key", "fingerprint", false),
        ] {
            assert_eq!(names(command, arg), has_names, "{command} {arg}");
        }
    }
}
