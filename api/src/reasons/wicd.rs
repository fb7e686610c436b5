//! Reasons in the log of a host's daemon.

use super::{Section, row};

const OTHER_CLIENT: &str = "Find the client that wrote the annotation `desired-version` of the Node.";

pub(super) const LOG: Section = Section {
    title: "The log of wicd",
    place: "They appear in wicd's [log on a host](../guide/troubleshooting.md#read-logs-on-a-host), beside those of \
            [its refusals](#a-host-refusals-and-failures-of-wicd).",
    reasons: &[
        row(
            "ApiCallFailed",
            "The API server does not answer, or refuses. wicd keeps the services as they are.",
            "Check the network from the host to the API server.",
        ),
        row(
            "CredentialsUnusable",
            "wicd's kubeconfig or certificate is missing, damaged or expired.",
            "No action is needed if the host \
             [was off](../guide/troubleshooting.md#a-host-was-off-for-longer-than-its-certificates-live); otherwise check the disk.",
        ),
        row(
            "RequestUnanswered",
            "The request for wicd's next certificate has no answer.",
            "Check that the operator runs, and `kubectl describe csr`.",
        ),
        row(
            "RequestRefused",
            "The request for wicd's next certificate was denied.",
            "Follow the output of `kubectl describe csr`.",
        ),
        row("ConfigMapMissing", "The Node names a version whose services ConfigMap does not exist.", OTHER_CLIENT),
        row("VersionInvalid", "The Node names a version that is no name of one.", OTHER_CLIENT),
        row("ServicesInvalid", "The services ConfigMap cannot be read.", "Find the client that writes the ConfigMap."),
        row(
            "ServicesUnverified",
            "The content of the services ConfigMap does not match its name, so wicd does not follow it.",
            "Find the client that writes the ConfigMap.",
        ),
        row(
            "OperationInProgress",
            "The operator works on the host.",
            "No action is needed: wicd continues afterwards.",
        ),
        row(
            "VariableNotYetKnown",
            "A command needs a value of the Node that is not there yet.",
            "No action is needed, unless it stays so: the message names the value.",
        ),
        row(
            "VariableInvalid",
            "A command needs a value of the Node that cannot be used.",
            "Correct the value that the message names.",
        ),
    ],
};
