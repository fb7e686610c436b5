//! Command lines and files of a node, checked under Wine by the programs that read them: kubelet's and kube-proxy's own code, for random pools
//! that the API server accepts and for golden files, and containerd, windows_exporter and CNI plugins as far as they go without a node.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use api::{TemplateSpec, WindowsNodePool, host::path, services::Service};
use kube::{
    Api,
    api::{DynamicObject, PostParams},
    core::ApiResource,
};
use proptest::{
    prelude::*,
    sample::select,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};
use testbed::{
    binaries::{
        CONTAINERD, HOST_LOCAL, KUBERNETES, NodeProgram, OLDEST_CONTAINERD, WIN_OVERLAY, WINDOWS_EXPORTER,
        containerdjudge, node_program, nodejudge, of_kubernetes,
    },
    pki::Authority,
    wine::{Prefix, available},
};
use wnp_core::render::{
    self, Cluster, HostParams, Platform, Settings,
    fixtures::{CREDENTIAL_PROVIDERS, PROGRAMS, cluster, host, payload},
    program,
};

use crate::crd::{self, Expected, pool};

/// Oldest and newest supported version of Kubernetes.
const ENDS: [&str; 2] = [KUBERNETES[KUBERNETES.len() - 1], KUBERNETES[0]];
/// Number of random pools.
const POOLS: usize = 200;

/// File with the configuration of credential providers.
const CREDENTIAL_PROVIDER_CONFIG: &str = r"C:\k\credential-provider-config.yaml";
/// CNI configuration that wicd writes. Tests of wicd compare its output with it.
const CNI_CONF: &str = include_str!("../../../wicd/src/network/cni.json");
const KUBE_PROXY_CONF: &str = include_str!("../../../wicd/src/network/kube-proxy.json");

/// Files and services of a node.
struct Node {
    files: Vec<(String, String)>,
    services: Vec<Service>,
}

impl Node {
    /// Renders a node with a kubelet of a version.
    fn new(cluster: &Cluster, template: &TemplateSpec, kubernetes: &str) -> Result<Self> {
        let mut payload = payload(&PROGRAMS);
        payload.files[0].version = Some(kubernetes.to_owned());
        let rendered = render::render(cluster, &payload, &Settings::default(), template)?;
        let taints = template.taints.clone().unwrap_or_default();
        let configs = rendered.configs(cluster, &HostParams { taints, ..host() })?;
        let files = configs.into_iter().map(|file| (file.path, file.content)).collect();
        Ok(Self { files, services: rendered.services.services.clone() })
    }

    /// Returns the arguments of a program in the command line of its service.
    fn arguments(&self, program: &str) -> Result<Vec<String>> {
        let service = self.services.iter().find(|service| service.path.contains(program)).context("no service")?;
        let line = service.path.replace("NODE_NAME", "win-1").replace("NODE_IP", "10.0.0.7");
        Ok(line.split(' ').skip_while(|word| *word != program).skip(1).map(str::to_owned).collect())
    }

    /// Reads a node of a golden file, which has each command line as a list of words.
    fn of_golden(golden: &Value) -> Result<Self> {
        let service = |service: &Value| {
            let words: Vec<&str> = service["path"].as_array()?.iter().filter_map(Value::as_str).collect();
            let mut service = service.clone();
            service["path"] = json!(words.join(" "));
            serde_json::from_value(service).ok()
        };
        let services = golden["services"].as_array().and_then(|list| list.iter().map(service).collect());
        let providers = &golden["credentialProviders"];
        let files = [(path::KUBELET_CONFIG, &golden["kubelet"]), (CREDENTIAL_PROVIDER_CONFIG, providers)];
        let files = files.into_iter().filter(|(_, content)| !content.is_null());
        Ok(Self {
            files: files.map(|(path, content)| (path.to_owned(), content.to_string())).collect(),
            services: services.context("it has no services")?,
        })
    }

