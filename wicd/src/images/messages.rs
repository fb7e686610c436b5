//! Messages of CRI (`runtime.v1`) and of containerd's image service that wicd uses, without the fields that wicd does not use. `()` stands for
//! an answer that wicd does not read.

use std::collections::HashMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub username: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthConfig").field("username", &self.username).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub auth: Option<AuthConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ImageStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub image: Option<CriImage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CriImage {
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Record of containerd's image service: a name with labels.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Image {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(map = "string, string", tag = "2")]
    pub labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetImageRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetImageResponse {
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}
