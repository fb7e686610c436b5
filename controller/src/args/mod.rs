//! Command line and environment. Of the other modules, only the command `status` reads a variable, `NO_COLOR`.

pub(crate) mod host_key_policy;
pub mod output;
pub mod payload_command;

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, process::ExitCode, sync::LazyLock, time::Duration};

use api::{host::MAX_WICD_CERTIFICATE_LIFE, names::PLUGIN};
use clap::{
    ArgAction, CommandFactory as _, FromArgMatches, Parser, Subcommand, ValueEnum,
    builder::{BoolishValueParser, FalseyValueParser},
};

use crate::args::payload_command::Copy;

mod act;
mod platform;

pub use act::{Act, Answer, PoolOrHost};
pub use platform::PlatformArg;

/// Show and manage the pools of Windows nodes of a cluster.
#[derive(Parser, Debug)]
#[command(name = "kubectl-windows_node_pools", bin_name = PLUGIN, display_name = PLUGIN, version = VERSION_TEXT.as_str())]
pub struct Cli {
    /// Cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Command.
    #[command(subcommand)]
    pub command: Command,
}

/// Operator that turns Windows hosts into nodes. Users run `kubectl windows-node-pools`.
#[derive(Parser, Debug)]
#[command(name = "windows-node-pools", version = VERSION_TEXT.as_str())]
pub struct Operator {
    /// Cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Command.
    #[command(subcommand)]
    pub command: OperatorCommand,
}

/// Commands of the operator's Pod.
#[derive(Subcommand, Debug)]
pub enum OperatorCommand {
    /// Run the operator.
    #[command(
        after_help = "Exit status:\n  0  stopped by SIGTERM or SIGINT\n  1  an error with which the operator cannot run"
    )]
    Run(Box<Run>),
    /// Copy the payload and this program between volumes, for the init containers of a pod that cannot mount the image of the payload.
    Payload {
        /// Files that are copied.
        #[command(subcommand)]
        copy: Copy,
    },
}

/// Cluster of a command. Commands that need none ignore it.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Kubeconfig. Defaults to `KUBECONFIG`, `~/.kube/config` or the service account of the pod.
    #[arg(long, global = true, help_heading = "Cluster", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Defaults to its current context.
    #[arg(long, global = true, help_heading = "Cluster", value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Time that the API server may take for a request, for example 10s. No limit with 0. The operator itself and
    /// `status --watch` ignore this setting.
    #[arg(long, global = true, help_heading = "Cluster", value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub request_timeout: Duration,
    /// User in whose name requests are made, which you must be allowed to impersonate.
    #[arg(long = "as", global = true, help_heading = "Cluster", value_name = "USER")]
    pub as_user: Option<String>,
    /// Group in whose name requests are made, with --as. May be repeated.
    #[arg(long = "as-group", global = true, help_heading = "Cluster", value_name = "GROUP", requires = "as_user")]
    pub as_groups: Vec<String>,
}

impl Cluster {
    /// Reports whether the user has named a cluster.
    pub fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }
}