    /// Returns the arguments and files of kubelet and kube-proxy, as input for `nodejudge`.
    fn judged(&self) -> Result<Value> {
        let content = |path: &str| self.files.iter().find(|(name, _)| name == path).map(|(_, content)| content);
        let [kubelet, proxy] = [self.arguments(program::KUBELET)?, self.arguments(program::KUBE_PROXY)?];
        ensure!(!kubelet.is_empty() && !proxy.is_empty(), "{kubelet:?} {proxy:?}");
        let providers = kubelet.iter().find_map(|word| word.strip_prefix("--image-credential-provider-config="));
        let providers = providers.map(|path| content(path).with_context(|| format!("there is no {path}")));
        Ok(json!({
            "arguments": kubelet,
            "config": content(path::KUBELET_CONFIG).context("kubelet has no configuration")?,
            "credentialProviders": providers.transpose()?,
            "proxyArguments": proxy,
            "proxyConfig": KUBE_PROXY_CONF,
        }))
    }
}

/// Renders a node for a version of kubelet, and returns the input for `nodejudge`.
fn node(cluster: &Cluster, template: &TemplateSpec, kubernetes: &str) -> Result<Value> {
    let cluster = Cluster { network: render::Network::OvnHybrid { vxlan_port: None }, ..cluster.clone() };
    Node::new(&cluster, template, kubernetes)?.judged()
}

/// Returns the input for `nodejudge` from all golden files, for a version of kubelet. Skips golden files of Windows versions, which have no node.
fn goldens(kubernetes: &str) -> Result<Vec<Value>> {
    let config = node(&cluster(), &TemplateSpec::default(), kubernetes)?["config"].clone();
    let config: Value = serde_json::from_str(config.as_str().context("the configuration is not a string")?)?;
    let mut nodes = Vec::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("core/goldens"))? {
        let path = file?.path();
        let mut golden: Value = serde_yaml::from_str(&fs::read_to_string(&path)?)?;
        if golden.get("baseImage").is_none() {
            // A golden file has no version of kubelet, and versions differ in the feature gates that they need.
            golden["kubelet"]["featureGates"].clone_from(&config["featureGates"]);
            nodes.push(
                Node::of_golden(&golden).and_then(|node| node.judged()).with_context(|| path.display().to_string())?,
            );
        }
    }
    Ok(nodes)
}

/// Creates a Wine prefix whose `C:\k` has stand-ins for credential providers, which kubelet looks for.
fn windows() -> Result<Prefix> {
    let windows = Prefix::new()?;
    let programs = PROGRAMS.iter().chain(&CREDENTIAL_PROVIDERS);
    for provider in programs.filter(|program| program.ends_with("-credential-provider.exe")) {
        write(&windows, provider, "")?;
    }
    Ok(windows)
}

