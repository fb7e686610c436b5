//! Versions of Windows that are supported for nodes.

use jiff::{Timestamp, tz::TimeZone};

/// A version of Windows Server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowsVersion {
    /// Name of the version, for example `Windows Server 2022`.
    pub name: &'static str,
    /// Build of the version: the third part of `10.0.20348.2527`.
    pub build: u32,
    /// Year in which Microsoft's extended support ends (<https://learn.microsoft.com/lifecycle/products/>).
    pub support_ends: u16,
    /// Tag of base images whose containers the version runs without Hyper-V.
    pub image: &'static str,
    /// Lowest revision (last part of the version) with which pods have a network, and the update that brought it.
    pub least: Option<(u32, &'static str)>,
    /// Oldest version of `registry.k8s.io/pause`, the image of sandboxes, that supports this version of Windows.
    pub min_pause: [u16; 3],
    /// True if overlay networks may have another VXLAN port than [`VXLAN_PORT`].
    pub any_vxlan_port: bool,
}

/// VXLAN port that every version of Windows supports.
pub const VXLAN_PORT: u16 = 4789;

impl WindowsVersion {
    /// Reports whether the support has ended, or ends in the year of `now`: the day is not known here.
    pub fn is_support_ending(&self, now: Timestamp) -> bool {
        now.to_zoned(TimeZone::UTC).year() >= i16::try_from(self.support_ends).unwrap_or(i16::MAX)
    }
}

/// Supported versions, all of the long-term servicing channel: containers run with process isolation, which needs a base image of the same
/// version.
pub const VERSIONS: [WindowsVersion; 3] = [
    WindowsVersion {
        name: "Windows Server 2019",
        build: 17763,
        support_ends: 2029,
        image: "ltsc2019",
        // Needed for direct server return of Services in an overlay.
        least: Some((1217, "KB4551853")),
        min_pause: [3, 6, 0],
        any_vxlan_port: false,
    },
    WindowsVersion {
        name: "Windows Server 2022",
        build: 20348,
        support_ends: 2031,
        image: "ltsc2022",
        least: Some((681, "KB5012637")),
        min_pause: [3, 6, 0],
        any_vxlan_port: true,
    },
    WindowsVersion {
        name: "Windows Server 2025",
        build: 26100,
        support_ends: 2034,
        image: "ltsc2025",
        least: None,
        min_pause: [3, 10, 2],
        any_vxlan_port: true,
    },
];

/// Returns the version of a host that reports this name and build. The name distinguishes Windows Server from Windows 11, which has the same builds.
pub fn find(os_name: &str, os_build: &str) -> Option<&'static WindowsVersion> {
    let build: u32 = os_build.strip_prefix("10.0.")?.split('.').next()?.parse().ok()?;
    VERSIONS.iter().find(|v| v.build == build).filter(|_| os_name.starts_with("Windows Server"))
}

/// Returns the update that nodes need and that a host with this version of Windows lacks, if any.
pub fn lacks(version: &WindowsVersion, os_build: &str) -> Option<&'static str> {
    let (least, update) = version.least?;
    let revision: u32 = os_build.rsplit_once('.')?.1.parse().ok()?;
    (os_build.matches('.').count() == 3 && revision < least).then_some(update)
}

/// Returns all supported versions as text for a message: each name with its build.
pub fn list() -> String {
    VERSIONS.map(|v| format!("{} (build {})", v.name, v.build)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_each_version() {
        const PAGE: &str = include_str!("../../../../docs/reference/limits.md");
        for WindowsVersion { name, build, support_ends, image, least, .. } in VERSIONS {
            let least = least.map_or("-".to_owned(), |(revision, update)| format!("{build}.{revision} ({update})"));
            let row = format!("| {name} | {build} | {least} | `{image}` | {support_ends} |");
            assert!(PAGE.lines().any(|line| line.starts_with(&row)), "docs/reference/limits.md lacks\n{row}");
        }
    }

    /// Returns the numbers of a tag such as 3.10.2.
    fn numbers(tag: &str) -> [u16; 3] {
        let mut numbers = tag.split('.').map(|part| part.parse().unwrap());
        let numbers = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        assert_ne!(numbers, [0; 3], "{tag}");
        numbers
    }

    #[test]
    fn the_payload_has_an_image_of_sandboxes_for_each_version() {
        const CONFIG: &str = include_str!("../../../../tools/xtask/payload/static/containerd_conf.toml");
        let config: toml::Value = toml::from_str(CONFIG).unwrap();
        let images = &config["plugins"]["io.containerd.cri.v1.images"];
        let image = images["pinned_images"]["sandbox"].as_str().unwrap();
        let tag = image.strip_prefix("registry.k8s.io/pause:").expect(image);
        for WindowsVersion { name, min_pause, .. } in VERSIONS {
            assert!(numbers(tag) >= min_pause, "{image} lacks {name}, which is in {min_pause:?}");
        }
    }

    #[test]
    fn support_is_ending_from_the_first_day_of_its_last_year() {
        let version = VERSIONS[0];
        for (now, expected) in
            [("2028-12-31T23:59:59Z", false), ("2029-01-01T00:00:00Z", true), ("2035-06-01T00:00:00Z", true)]
        {
            assert_eq!(version.is_support_ending(now.parse().unwrap()), expected, "{now}");
        }
    }

    #[test]
    fn an_update_is_missing_below_its_revision() {
        for (build, expected) in [
            ("10.0.17763.1", Some("KB4551853")),
            ("10.0.17763.1216", Some("KB4551853")),
            ("10.0.17763.1217", None),
            ("10.0.20348.587", Some("KB5012637")),
            ("10.0.20348.681", None),
            ("10.0.20348", None),
            ("10.0.26100.1", None),
        ] {
            let version = find("Windows Server", build).unwrap();
            assert_eq!(lacks(version, build), expected, "{build}");
        }
    }

    #[test]
    fn versions_of_hosts() {
        for (name, build, expected) in [
            ("Windows Server 2019 Standard", "10.0.17763.6414", Some("Windows Server 2019")),
            ("Windows Server 2022 Datacenter Azure Edition", "10.0.20348.2527", Some("Windows Server 2022")),
            ("Windows Server 2025 Datacenter", "10.0.26100", Some("Windows Server 2025")),
            ("Windows 10 Enterprise", "10.0.26100.1", None),
            ("Windows Server 2022 Datacenter", "10.0.25398.1", None),
            ("Windows Server 2016 Standard", "10.0.14393.0", None),
            ("Windows Server 2012 R2", "6.3.9600", None),
            ("", "", None),
            ("Windows Server", "10.0.", None),
            ("Windows Server", "10.0.99999999999.1", None),
        ] {
            assert_eq!(find(name, build).map(|v| v.name), expected, "{name} {build}");
        }
        assert!(VERSIONS.iter().all(|v| list().contains(v.name) && list().contains(&v.build.to_string())));
    }
}
