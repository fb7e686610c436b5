//! Guards against changes of pools that are mistakes more often than not. They are optional: the operator itself carries out nothing that
//! they would refuse without care, and the early answer is for the person or the pipeline that applies the change.

use api::names::{GROUP, VERSION};
use k8s_openapi::{
    api::admissionregistration::v1::{ParamKind, ParamRef},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{
    super::object::{Object, Site},
    policy::{Policy, dedent, named},
};

const FILE: &str = "components/guards/guards.yaml";

/// A policy whose messages are expressions.
struct Guard {
    policy: Policy,
    /// One for each validation.
    messages: &'static [&'static str],
    /// Whether it is asked once for each pool, as `params`.
    of_each_pool: bool,
}

/// The guards with their bindings.
pub(super) fn objects(site: &Site) -> Vec<Object> {
    [SHARED_HOSTS, REMOVALS].iter().flat_map(|guard| guard.objects(site)).collect()
}

impl Guard {
    fn objects(&self, site: &Site) -> [Object; 2] {
        let (mut policy, mut binding) = self.policy.typed(site);
        let spec = policy.spec.get_or_insert_default();
        for (validation, message) in spec.validations.iter_mut().flatten().zip(self.messages) {
            validation.message_expression = Some(dedent(message));
        }
        if self.of_each_pool {
            spec.param_kind = Some(ParamKind {
                api_version: Some(format!("{GROUP}/{VERSION}")),
                kind: Some("WindowsNodePool".into()),
            });
            binding.spec.param_ref = Some(ParamRef {
                selector: Some(LabelSelector::default()),
                parameter_not_found_action: Some("Allow".into()),
                ..ParamRef::default()
            });
        }
        self.policy.written((policy, binding))
    }
}

