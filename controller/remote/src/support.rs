//! Unpacking of support data: a tar in one zstd frame, made by a host that may be hostile.

use std::io::Read;

use tar::EntryType;

/// Maximum size of a fetched archive in bytes.
pub const MAX_ARCHIVE_BYTES: usize = 32 << 20;
/// Maximum size of all entries together in bytes. A small frame can hold any amount of zeros.
const MAX_UNPACKED_BYTES: u64 = 64 << 20;
/// Maximum size of one entry in bytes.
const MAX_ENTRY_BYTES: u64 = 16 << 20;
/// Maximum number of entries in an archive.
const MAX_ENTRIES: usize = 1000;
/// Maximum window size of the decoder, as a power of two. wicd compresses with level 3, which needs less.
const WINDOW: u32 = 23;

/// Content of an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Names and contents of the files. The parts of a name are separated by `/`.
    pub files: Vec<(String, Vec<u8>)>,
    /// Entries that were left out, with the reasons. Safe to show to users.
    pub refused: Vec<String>,
}

/// Unpacks all valid entries of an archive. Never fails: other entries are listed as refused.
pub fn unpack(archive: &[u8]) -> Unpacked {
    let mut unpacked = Unpacked::default();
    if let Err(error) = entries(archive, &mut unpacked) {
        unpacked.refused.push(api::text::line(&format!("the rest of the archive: {error}"), 200));
    }
    unpacked
}

fn entries(archive: &[u8], unpacked: &mut Unpacked) -> std::io::Result<()> {
    let mut decoder = zstd::Decoder::new(archive)?;
    decoder.window_log_max(WINDOW)?;
    let mut tar = tar::Archive::new(decoder.take(MAX_UNPACKED_BYTES));
    for (number, entry) in tar.entries()?.enumerate() {
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let why = match entry.header().entry_type() {
            _ if number >= MAX_ENTRIES => return Err(std::io::Error::other("it has too many entries")),
            EntryType::Regular if entry.size() > MAX_ENTRY_BYTES => "it is too large",
            EntryType::Regular if !is_name(&name) => "its name is not a valid path",
            EntryType::Regular if unpacked.files.iter().any(|(other, _)| *other == name) => {
                "another entry has the same name"
            }
            EntryType::Regular => {
                let mut content = Vec::new();
                entry.take(MAX_ENTRY_BYTES).read_to_end(&mut content)?;
                unpacked.files.push((name, content));
                continue;
            }
            _ => "it is not a file",
        };
        unpacked.refused.push(api::text::line(&format!("{name}: {why}"), 200));
    }
    Ok(())
}

/// Reports whether a name is a relative path without `..`, of letters, digits and a few other characters.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.chars().all(|c| c == '.')
            && part.chars().all(|c| c.is_alphanumeric() || " ._-@()+=".contains(c))
    };
    name.len() <= 400 && name.split('/').count() <= 8 && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_ustar();
            // `append_data` refuses names that a hostile host may use.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            if *kind == EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            tar.append(&header, *content).unwrap();
        }
        zstd::encode_all(&*tar.into_inner().unwrap(), 3).unwrap()
    }

    #[test]
    fn only_files_with_relative_paths_are_unpacked() {
        let file = EntryType::Regular;
        let archive = packed(&[
            ("logs/kubelet/kubelet.log", file, b"one"),
            ("../../etc/cron.d/x", file, b"two"),
            ("/etc/passwd", file, b"three"),
            ("a/..", file, b""),
            (r"C:\windows\x", file, b""),
            ("link", EntryType::Symlink, b""),
            ("hard", EntryType::Link, b""),
            ("folder", EntryType::Directory, b""),
            ("logs/kubelet/kubelet.log", file, b"again"),
            ("logs/\u{1b}[2J", file, b""),
            ("index.json", file, b"last"),
        ]);
        let unpacked = unpack(&archive);
        let names: Vec<&str> = unpacked.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["logs/kubelet/kubelet.log", "index.json"]);
        assert_eq!(unpacked.files[0].1, b"one");
        assert_eq!(unpacked.refused.len(), 9, "{:?}", unpacked.refused);
        assert!(unpacked.refused.iter().all(|line| !line.contains('\u{1b}')));
    }

    #[test]
    fn an_archive_above_the_limits_is_cut() {
        let zeros = vec![0; usize::try_from(MAX_ENTRY_BYTES).unwrap()];
        let large = [zeros.as_slice(), b"x"].concat();
        let unpacked = unpack(&packed(&[("a", EntryType::Regular, &large), ("b", EntryType::Regular, b"x")]));
        assert_eq!((unpacked.files.len(), unpacked.refused.len()), (1, 1), "{:?}", unpacked.refused);
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|n| (n.as_str(), EntryType::Regular, zeros.as_slice())).collect();
        let unpacked = unpack(&packed(&many));
        assert!(unpacked.files.len() < 9 && !unpacked.refused.is_empty());
        let names: Vec<String> = (0..=MAX_ENTRIES).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|n| (n.as_str(), EntryType::Regular, &b""[..])).collect();
        assert_eq!(unpack(&packed(&many)).files.len(), MAX_ENTRIES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), inner in any::<bool>()) {
            let archive = if inner { zstd::encode_all(&*bytes, 1).unwrap() } else { bytes };
            for (name, _) in unpack(&archive).files {
                prop_assert!(is_name(&name));
            }
        }
    }
}
