//! Label sets of metrics, with the meaning of each label.

use prometheus_client::encoding::EncodeLabelSet;

/// Defines a label set with the meanings of its labels in Markdown.
macro_rules! labels {
    ($(#[doc = $about:literal])+ $set:ident { $($label:ident: $type:ty = $meaning:literal,)+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
        pub struct $set {
            $(#[doc = $meaning] pub $label: $type,)+
        }

        impl Labels for $set {
            const LABELS: &'static [(&'static str, &'static str)] = &[$((stringify!($label), $meaning)),+];
        }
    };
}

labels! {
    /// Label set with a pool and the reason of a failure.
    PoolReason {
        pool: String = "Name of the pool.",
        reason: String = "[Reason](conditions.md#reasons) of the failure.",
    }
}

labels! {
    /// Label set with a pool, the kind of an operation and its result.
    PoolOperation {
        pool: String = "Name of the pool.",
        operation: &'static str = "Kind of the operation, for example `Update`.",
        result: &'static str = "`succeeded` or `failed`. An operation that fails is tried again, and each attempt counts.",
    }
}

labels! {
    /// Label set with the fault that keeps the operator from working.
    FaultLabel {
        reason: String = "[Reason](conditions.md#reasons) of the fault.",
    }
}

labels! {
    /// Label set with an admission policy.
    PolicyLabel {
        policy: String = "Name of the ValidatingAdmissionPolicy, for example `windows-node-pools-wicd-nodes`.",
    }
}

labels! {
    /// Label set with the build of the operator.
    Build {
        version: &'static str = "Version of the operator.",
        revision: &'static str = "Git commit that the operator was built from; `unknown` if the build did not name it.",
    }
}

labels! {
    /// Label set with a step of an operation.
    StepLabel {
        step: &'static str = "Step of the operation, as in `status.operation.step` of the instance, for example `Upload`.",
    }
}

labels! {
    /// Label set with the verdict on a certificate request.
    ReasonLabel {
        reason: String = "Verdict on the certificate request: `Approve`, `Wait`, or the [reason](conditions.md#reasons) of the denial.",
    }
}

labels! {
    /// Label set with the kind of an object.
    KindLabel {
        kind: &'static str = "Kind of the object, for example `WindowsInstance`.",
    }
}

labels! {
    /// Label set with a resource.
    ResourceLabel {
        resource: String = "Resource, with its subresource, for example `nodes` or `windowsinstances/status`.",
    }
}

/// Labels of a metric family, with their meanings.
pub trait Labels {
    /// Names and meanings of the labels.
    const LABELS: &'static [(&'static str, &'static str)];
}

/// Label set with the name of a pool.
pub(super) trait OfPool {
    fn pool(&self) -> &str;
}

impl OfPool for PoolReason {
    fn pool(&self) -> &str {
        &self.pool
    }
}

impl OfPool for PoolOperation {
    fn pool(&self) -> &str {
        &self.pool
    }
}
