//! Reasons that the command `check takeover` prints.

use super::{Section, row};

pub(super) const TAKEOVER: Section = Section {
    title: "The command check takeover",
    place: "They appear in what the [command](../guide/from-wmco.md#1-before-you-begin) prints. Reasons of other sections appear there, too.",
    reasons: &[
        row(
            "WmcoInstalled",
            "A Subscription, a ClusterServiceVersion or the Deployment of WMCO is there, and starts it again.",
            "[Delete it](../guide/from-wmco.md#2-stop-wmco) before you begin.",
        ),
        row(
            "WmcoBusy",
            "WMCO changes a node.",
            "Wait until it has ended. If WMCO has ended, the label `upgrading` is one that it left.",
        ),
        row(
            "WmcoNodesMissing",
            "No node of WMCO is there, so that there is nothing to take over.",
            "[Install](../guide/quick-start.md) the operator.",
        ),
        row(
            "NodeMetadataMissing",
            "A node of WMCO lacks the annotation with its version or with its host key.",
            "Without `version` the node is drained and changed in its turn; without `ssh-host-key` it waits until you trust its key.",
        ),
        row(
            "UsernameUnreadable",
            "The user in the annotation of a node was not encrypted with the private key that is there.",
            "Check that `cloud-private-key` has the key that the hosts accept.",
        ),
        row(
            "ServicesUnreadable",
            "The ConfigMap with the services of a node is missing or cannot be read, so that the node is withheld.",
            "Restore it, or accept the loss.",
        ),
        row(
            "PayloadMissing",
            "There is no payload, so that what nodes would lose is not known.",
            "Run the command in the operator's image.",
        ),
        row(
            "ExporterCertificateMissing",
            "There is no certificate for windows_exporter: hosts serve their metrics as plain HTTP.",
            "Apply `deploy/components/windows-exporter` on OpenShift.",
        ),
        row(
            "NotReadable",
            "Something could not be read, so that it is not checked.",
            "Run the command with rights of cluster-admin.",
        ),
    ],
};
