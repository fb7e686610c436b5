//! Why there is no manifest.

/// Longest name of a Windows host, as NetBIOS has it.
pub(super) const NETBIOS: usize = 15;
/// What the Machine API adds to the name of a MachineSet for a Machine: a dash and five characters.
pub(super) const SUFFIX: usize = 6;
/// Longest name of a MachineSet of which the names of its Machines are labels of DNS.
pub(super) const DNS_LABEL: usize = 63 - SUFFIX;

/// Why there is no manifest, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "a cluster on the platform none has no Machine API that makes machines: list the hosts in a WindowsNodePool instead"
    )]
    NoMachines,
    #[error("the cluster is on the platform {found}, not on {wanted}: give --platform {found}")]
    OtherPlatform { found: String, wanted: String },
    #[error(
        "the name {name} has {} characters, and on this platform at most {most} are allowed: the name of a Machine, which has {SUFFIX} more, becomes the name of \
         the host, and Windows allows {NETBIOS} characters there (NetBIOS)",
        .name.len(), most = NETBIOS - SUFFIX
    )]
    LongForWindows { name: String },
    #[error(
        "{name:?} is not a name for a MachineSet: use at most {DNS_LABEL} lower-case letters, digits and dashes, with a letter or digit at both ends"
    )]
    NotAName { name: String },
    #[error(
        "these values are not known: {missing}; name them, or give --kubeconfig of a cluster with Linux workers to read them there"
    )]
    Missing { missing: String },
    #[error(
        "the MachineSet {name} of the cluster is of the kind {found}, not {wanted}: name all values, and give no --kubeconfig"
    )]
    OtherKind { name: String, found: String, wanted: String },
}
