//! Windows builds of a pool's hosts.

use std::collections::BTreeMap;

use api::{HostFacts, WindowsBuild};

use crate::operation::windows_versions;

/// Maximum number of builds in a status.
const MAX_BUILDS: usize = 32;

/// Returns the number of hosts with each build, the newest last. Malformed builds are left out.
pub(super) fn builds<'a>(hosts: impl Iterator<Item = &'a HostFacts>) -> Vec<WindowsBuild> {
    let mut found: BTreeMap<Vec<u32>, WindowsBuild> = BTreeMap::new();
    for facts in hosts {
        let Some(numbers) = numbers(&facts.os_build) else { continue };
        let windows = || windows_versions::find(&facts.os_name, &facts.os_build).map(|v| v.name.to_owned());
        let new = || WindowsBuild { build: facts.os_build.clone(), windows: windows(), hosts: 0 };
        found.entry(numbers).or_insert_with(new).hosts += 1;
    }
    found.into_values().collect()
}

/// Returns the builds that fit into a status: those with the most hosts.
pub(super) fn shown(mut builds: Vec<WindowsBuild>) -> Vec<WindowsBuild> {
    if builds.len() > MAX_BUILDS {
        builds.sort_by_key(|b| std::cmp::Reverse(b.hosts));
        builds.truncate(MAX_BUILDS);
        builds.sort_by_key(|b| numbers(&b.build));
    }
    builds
}

/// Returns the number of hosts with an older build than another host of the same Windows version.
pub(super) fn behind(builds: &[WindowsBuild]) -> i32 {
    let version = |b: &WindowsBuild| numbers(&b.build).and_then(|n| n.get(2).copied());
    let is_behind = |b: &&WindowsBuild| {
        builds.iter().any(|other| version(other) == version(b) && numbers(&other.build) > numbers(&b.build))
    };
    builds.iter().filter(is_behind).map(|b| b.hosts).sum()
}

/// Returns the numbers of a build, for example 10, 0, 20348, 2527: `10.0.20348.99` is older than `10.0.20348.2527`.
fn numbers(build: &str) -> Option<Vec<u32>> {
    let numbers: Vec<u32> = build.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    (numbers.len() == 4).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(os_name: &str, os_build: &str) -> HostFacts {
        HostFacts { os_name: os_name.into(), os_build: os_build.into(), ..HostFacts::default() }
    }

    #[test]
    fn hosts_that_lack_patches_are_counted() {
        let hosts = [
            facts("Windows Server 2022 Datacenter", "10.0.20348.2527"),
            facts("Windows Server 2022 Standard", "10.0.20348.99"),
            facts("Windows Server 2022 Standard", "10.0.20348.99"),
            facts("Windows Server 2019 Standard", "10.0.17763.1"),
            facts("Windows 11 Pro", "10.0.22631.1"),
            facts("Windows Server 2022 Datacenter", "10.0.20348.2527"),
            facts("hostile", "10.0.20348.2527.9"),
            facts("hostile", "10.0.99999999999.1"),
            facts("", ""),
        ];
        let builds = builds(hosts.iter());
        let seen: Vec<_> = builds.iter().map(|b| (b.build.as_str(), b.windows.as_deref(), b.hosts)).collect();
        assert_eq!(
            seen,
            [
                ("10.0.17763.1", Some("Windows Server 2019"), 1),
                ("10.0.20348.99", Some("Windows Server 2022"), 2),
                ("10.0.20348.2527", Some("Windows Server 2022"), 2),
                ("10.0.22631.1", None, 1),
            ]
        );
        assert_eq!(behind(&builds), 2);
        assert_eq!(behind(&[]), 0);
        assert_eq!(shown(builds.clone()), builds);
    }

    #[test]
    fn a_status_stays_small() {
        let hosts: Vec<HostFacts> =
            (0..100).map(|n| facts("Windows Server 2022", &format!("10.0.20348.{n}"))).collect();
        let builds = builds(hosts.iter().chain([&hosts[5]]));
        assert_eq!((builds.len(), behind(&builds)), (100, 100));
        let shown = shown(builds);
        assert_eq!(shown.len(), MAX_BUILDS);
        assert!(shown.iter().any(|b| b.build == "10.0.20348.5"), "the build of the most hosts is missing");
    }
}
