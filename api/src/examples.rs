//! Example pools, which `cargo xtask gen` writes to `examples/`.

use std::collections::BTreeMap;

use crate::{
    CloudProvider, ContainerdSettings, CredentialPlugin, DeletionPolicy, Drain, Drift, FailureAction, GitRef,
    GitSource, GitVerify, GmsaSettings, Host, HostKeyPolicy, ImageMirror, IntOrPercent, Inventory, JumpHost,
    KubeletSettings, LogLevel, LogRotation, MaintenanceWindow, MirrorPull, MirrorSourcePolicy, Mode, NodeTemplate,
    OnTimeout, PodBehavior, PodRule, Provisioning, ProxySettings, Quantity, Remediation, RemediationType, Rollout,
    RolloutStep, SecretKeyRef, SecretRef, SourceKind, SourceRef, Ssh, Taint, TaintEffect, TemplateMetadata,
    TemplateSpec, WindowsNodePool, WindowsNodePoolSpec,
};

/// Example pool for users, written to `examples/<name>.yaml`.
pub struct Example {
    /// File name without `.yaml`.
    pub name: &'static str,
    /// Subject of the example; becomes the comment at the top of the file.
    pub about: &'static str,
    /// Pool of the example.
    pub pool: WindowsNodePool,
}

fn host(name: &str, address: &str) -> Host {
    Host { name: name.into(), address: address.into(), ..Host::default() }
}

/// Returns a pool with hosts from this source, and the defaults.
fn pool_of(name: &str, inventory: Inventory) -> WindowsNodePool {
    WindowsNodePool::new(name, WindowsNodePoolSpec { inventory, ..WindowsNodePoolSpec::default() })
}

fn secret(name: &str) -> SecretRef {
    SecretRef { name: name.into() }
}

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
}

fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).into())).collect()
}

