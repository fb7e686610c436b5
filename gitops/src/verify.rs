//! Whether a commit or tag was signed by somebody who is believed.

/// A commit or tag, taken apart into what was signed and the signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signed {
    /// Text of the signature, as it stands in the object: an armored OpenPGP or SSH signature. `None` if it is not signed.
    pub signature: Option<Vec<u8>>,
    /// What was signed: the object without its signature.
    pub data: Vec<u8>,
}