/// Command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show what the operator would do for pools. Changes nothing.
    #[command(
        after_help = "Exit status:\n  0  no operation is needed\n  1  an error, or a host that the pool cannot use\n  2  an operation is needed"
    )]
    Plan(Box<Plan>),
    /// Show the origin of a node: its instance, its pool, the entry in its list and, for Git, the commit.
    #[command(after_help = "Exit status:\n  0  the host is known\n  1  an error, or a host that is not known")]
    Explain(Explain),
    /// Check the installation, a cluster before the installation, a host, files or a takeover. Changes nothing.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Exit status:\n  0  nothing has failed; warnings do not count\n  1  an error, or a check that has failed"
    )]
    Check {
        /// Subcommand that checks something other than the installation.
        #[command(subcommand)]
        what: Option<Check>,
        /// Settings of `check` without a subcommand.
        #[command(flatten)]
        installation: Box<CheckInstallation>,
    },
    /// Show pools and their hosts as a tree, the worst first.
    #[command(
        after_help = "Exit status:\n  0  every pool is Ready\n  1  an error, no operator that works, or a pool that is Degraded or not Ready\n  2  work is in progress"
    )]
    Status(Status),
    /// Show pools, their hosts and what waits for a user on a web page that follows changes. Uses your own rights, and changes nothing.
    #[command(after_help = "Exit status:\n  0  interrupted\n  1  an error")]
    Ui(Ui),
    /// Commands that change something.
    #[command(flatten)]
    Act(Act),
    /// Gather support data: objects, logs and, on request, what hosts report, without secrets. Changes nothing.
    #[command(
        after_help = "Exit status:\n  0  something was gathered; what was not is listed\n  1  an error, or nothing could be gathered"
    )]
    Gather(Box<Gather>),
    /// Print a MachineSet of OpenShift's Machine API whose Machines run Windows, with what the autoscaler needs to scale it from zero. It is made
    /// from a MachineSet of the cluster's Linux workers. Nothing is written.
    #[command(
        name = "machineset",
        after_help = "Exit status:\n  0  the MachineSet is printed\n  1  an error, or a value that does not fit"
    )]
    MachineSet(MachineSet),
    /// Print the versions of this program and of the operator in the cluster.
    #[command(after_help = "Exit status:\n  0  the versions are printed\n  1  an error, or no operator is installed")]
    Version(Version),
}

/// Returns the command line of the client. The short help of `plan` has only its own arguments; `--help` has the operator's settings, too.
pub fn client() -> clap::Command {
    let cli = Cli::command();
    let is_setting = |id: &clap::Id| Run::command().get_arguments().any(|arg| arg.get_id() == id);
    let of_plan = |plan: clap::Command| {
        plan.mut_args(|arg| {
            if is_setting(arg.get_id()) {
                arg.help_heading("Settings of the operator").hide_short_help(true)
            } else {
                arg
            }
        })
    };
    cli.mut_subcommands(|command| if command.get_name() == "plan" { of_plan(command) } else { command })
}

/// Parses the command line of this process.
///
/// # Errors
/// Returns the exit status when the command line is wrong or asks for help. The message has been printed by then.
pub fn parse<T: FromArgMatches>(command: clap::Command) -> Result<T, ExitCode> {
    command.try_get_matches().and_then(|matches| T::from_arg_matches(&matches)).map_err(|error| {
        // A write error of a closed pipe cannot be reported. clap's exit status 2 is not used, because it has a meaning for `plan`.
        let _ = error.print();
        if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    })
}

/// Returns the semantic version of the operator, with which the versions of services begin.
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns the Git commit that the operator was built from, if the build named it.
pub fn revision() -> Option<&'static str> {
    option_env!("WINDOWS_NODE_POOLS_REVISION").filter(|revision| !revision.is_empty())
}

/// Text that `--version` prints.
static VERSION_TEXT: LazyLock<String> = LazyLock::new(|| match revision() {
    Some(revision) => format!("{} (commit {revision})", version()),
    None => version().to_owned(),
});

/// Returns the version and commit of this program, as `--version` prints them.
pub fn version_text() -> &'static str {
    &VERSION_TEXT
}

