//! Signed data and signatures of commits and tags, byte for byte as Git signs them.

use gix::{ObjectId, Repository, objs::Kind};

use super::{GitError, error::excerpt};
use crate::verify::Signed;

/// Lines that begin a signature at the end of a tag.
const BEGINS: &[&[u8]] = &[
    b"-----BEGIN PGP SIGNATURE-----",
    b"-----BEGIN PGP MESSAGE-----",
    b"-----BEGIN SSH SIGNATURE-----",
    b"-----BEGIN SIGNED MESSAGE-----",
];

pub(super) fn commit(repo: &Repository, id: ObjectId) -> Result<Signed, GitError> {
    let header: &[u8] = match id.kind() {
        gix::hash::Kind::Sha256 => b"gpgsig-sha256",
        _ => b"gpgsig",
    };
    Ok(split_commit(&data(repo, id, Kind::Commit, "commit")?, header))
}

pub(super) fn tag(repo: &Repository, id: ObjectId, name: Option<&str>) -> Result<Signed, GitError> {
    let signed = split_tag(&data(repo, id, Kind::Tag, "tag")?);
    if let Some(name) = name
        && tag_name(&signed.data) != Some(name.as_bytes())
    {
        let made_for = tag_name(&signed.data).map_or_else(String::new, |n| excerpt(&String::from_utf8_lossy(n)));
        return Err(GitError::TagRenamed { name: excerpt(name), made_for });
    }
    Ok(signed)
}

/// Returns the name that a tag was signed for. Each tag begins with the headers `object`, `type` and `tag`, in this order.
fn tag_name(data: &[u8]) -> Option<&[u8]> {
    let mut lines = data.split(|&b| b == b'\n');
    lines.next()?.strip_prefix(b"object ")?;
    lines.next()?.strip_prefix(b"type ")?;
    lines.next()?.strip_prefix(b"tag ")
}

fn data(repo: &Repository, id: ObjectId, kind: Kind, wanted: &'static str) -> Result<Vec<u8>, GitError> {
    let mut object = repo.find_object(id).map_err(|error| GitError::damaged(error.error()))?;
    if object.kind != kind {
        return Err(GitError::WrongObject { id: id.to_string(), wanted });
    }
    Ok(std::mem::take(&mut object.data))
}

/// Splits a commit into signature and signed data. The signature is a header, whose continuation lines begin with a space. The signed
/// data is the commit without this header, and without a signature for the other hash algorithm.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "an entry for the fuzzer"))]
pub fn split_commit(raw: &[u8], header: &[u8]) -> Signed {
    let (mut signature, mut data) = (None::<Vec<u8>>, Vec::with_capacity(raw.len()));
    let (mut rest, mut keep, mut collect) = (raw, true, false);
    while !rest.is_empty() {
        let end = rest.iter().position(|&b| b == b'\n').map_or(rest.len(), |at| at + 1);
        let (line, tail) = rest.split_at(end);
        if line == b"\n" {
            // The message follows. Lines in it that look like headers are only text.
            data.extend_from_slice(rest);
            break;
        }
        if let Some(more) = line.strip_prefix(b" ") {
            if collect {
                signature.get_or_insert_default().extend_from_slice(more);
            }
        } else {
            let name = line.split(|&b| b == b' ').next().unwrap_or_default();
            keep = !matches!(name, b"gpgsig" | b"gpgsig-sha256");
            collect = name == header;
            if collect {
                let value = line.get(name.len() + 1..).unwrap_or_default();
                signature.get_or_insert_default().extend_from_slice(value);
            }
        }
        if keep {
            data.extend_from_slice(line);
        }
        rest = tail;
    }
    Signed { signature, data }
}

/// Splits a tag into signature and signed data. The signature is the end of the message, from the last line that begins a signature.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "an entry for the fuzzer"))]
pub fn split_tag(raw: &[u8]) -> Signed {
    let (mut at, mut begin) = (0, None);
    for line in raw.split_inclusive(|&b| b == b'\n') {
        if BEGINS.iter().any(|text| line.starts_with(text)) {
            begin = Some(at);
        }
        at += line.len();
    }
    let (data, signature) = raw.split_at(begin.unwrap_or(raw.len()));
    Signed { signature: begin.map(|_| signature.to_vec()), data: data.to_vec() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COMMIT: &str =
        "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n";

    #[test]
    fn the_signature_of_a_commit_is_a_header() {
        let raw = format!(
            "{COMMIT}gpgsig -----BEGIN\n \n abc\n -----END\ngpgsig-sha256 other\n more\nencoding x\n\nhi\ngpgsig no\n more\n"
        );
        let signed = split_commit(raw.as_bytes(), b"gpgsig");
        assert_eq!(signed.signature.as_deref(), Some(&b"-----BEGIN\n\nabc\n-----END\n"[..]));
        assert_eq!(String::from_utf8(signed.data).unwrap(), format!("{COMMIT}encoding x\n\nhi\ngpgsig no\n more\n"));
        let signed = split_commit(raw.as_bytes(), b"gpgsig-sha256");
        assert_eq!(signed.signature.as_deref(), Some(&b"other\nmore\n"[..]));
        let plain = format!("{COMMIT}\nhi\n");
        let signed = split_commit(plain.as_bytes(), b"gpgsig");
        assert_eq!((signed.signature, signed.data), (None, plain.into_bytes()));
    }

    #[test]
    fn the_signature_of_a_tag_is_the_end_of_its_message() {
        let head = "object 1\ntype commit\ntag v1\ntagger A <a@b> 1 +0000\n\nhi\n";
        let end = "-----BEGIN SSH SIGNATURE-----\nabc\n-----END SSH SIGNATURE-----\n";
        let signed = split_tag(format!("{head}{end}").as_bytes());
        assert_eq!((signed.signature.unwrap(), signed.data), (end.into(), head.into()));
        // An earlier signature is part of the message.
        let signed = split_tag(format!("{head}{end}{end}").as_bytes());
        assert_eq!((signed.signature.unwrap(), signed.data), (end.into(), format!("{head}{end}").into_bytes()));
        let signed = split_tag(format!("{head}>{end}").as_bytes());
        assert_eq!(signed.signature, None);
    }

    #[test]
    fn the_name_of_a_tag_is_its_third_header() {
        let (object, kind, name, tagger) = ("object 1\n", "type commit\n", "tag v1.2.0\n", "tagger A <a@b> 1 +0000\n");
        for (about, data, expected) in [
            ("as git makes it", format!("{object}{kind}{name}{tagger}\nhi\n"), Some("v1.2.0")),
            ("a second one", format!("{object}{kind}{name}tag v9\n{tagger}\nhi\n"), Some("v1.2.0")),
            ("in the message", format!("{object}{kind}{tagger}\n{name}"), None),
            ("elsewhere", format!("{object}{name}{kind}{tagger}\nhi\n"), None),
            ("nothing", String::new(), None),
        ] {
            assert_eq!(tag_name(data.as_bytes()), expected.map(str::as_bytes), "{about}");
        }
    }

    proptest! {
        #[test]
        fn a_tag_loses_nothing_and_a_commit_gains_nothing(raw in prop::collection::vec("(gpgsig|tree| |-----BEGIN PGP SIGNATURE-----)?[a-z ]{0,5}\n?", 0..12)) {
            let raw = raw.concat().into_bytes();
            let signed = split_tag(&raw);
            let mut whole = signed.data;
            whole.extend(signed.signature.unwrap_or_default());
            prop_assert_eq!(&whole, &raw);
            prop_assert!(split_commit(&raw, b"gpgsig").data.len() <= raw.len());
        }
    }
}
