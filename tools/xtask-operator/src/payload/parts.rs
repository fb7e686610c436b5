//! Parts of the payload.

use testbed::binaries::KUBERNETES_STAMP;
use wnp_core::render::program;

use super::go::Program;

/// File of the payload.
pub(super) struct Part {
    /// Name for `--only`.
    pub name: &'static str,
    /// Path of the file on a host.
    pub destination: &'static str,
    /// Source of the file.
    pub source: Source,
    /// Services that have to be restarted when the file changes. Programs that are started for each use have none.
    pub services: &'static [&'static str],
    /// Platforms that need the file. Empty means all.
    pub platforms: &'static [&'static str],
}

/// Source of a file.
pub(super) enum Source {
    /// Program that is built.
    Go(Program),
    /// Content of a file in this repository.
    Static(&'static str),
    /// File of the user's folder, which is in no Go module that can be built.
    Folder {
        /// Consequence for hosts without the file.
        without: &'static str,
    },
}

impl Part {
    /// Returns a part for all platforms that no service reads.
    const fn new(name: &'static str, destination: &'static str, source: Source) -> Self {
        Self { name, destination, source, services: &[], platforms: &[] }
    }

    const fn services(mut self, services: &'static [&'static str]) -> Self {
        self.services = services;
        self
    }

    const fn platforms(mut self, platforms: &'static [&'static str]) -> Self {
        self.platforms = platforms;
        self
    }

    /// Returns the name of the file, such as `kubelet.exe`.
    pub(super) fn file_name(&self) -> &'static str {
        self.destination.rsplit('\\').next().unwrap_or(self.destination)
    }
}

/// Minor versions of Kubernetes whose programs can be built, the newest one first.
pub(super) const MINORS: [&str; 5] = ["1.37", "1.36", "1.35", "1.34", "1.33"];

/// Set of the newest minor version.
const NEWEST: &str = "kubernetes-1.37";

const CONTAINERD_CONFIG: &str = include_str!("../../../xtask/payload/static/containerd_conf.toml");
const EXPORTER_CONFIG: &str = include_str!("../../../xtask/payload/static/windows-exporter-webconfig.yaml");
const CNI_VERSION: &str = "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion={version}";

const fn kubernetes(package: &'static str) -> Source {
    Source::Go(Program {
        set: "kubernetes-{kubernetes}",
        module: "k8s.io/kubernetes",
        package,
        version: KUBERNETES_STAMP,
    })
}

const fn cni(package: &'static str) -> Source {
    Source::Go(Program { set: "cni", module: "github.com/containernetworking/plugins", package, version: CNI_VERSION })
}

const fn folder(without: &'static str) -> Source {
    Source::Folder { without }
}

/// All parts, those that build quickly first.
pub(super) const PARTS: &[Part] = &[
    Part::new("containerd_conf", program::CONTAINERD_CONFIG, Source::Static(CONTAINERD_CONFIG))
        .services(&["containerd"]),
    Part::new("windows-exporter-webconfig", program::WINDOWS_EXPORTER_CONFIG, Source::Static(EXPORTER_CONFIG))
        .services(&["windows_exporter"]),
    Part::new("csi-proxy", program::CSI_PROXY, folder("CSI drivers that need it cannot attach volumes on the nodes"))
        .services(&["csi-proxy"]),
    Part::new(
        "hybrid-overlay-node",
        program::HYBRID_OVERLAY,
        folder("no pod network on clusters with OVN-Kubernetes; others bring their own and do not need it"),
    )
    .services(&["hybrid-overlay-node"]),
    Part::new(
        "azure-cloud-node-manager",
        program::AZURE_NODE_MANAGER,
        folder("nodes on Azure stay uninitialised; other platforms do not need it"),
    )
    .services(&["cloud-node-manager"])
    .platforms(&["azure"]),
    Part::new("host-local", program::HOST_LOCAL, cni("github.com/containernetworking/plugins/plugins/ipam/host-local")),
    Part::new(
        "win-overlay",
        program::WIN_OVERLAY,
        cni("github.com/containernetworking/plugins/plugins/main/windows/win-overlay"),
    ),
    // Every cluster gets the newest version: the program does not depend on the cluster, and older versions refuse the flags of rotation.
    Part::new(
        "kube-log-runner",
        program::LOG_RUNNER,
        Source::Go(Program {
            set: NEWEST,
            module: "k8s.io/component-base",
            package: "k8s.io/component-base/logs/kube-log-runner",
            version: "",
        }),
    )
    .services(&["kubelet", "kube-proxy"]),
    Part::new(
        "windows_exporter",
        program::WINDOWS_EXPORTER,
        Source::Go(Program {
            set: "windows_exporter",
            module: "github.com/prometheus-community/windows_exporter",
            package: "github.com/prometheus-community/windows_exporter",
            version: "-X github.com/prometheus/common/version.Version={bare}",
        }),
    )
    .services(&["windows_exporter"]),
    Part::new(
        "ecr-credential-provider",
        program::ECR_CREDENTIAL_PROVIDER,
        Source::Go(Program {
            set: "ecr",
            module: "k8s.io/cloud-provider-aws",
            package: "k8s.io/cloud-provider-aws/cmd/ecr-credential-provider",
            version: "-X main.gitVersion={version}",
        }),
    )
    .platforms(&["aws"]),
    Part::new(
        "acr-credential-provider",
        program::ACR_CREDENTIAL_PROVIDER,
        folder("images of Azure's registries need a login; other platforms do not need it"),
    )
    .platforms(&["azure"]),
    Part::new(
        "acr-credential-provider.json",
        program::ACR_CREDENTIAL_PROVIDER_CONFIG,
        folder("acr-credential-provider.exe is not used"),
    )
    .platforms(&["azure"]),
    Part::new(
        "gcr-credential-provider",
        program::GCR_CREDENTIAL_PROVIDER,
        folder("images of Google's registries need a login; other platforms do not need it"),
    )
    .platforms(&["gcp"]),
    Part::new(
        "containerd-shim-runhcs-v1",
        program::SHIM,
        Source::Go(Program {
            set: "hcsshim",
            module: "github.com/Microsoft/hcsshim",
            package: "github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1",
            version: "-X main.version={version}",
        }),
    )
    .services(&["containerd"]),
    Part::new(
        "containerd",
        program::CONTAINERD,
        Source::Go(Program {
            set: "containerd",
            module: "github.com/containerd/containerd/v2",
            package: "github.com/containerd/containerd/v2/cmd/containerd",
            version: "-X github.com/containerd/containerd/v2/version.Version={version}",
        }),
    )
    .services(&["containerd"]),
    Part::new("kube-proxy", program::KUBE_PROXY, kubernetes("k8s.io/kubernetes/cmd/kube-proxy"))
        .services(&["kube-proxy"]),
    Part::new("kubelet", program::KUBELET, kubernetes("k8s.io/kubernetes/cmd/kubelet")).services(&["kubelet"]),
];

