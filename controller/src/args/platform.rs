//! Platform argument, for clusters that do not report their platform.

use clap::ValueEnum;
use wnp_core::render::Platform;

/// Platform of the cluster.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformArg {
    /// Any other platform: hosts get nothing for a cloud.
    None,
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Cloud.
    Gcp,
    /// VMware vSphere.
    Vsphere,
    /// Nutanix.
    Nutanix,
}

impl From<PlatformArg> for Platform {
    fn from(arg: PlatformArg) -> Self {
        match arg {
            PlatformArg::None => Self::None,
            PlatformArg::Aws => Self::Aws,
            PlatformArg::Azure => Self::Azure,
            PlatformArg::Gcp => Self::Gcp,
            PlatformArg::Vsphere => Self::Vsphere,
            PlatformArg::Nutanix => Self::Nutanix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_platform_has_the_name_that_the_payload_has_for_it() {
        for arg in PlatformArg::value_variants() {
            let name = arg.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(Platform::from(*arg).as_str(), name);
        }
    }
}
