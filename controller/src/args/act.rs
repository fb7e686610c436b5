//! Arguments of the commands that change what people may change.

use api::Time;
use clap::Subcommand;

use super::Output;

/// Exit status of all of them.
const EXIT: &str = "Exit status:\n  0  done, or nothing is to be done\n  1  an error, or it is refused";

/// What is changed.
#[derive(Subcommand, Clone, Debug)]
pub enum Act {
    /// Try hosts again at once whose last attempt failed.
    #[command(after_help = EXIT)]
    Retry {
        /// Names of hosts.
        #[arg(required = true, value_name = "HOST", value_parser = object_name)]
        hosts: Vec<String>,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Approve what waits for a person: the version that a rollout leads to, or the removal of hosts.
    #[command(after_help = EXIT)]
    Approve(Approve),
    /// Begin no operation on any host of a pool. What has begun is finished.
    #[command(after_help = EXIT)]
    Pause {
        /// Name of the pool.
        #[arg(value_parser = object_name)]
        pool: String,
        /// Time when the pause ends by itself, for example `2027-01-15T06:00:00Z`. Until `resume` if not set.
        #[arg(long, value_name = "TIME")]
        until: Option<Time>,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// End the pause of a pool.
    #[command(after_help = EXIT)]
    Resume {
        /// Name of the pool.
        #[arg(value_parser = object_name)]
        pool: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Begin no operation on a host, and leave its node as it is.
    #[command(after_help = EXIT)]
    Hold {
        /// Name of the host and of its Node.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// End the hold of a host.
    #[command(after_help = EXIT)]
    Release {
        /// Name of the host and of its Node.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Give up a host that is leaving and cannot be reached: its Node is deleted, and the host is not cleaned.
    #[command(after_help = EXIT)]
    Abandon {
        /// Name of the host.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Ask no question.
        #[arg(long)]
        yes: bool,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Trust the host key that a host showed in place of the one that was expected.
    #[command(after_help = EXIT)]
    TrustHostKey {
        /// Name of the host.
        #[arg(value_name = "HOST", value_parser = object_name)]
        host: String,
        /// Fingerprint of the key, as `SHA256:...`, read on the console of the host.
        #[arg(value_parser = fingerprint)]
        fingerprint: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

/// Arguments of `approve`.
#[derive(clap::Args, Clone, Debug)]
pub struct Approve {
    /// Name of the pool.
    #[arg(value_parser = object_name)]
    pub pool: String,
    /// The version that waits. Refused if it is another one.
    #[arg(long, conflicts_with = "removals")]
    pub version: Option<String>,
    /// Number of hosts whose removal waits. Refused if it is another one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub removals: Option<u16>,
    /// Ask no question.
    #[arg(long)]
    pub yes: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Name of an object of the cluster, which becomes a part of an URL.
fn object_name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_name = (1..=253).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('.');
    if is_name { Ok(name) } else { Err("it is not the name of an object".into()) }
}

/// Fingerprint of a host key in the form of OpenSSH.
fn fingerprint(text: &str) -> Result<String, String> {
    let is_base64 = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    let fits = text.strip_prefix("SHA256:").is_some_and(|hash| hash.len() == 43 && hash.bytes().all(is_base64));
    if fits { Ok(text.to_owned()) } else { Err("it is not a fingerprint: SHA256: and 43 characters".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_and_fingerprints_are_taken() {
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
