//! stub
#![allow(missing_docs, clippy::all, clippy::pedantic, dead_code, unused)]
use std::collections::BTreeMap;
pub struct Signed { pub signature: Option<Vec<u8>>, pub data: Vec<u8> }
pub struct Keys;
#[derive(Debug, thiserror::Error)] #[error("x")] pub struct VerifyError;
impl Keys { pub fn from_secret(d: &BTreeMap<String, Vec<u8>>) -> Result<Keys, VerifyError> { Err(VerifyError) } }
pub fn verify(s: &Signed, k: &Keys) -> Result<String, VerifyError> { Err(VerifyError) }
