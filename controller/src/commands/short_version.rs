//! Short forms of versions, as users enter them.

use api::services_version::carried;

/// Minimum number of digest digits that name a version: the usual length of a short hash in Git.
const FEWEST: usize = 7;

/// Reports whether `name` denotes the version: by its whole name, or by the beginning of its digest, with or without the release before it.
pub(super) fn means(name: &str, version: &str) -> bool {
    let is_short = carried(version).is_some_and(|digest| {
        let release = version.strip_suffix(digest).unwrap_or_default();
        let digits = name.strip_prefix(release).unwrap_or(name);
        digits.len() >= FEWEST && digest.starts_with(digits)
    });
    is_short || name == version
}

#[cfg(test)]
mod tests {
    use api::services_version::short;

    use super::*;

    const VERSION: &str = "1.0.0-rc.1-5c9a1f0e7b64d2380f1ac95be2370d68";

    #[test]
    fn the_short_form_means_the_version() {
        for (name, expected) in [
            (VERSION, true),
            (&short(VERSION), true),
            ("5c9a1f0e7b64d2380f1ac95be2370d68", true),
            ("5c9a1f0", true),
            ("1.0.0-rc.1-5c9a1f0", true),
            ("5c9a1f", false),
            ("1.0.0-rc.1-", false),
            ("1.0.0-rc.1", false),
            ("", false),
            ("1.0.0-5c9a1f0e", false),
            ("5c9a1f1", false),
            ("5c9a1f0e7b64d2380f1ac95be2370d680", false),
        ] {
            assert_eq!(means(name, VERSION), expected, "{name}");
        }
        assert!(means("10.18.0-abc", "10.18.0-abc") && !means("abc", "10.18.0-abc"));
    }
}