#[cfg(test)]
mod tests {
    use devenv::workspace_root;

    use super::*;

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for (part, minor) in PARTS.iter().flat_map(|part| MINORS.map(|minor| (part, minor))) {
            let Source::Go(program) = &part.source else { continue };
            let folder = program.folder(minor);
            let go_mod = std::fs::read_to_string(folder.join("go.mod")).unwrap();
            assert!(go_mod.contains(program.package), "{} {minor}", part.name);
            assert!(go_mod.contains(&format!("{} v", program.module)), "{} {minor}", part.name);
            assert!(folder.join("go.sum").is_file(), "{} {minor}", part.name);
        }
    }

    #[test]
    fn each_minor_version_has_its_set_and_no_other() {
        let sets = workspace_root().join("tools/xtask/payload");
        for minor in MINORS {
            let go_mod = std::fs::read_to_string(sets.join(format!("kubernetes-{minor}/go.mod"))).unwrap();
            assert!(go_mod.contains(&format!("k8s.io/kubernetes v{minor}.")), "{minor}");
            // The modules of the same release have the version 0.<minor>.
            let replaced: Vec<&str> =
                go_mod.lines().filter_map(|line| line.split_once(" => ")?.1.split_once(' ')).map(|(_, v)| v).collect();
            let expected = format!("v0.{}.", minor.trim_start_matches("1."));
            assert!(replaced.len() > 20 && replaced.iter().all(|v| v.starts_with(&expected)), "{minor}: {replaced:?}");
        }
        let folders =
            std::fs::read_dir(sets).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        assert_eq!(folders.filter(|name| name.starts_with("kubernetes")).count(), MINORS.len());
        assert_eq!(NEWEST, format!("kubernetes-{}", MINORS[0]));
        let tested =
            testbed::binaries::KUBERNETES.map(|version| version.trim_start_matches('v').rsplit_once('.').unwrap().0);
        assert_eq!(tested, MINORS, "the test bed has other versions than the payload");
    }

    /// Checks the `godebug` settings: Go takes them from the main module, which is the one in this repository and not that of the program.
    /// A module without such settings has those of its version of Go.
    #[test]
    fn each_set_has_the_settings_of_go_of_its_programs() {
        let settings = |go_mod: &std::path::Path| -> String {
            let text = std::fs::read_to_string(go_mod).unwrap();
            let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name).map(ToOwned::to_owned));
            let minor = |go: String| go.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
            of("godebug default=").unwrap_or_else(|| format!("go{}", minor(of("go ").unwrap())))
        };
        for (part, minor) in PARTS.iter().flat_map(|part| MINORS.map(|minor| (part, minor))) {
            let Source::Go(program) = &part.source else { continue };
            let mut go = program.go(minor);
            let output = go.args(["list", "-m", "-f", "{{.GoMod}}", program.module]).output().unwrap();
            let theirs = String::from_utf8(output.stdout).unwrap();
            let theirs = settings(std::path::Path::new(theirs.trim()));
            assert_eq!(settings(&program.folder(minor).join("go.mod")), theirs, "{} {minor}", part.name);
        }
    }

    /// Checks the version of the shim: the go.mod of containerd contains the version that containerd was tested with.
    #[test]
    fn the_shim_is_the_one_of_containerd_unless_that_cannot_be_built() {
        /// Version in containerd's go.mod, which needs cosesign1go v1.6.0 that the module proxy does not serve, and the version here.
        const NOT_SERVED: [&str; 2] = ["v0.15.0-rc.4", "v0.14.1"];
        let pin = |set: &str| {
            let go_mod =
                std::fs::read_to_string(workspace_root().join("tools/xtask/payload").join(set).join("go.mod")).unwrap();
            let pin = go_mod.lines().find_map(|line| line.split_once("github.com/Microsoft/hcsshim v"));
            format!("v{}", pin.unwrap().1.split(' ').next().unwrap())
        };
        let (theirs, ours) = (pin("containerd"), pin("hcsshim"));
        assert!(theirs == ours || [theirs.as_str(), &ours] == NOT_SERVED, "containerd {theirs}, shim {ours}");
    }

    #[test]
    fn the_exporter_serves_with_the_certificate_that_hosts_get() {
        let config: serde_json::Value = serde_yaml::from_str(EXPORTER_CONFIG).unwrap();
        assert_eq!(config["tls_server_config"]["cert_file"], r"C:\k\tls\certs\tls.crt");
        assert_eq!(config["tls_server_config"]["key_file"], r"C:\k\tls\certs\tls.key");
    }
}
