//! stub
#![allow(missing_docs, clippy::all, clippy::pedantic, dead_code, unused)]
use std::{collections::BTreeMap, path::Path, sync::atomic::AtomicBool, time::Duration};
use zeroize::Zeroizing;
use crate::{File, Limits, hosts::Entry, verify::Signed};
pub struct Repository;
pub struct Request { pub url: String, pub reference: api::GitRef, pub access: Access, pub timeout: Duration, pub limits: Limits }
#[derive(Default)]
pub struct Access { pub proxy: Option<Proxy> }
pub struct Proxy;
#[derive(Debug, thiserror::Error)] #[error("x")] pub struct AccessError;
#[derive(Debug, thiserror::Error)] #[error("x")] pub struct GitError;
impl GitError { pub fn reason(&self) -> &'static str { "" } pub fn stalls(&self) -> bool { false } }
impl Access { pub fn from_secret(url: &str, data: &BTreeMap<String, Vec<u8>>) -> Result<Self, AccessError> { Err(AccessError) } }
impl Proxy { pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, AccessError> { Err(AccessError) } }
#[derive(Clone, Debug)]
pub struct Head { pub revision: String, pub commit: String, pub tag: Option<String>, pub received: u64 }
impl Repository {
    pub fn open(dir: &Path) -> Result<Self, GitError> { Err(GitError) }
    pub fn fetch(&self, request: &Request, stop: &AtomicBool) -> Result<Head, GitError> { Err(GitError) }
    pub fn commit(&self, id: &str) -> Result<api::Commit, GitError> { Err(GitError) }
    pub fn signed_commit(&self, id: &str) -> Result<Signed, GitError> { Err(GitError) }
    pub fn signed_tag(&self, id: &str) -> Result<Signed, GitError> { Err(GitError) }
    pub fn files(&self, commit: &str, path: &str, limits: &Limits) -> Result<Vec<File>, GitError> { Err(GitError) }
    pub fn follows(&self, new: &str, old: &str) -> Result<Option<bool>, GitError> { Err(GitError) }
    pub fn last_changes(&self, commit: &str, path: &str, limits: &Limits, read: &dyn Fn(&[File]) -> Option<Vec<Entry>>) -> Result<BTreeMap<(String, String), api::Commit>, GitError> { Err(GitError) }
}
