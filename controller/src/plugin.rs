//! The program as a plugin of kubectl: under the name `kubectl-windows_node_pools` it is `kubectl windows-node-pools`, and under the name
//! `kubectl_complete-windows_node_pools` it completes its arguments in the protocol of kubectl.

use std::{collections::BTreeSet, ffi::OsStr, path::Path, time::Duration};

use api::{WindowsInstance, WindowsNodePool, names::PLUGIN};
use clap::{Arg, ArgAction, Command};
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::{api_server, args};

/// The name under which kubectl finds it: kubectl writes the dashes of a command as underscores.
pub const PROGRAM: &str = "kubectl-windows_node_pools";
/// The name under which kubectl asks it for completions.
pub const COMPLETION: &str = "kubectl_complete-windows_node_pools";

/// Commands of the operator's pod and of other shells.
const NOT_FOR_PEOPLE: [&str; 3] = ["run", "payload", "completion"];
/// How long a person who has pressed the tabulator may wait for names.
const PATIENCE: Duration = Duration::from_secs(2);
/// What kubectl is to do beside: nothing, or nothing and complete no names of files.
const FILES: &str = ":0";
const NO_FILES: &str = ":4";

/// As what the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// By its own name, or by any other.
    Program,
    /// As a plugin of kubectl.
    Plugin,
    /// To complete the arguments of the plugin.
    Completion,
}

impl Role {
    /// By the name under which it was started.
    pub fn of(program: Option<&OsStr>) -> Self {
        match program.and_then(|program| Path::new(program).file_stem()).and_then(OsStr::to_str) {
            Some(PROGRAM) => Self::Plugin,
            Some(COMPLETION) => Self::Completion,
            _ => Self::Program,
        }
    }
}

/// The commands, as kubectl shows them.
pub fn command() -> Command {
    let hide = |command: Command| {
        let is_hidden = NOT_FOR_PEOPLE.contains(&command.get_name());
        command.hide(is_hidden)
    };
    args::command().bin_name(PLUGIN).display_name(PLUGIN).mut_subcommands(hide)
}

/// Objects whose names complete an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Pools,
    Hosts,
}

/// What may follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Candidates {
    /// Words, with what they mean.
    words: Vec<(String, String)>,
    names: Option<Names>,
    files: bool,
}

/// Prints what may take the place of the last word.
///
/// # Errors
/// When it cannot be printed. An API server that does not answer has no names.
pub async fn complete(words: &[String]) -> std::io::Result<()> {
    let (last, given) = words.split_last().map_or(("", words), |(last, given)| (last.as_str(), given));
    let Candidates { mut words, names, files } = candidates(&command(), given, last);
    if let Some(names) = names {
        let found = tokio::time::timeout(PATIENCE, list(names, &cluster(given))).await;
        let found = found.ok().and_then(Result::ok).unwrap_or_default();
        words.extend(found.into_iter().filter(|name| !given.contains(name)).map(|name| (name, String::new())));
    }
    crate::output::print(&answer(&words, last, files))
}

fn answer(words: &[(String, String)], last: &str, files: bool) -> String {
    let mut lines = Vec::new();
    for (word, about) in words.iter().filter(|(word, _)| word.starts_with(last)) {
        lines.push(if about.is_empty() { word.clone() } else { format!("{word}\t{about}") });
    }
    lines.push((if files { FILES } else { NO_FILES }).into());
    lines.join("\n") + "\n"
}

/// The cluster that the words so far name.
fn cluster(given: &[String]) -> args::Cluster {
    let value = |option: &str| {
        let of = |(n, word): (usize, &String)| match word.strip_prefix(option)? {
            "" => given.get(n + 1).cloned(),
            rest => rest.strip_prefix('=').map(Into::into),
        };
        given.iter().enumerate().filter_map(of).next_back()
    };
    args::Cluster {
        kubeconfig: value("--kubeconfig").map(Into::into),
        context: value("--context"),
        ..args::Cluster::default()
    }
}

async fn list(names: Names, cluster: &args::Cluster) -> anyhow::Result<BTreeSet<String>> {
    let client = Client::try_from(api_server::config(cluster).await?)?;
    let all = ListParams::default();
    Ok(match names {
        Names::Pools => {
            Api::<WindowsNodePool>::all(client).list_metadata(&all).await?.iter().map(ResourceExt::name_any).collect()
        }
        Names::Hosts => {
            Api::<WindowsInstance>::all(client).list_metadata(&all).await?.iter().map(ResourceExt::name_any).collect()
        }
    })
}

/// What may take the place of the last word, after these.
fn candidates(command: &Command, given: &[String], last: &str) -> Candidates {
    let (of_all, mut command, mut positionals, mut option) = (command, command, 0, None);
    for word in given {
        if option.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            option = value_of(command, word).or_else(|| value_of(of_all, word));
        } else if let Some(below) = command.find_subcommand(word) {
            (command, positionals) = (below, 0);
        } else {
            positionals += 1;
        }
    }
    if let Some(option) = option {
        return of_argument(option);
    }
    if last.starts_with('-') {
        let options = command.get_arguments().chain(of_all.get_arguments()).filter(|arg| !arg.is_hide_set());
        let long = |arg: &Arg| Some((format!("--{}", arg.get_long()?), about(arg.get_help())));
        let words: BTreeSet<_> = options.filter_map(long).collect();
        return Candidates { words: words.into_iter().collect(), ..Candidates::default() };
    }
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    let words: Vec<_> = below.map(|below| (below.get_name().to_owned(), about(below.get_about()))).collect();
    let all: Vec<&Arg> = command.get_positionals().collect();
    let repeated = all.last().copied().filter(|arg| matches!(arg.get_action(), ArgAction::Append));
    let mut found = all.get(positionals).copied().or(repeated).map(of_argument).unwrap_or_default();
    found.words.extend(words);
    found
}

