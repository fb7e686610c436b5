//! Images that the hosts of a pool pull ahead of use, and the hosts that have them.

use std::{collections::BTreeSet, time::Duration};

use api::{Failures, PrePulled, WindowsInstance};
use jiff::Timestamp;

use super::member::Member;
use crate::{backoff::believed, enumeration::first_names, rollout::candidate::Candidate};

/// Maximum number of hosts of a pool that pull images at the same time.
pub const MAX_PULLING: u32 = 2;

/// Reports whether a host has images of the list to pull, or pulled images to release.
pub fn wants(listed: &[String], instance: &WindowsInstance) -> bool {
    match instance.status.as_ref().and_then(|s| s.pre_pulled.as_ref()) {
        None => !listed.is_empty(),
        // Requested images may be pinned even if no response of the host reports them.
        Some(pulled) => listed.is_empty() || !is_same(&pulled.images, listed) || !is_same(&pulled.requested, listed),
    }
}

/// Returns the listed images that the host reports as missing. Its answer is untrusted: only names of the list count.
pub fn missing(listed: &[String], answer: &[String]) -> Vec<String> {
    listed.iter().filter(|image| answer.contains(image)).cloned().collect()
}

/// Returns the image to pull next. If several images are missing, each failure selects another one, so that an image that cannot be pulled does not
/// block the others.
pub fn next<'a>(missing: &'a [String], failures: Option<&Failures>) -> Option<&'a String> {
    let failed = failures.map_or(0, |f| usize::try_from(f.count).unwrap_or_default());
    missing.get(failed.checked_rem(missing.len())?)
}

/// Returns the failures for this list. Failures for another list no longer count.
pub fn failures<'a>(pulled: &'a PrePulled, listed: &[String]) -> Option<&'a Failures> {
    pulled.failures.as_ref().filter(|_| is_same(&pulled.requested, listed))
}

fn is_same(some: &[String], others: &[String]) -> bool {
    some.iter().collect::<BTreeSet<_>>() == others.iter().collect::<BTreeSet<_>>()
}

/// Records the state of a host's images in its candidate.
pub fn observe(member: &mut Member, listed: &[String], backoff_max: Duration, now: Timestamp) {
    let Member { instance, candidate } = member;
    // An adopted node is not changed before its first update, which makes it the operator's.
    let is_ours = instance.status.as_ref().is_some_and(|s| s.wicd.is_some());
    candidate.wants_images = candidate.joined && is_ours && wants(listed, instance);
    let pulled = instance.status.as_ref().and_then(|s| s.pre_pulled.as_ref());
    candidate.images_wait_until = pulled.and_then(|p| failures(p, listed)).and_then(|f| match f.next_retry_time {
        Some(at) => at.known().map(|at| believed(at, now, backoff_max)),
        None => Some(now),
    });
}

/// Returns the state of a pool's images; `None` if the pool lists none.
pub fn standing(listed: &[String], members: &[Member]) -> Option<ImagePullStatus> {
    if listed.is_empty() {
        return None;
    }
    let mut standing = ImagePullStatus { images: listed.len(), ..ImagePullStatus::default() };
    let counts = |c: &Candidate| c.joined && !c.leaving;
    for Member { instance, candidate } in members.iter().filter(|m| counts(&m.candidate)) {
        standing.total += 1;
        let pulled = instance.status.as_ref().and_then(|s| s.pre_pulled.as_ref());
        if !wants(listed, instance) {
            standing.complete += 1;
        } else if let Some(failures) = pulled.and_then(|p| failures(p, listed)) {
            // A failure is reported until an attempt succeeds: the condition must not change with each retry.
            standing.failed.push((candidate.name.clone(), failures.summary()));
        } else if candidate.pulling {
            standing.pulling.push(candidate.name.clone());
        }
    }
    standing.pulling.sort();
    standing.failed.sort();
    Some(standing)
}

/// State of the images that the hosts of a pool pull ahead of use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePullStatus {
    /// Number of listed images.
    pub images: usize,
    /// Number of nodes that need the images.
    pub total: usize,
    /// Number of nodes that have all images.
    pub complete: usize,
    /// Names of the nodes that are pulling images, apart from those in `failed`.
    pub pulling: Vec<String>,
    /// Names of the nodes whose last attempt failed, with the failures.
    pub failed: Vec<(String, String)>,
}

