//! Arguments of the commands that change objects.

use api::Time;
use clap::Subcommand;

use super::Output;

/// Help text about the exit status of the commands that change objects.
const EXIT: &str = "Exit status:\n  0  done, or there was nothing to do\n  1  an error, or a refusal";

/// Commands that change objects.
#[derive(Subcommand, Clone, Debug)]
pub enum Act {
    /// Retry failed hosts at once, without waiting for their next attempt.
    #[command(after_help = EXIT)]
    Retry {
        /// Names of hosts.
        #[arg(required = true, value_name = "HOST", value_parser = object_name)]
        hosts: Vec<String>,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
    /// Approve what waits for an approval: the version of a rollout, or the removal of hosts. Asks first.
    #[command(after_help = EXIT)]
    Approve {
        /// Name of the pool.
        #[arg(value_parser = object_name)]
        pool: String,
        /// The version that waits; the first 7 digits of its digest are enough. The command is refused if another version waits.
        #[arg(long, conflicts_with = "removals")]
        version: Option<String>,
        /// Number of hosts whose removal waits. The command is refused if another number waits.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        removals: Option<u16>,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
    /// Pause a pool or a host: no new operation begins, a drain for a change is aborted, and a change or a removal that has begun on a host
    /// finishes.
    #[command(after_help = EXIT)]
    Pause {
        /// Pool or host.
        #[command(flatten)]
        what: PoolOrHost,
        /// Time when the pause of a pool ends by itself, for example `2027-01-15T06:00:00Z`. Defaults to a pause until `resume`.
        #[arg(long, value_name = "TIME", conflicts_with = "host", value_parser = time)]
        until: Option<Time>,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
    /// End the pause of a pool or of a host.
    #[command(after_help = EXIT)]
    Resume {
        /// Pool or host.
        #[command(flatten)]
        what: PoolOrHost,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
    /// Give up a host that is leaving and cannot be reached: its Node is deleted, and the host is not cleaned. Asks first.
    #[command(after_help = EXIT)]
    Abandon {
        /// Name of the host.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
    /// Trust the host key that a host showed in place of the expected one. Asks first.
    #[command(after_help = EXIT)]
    TrustHostKey {
        /// Name of the host.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Fingerprint of the key, as `SHA256:...`, read on the console of the host.
        #[arg(value_parser = fingerprint)]
        fingerprint: String,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// Output format.
        #[command(flatten)]
        answer: Answer,
    },
}

impl Act {
    /// Reports whether the command runs without asking the user for confirmation.
    pub fn is_confirmed(&self) -> bool {
        match self {
            Self::Approve { yes, .. } | Self::Abandon { yes, .. } | Self::TrustHostKey { yes, .. } => *yes,
            Self::Retry { .. } | Self::Pause { .. } | Self::Resume { .. } => true,
        }
    }

    /// Returns the output format.
    pub fn output(&self) -> Output {
        match self {
            Self::Retry { answer, .. }
            | Self::Approve { answer, .. }
            | Self::Pause { answer, .. }
            | Self::Resume { answer, .. }
            | Self::Abandon { answer, .. }
            | Self::TrustHostKey { answer, .. } => answer.output,
        }
    }
}

/// Output format.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Answer {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// A pool, or one host.
#[derive(clap::Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct PoolOrHost {
    /// Name of the pool.
    #[arg(value_parser = object_name)]
    pub pool: Option<String>,
    /// Name of a host, and of its Node, in place of a pool.
    #[arg(long, value_name = "HOST", value_parser = object_name)]
    pub host: Option<String>,
}

/// Parses the name of an object in the cluster. The name becomes part of a URL.
fn object_name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_name = (1..=253).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('.');
    if is_name {
        Ok(name)
    } else {
        Err("this is not the name of an object: use lower-case letters, digits, `-` and `.`".into())
    }
}

fn time(text: &str) -> Result<Time, String> {
    text.parse().map_err(|_| "this is not a time: write it as in 2027-01-15T06:00:00Z".to_owned())
}

fn fingerprint(text: &str) -> Result<String, String> {
    let is_whole = crate::args::host_key_policy::is_fingerprint(text);
    if is_whole {
        Ok(text.to_owned())
    } else {
        Err("this is not a whole fingerprint: write `SHA256:` and the 43 characters after it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_and_fingerprints_are_accepted() {
        for (name, is_name) in [
            ("win-1", true),
            ("WIN-1", true),
            ("a.b", true),
            ("", false),
            ("a/b", false),
            ("..", false),
            ("a?b", false),
        ] {
            assert_eq!(object_name(name).is_ok(), is_name, "{name}");
        }
        let hash = "mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE";
        for (text, fits) in [
            (format!("SHA256:{hash}"), true),
            (hash.into(), false),
            (format!("SHA256:{}", &hash[1..]), false),
            (format!("SHA256:{}=", &hash[1..]), false),
        ] {
            assert_eq!(fingerprint(&text).is_ok(), fits, "{text}");
        }
    }
}
