//! The legacy `username` annotation: see `contract` in the docs of the annotation key.

/// The annotation could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LegacyError {
    /// OpenPGP refused.
    #[error("the user name could not be encrypted")]
    Encrypt,
}

/// Encrypts a user name.
pub fn encrypt_username(_username: &str, _pem: &[u8]) -> Result<String, LegacyError> {
    Err(LegacyError::Encrypt)
}
