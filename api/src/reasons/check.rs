//! Reasons that the command `check` prints.

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
            "A node of WMCO lacks the annotation with its version.",
            "The node is drained and changed in its turn.",
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

pub(super) const CHECK: Section = Section {
    title: "The command check",
    place: "They appear in what the [command](../guide/troubleshooting.md#check-the-installation) prints. Reasons of other sections appear there, too.",
    reasons: &[
        row("CrdMissing", "A CRD of the operator is not there.", "Install the operator again."),
        row(
            "CrdConflict",
            "A CRD of this name has another kind or scope: it is of another product.",
            "Remove that product and its CRD, or use another cluster.",
        ),
        row(
            "CrdVersionUnknown",
            "Objects of the operator's CRD are stored in a version that this release does not know.",
            "Install the release that stored objects in that version, or a newer one.",
        ),
        row(
            "CrdOutdated",
            "The operator's CRD is of an earlier release: it does not serve a version of this one, or lacks a property of it, which the API server drops \
             from what is written. The message names it.",
            "Apply the CRDs of this release; `helm upgrade` does it unless `crds.enabled` is `false`.",
        ),
        row(
            "NoLeader",
            "No process of the operator holds the Lease, or the one that held it renews it no more. Nothing is done for hosts.",
            "See the operator's Pods and their logs.",
        ),
        row(
            "ClockDiffers",
            "The clock where the command runs and that of the API server differ. Certificates and the Lease depend on clocks.",
            "Correct the clock that is wrong.",
        ),
        row(
            "CertificateInvalid",
            "Hosts do not trust the certificate of the URL at which they reach the API server, or it is for other names.",
            "Name a URL of the certificate with `--api-server`, or correct the ConfigMap `kube-root-ca.crt`.",
        ),
        row(
            "ApiServerUnreachable",
            "The URL at which hosts reach the API server does not answer where the command runs. Hosts may reach it all the same.",
            "Run the command in the operator's Pod.",
        ),
        row("PoolsNotReady", "Pools are not Ready.", "`kubectl windows-node-pools status` shows their hosts."),
        row(
            "RightsMissing",
            "You lack rights that the operator gets. The API server lets no user grant more than they have.",
            "Install as cluster-admin.",
        ),
    ],
};