/// Settings of a running operator.
#[derive(Parser, Clone, Debug)]
pub struct Run {
    /// Namespace of Secrets, services ConfigMaps and the Lease.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Name of this process for the Lease. The operator adds a random suffix. Defaults to a name with the process id.
    #[arg(long, hide = true, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Directory of the payload, the programs that hosts get.
    #[arg(long, env = "PAYLOAD_DIR", default_value = "/payload")]
    pub payload: PathBuf,
    /// The `wicd.exe` that is sent to hosts first.
    #[arg(long, env = "WICD_EXE", default_value = "/usr/local/share/windows-node-pools/wicd.exe")]
    pub wicd: PathBuf,
    /// Address of `/healthz` and `/readyz`, without TLS.
    #[arg(long, env = "WINDOWS_NODE_POOLS_LISTEN", default_value = "0.0.0.0:9182")]
    pub listen: SocketAddr,
    /// Address of `/metrics`. It may be the address of `--listen` only with `--metrics-tls false`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_METRICS_LISTEN", default_value = "0.0.0.0:9185")]
    pub metrics_listen: SocketAddr,
    /// Serve `/metrics` over TLS, to clients whose token has the right to get it. With `false`, every client that reaches the port may read it.
    #[arg(
        long,
        env = "WINDOWS_NODE_POOLS_METRICS_TLS",
        value_parser = BoolishValueParser::new(),
        action = ArgAction::Set,
        default_value = "true"
    )]
    pub metrics_tls: bool,
    /// Directory with `tls.crt` and `tls.key` for `/metrics`, read for each connection. While they are missing, the operator
    /// uses a self-signed certificate that it keeps in memory.
    #[arg(
        long,
        env = "WINDOWS_NODE_POOLS_METRICS_TLS_DIRECTORY",
        default_value = "/etc/windows-node-pools/metrics-tls"
    )]
    pub metrics_tls_directory: PathBuf,
    /// Address of `PUT /log-level`, which changes the log level. Use a loopback address, because the endpoint has no authentication.
    #[arg(long, env = "WINDOWS_NODE_POOLS_ADMIN_LISTEN", default_value = "127.0.0.1:9183")]
    pub admin_listen: SocketAddr,
    /// Format of the log.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
    /// Level of the log, for example `info` or `info,controller::instance=debug`.
    #[arg(long, env = "LOG_LEVEL", default_value = "info,kube_runtime=warn")]
    pub log_level: String,
    /// URL at which hosts reach the API server. If not set: detected on OpenShift, otherwise the URL that the operator
    /// itself uses.
    #[arg(long, env = "WINDOWS_NODE_POOLS_API_SERVER")]
    pub api_server: Option<String>,
    /// Service network, for example 172.30.0.0/16; in a dual-stack cluster, both networks with a comma between them. Detected if not set.
    #[arg(long, env = "WINDOWS_NODE_POOLS_SERVICE_CIDR")]
    pub service_cidr: Option<String>,
    /// Domain of the cluster's DNS.
    #[arg(long, env = "WINDOWS_NODE_POOLS_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Pod network of the nodes. If not set: detected on OpenShift, otherwise `external`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_NETWORK", value_enum)]
    pub network: Option<NetworkArg>,
    /// UDP port of the hybrid overlay's VXLAN on hosts. If not set: detected on OpenShift, otherwise the default of `hybrid-overlay-node`. Only with
    /// `--network ovn-hybrid`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_VXLAN_PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: Option<u16>,
    /// Platform of the cluster, which decides what hosts get for a cloud. If not set: detected on OpenShift, otherwise `none`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_PLATFORM", value_enum)]
    pub platform: Option<PlatformArg>,
    /// Directory on hosts with the programs of CNI, for example `C:\opt\cni\bin`, where Calico and Flannel put theirs. Defaults to `C:\k\cni`. Only
    /// with `--network external`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_CNI_BIN_DIR")]
    pub cni_bin_dir: Option<String>,
    /// Directory on hosts with the configuration of CNI, for example `C:\etc\cni\net.d`. Defaults to `C:\k\cni\config`. Only with
    /// `--network external`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_CNI_CONF_DIR")]
    pub cni_conf_dir: Option<String>,
    /// A cloud controller manager initialises the cluster's nodes: kubelet runs with `--cloud-provider=external`.
    /// The option without a value means `true`. If not set: detected on OpenShift, otherwise `false`.
    #[arg(
        long,
        env = "WINDOWS_NODE_POOLS_EXTERNAL_CLOUD_PROVIDER",
        value_parser = FalseyValueParser::new(),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub external_cloud_provider: Option<bool>,
    /// Interval at which the facts of the cluster are read, for example its proxy and its CAs. A change reaches the nodes as a new version. For
    /// tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "1m")]
    pub cluster_facts_interval: Duration,
    /// JSON file that is merged into kubelet's configuration.
    #[arg(long, env = "WINDOWS_NODE_POOLS_KUBELET_CONFIG_PATCH")]
    pub kubelet_config_patch: Option<PathBuf>,
    /// Maximum number of concurrent SSH operations on hosts, over all pools. The connections to a jump host and to the host behind it count as one. A
    /// pool takes at most nine times as many connections as are free, and each pool can always take one. At least 1.
    #[arg(long, env = "WINDOWS_NODE_POOLS_MAX_CONNECTIONS", default_value_t = 100, value_parser = at_least_one)]
    pub max_connections: usize,
    /// Maximum number of nodes that are disrupted at once, over all pools. If not set, only the limits of the pools apply, and pools with nodes that
    /// WMCO has made and this operator has not updated yet take turns, unless they set `rollout.maxUnavailable`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_MAX_DISRUPTIONS")]
    pub max_disruptions: Option<u32>,
    /// Time for which an unused version is kept, and interval of the check. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "5m")]
    pub version_grace: Duration,
    /// Time after which the status of an instance shows a step that needs no record, or the wait of a new host. Shorter steps and waits are not
    /// written. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "5s")]
    pub show_step_after: Duration,
    /// Delay before the first retry of a failed host; doubles with each further failure. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "10s")]
    pub backoff_base: Duration,
    /// Maximum delay before a retry of a failed host. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "10m")]
    pub backoff_max: Duration,
    /// Timeout from the start of a host's services until its node is Ready. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "10m")]
    pub register_timeout: Duration,
    /// Timeout of a restart of a host. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "30m")]
    pub reboot_timeout: Duration,
    /// Validity of wicd's certificates, from 10m to 168h. wicd renews each certificate after 20 to 40 % of its validity. For tests.
    #[arg(long, hide = true, value_parser = wicd_certificate_life, default_value = "168h")]
    pub wicd_certificate_lifetime: Duration,
    /// Interval at which Machine APIs are looked for and the user-data Secret is reconciled. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "1m")]
    pub machine_discovery_interval: Duration,
    /// Time for which the host of a Machine may refuse every key before the Machine is replaced. For tests.
    #[arg(long, hide = true, value_parser = duration, default_value = "5m")]
    pub machine_refusal_timeout: Duration,
    /// Validity of the Lease without a renewal, at most 10m. For tests.
    #[arg(long, hide = true, value_parser = lease_duration, default_value = "15s")]
    pub lease_duration: Duration,
    /// Size at which logs of services on hosts are rotated, for example 50Mi. Defaults to 100Mi.
    #[arg(long, env = "SERVICES_LOG_FILE_SIZE")]
    pub services_log_file_size: Option<String>,
    /// Age at which rotated logs of services on hosts are deleted, for example 72h. Defaults to 168h.
    #[arg(long, env = "SERVICES_LOG_FILE_AGE")]
    pub services_log_file_age: Option<String>,
    /// Interval at which logs of services on hosts are flushed, for example 5s.
    #[arg(long, env = "SERVICES_LOG_FLUSH_INTERVAL")]
    pub services_log_flush_interval: Option<String>,
    /// Cache directory for Git repositories of pools. The operator fetches lost data again.
    #[arg(long, env = "CACHE_DIR", default_value = "/var/cache/windows-node-pools")]
    pub cache: PathBuf,
    /// Host from which artifacts of Flux may be fetched although it is not a Service of this cluster, for example
    /// `artifacts.example.com`. May be given several times.
    #[arg(long = "artifact-host", env = "WINDOWS_NODE_POOLS_ARTIFACT_HOSTS", value_delimiter = ',')]
    pub artifact_hosts: Vec<String>,
    /// Allow hosts at loopback addresses, as for simulated hosts, although the API server is not at one. For tests.
    #[arg(long, hide = true)]
    pub loopback_hosts: bool,
    /// Address at which `POST /hooks/git` receives pushes from Git servers. The port is open only while a token exists.
    #[arg(long, env = "WINDOWS_NODE_POOLS_WEBHOOK_LISTEN", default_value = "0.0.0.0:9184")]
    pub webhook_listen: SocketAddr,
    /// Secret whose key `token` authenticates requests of Git servers to `/hooks/git`.
    #[arg(long, env = "WINDOWS_NODE_POOLS_WEBHOOK_SECRET", default_value = "windows-node-pools-webhook")]
    pub webhook_secret: String,
    /// Name of the `OperatorCondition` that the Operator Lifecycle Manager makes for the operator. If not set, none is written.
    #[arg(long, hide = true, env = "OPERATOR_CONDITION_NAME")]
    pub operator_condition: Option<String>,
    /// Proxy for http, for the hosts of a cluster whose `Proxy` object names none. The operator itself makes no such request.
    #[arg(long, env = "HTTP_PROXY", hide_env_values = true)]
    pub http_proxy: Option<String>,
    /// Proxy for https: for Git repositories of pools without a `proxySecretRef`, and for the hosts of a cluster whose `Proxy` object names none. The
    /// API server and Flux are reached without a proxy.
    #[arg(long, env = "HTTPS_PROXY", hide_env_values = true)]
    pub https_proxy: Option<String>,
    /// Addresses, domains and networks that need no proxy, separated by commas.
    #[arg(long, env = "NO_PROXY", hide_env_values = true)]
    pub no_proxy: Option<String>,
}