/// Writes a file at a Windows path.
fn write(windows: &Prefix, path: &str, content: &str) -> Result<()> {
    let path = windows.drive_c().join(path.trim_start_matches(r"C:\").replace('\\', "/"));
    fs::create_dir_all(path.parent().context("the file has no folder")?)?;
    Ok(fs::write(path, content)?)
}

/// Runs a Windows program, and returns its standard output and error, and whether it succeeded. Fails if the program fails without
/// output.
fn run(
    windows: &Prefix,
    program: &Path,
    arguments: &[String],
    env: &[(&str, &str)],
    input: &str,
) -> Result<([String; 2], bool)> {
    let mut command = windows.command(program)?;
    command.args(arguments).envs(env.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut stdin, input) = (child.stdin.take().context("no input")?, input.to_owned());
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().ok().context("the writer panicked")??;
    let (said, error) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    let is_good = output.status.success();
    ensure!(
        is_good || !(said.is_empty() && error.is_empty()),
        "{}: {}, without output",
        program.display(),
        output.status
    );
    Ok(([said, error], is_good))
}

/// Returns the refusals of kubelet and kube-proxy. Each line begins with the number of the node.
fn refused(windows: &Prefix, kubernetes: &str, nodes: &[Value]) -> Result<Vec<String>> {
    let lines = nodes.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let ([said, error], is_good) = run(windows, &nodejudge(kubernetes)?, &[], &[], &lines)?;
    ensure!(is_good, "nodejudge: {error}");
    Ok(said.lines().map(str::to_owned).collect())
}

/// Returns clusters that differ in the TLS profile of kubelet.
fn clusters() -> Vec<Cluster> {
    let tls = |profile: Value| Some(render::TlsProfile::of_cluster(Some(&profile)).0);
    let custom = json!({"minTLSVersion": "VersionTLS11", "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256", "AES256-SHA"]});
    vec![
        cluster(),
        Cluster { tls_profile: tls(json!({"type": "Modern"})), ..cluster() },
        Cluster { tls_profile: tls(json!({"type": "Intermediate"})), ..cluster() },
        Cluster { tls_profile: tls(json!({"type": "Old"})), ..cluster() },
        Cluster { tls_profile: tls(json!({"type": "Custom", "custom": custom})), ..cluster() },
    ]
}

/// Returns a strategy for random templates with kubelet settings and taints, some of them invalid.
fn template() -> impl Strategy<Value = Value> {
    let reserved = || {
        vec![
            json!({"cpu": "500m"}),
            json!({"cpu": "0.5", "memory": "2Gi"}),
            json!({"memory": "1e9", "ephemeral-storage": "1G"}),
            json!({"memory": "1.5Gi"}),
            json!({"memory": "0"}),
            json!({"memory": "-1"}),
            json!({"pods": "1"}),
        ]
    };
    let threshold = || ["0", "1", "500Mi", "1e3", "1.5Gi", "0%", "5%", "15.5%", "100%", "101%", "-1", "x"];
    let texts = |values: &[&str]| values.iter().map(|value| json!(value)).collect::<Vec<_>>();
    let threshold_of = |signal: &str| threshold().map(|value| json!({signal: value})).to_vec();
    let signals = ["memory.available", "nodefs.available", "imagefs.available", "pid.available"];
    let fields: Vec<(&str, Vec<Value>)> = vec![
        ("maxPods", [0, 1, 250, 1000].map(|n| json!(n)).to_vec()),
        ("systemReserved", reserved()),
        ("kubeReserved", reserved()),
        ("evictionHard", signals.into_iter().flat_map(threshold_of).collect()),
        ("imageGCHighThresholdPercent", [1, 80, 81, 100].map(|n| json!(n)).to_vec()),
        ("imageGCLowThresholdPercent", [0, 79, 84, 85, 99].map(|n| json!(n)).to_vec()),
        ("containerLogMaxSize", texts(&["10Mi", "1", "0", "50M", "1e6", "1.5Gi", "-1", "8Ei"])),
        ("containerLogMaxFiles", [1, 2, 100].map(|n| json!(n)).to_vec()),
        ("cloudProvider", texts(&["External", "None"])),
    ];
    let taint = |key: &str, value: Value, effect: &str| json!({"key": key, "value": value, "effect": effect});
    let taints = vec![
        json!([]),
        json!([taint("example.com/line", json!(""), "NoExecute"), taint("os", json!("Windows"), "NoSchedule")]),
        json!([taint("os", json!("a_b.c-d"), "PreferNoSchedule"), taint("os", json!("Windows"), "NoSchedule")]),
        json!([{"key": "os", "effect": "NoSchedule"}]),
    ];
    let field = |(name, values): (&'static str, Vec<Value>)| {
        prop::option::weighted(0.25, select(values)).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    let kubelet: Vec<_> = fields.into_iter().map(field).collect();
    (kubelet, prop::option::of(select(taints)), select(vec!["Info", "Debug"])).prop_map(|(kubelet, taints, level)| {
        let kubelet: serde_json::Map<_, _> = kubelet.into_iter().flatten().collect();
        let mut template = json!({"kubelet": kubelet, "logs": {"level": level}});
        if let Some(taints) = taints {
            template["taints"] = taints;
        }
        template
    })
}

/// Returns random templates that the API server accepts.
async fn taken() -> Result<Vec<Value>> {
    let client = crate::cluster::shared().await?.client().await?;
    let pools: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<WindowsNodePool>(&()));
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // The pools differ in each run. The failure of a run shows the pools that a program refuses.
    let mut random = TestRunner::new(Config::default());
    let (template, mut taken) = (template(), Vec::new());
    for _ in 0..POOLS {
        let template = template.new_tree(&mut random).map_err(anyhow::Error::msg)?.current();
        let pool = pool("random", &json!({"template": {"spec": template}}));
        match pools.create(&dry, &serde_json::from_value(pool)?).await {
            Ok(_) => taken.push(template),
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(taken)
}

async fn nodes_are_taken(versions: &[&str]) -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let taken = taken().await?;
    ensure!((POOLS / 10..POOLS).contains(&taken.len()), "{} of {POOLS} pools are taken", taken.len());
    let windows = windows()?;
    for version in versions {
        let mut nodes = goldens(version)?;
        ensure!(nodes.len() > 1, "{} golden files have nodes", nodes.len());
        for cluster in clusters() {
            nodes.push(node(&cluster, &TemplateSpec::default(), version)?);
        }
        let rendered_alone = nodes.len();
        for template in &taken {
            let template: TemplateSpec = serde_json::from_value(template.clone())?;
            nodes.push(node(&cluster(), &template, version).with_context(|| format!("{template:?}"))?);
        }
        let refused = refused(&windows, version, &nodes)?;
        let shown: Vec<String> = refused
            .iter()
            .map(|line| {
                let number = line.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(0);
                let template = taken.get(usize::wrapping_sub(number, rendered_alone));
                format!("{line} of {} in {}", template.cloned().unwrap_or_default(), nodes[number])
            })
            .collect();
        ensure!(refused.is_empty(), "{version} refuses:\n{}", shown.join("\n"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_and_the_newest_kubelet_take_what_the_api_server_takes() -> Result<()> {
    nodes_are_taken(&ENDS).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "each version takes minutes to build: it runs by night"]
async fn each_kubelet_takes_what_the_api_server_takes() -> Result<()> {
    nodes_are_taken(&KUBERNETES).await
}

#[test]
fn arguments_and_fields_that_kubelet_or_kube_proxy_cannot_use_are_found() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = windows()?;
    let [oldest, newest] = ENDS;
    let tls_profile = Some(render::TlsProfile::of_cluster(None).0);
    let cluster = Cluster { platform: Platform::Aws, tls_profile, ..cluster() };
    // In the last case of each version, kubelet gets the configuration for the other version.
    for (version, other, gate) in [
        (oldest, newest, "NodeLogQuery feature gate is required"),
        (newest, oldest, "feature gate NodeLogQuery needs not be set"),
    ] {
        let good = node(&cluster, &TemplateSpec::default(), version)?;
        let with = |name: &str, from: &str, to: &str| -> Result<Value> {
            let mut node = good.clone();
            let text = node[name].to_string();
            ensure!(text.contains(from), "{text} has no {from}");
            node[name] = serde_json::from_str(&text.replace(from, to))?;
            Ok(node)
        };
        let cases = [
            (with("arguments", "--node-ip=", "--node-address=")?, "node-address"),
            (with("config", "maxPods", "maximumOfPods")?, "maximumOfPods"),
            (with("config", "500Mi", "500Q")?, "quantities must match"),
            (with("config", "2Gi", "-2Gi")?, "cannot be negative"),
            (
                with("config", "TLS_ECDHE_RSA_WITH_AES_128_GCM", "TLS_DHE_RSA_WITH_AES_128_GCM")?,
                "Cipher suite TLS_DHE_",
            ),
            (with("config", "AES_128_GCM_SHA256", "AES_256_GCM_SHA384")?, "missing an HTTP/2-required"),
            (with("config", "VersionTLS12", "VersionTLS14")?, "unknown tls version"),
            (with("credentialProviders", "12h", "-12h")?, "must be greater than or equal to 0"),
            (with("credentialProviders", "matchImages", "images")?, "unknown field \\"),
            (with("credentialProviders", "public.ecr.aws", "public.ecr.aws:x")?, "match image is invalid"),
            (with("credentialProviders", "ecr-credential-provider", "acr-provider")?, "did not exist"),
            (with("proxyArguments", "--windows-service", "--linux-service")?, "linux-service"),
            (with("proxyConfig", "sourceVip", "sourceAddress")?, "sourceAddress"),
            (with("proxyConfig", "kernelspace", "iptables")?, "iptables"),
            (node(&cluster, &TemplateSpec::default(), other)?, gate),
        ];
        let refused = refused(&windows, version, &cases.clone().map(|(node, _)| node))?;
        for (number, (_, part)) in cases.iter().enumerate() {
            let is_said = |line: &String| line.starts_with(&format!("{number}: ")) && line.contains(part);
            ensure!(refused.iter().any(is_said), "{version}: {part}: {refused:?}");
        }
    }
    Ok(())
}

/// Checks that kubelet and kube-proxy accept their command lines and files, and fail only because files are missing that wicd and kubelet
/// would have created.
fn programs_start(version: &str) -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = windows()?;
    let cluster = Cluster {
        platform: Platform::Aws,
        network: render::Network::OvnHybrid { vxlan_port: None },
        kubelet_client_ca: Authority::new("kubelet")?.identity().certificate,
        ..cluster()
    };
    let node = Node::new(&cluster, &TemplateSpec::default(), version)?;
    for (path, content) in &node.files {
        write(&windows, path, content)?;
    }
    write(&windows, r"C:\k\kube-proxy.conf", KUBE_PROXY_CONF)?;
    for (name, program, missing) in [
        ("kubelet", program::KUBELET, r"C:\\k\\kubeconfig"),
        ("kube-proxy", program::KUBE_PROXY, "kubelet-client-current.pem"),
    ] {
        let mut arguments = node.arguments(program)?;
        // With this flag, the program would need the service manager.
        arguments.retain(|argument| argument != "--windows-service");
        let start = |arguments: &[String]| run(&windows, &of_kubernetes(name, version)?, arguments, &[], "");
        let ([_, error], is_good) = start(&arguments)?;
        let fault = error.lines().last().unwrap_or_default();
        ensure!(!is_good && fault.contains(missing), "{name} {version}: {error}");
        arguments.push("--no-such-flag".into());
        let ([_, error], is_good) = start(&arguments)?;
        ensure!(!is_good && error.contains("unknown flag: --no-such-flag"), "{name} {version}: {error}");
        let ([said, error], _) = start(&["--version".into()])?;
        ensure!(said.trim() == format!("Kubernetes {version}"), "{name} {version}: {said}{error}");
    }
    let ([said, error], _) = run(&windows, &nodejudge(version)?, &["version".into()], &[], "")?;
    let agent = format!("nodejudge.exe/{version} (windows/amd64) kubernetes/unknown");
    ensure!(said.lines().eq([version, &agent]), "{said}{error}");
    Ok(())
}

#[test]
fn the_newest_programs_start() -> Result<()> {
    programs_start(KUBERNETES[0])
}

#[test]
#[ignore = "each version takes minutes to build: it runs by night"]
fn programs_of_each_version_start() -> Result<()> {
    KUBERNETES.into_iter().try_for_each(programs_start)
}

/// Verdict of kubelet on settings that the API server refuses.
#[derive(Clone, Copy)]
enum OfKubelet {
    /// kubelet refuses the settings, too, with a message that contains this text.
    Refused(&'static str),
    /// Acceptance by kubelet. The API server refuses the settings for this reason.
    Taken(&'static str),
}
use OfKubelet::{Refused, Taken};

/// Returns kubelet settings just outside of the range that the API server accepts, each with kubelet's verdict.
fn outside() -> Vec<(Value, OfKubelet)> {
    let negative = "cannot be negative";
    let no_quantity = "quantities must match";
    let no_suffix = "unable to parse quantity's suffix";
    let cases = [
        (json!({"maxPods": -1}), Refused("must not be a negative number")),
        (json!({"maxPods": 0}), Taken("no pod would run on the node")),
        (json!({"maxPods": 1001}), Taken("no Windows host runs as many")),
        (json!({"imageGCHighThresholdPercent": 101}), Refused("between 0 and 100")),
        (json!({"imageGCHighThresholdPercent": 0}), Refused("must be less than")),
        (json!({"imageGCLowThresholdPercent": -1}), Refused("between 0 and 100")),
        (json!({"imageGCLowThresholdPercent": 85}), Refused("must be less than")),
        (json!({"imageGCHighThresholdPercent": 80}), Refused("must be less than")),
        (json!({"imageGCLowThresholdPercent": 70, "imageGCHighThresholdPercent": 70}), Refused("must be less than")),
        (json!({"containerLogMaxFiles": 1}), Refused("must be greater than 1")),
        (json!({"containerLogMaxFiles": 101}), Taken("more files than anyone reads")),
        (json!({"containerLogMaxSize": ""}), Taken("kubelet would take its own default, and not the operator's")),
        (json!({"containerLogMaxSize": "0"}), Taken("less than 1Ki is a mistake")),
        (json!({"containerLogMaxSize": "-1"}), Taken("no log would be rotated")),
        (json!({"containerLogMaxSize": "1023"}), Taken("less than 1Ki is a mistake")),
        (json!({"containerLogMaxSize": "10m"}), Refused("invalid max log size")),
        (json!({"containerLogMaxSize": "1.5Gi"}), Refused("invalid max log size")),
        (json!({"containerLogMaxSize": "10MB"}), Refused(no_quantity)),
    ];
    let reserved = [
        ("cpu", "", Refused(no_quantity)),
        ("cpu", "two", Refused(no_quantity)),
        ("cpu", "-1m", Refused(negative)),
        ("cpu", "1000", Taken("no host has as many CPUs")),
        ("cpu", "2Gi", Taken("a size of memory, with which no pod would fit")),
        ("memory", "", Refused(no_quantity)),
        ("memory", "2gi", Refused(no_quantity)),
        ("memory", "2GB", Refused(no_quantity)),
        ("memory", "2GiB", Refused(no_quantity)),
        ("memory", "2 Gi", Refused(no_quantity)),
        ("memory", "2K", Refused(no_suffix)),
        ("memory", "0x800", Refused(no_quantity)),
        ("memory", "10%", Refused(no_quantity)),
        ("memory", "-1", Refused(negative)),
        ("memory", "-1e3", Refused(negative)),
        ("memory", "2048m", Taken("two bytes are a mistake")),
        ("memory", "1k", Taken("less than 1Ki is a mistake")),
        ("memory", "1e-3", Taken("less than 1Ki is a mistake")),
        ("ephemeral-storage", "1023", Taken("less than 1Ki is a mistake")),
        ("ephemeral-storage", "-1Gi", Refused(negative)),
        ("pid", "100", Taken("kubelet limits no process ids on Windows")),
        ("pods", "1", Refused("cannot reserve")),
    ];
    let thresholds = [
        ("memory.available", "", Refused(no_quantity)),
        ("memory.available", "0", Refused("must be positive")),
        ("memory.available", "-1", Refused("must be positive")),
        ("memory.available", "1023", Taken("less than 1Ki is a mistake")),
        ("memory.available", "500m", Taken("half a byte is a mistake")),
        ("nodefs.available", "-1%", Refused("must be >= 0%")),
        ("nodefs.available", "%", Refused("invalid syntax")),
        ("nodefs.available", "10 %", Refused("invalid syntax")),
        ("nodefs.available", "101%", Refused("must be <= 100%")),
        ("nodefs.available", "100%", Taken("kubelet reads it as none, and not as all")),
        ("imagefs.available", "1.5%", Taken("whole percents are fine enough")),
        ("imagefs.available", "10%%", Taken("kubelet reads it as 10%")),
        ("nodefs.inodesFree", "1Gi", Taken("Windows has no inodes")),
        ("pid.available", "1Gi", Taken("kubelet limits no process ids on Windows")),
        ("memory.free", "1Gi", Refused("unsupported eviction signal")),
    ];
    let of_reserved = ["systemReserved", "kubeReserved"].into_iter().flat_map(move |field| {
        reserved.into_iter().map(move |(key, value, verdict)| (json!({field: {key: value}}), verdict))
    });
    let of_thresholds =
        thresholds.into_iter().map(|(key, value, verdict)| (json!({"evictionHard": {key: value}}), verdict));
    cases.into_iter().chain(of_reserved).chain(of_thresholds).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_refuses_what_the_api_server_refuses_unless_a_reason_is_listed() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let cases = outside();
    let refused_pools = cases.iter().map(|(kubelet, _)| json!({"template": {"spec": {"kubelet": kubelet}}}));
    crd::check(refused_pools.map(|patch| (patch.to_string(), pool("case", &patch), Expected::Refused(""))).collect())
        .await?;
    let windows = Prefix::new()?;
    for version in ENDS {
        let good = node(&cluster(), &TemplateSpec::default(), version)?;
        let config: Value =
            serde_json::from_str(good["config"].as_str().context("the configuration is not a string")?)?;
        let nodes = cases.iter().map(|(kubelet, _)| {
            let mut config = config.clone();
            crd::merge(&mut config, kubelet);
            json!({"config": config.to_string()})
        });
        let refused = refused(&windows, version, &nodes.collect::<Vec<_>>())?;
        let wrong = cases.iter().enumerate().filter_map(|(number, (kubelet, expected))| {
            let said = refused.iter().find(|line| line.starts_with(&format!("{number}: ")));
            match expected {
                Refused(part) if said.is_none_or(|said| !said.contains(part)) => {
                    Some(format!("{kubelet}: kubelet says {said:?} and not {part}"))
                }
                Refused(_) => None,
                Taken(reason) => said.map(|said| {
                    format!("{kubelet}: the API server refuses it because {reason}, but kubelet does, too: {said}")
                }),
            }
        });
        let wrong: Vec<String> = wrong.collect();
        ensure!(wrong.is_empty(), "{version}:\n{}", wrong.join("\n"));
    }
    Ok(())
}

/// Checks that a containerd ignores no key in the configuration of the payload and the pool, and uses the values.
fn containerd_takes_its_files(containerd: &NodeProgram) -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = Prefix::new()?;
    let cluster = Cluster {
        cni_bin_dir: Some(r"C:\opt\cni\bin".into()),
        cni_conf_dir: Some(r"C:\etc\cni\net.d".into()),
        ..cluster()
    };
    let template = json!({"containerd": {"sandboxImage": "example.com/pause:1", "maxConcurrentDownloads": 7}});
    let node = Node::new(&cluster, &serde_json::from_value(template)?, KUBERNETES[0])?;
    let config = include_str!("../../../tools/xtask/payload/static/containerd_conf.toml");
    let payload = (program::CONTAINERD_CONFIG.to_owned(), config.to_owned());
    for (path, content) in node.files.iter().chain([&payload]) {
        write(&windows, path, content)?;
    }
    let mut arguments = node.arguments(program::CONTAINERD)?;
    // With this flag, the program would need the service manager.
    arguments.retain(|argument| argument != "--run-service");
    arguments.extend(["config".into(), "dump".into()]);
    let dump = || run(&windows, &node_program(containerd)?, &arguments, &[], "");
    let ([said, error], _) = dump()?;
    let log = fs::read_to_string(windows.drive_c().join("var/log/containerd/containerd.log")).unwrap_or_default();
    for part in ["example.com/pause:1", "max_concurrent_downloads = 7", r"C:\opt\cni\bin", r"C:\etc\cni\net.d"] {
        ensure!(said.contains(part), "no {part} in {said}\n{error}\n{log}");
    }
    ensure!(!(error.clone() + &log).contains("gnoring"), "{error}\n{log}");
    let unknown = "version = 3\n\n[plugins.'io.containerd.cri.v1.images']\nno_such_key = 1\n";
    fs::write(windows.drive_c().join("k/containerd/conf.d/z.toml"), unknown)?;
    let ([_, error], _) = dump()?;
    let log = fs::read_to_string(windows.drive_c().join("var/log/containerd/containerd.log")).unwrap_or_default();
    ensure!((error.clone() + &log).contains("no_such_key"), "an unknown key is not reported: {error}\n{log}");
    Ok(())
}

#[test]
fn containerd_of_the_payload_takes_its_files() -> Result<()> {
    containerd_takes_its_files(&CONTAINERD)
}

#[test]
fn the_oldest_containerd_takes_its_files() -> Result<()> {
    containerd_takes_its_files(&OLDEST_CONTAINERD)
}

#[test]
fn windows_exporter_takes_its_arguments() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = Prefix::new()?;
    let template = serde_json::from_value(json!({"logs": {"level": "Debug"}}))?;
    let mut arguments = Node::new(&cluster(), &template, KUBERNETES[0])?.arguments(program::WINDOWS_EXPORTER)?;
    ensure!(arguments.len() > 2, "{arguments:?}");
    // The program prints its version only if it accepts the arguments before.
    arguments.push("--version".into());
    let says = |arguments: &[String]| run(&windows, &node_program(&WINDOWS_EXPORTER)?, arguments, &[], "");
    let ([said, error], is_good) = says(&arguments)?;
    ensure!(is_good, "{said}\n{error}");
    arguments.insert(0, "--no-such-flag".into());
    let ([said, error], is_good) = says(&arguments)?;
    ensure!(!is_good && error.contains("no-such-flag"), "{said}\n{error}");
    Ok(())
}

/// Makes a CNI plugin add a pod, and returns its answer and whether it succeeded.
fn add_pod(windows: &Prefix, plugin: &NodeProgram, document: &str) -> Result<(String, bool)> {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "4b0a7a2e-0000-0000-0000-000000000001"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", r"C:\k\cni"),
    ];
    let ([said, _], is_added) = run(windows, &node_program(plugin)?, &[], &env, document)?;
    Ok((said, is_added))
}

/// Checks that the plugin reads the network's configuration, and then requests the network from Windows. Wine has no such network.
#[test]
fn win_overlay_takes_its_document() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = Prefix::new()?;
    let (said, _) = add_pod(&windows, &WIN_OVERLAY, CNI_CONF)?;
    ensure!(said.contains("GetNetworkByName(OVNKubernetesHybridOverlayNetwork)"), "{said}");
    let broken = CNI_CONF.replace(r#""portMappings": true"#, r#""portMappings": 1"#);
    let (said, _) = add_pod(&windows, &WIN_OVERLAY, &broken)?;
    ensure!(broken != CNI_CONF && said.contains("capabilities"), "{said}");
    Ok(())
}

/// Checks that `host-local`, which gets the same configuration, gives a pod an address of the node's subnet.
#[test]
fn host_local_takes_its_document() -> Result<()> {
    if let Err(reason) = available() {
        return testbed::skip(&reason);
    }
    let windows = Prefix::new()?;
    let add = |change: &Value| {
        let mut document = serde_json::from_str(CNI_CONF)?;
        // The default path has no drive, and Wine would take it for a folder of this machine.
        crd::merge(&mut document, &json!({"ipam": {"dataDir": r"C:\networks"}}));
        crd::merge(&mut document, change);
        add_pod(&windows, &HOST_LOCAL, &document.to_string())
    };
    let (said, is_added) = add(&json!({}))?;
    ensure!(is_added, "{said}");
    ensure!(serde_json::from_str::<Value>(&said)?["ip4"]["ip"] == "10.132.1.2/24", "{said}");
    let (said, is_added) = add(&json!({"ipam": {"subnet": "10.132.1.0"}}))?;
    ensure!(!is_added && said.contains("invalid CIDR address"), "{said}");
    Ok(())
}

#[test]
fn each_containerd_loads_the_network() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for containerd in [CONTAINERD, OLDEST_CONTAINERD] {
        let judge = containerdjudge(&containerd)?;
        let load = |document: &str| -> Result<(String, String)> {
            fs::write(folder.path().join("cni.conf"), document)?;
            let output = Command::new(&judge).arg("networks").arg(folder.path()).output()?;
            Ok((String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
        };
        let (said, error) = load(CNI_CONF)?;
        ensure!(error.is_empty(), "{error}");
        let networks: Value = serde_json::from_str(&said)?;
        let config = &networks[0]["Config"];
        ensure!(config["Name"] == "OVNKubernetesHybridOverlayNetwork", "{networks}");
        ensure!(config["Plugins"][0]["Network"]["type"] == "win-overlay", "{networks}");
        let broken = CNI_CONF.replace(r#""type": "win-overlay","#, "");
        let (said, error) = load(&broken)?;
        ensure!(broken != CNI_CONF && said.is_empty() && error.contains("missing 'type'"), "{said}{error}");
    }
    Ok(())
}