/// Returns the examples. They are values of the API types, so they always match the API.
#[expect(clippy::too_many_lines, reason = "one example after the other")]
pub fn examples() -> Vec<Example> {
    vec![
        Example {
            name: "minimal",
            about: "Two hosts and the defaults. Needs the Secret cloud-private-key in the operator's namespace.",
            pool: pool_of(
                "factory",
                Inventory {
                    hosts: Some(vec![host("win-1", "10.20.0.11"), host("win-2", "win-2.example.com")]),
                    ..Inventory::default()
                },
            ),
        },
        Example {
            name: "git",
            about: "Hosts from a Git repository, whose commits must be signed. The Secret hosts-repository has username and password, the Secret hosts-signers the trusted public keys.",
            pool: pool_of(
                "factory",
                Inventory {
                    git: Some(GitSource {
                        url: "https://git.example.com/factory/hosts.git".into(),
                        reference: Some(GitRef { branch: Some("main".into()), ..GitRef::default() }),
                        path: Some("halls".into()),
                        interval_seconds: Some(300),
                        secret_ref: Some(secret("hosts-repository")),
                        verify: Some(GitVerify { mode: None, secret_ref: secret("hosts-signers") }),
                        ..GitSource::default()
                    }),
                    max_removals: Some(IntOrPercent::Int(2)),
                    ..Inventory::default()
                },
            ),
        },
        Example {
            name: "flux",
            about: "Hosts from a Flux GitRepository whose signature Flux has verified.",
            pool: pool_of(
                "from-flux",
                Inventory {
                    source_ref: Some(SourceRef {
                        kind: SourceKind::GitRepository,
                        name: "hosts".into(),
                        namespace: "flux-system".into(),
                        path: Some("halls".into()),
                        require_verified: Some(true),
                    }),
                    ..Inventory::default()
                },
            ),
        },
        Example {
            name: "full",
            about: "Most fields of a pool with its own list of hosts.",
            pool: WindowsNodePool::new(
                "with-most-fields",
                WindowsNodePoolSpec {
                    mode: Some(Mode::Apply),
                    inventory: Inventory {
                        hosts: Some(vec![
                            Host {
                                port: Some(2222),
                                username: Some(r"FACTORY\svc-nodes".into()),
                                host_key: Some("SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE".into()),
                                labels: Some(strings(&[("example.com/hall", "b")])),
                                taints: Some(vec![Taint {
                                    key: "example.com/press".into(),
                                    value: None,
                                    effect: TaintEffect::NoSchedule,
                                }]),
                                ..host("press-1", "2001:db8::11")
                            },
                            host("press-2", "10.20.0.12"),
                        ]),
                        ..Inventory::default()
                    },
                    ssh: Some(Ssh {
                        private_key_secret_refs: Some(vec![
                            SecretKeyRef { name: "windows-key-2027".into(), key: None },
                            SecretKeyRef { name: "windows-key-2026".into(), key: None },
                        ]),
                        port: Some(22),
                        username: Some("Administrator".into()),
                        host_key_policy: Some(HostKeyPolicy::Strict),
                        known_hosts_secret_ref: Some(secret("windows-known-hosts")),
                        jump_host: Some(JumpHost {
                            address: "jump.example.com".into(),
                            port: Some(22),
                            username: "windows-nodes".into(),
                            private_key_secret_ref: SecretKeyRef {
                                name: "jump-host-key".into(),
                                key: Some("id_ed25519".into()),
                            },
                            host_key: "SHA256:a5dbhnVDVV+wzA3hzpgP7k0GfTkN0yYuMJrxQhl8wrE".into(),
                        }),
                    }),
                    template: Some(NodeTemplate {
                        metadata: Some(TemplateMetadata {
                            labels: Some(strings(&[
                                ("example.com/line", "paint"),
                                ("node-role.kubernetes.io/factory", ""),
                            ])),
                            annotations: Some(strings(&[("example.com/contact", "floor-it@example.com")])),
                        }),
                        spec: Some(TemplateSpec {
                            taints: Some(vec![Taint {
                                key: "os".into(),
                                value: Some("Windows".into()),
                                effect: TaintEffect::NoSchedule,
                            }]),
                            kubelet: Some(KubeletSettings {
                                max_pods: Some(100),
                                system_reserved: Some(quantities(&[
                                    ("cpu", "1"),
                                    ("memory", "3Gi"),
                                    ("ephemeral-storage", "2Gi"),
                                ])),
                                kube_reserved: Some(quantities(&[("memory", "512Mi")])),
                                eviction_hard: Some(quantities(&[
                                    ("memory.available", "500Mi"),
                                    ("nodefs.available", "10%"),
                                    ("imagefs.available", "15%"),
                                ])),
                                image_gc_high_threshold_percent: Some(80),
                                image_gc_low_threshold_percent: Some(70),
                                container_log_max_size: Some("20Mi".into()),
                                container_log_max_files: Some(3),
                                cloud_provider: Some(CloudProvider::None),
                            }),
                            containerd: Some(ContainerdSettings {
                                sandbox_image: None,
                                max_concurrent_downloads: Some(6),
                            }),
                            logs: Some(LogRotation {
                                max_size: Some("50Mi".into()),
                                max_age_seconds: Some(259_200),
                                level: Some(LogLevel::Info),
                            }),
                            pull_secret_registries: Some(vec!["quay.io".into(), "registry.example.com:5000".into()]),
                            proxy: Some(ProxySettings {
                                http_proxy: Some("http://proxy.example.com:3128".into()),
                                https_proxy: Some("http://proxy.example.com:3128".into()),
                                no_proxy: Some(".svc,.cluster.local,10.0.0.0/8".into()),
                            }),
                            trusted_certificates: None,
                            image_mirrors: Some(vec![ImageMirror {
                                source: "registry.example.com".into(),
                                mirrors: Some(vec!["mirror.example.com:5000/factory".into()]),
                                mirror_source_policy: Some(MirrorSourcePolicy::AllowContactingSource),
                                pull: Some(MirrorPull::All),
                            }]),
                            gmsa: Some(GmsaSettings {
                                accounts: Some(vec!["web-frontend".into()]),
                                plugin: Some(CredentialPlugin {
                                    file: "CCGAKVPlugin.dll".into(),
                                    clsid: "{CCC2A336-D7F3-4818-A213-272B7924213E}".into(),
                                }),
                            }),
                        }),
                    }),
                    provisioning: Some(Provisioning {
                        max_concurrent: Some(20),
                        pre_pull_images: Some(vec!["mcr.microsoft.com/windows/servercore:ltsc2022".into()]),
                    }),
                    rollout: Some(Rollout {
                        max_unavailable: Some(IntOrPercent::Percent(10)),
                        min_ready_seconds: Some(30),
                        progress_deadline_seconds: Some(3600),
                        ignore_lost_after_seconds: Some(7200),
                        steps: Some(vec![
                            RolloutStep { nodes: IntOrPercent::Int(1), pause_seconds: Some(900), approval: None },
                            RolloutStep { nodes: IntOrPercent::Percent(10), pause_seconds: None, approval: Some(true) },
                        ]),
                        approved_version: None,
                        maintenance_windows: Some(vec![MaintenanceWindow {
                            schedule: "0 22 * * 1-5".into(),
                            duration_seconds: Some(21_600),
                            time_zone: Some("Europe/Paris".into()),
                        }]),
                        max_failures: Some(IntOrPercent::Int(2)),
                        on_failure: Some(FailureAction::Rollback),
                        paused: None,
                        paused_until: None,
                    }),
                    remediation: Some(Remediation {
                        type_: Some(RemediationType::Reconfigure),
                        not_ready_seconds: Some(600),
                        max_unhealthy: Some(IntOrPercent::Percent(20)),
                        drift: Some(Drift::Heal),
                    }),
                    drain: Some(Drain {
                        timeout_seconds: Some(1800),
                        on_timeout: Some(OnTimeout::Wait),
                        grace_period_seconds: None,
                        delete_empty_dir_data: Some(true),
                        evict_unmanaged: Some(false),
                        pod_rules: Some(vec![PodRule {
                            selector: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
                                match_labels: Some(strings(&[("app", "batch")])),
                                match_expressions: None,
                            }),
                            behavior: PodBehavior::WaitCompleted,
                            order: Some(-1),
                            ..PodRule::default()
                        }]),
                    }),
                    take_over_from: Some(vec!["0b0d5b4c-7a0e-4f3b-9a53-6c6b7f0d9a11".into()]),
                    deletion_policy: Some(DeletionPolicy::Deconfigure),
                },
            ),
        },
    ]
}