/// Arguments of `plan`.
#[derive(Parser, Clone, Debug)]
pub struct Plan {
    /// File with WindowsNodePools in YAML or JSON, or `-` for standard input. May be given several times. Defaults to all pools of the cluster.
    #[arg(short, long, value_name = "FILE")]
    pub filename: Vec<PathBuf>,
    /// File `release.json` of a release of the operator, or `-` for standard input: plan what that release does to each node once it is
    /// installed.
    #[arg(long, value_name = "FILE")]
    pub release: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Settings of the operator, so that the plan matches the operator's own. Settings that only affect a running
    /// operator are accepted and ignored.
    #[command(flatten)]
    pub run: Run,
}

/// Arguments of `explain`.
#[derive(Parser, Clone, Debug)]
pub struct Explain {
    /// Name of the host, of its Node and of its WindowsInstance.
    pub host: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Subject of the check.
#[derive(Subcommand, Debug)]
pub enum Check {
    /// Check files with hosts, in the format of a Git repository or an artifact of Flux, and report every error by file
    /// and line. Needs no cluster.
    #[command(after_help = "Exit status:\n  0  no error\n  1  an error in a file, or a file that cannot be read")]
    Files(CheckFiles),
    /// Check whether a host can become a node. Needs no cluster, and leaves the host as it is.
    #[command(after_help = "Exit status:\n  0  the host can become a node\n  1  an error, or a host that cannot")]
    Host(CheckHost),
    /// Check whether the nodes of the Windows Machine Config Operator (WMCO) can be taken over.
    #[command(after_help = "Exit status:\n  0  no obstacle; warnings do not count\n  1  an error, or an obstacle")]
    Takeover(Box<CheckTakeover>),
}

/// Arguments of `check`.
#[derive(clap::Args, Clone, Debug)]
pub struct CheckInstallation {
    /// Check, before the installation, whether the operator can be installed with your rights.
    #[arg(long)]
    pub pre: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Settings of the operator, so that what hosts would get is checked. Settings that only affect a running operator are accepted and
    /// ignored.
    #[command(flatten)]
    pub run: Run,
}

/// Arguments of `check takeover`.
#[derive(Parser, Clone, Debug)]
pub struct CheckTakeover {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Settings of the operator, so that nodes are compared with what they would get. Settings that only affect a running operator are
    /// accepted and ignored.
    #[command(flatten)]
    pub run: Run,
}

/// Log-in of a command to a host.
#[derive(clap::Args, Clone, Debug)]
pub struct Login {
    /// File with the private key, in OpenSSH or PEM form and without a passphrase.
    #[arg(short, long, value_name = "FILE")]
    pub identity: PathBuf,
    /// SSH port.
    #[arg(long, default_value_t = 22)]
    pub port: u16,
    /// User, an administrator of the host.
    #[arg(long, default_value = "Administrator")]
    pub user: String,
    /// Any of the host's keys: its fingerprint, as `SHA256:...`, or the key as in a known_hosts file. Defaults to any key.
    #[arg(long, value_name = "FINGERPRINT")]
    pub host_key: Option<String>,
}

/// Arguments of `check host`.
#[derive(Parser, Clone, Debug)]
pub struct CheckHost {
    /// IP address or DNS name.
    pub address: String,
    /// User and key for the SSH login.
    #[command(flatten)]
    pub login: Login,
    /// URL of the API server, to which the host opens a connection. Not checked if not set.
    #[arg(long, env = "WINDOWS_NODE_POOLS_API_SERVER", value_name = "URL")]
    pub api_server: Option<String>,
    /// VXLAN port of the cluster's hybrid overlay, if it is not 4789. Windows Server 2019 supports no other port.
    #[arg(long, env = "WINDOWS_NODE_POOLS_VXLAN_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: Option<u16>,
    /// Free space that the host needs on C:, in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    pub needed_mib: u64,
    /// Group Managed Service Account (gMSA) whose password the host must be able to retrieve, without the `$` at its end. May be repeated.
    #[arg(long, value_name = "ACCOUNT")]
    pub gmsa: Vec<String>,
    /// The `wicd.exe` that checks the host.
    #[arg(long, env = "WICD_EXE", default_value = "/usr/local/share/windows-node-pools/wicd.exe", value_name = "FILE")]
    pub wicd: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `status`.
#[derive(Parser, Clone, Debug)]
pub struct Status {
    /// Names of pools. Defaults to all.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
    /// Print the tree again whenever a pool or a host changes, until you interrupt it.
    #[arg(short, long)]
    pub watch: bool,
    /// Width of a terminal that does not report it.
    #[arg(long, hide = true, env = "COLUMNS", default_value_t = 120)]
    pub columns: usize,
    /// Namespace of the operator. The Lease in it shows whether the operator works.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Output format. A table has one line for more than ten hosts of a pool that are Ready; with `wide` each has its own.
    #[arg(short, long, value_enum, default_value_t = StatusOutput::Table)]
    pub output: StatusOutput,
}

/// Arguments of `ui`.
#[derive(Parser, Clone, Debug)]
pub struct Ui {
    /// Port on 127.0.0.1. Defaults to a free port.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Namespace of the operator. The Lease in it shows whether the operator works.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    pub namespace: String,
}

/// Arguments of `gather`.
#[derive(Parser, Clone, Debug, Default)]
pub struct Gather {
    /// Folder for the data, which must be empty. If not set, it is `windows-node-pools-TIME`, and an archive is written beside it.
    #[arg(long, value_name = "DIR")]
    pub dest: Option<PathBuf>,
    /// Namespace of the operator.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Age of the oldest lines of pods' logs, for example 24h. Defaults to all lines.
    #[arg(long, env = "MUST_GATHER_SINCE", value_name = "DURATION")]
    pub since: Option<String>,
    /// Time of the oldest lines of pods' logs, for example 2026-01-31T12:00:00Z. Takes precedence over --since.
    #[arg(long, env = "MUST_GATHER_SINCE_TIME", value_name = "TIME")]
    pub since_time: Option<String>,
    /// Hosts from which support data is also gathered over SSH: all, or those with these names. Only hosts whose host key the operator has pinned, or
    /// a user has declared.
    #[arg(long, value_name = "NAME,…", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub hosts: Option<String>,
    /// File with the private key for hosts, in OpenSSH or PEM form and without a passphrase. Defaults to the Secrets of the operator, which you must
    /// then be allowed to get.
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// The `wicd.exe` that hosts get to collect.
    #[arg(long, env = "WICD_EXE", default_value = "/usr/local/share/windows-node-pools/wicd.exe", value_name = "FILE")]
    pub wicd: PathBuf,
}

/// Output format.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Table or text for users.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Output format of `status`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOutput {
    /// Table or text for users.
    Table,
    /// Table with each host, its address and its version.
    Wide,
    /// Names of the pools, for other commands of kubectl.
    Name,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Arguments of `version`.
#[derive(Parser, Clone, Debug)]
pub struct Version {
    /// Version of this program alone, without a request to the cluster.
    #[arg(long)]
    pub client: bool,
    /// Namespace of the operator.
    #[arg(short, long, env = "WATCH_NAMESPACE", default_value = api::names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `machineset`.
#[derive(Parser, Clone, Debug)]
pub struct MachineSet {
    /// Name of the MachineSet. On vSphere and Azure at most 9 characters.
    pub name: String,
    /// Image with Windows Server: the AMI on AWS, the SKU or the resource ID on Azure, the path of the image on GCP, the template on vSphere, the
    /// name of the image on Nutanix.
    #[arg(long)]
    pub image: String,
    /// MachineSet of Linux workers to copy, for example one in the wanted zone. Defaults to the first by name.
    #[arg(long)]
    pub from: Option<String>,
    /// Number of Machines.
    #[arg(long, default_value_t = 1)]
    pub replicas: u16,
}

/// Arguments of `check files`.
#[derive(Parser, Clone, Debug)]
pub struct CheckFiles {
    /// Files, and directories with all `*.yaml`, `*.yml` and `*.json` below them: together one inventory.
    #[arg(required = true, value_name = "PATH")]
    pub path: Vec<PathBuf>,
    /// Output format. The table has a line `file:line: message` for each error; JSON and YAML are lists of objects with `file`,
    /// `line`, `severity` and `message`.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Format of the log.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object on each line.
    Json,
    /// Lines of text for users.
    Text,
}

/// Pod network of the nodes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkArg {
    /// Another component installs the pod network, for example a HostProcess DaemonSet.
    External,
    /// OVN-Kubernetes with a hybrid overlay.
    OvnHybrid,
}

/// Parses a duration such as `250ms`, `90s`, `10m`, `6h` or a plain number of seconds.
///
/// # Errors
/// Fails when the text is not a duration, or the duration is longer than a year.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a duration such as 90s, 10m or 6h"))?;
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("{unit:?} is not a unit of time: use ms, s, m or h")),
    };
    // No setting needs more than a year, and longer durations would overflow when they are added to times.
    let longest = 366 * 24 * 60 * 60 * 1_000;
    number
        .checked_mul(milliseconds)
        .filter(|ms| *ms <= longest)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is longer than a year"))
}

/// Parses a number that must be at least 1, because zero would stop all work.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse::<usize>()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{text:?} is not a whole number of at least 1"))
}

/// Parses the lifetime of wicd's certificates. The operator would deny requests for a longer one, and the API server requests for a shorter one.
fn wicd_certificate_life(text: &str) -> Result<Duration, String> {
    let most = MAX_WICD_CERTIFICATE_LIFE.as_secs() / 3600;
    duration_in(text, Duration::from_mins(10)..=MAX_WICD_CERTIFICATE_LIFE, &format!("10m and {most}h"))
}

/// Parses a duration in a range, with the limits of the range in words.
fn duration_in(text: &str, allowed: RangeInclusive<Duration>, limits: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if allowed.contains(&duration) { Ok(duration) } else { Err(format!("{text:?} is not between {limits}")) }
}

/// Maximum duration of a Lease for which operators wait. Otherwise a client that may write Leases could keep operators from leading for decades.
pub(crate) const MAX_LEASE_DURATION: Duration = Duration::from_mins(10);

/// Parses the duration of the Lease, for which other operators wait.
fn lease_duration(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_secs(1)..=MAX_LEASE_DURATION, "1s and 10m")
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod manifest_tests;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
