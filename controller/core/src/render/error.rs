//! Reasons why nothing can be rendered.

use api::Reason;

/// Reason why nothing can be rendered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RenderError {
    /// The payload lacks programs without which there is no node. Holds their destinations.
    #[error(
        "the payload lacks {}, which every node of this cluster needs: put what cannot be built into a folder, and make the image again with \
         `make image PROGRAMS=FOLDER` (docs/guide/upgrade.md#the-payload)",
        .0.iter().map(|program| program.rsplit('\\').next().unwrap_or(program)).collect::<Vec<_>>().join(", ")
    )]
    NoPrograms(Vec<&'static str>),
    /// The API server does not support this kubelet.
    #[error(
        "the payload has kubelet {kubelet}, and the API server is version 1.{server}: {problem}. Make an image with a payload for this version: `make image KUBERNETES=1.{server}` (docs/guide/upgrade.md#the-payload)"
    )]
    Skew {
        /// Version of kubelet.
        kubelet: String,
        /// Minor version of the API server.
        server: u32,
        /// Fault of the version of kubelet.
        problem: &'static str,
    },
    /// A fact is unusable.
    #[error("the cluster's {what} is {value:?}: {problem}")]
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
        /// Path of the setting in the pool, as `template.spec.logs.maxSize`.
        field: &'static str,
        /// Value of the setting.
        value: String,
        /// Fault of the setting, and the remedy.
        problem: &'static str,
    },
    /// A field of the template is unusable, or puts something on Nodes that they must not have.
    #[error("the pool's {field}: {problem}")]
    Metadata {
        /// Path of the field in the pool, as `template.metadata.labels`.
        field: &'static str,
        /// Faulty part of the field, its fault, and the remedy.
        problem: String,
    },
}

impl RenderError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoPrograms(_) => Reason::PayloadInvalid,
            Self::Skew { .. } => Reason::KubeletVersionSkew,
            Self::Fact { .. } => Reason::ClusterFactsInvalid,
            Self::Setting { .. } | Self::Metadata { .. } => Reason::SpecInvalid,
        }
    }
}