impl ImagePullStatus {
    /// Returns the state as a sentence for users.
    pub fn message(&self) -> String {
        let Self { images, total, complete, pulling, failed } = self;
        let noun = if *images == 1 { "the image" } else { &format!("all {images} images") };
        let mut parts = vec![format!("{complete} of {total} hosts have {noun}")];
        if !pulling.is_empty() {
            parts.push(format!("{} pulling: {}", pulling.len(), first_names(pulling)));
        }
        if let Some((name, why)) = failed.first() {
            let first = if failed.len() == 1 { "" } else { "first " };
            parts.push(format!("{} failed: {first}{name}: {why}", failed.len()));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::{Step, WindowsInstanceSpec, WindowsInstanceStatus};
    use proptest::prelude::*;

    use super::*;

    fn list(images: &[&str]) -> Vec<String> {
        images.iter().map(ToString::to_string).collect()
    }

    fn pulled(requested: &[&str], images: &[&str], failed: i32) -> PrePulled {
        let failures = Failures {
            count: failed,
            step: Step::PullImages,
            last_message: "no such image".into(),
            ..Failures::default()
        };
        PrePulled {
            requested: list(requested),
            images: list(images),
            checked_time: None,
            failures: (failed > 0).then_some(failures),
        }
    }

    fn member(name: &str, pulled: Option<PrePulled>) -> Member {
        let mut instance = WindowsInstance::new(name, WindowsInstanceSpec::default());
        instance.status = Some(WindowsInstanceStatus {
            pre_pulled: pulled,
            wicd: Some("sha256".into()),
            ..WindowsInstanceStatus::default()
        });
        let candidate = Candidate { name: name.into(), joined: true, ..Candidate::default() };
        Member { instance: Arc::new(instance), candidate }
    }

    #[test]
    fn a_host_wants_images_if_its_list_differs_from_what_it_has() {
        for (about, listed, there, expected) in [
            ("none listed", &[][..], None, false),
            ("no pull was attempted", &["a"], None, true),
            ("the host has all images", &["a", "b"], Some(pulled(&["a", "b"], &["a", "b"], 0)), false),
            ("the list has another order", &["a", "b"], Some(pulled(&["b", "a"], &["b", "a"], 0)), false),
            ("an image is missing", &["a", "b"], Some(pulled(&["a", "b"], &["a"], 0)), true),
            ("an image must be released", &["a"], Some(pulled(&["a", "b"], &["a", "b"], 0)), true),
            (
                "a requested image may be pinned although it was not reported",
                &["a"],
                Some(pulled(&["a", "b"], &["a"], 0)),
                true,
            ),
            ("all images must be released", &[], Some(pulled(&["a"], &["a"], 0)), true),
            ("no image was reported, but a requested one may be pinned", &[], Some(pulled(&["a"], &[], 0)), true),
        ] {
            assert_eq!(wants(&list(listed), &member("h", there).instance), expected, "{about}");
        }
    }

    #[test]
    fn a_failure_counts_only_for_its_list_of_images() {
        let now = Timestamp::UNIX_EPOCH;
        for (listed, waits) in [(&["a"][..], true), (&["b"], false), (&[], false)] {
            let mut member = member("h", Some(pulled(&["a"], &[], 1)));
            observe(&mut member, &list(listed), Duration::from_mins(10), now);
            assert_eq!(member.candidate.images_wait_until.is_some(), waits, "{listed:?}");
            assert!(member.candidate.wants_images);
        }
        let mut new = member("h", None);
        new.candidate.joined = false;
        observe(&mut new, &list(&["a"]), Duration::from_mins(10), now);
        assert!(!new.candidate.wants_images, "a join does not wait for images");
        let mut adopted = member("h", None);
        Arc::make_mut(&mut adopted.instance).status.as_mut().unwrap().wicd = None;
        observe(&mut adopted, &list(&["a"]), Duration::from_mins(10), now);
        assert!(!adopted.candidate.wants_images, "the host of an adopted node is not changed before its first update");
    }

    #[test]
    fn another_image_follows_a_failure() {
        let missing = list(&["a", "b"]);
        for (failed, expected) in [(0, "a"), (1, "b"), (2, "a"), (-1, "a"), (i32::MAX, "b")] {
            let failures = Failures { count: failed, ..Failures::default() };
            assert_eq!(next(&missing, Some(&failures)).unwrap(), expected, "{failed}");
        }
        assert_eq!((next(&missing, None), next(&[], None)), (Some(&missing[0]), None));
    }

    #[test]
    fn the_message_counts_complete_pulling_and_failed_hosts() {
        let listed = list(&["a", "b", "c"]);
        let all = ["a", "b", "c"];
        let mut members = vec![
            member("h4", Some(pulled(&all, &["a"], 1))),
            member("h1", Some(pulled(&all, &all, 0))),
            member("h2", None),
            member("h3", Some(pulled(&all, &["a"], 0))),
            member("h5", None),
        ];
        members[3].candidate.pulling = true;
        members[4].candidate.joined = false;
        assert_eq!(standing(&[], &members), None);
        assert_eq!(
            standing(&listed, &members).unwrap().message(),
            "1 of 4 hosts have all 3 images; 1 pulling: h3; 1 failed: h4: PullImages: no such image"
        );
        assert_eq!(standing(&list(&["a"]), &[]).unwrap().message(), "0 of 0 hosts have the image");
    }

    proptest! {
        #[test]
        fn no_answer_adds_an_image(answer in proptest::collection::vec("\\PC{0,8}", 0..4)) {
            let listed = list(&["a", "b"]);
            let missing = missing(&listed, &answer);
            prop_assert!(missing.iter().all(|m| listed.contains(m)) && missing.len() <= listed.len());
        }
    }
}
