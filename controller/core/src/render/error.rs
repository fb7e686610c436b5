//! Errors of rendering.

use api::Reason;

/// Reason why a configuration cannot be rendered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RenderError {
    /// The payload lacks programs that every node of the cluster needs. Holds their destinations.
    #[error(
        "the payload lacks {}, which every node needs; put the programs into a folder, and build the image again with `make image PROGRAMS=FOLDER` \
         (docs/guide/upgrade.md#the-payload)",
        .0.iter().map(|program| program.rsplit('\\').next().unwrap_or(program)).collect::<Vec<_>>().join(", ")
    )]
    NoPrograms(Vec<&'static str>),
    /// The API server does not support the payload's version of kubelet.
    #[error(
        "the payload has kubelet {kubelet}, and the API server is version 1.{server}: {problem}. Make an image with a payload for this version: `make image KUBERNETES=1.{server}` (docs/guide/upgrade.md#the-payload)"
    )]
    Skew {
        /// Version of kubelet.
        kubelet: String,
        /// Minor version of the API server that nodes follow.
        server: u32,
        /// Fault of kubelet's version.
        problem: &'static str,
    },
    /// A fact about the cluster or a host is unusable.
    #[error("the {what} cannot be used ({}): {problem}", api::text::line(value, 200))]
    Fact {
        /// Name of the fact.
        what: &'static str,
        /// Value of the fact. Never a secret.
        value: String,
        /// Fault of the fact, and the remedy.
        problem: &'static str,
    },
    /// A setting of a pool is unusable.
    #[error("the pool's {field} is {value:?}: {problem}")]
    Setting {
        /// Path of the setting in the pool, for example `template.spec.logs.maxSize`.
        field: &'static str,
        /// Value of the setting.
        value: String,
        /// Fault of the setting, and the remedy.
        problem: &'static str,
    },
    /// A field of the template is unusable, or sets metadata that Nodes must not have.
    #[error("the pool's {field}: {problem}")]
    Metadata {
        /// Path of the field in the pool, for example `template.metadata.labels`.
        field: &'static str,
        /// Faulty part of the field, its fault, and the remedy.
        problem: String,
    },
}

impl RenderError {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoPrograms(_) => Reason::PayloadInvalid,
            Self::Skew { .. } => Reason::KubeletVersionSkew,
            Self::Fact { .. } => Reason::ClusterFactsInvalid,
            Self::Setting { .. } | Self::Metadata { .. } => Reason::SpecInvalid,
        }
    }
}
