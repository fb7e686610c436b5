//! stub
#![allow(missing_docs, clippy::all, clippy::pedantic, dead_code, unused)]
use crate::{File, Limits};
use std::io::Read;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct ArtifactError;
impl ArtifactError {
    pub fn reason(&self) -> &'static str {
        ""
    }
}
pub struct Digest;
impl std::str::FromStr for Digest {
    type Err = ArtifactError;
    fn from_str(s: &str) -> Result<Self, ArtifactError> {
        Err(ArtifactError)
    }
}
impl Digest {
    pub fn check(&self, b: &[u8]) -> Result<(), ArtifactError> {
        Ok(())
    }
}
pub fn unpack(bytes: impl Read, path: &str, limits: &Limits) -> Result<Vec<File>, ArtifactError> {
    Err(ArtifactError)
}
