//! Provider IDs: whether a Node can get the `spec.providerID` of its Machine. Both Machine APIs find the Node of a Machine by this ID. Pure.

use std::collections::BTreeMap;

use super::read::Machine;

/// Maximum length of a provider ID, in bytes: far more than any provider needs, and the limit of the instance's field.
const MAX: usize = 512;

/// Reason why a provider ID cannot be given to a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The provider ID is malformed. Other controllers write it, and a Node keeps it forever.
    #[error("is not of the form <provider>://<id> in at most {MAX} visible ASCII characters")]
    Malformed,
    /// Several Machines have the provider ID, so that neither API could assign the Node to one of them.
    #[error("is also the provider ID of another Machine")]
    Shared,
}

/// Provider IDs of all Machines of one API.
#[derive(Debug)]
pub struct ProviderIds<'m>(BTreeMap<&'m str, usize>);

impl<'m> ProviderIds<'m> {
    /// Reads the provider IDs of `machines`.
    pub fn of(machines: &'m [Machine]) -> Self {
        let mut owners = BTreeMap::new();
        for id in machines.iter().filter_map(|m| m.provider_id.as_deref()) {
            *owners.entry(id).or_default() += 1;
        }
        Self(owners)
    }

    /// Returns the provider ID that the Node of a Machine can get, if the Machine has one.
    ///
    /// # Errors
    /// [`Unusable::Malformed`] if the provider ID is malformed, [`Unusable::Shared`] if another Machine has it, too.
    pub fn usable<'a>(&self, machine: &'a Machine) -> Result<Option<&'a str>, Unusable> {
        let Some(id) = machine.provider_id.as_deref() else { return Ok(None) };
        if !is_provider_id(id) {
            return Err(Unusable::Malformed);
        }
        if self.0.get(id).is_some_and(|owners| *owners > 1) { Err(Unusable::Shared) } else { Ok(Some(id)) }
    }
}

fn is_provider_id(id: &str) -> bool {
    let is_scheme = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let parts = id.split_once("://");
    id.len() <= MAX
        && id.bytes().all(|b| b.is_ascii_graphic())
        && parts.is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.trim_start_matches('/').is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(name: &str, id: Option<&str>) -> Machine {
        Machine { name: name.into(), provider_id: id.map(Into::into), ..Machine::default() }
    }

    #[test]
    fn a_provider_id_is_used_if_it_is_well_formed_and_the_only_one() {
        let long = |length: usize| format!("x://{}", "i".repeat(length - 4));
        let (longest, too_long) = (long(512), long(513));
        for (about, id, others, expected) in [
            ("none", None, &[][..], Ok(None)),
            ("AWS", Some("aws:///us-east-1a/i-0123"), &[], Ok(Some("aws:///us-east-1a/i-0123"))),
            (
                "Azure",
                Some("azure:///subscriptions/s/resourceGroups/r/m"),
                &[],
                Ok(Some("azure:///subscriptions/s/resourceGroups/r/m")),
            ),
            ("vSphere", Some("vsphere://4217-aa"), &[], Ok(Some("vsphere://4217-aa"))),
            (
                "bare metal",
                Some("metal3://ns/host/m"),
                &["metal3://ns/host/n", "metal3://ns/host"],
                Ok(Some("metal3://ns/host/m")),
            ),
            ("the longest", Some(&longest), &[], Ok(Some(&*longest))),
            ("too long", Some(&too_long), &[], Err(Unusable::Malformed)),
            ("empty", Some(""), &[], Err(Unusable::Malformed)),
            ("no scheme", Some("://i-1"), &[], Err(Unusable::Malformed)),
            ("no id", Some("aws://"), &[], Err(Unusable::Malformed)),
            ("slashes", Some("aws:///"), &[], Err(Unusable::Malformed)),
            ("a word", Some("i-0123"), &[], Err(Unusable::Malformed)),
            ("a space", Some("x://a b"), &[], Err(Unusable::Malformed)),
            ("a line", Some("x://a\nb"), &[], Err(Unusable::Malformed)),
            ("not ASCII", Some("x://ä"), &[], Err(Unusable::Malformed)),
            ("of two", Some("x://a"), &["x://a"], Err(Unusable::Shared)),
        ] {
            let others = others.iter().map(|id| machine("other", Some(id)));
            let all: Vec<Machine> = [machine("m", id)].into_iter().chain(others).collect();
            assert_eq!(ProviderIds::of(&all).usable(&all[0]), expected, "{about}");
        }
    }

    proptest! {
        #[test]
        fn a_used_provider_id_is_one_printable_word(id in ".{0,40}") {
            let all = [machine("m", Some(&id))];
            if let Ok(Some(id)) = ProviderIds::of(&all).usable(&all[0]) {
                prop_assert!(id.bytes().all(|b| b.is_ascii_graphic()) && id.contains("://"));
            }
        }
    }
}
