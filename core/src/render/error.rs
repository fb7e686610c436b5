//! Why nothing can be rendered.

/// Nothing can be rendered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RenderError {
    /// A program without which there is no node.
    #[error(
        "the payload has no {0}, and a host of this cluster cannot become a node without it; add it as docs/guide/payload.md says"
    )]
    NoProgram(&'static str),
    /// The API server does not support this kubelet.
    #[error(
        "the payload has kubelet {kubelet}, and the API server is version 1.{server}: {problem}. Use a payload for this version of Kubernetes"
    )]
    Skew {
        /// Version of kubelet.
        kubelet: String,
        /// Minor version of the API server.
        server: u32,
        /// What is wrong.
        problem: &'static str,
    },
    /// A fact is unusable.
    #[error("the cluster's {what} is {value:?}: {problem}")]
    Fact {
        /// Which one.
        what: &'static str,
        /// Its value. Never a secret.
        value: String,
        /// What is wrong with it, and what to do.
        problem: &'static str,
    },
    /// A setting of a pool is unusable.
    #[error("the pool's {field} is {value:?}: {problem}")]
    Setting {
        /// Its path in the pool, as `template.spec.logs.maxSize`.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it, and what to do.
        problem: &'static str,
    },
    /// The template puts something on Nodes that they must not have.
    #[error("the pool's {field}: {problem}")]
    Metadata {
        /// Its path in the pool, as `template.metadata.labels`.
        field: &'static str,
        /// What is wrong with what, and what to do.
        problem: String,
    },
}

impl RenderError {
    /// Reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoProgram(_) => "PayloadInvalid",
            Self::Skew { .. } => "KubeletVersionSkew",
            Self::Fact { .. } => "ClusterFactsInvalid",
            Self::Setting { .. } | Self::Metadata { .. } => "TemplateInvalid",
        }
    }
}