/// A host in two pools. The fourths of the list of addresses are compared one by one because a pool may have an address twice, so that no map
/// can be made of them, and one expression may cost no more than a fourth of 1000 × 1000 comparisons needs.
const SHARED_HOSTS: Guard = Guard {
    policy: Policy {
        file: FILE,
        name: "windows-node-pools-guard-hosts",
        about: "The same host in two pools, by its name or by its address and port. Asked once for each other pool. Two changes in the same \
                second can pass it; the operator then refuses the second entry.\n\nWhat a pool has already is not asked about again, so that \
                it can be paused or corrected. Pools in mode Plan and pools that are being deleted may list hosts of others.",
        resources: &[(&[GROUP], &["windowsnodepools"], &["CREATE", "UPDATE"])],
        conditions: &[
            named("not-the-operator", r#"request.userInfo.username != "$OPERATOR""#),
            named(
                "has-hosts-of-its-own",
                r#"
                has(object.spec.inventory.hosts) && object.spec.?mode.orValue("Apply") == "Apply" &&
                !has(object.metadata.deletionTimestamp)
            "#,
            ),
        ],
        variables: &[
            named("mine", "object.spec.inventory.hosts"),
            named("myPort", "object.spec.?ssh.?port.orValue(22)"),
            named(
                "before",
                r#"
                request.operation == "CREATE" || oldObject.spec.?mode.orValue("Apply") != "Apply" ? {} :
                oldObject.spec.inventory.?hosts.orValue([]).transformMapEntry(i, h, {h.name: h.address.lowerAscii() +
                  " port " + string(h.?port.orValue(oldObject.spec.?ssh.?port.orValue(22)))})
            "#,
            )
            .why("Address and port by name."),
            named(
                "theirs",
                r#"
                params.metadata.name == object.metadata.?name.orValue("") || has(params.metadata.deletionTimestamp) ||
                params.spec.?mode.orValue("Apply") != "Apply" ? [] : params.spec.inventory.?hosts.orValue([])
            "#,
            ),
            named("theirNames", "variables.theirs.transformMapEntry(i, h, {h.name: true})")
                .why("As a map: in a list of 1000, a search for each of 1000 names costs more than an expression may."),
            named(
                "sharedNames",
                "variables.mine.filter(h, !(h.name in variables.before) && h.name in variables.theirNames)",
            ),
            named(
                "newPlaces",
                r#"
                variables.mine.map(h, [string(h.name), h.address.lowerAscii() + " port " +
                  string(h.?port.orValue(variables.myPort))]).filter(h, variables.before[?h[0]].orValue("") != h[1])
            "#,
            ),
            named(
                "theirPlaces",
                r#"
                variables.theirs.map(h, h.address.lowerAscii() + " port " +
                  string(h.?port.orValue(params.spec.?ssh.?port.orValue(22))))
            "#,
            ),
            named(
                "sharedPlaces1",
                "variables.newPlaces.transformList(i, h, i % 4 == 0 && h[1] in variables.theirPlaces, h)",
            )
            .why("Addresses can be there twice, so that no map can be made of them. A fourth of a full list costs what an expression may."),
            named(
                "sharedPlaces2",
                "variables.newPlaces.transformList(i, h, i % 4 == 1 && h[1] in variables.theirPlaces, h)",
            ),
            named(
                "sharedPlaces3",
                "variables.newPlaces.transformList(i, h, i % 4 == 2 && h[1] in variables.theirPlaces, h)",
            ),
            named(
                "sharedPlaces4",
                "variables.newPlaces.transformList(i, h, i % 4 == 3 && h[1] in variables.theirPlaces, h)",
            ),
            named(
                "sharedPlaces",
                "variables.sharedPlaces1 + variables.sharedPlaces2 + variables.sharedPlaces3 + variables.sharedPlaces4",
            ),
        ],
        validations: &[
            ("variables.sharedNames.size() == 0", "a host belongs to another pool already"),
            ("variables.sharedPlaces.size() == 0", "the address of a host belongs to another pool already"),
        ],
    },
    messages: &[
        r#"
                "host " + variables.sharedNames[0].name + (variables.sharedNames.size() > 1 ?
                " and " + string(variables.sharedNames.size() - 1) + " more of this change already belong" :
                " already belongs") + " to pool " + params.metadata.name + "; remove it there first"
            "#,
        r#"
                "host " + variables.sharedPlaces[0][0] + ": address " + variables.sharedPlaces[0][1] +
                " already belongs to a host of pool " + params.metadata.name + "; remove it there first"
            "#,
    ],
    of_each_pool: true,
};

/// Many hosts at once.
const REMOVALS: Guard = Guard {
    policy: Policy {
        file: FILE,
        name: "windows-node-pools-guard-removals",
        about: "The removal of more than one host and more than a tenth of them by one change of a pool's own list, and the deletion of a \
                pool with nodes that would be drained. Asked for the annotation that the pool has before the change: a file that is applied \
                cannot bring both. Lists outside of the pool are the operator's to guard, and so is a change to another source.",
        resources: &[(&[GROUP], &["windowsnodepools"], &["UPDATE", "DELETE"])],
        conditions: &[
            named("not-the-operator", r#"request.userInfo.username != "$OPERATOR""#),
            named("not-deleted-before", "!has(oldObject.metadata.deletionTimestamp)"),
            named(
                "takes-hosts-out",
                r#"
                request.operation == "DELETE" ? oldObject.spec.?deletionPolicy.orValue("Deconfigure") != "Orphan" &&
                  request.?options.?propagationPolicy.orValue("") != "Orphan" :
                has(oldObject.spec.inventory.hosts) && has(object.spec.inventory.hosts)
            "#,
            ),
        ],
        variables: &[
            named("deleted", r#"request.operation == "DELETE""#),
            named(
                "kept",
                "variables.deleted ? {} : object.spec.inventory.hosts.transformMapEntry(i, h, {h.name: true})",
            ),
            named(
                "of",
                r"
                variables.deleted ? oldObject.?status.?availableNodes.orValue(0) + oldObject.?status.?unavailableNodes.orValue(0) :
                oldObject.spec.inventory.hosts.size()
            ",
            ),
            named(
                "gone",
                r"
                variables.deleted ? variables.of :
                oldObject.spec.inventory.hosts.filter(h, !(h.name in variables.kept)).size()
            ",
            ),
            named(
                "announced",
                r#"oldObject.metadata.?annotations[?"windowsmachineconfig.openshift.io/announce-removal"].orValue("")"#,
            ),
        ],
        validations: &[(
            r"
                variables.gone == 0 || variables.announced == string(variables.gone) ||
                (!variables.deleted && (variables.gone == 1 || variables.gone * 10 <= variables.of))
            ",
            "more hosts would be drained and deconfigured than one change may remove",
        )],
    },
    messages: &[r#"
                (variables.deleted ? "the " + string(variables.of) + " nodes of the pool" :
                string(variables.gone) + " of " + string(variables.of) + " hosts") +
                " would be drained and deconfigured. If this is meant, announce it and try again: kubectl annotate wnp " +
                oldObject.metadata.name + " windowsmachineconfig.openshift.io/announce-removal=" + string(variables.gone) +
                " --overwrite"
            "#],
    of_each_pool: false,
};