/// The option, if the next word is its value.
fn value_of<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_it = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    };
    command.get_arguments().filter(|arg| arg.get_action().takes_values()).find(is_it)
}

fn of_argument(arg: &Arg) -> Candidates {
    let values = arg.get_possible_values();
    let name = arg.get_value_names().and_then(|names| names.first()).map(clap::builder::Str::as_str);
    let names = match name {
        Some("POOL") => Some(Names::Pools),
        Some("HOST") if arg.is_positional() => Some(Names::Hosts),
        _ => None,
    };
    let words = values.iter().map(|value| (value.get_name().to_owned(), about(value.get_help()))).collect();
    Candidates { files: matches!(name, Some("FILE" | "PATH")), words, names }
}

/// The first sentence.
fn about(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().and_then(|line| line.split(". ").next()).unwrap_or_default().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_what_it_is() {
        for (name, role) in [
            (Some("/usr/local/bin/windows-node-pools"), Role::Program),
            (Some("/opt/tools/.krew/bin/kubectl-windows_node_pools"), Role::Plugin),
            (Some("kubectl-windows_node_pools.exe"), Role::Plugin),
            (Some("kubectl_complete-windows_node_pools"), Role::Completion),
            (Some("kubectl-windows-node-pools"), Role::Program),
            (None, Role::Program),
        ] {
            assert_eq!(Role::of(name.map(OsStr::new)), role, "{name:?}");
        }
    }

    #[test]
    fn usage_names_the_command_of_kubectl() {
        command().debug_assert();
        let usage = |args: &[&str]| {
            let args = [PROGRAM].iter().chain(args);
            command().try_get_matches_from(args).unwrap_err().to_string()
        };
        assert!(usage(&["status", "--help"]).contains("Usage: kubectl windows-node-pools status [OPTIONS] [POOL]..."));
        assert!(usage(&["--version"]).starts_with("kubectl windows-node-pools "));
        let help = usage(&["--help"]);
        for (word, is_shown) in [("  approve ", true), ("  explain ", true), ("  payload ", false), ("  run ", false)] {
            assert_eq!(help.contains(word), is_shown, "{word}: {help}");
        }
    }

    #[test]
    fn what_follows_is_completed() {
        let found = |line: &str| {
            let words: Vec<String> = line.split(' ').map(Into::into).collect();
            let (last, given) = words.split_last().unwrap();
            let found = candidates(&command(), given, last);
            let text = answer(&found.words, last, found.files);
            let words: Vec<String> = text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
            (words.join(" "), found.names)
        };
        for (line, words, names) in [
            ("re", "resume retry :4", None),
            ("r", "retry resume :4", None),
            ("status ", ":4", Some(Names::Pools)),
            ("status a ", ":4", Some(Names::Pools)),
            ("pause ", ":4", Some(Names::Pools)),
            ("pause a ", ":4", None),
            ("retry a ", ":4", Some(Names::Hosts)),
            ("explain ", ":4", Some(Names::Hosts)),
            ("trust-host-key ", ":4", Some(Names::Hosts)),
            ("trust-host-key a ", ":4", None),
            ("status -o ", "table json :4", None),
            ("status --output j", "json :4", None),
            ("status --output json ", ":4", Some(Names::Pools)),
            ("approve a --r", "--removals --request-timeout :4", None),
            ("approve --yes ", ":4", Some(Names::Pools)),
            ("lint ", ":0", None),
            ("plan -f ", ":0", None),
            ("check h", "host :4", None),
            ("--context p status ", ":4", Some(Names::Pools)),
            ("status --context p ", ":4", Some(Names::Pools)),
            ("status --con", "--context :4", None),
            ("status --kubeconfig ", ":0", None),
            ("nothing ", "", None),
        ] {
            let (mut found, found_names) = found(line);
            if line == "nothing " {
                // All commands: a word that is none is not corrected.
                assert!(found.contains("status") && !found.contains("payload"), "{found}");
                found.clear();
            }
            let sorted = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<BTreeSet<_>>();
            assert_eq!((sorted(&found), found_names), (sorted(words), names), "{line:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_cluster_that_is_named() {
        for (line, kubeconfig, context) in [
            ("status", None, None),
            ("--context p status", None, Some("p")),
            ("status --context=p --kubeconfig a", Some("a"), Some("p")),
            ("status --context p --context q", None, Some("q")),
            ("status --contexts=p --context", None, None),
        ] {
            let words: Vec<String> = line.split(' ').map(Into::into).collect();
            let expected = args::Cluster {
                kubeconfig: kubeconfig.map(Into::into),
                context: context.map(Into::into),
                ..args::Cluster::default()
            };
            assert_eq!(cluster(&words), expected, "{line}");
        }
    }
}
