//! Whether a commit or tag was signed by somebody who is believed.

/// What is signed, and the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// `None` if it is not signed.
    pub signature: Option<Vec<u8>>,
    /// What the signature is about.
    pub data: Vec<u8>,
}
