//! Edits of an `authorized_keys` file: adding one key beside another, and replacing one key by another.
//!
//! A parser of whole entries is not used: it rejects lines that sshd accepts, and may change lines when it writes them back. This module only reads
//! lines, and keeps the remaining ones byte for byte.

use api::names::COMPONENT;

/// Public key in the form of a line of an `authorized_keys` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    type_: String,
    base64: String,
}

impl PublicKey {
    /// Creates a public key from its type and its Base64 text.
    pub fn new(type_: &str, base64: &str) -> Self {
        Self { type_: type_.into(), base64: base64.trim_end_matches('=').into() }
    }

    /// Parses a public key from `type base64`, and ignores the rest of the text.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (type_, base64) = (words.next()?, words.next()?);
        let is_base64 = |c: u8| c.is_ascii_alphanumeric() || b"+/=".contains(&c);
        let is_key = type_.contains('-') && base64.starts_with("AAAA") && base64.bytes().all(is_base64);
        is_key.then(|| Self::new(type_, base64))
    }

    /// Returns the key in the form of a line of the file.
    fn line(&self) -> String {
        let padding = "=".repeat((4 - self.base64.len() % 4) % 4);
        format!("{} {}{padding}", self.type_, self.base64)
    }
}

/// Treatment of the old key when the new one is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// The old key stays.
    Stays,
    /// The lines of the old key are removed.
    Goes,
}

/// Adds the new key, if it is missing, to a file that has the old key, with the same options (such as `from="…"`); with [`Old::Goes`], also removes
/// the old key. Returns `None` if nothing changes. A file without the old key is left unchanged.
pub fn edit(file: &str, new: &PublicKey, old: &PublicKey, what: Old) -> Option<String> {
    let lines: Vec<&str> = file.split_inclusive('\n').collect();
    let options = lines.iter().find_map(|line| options_of(line, old)).filter(|_| new != old)?;
    let is_there = holds(file, new);
    if is_there && what == Old::Stays {
        return None;
    }
    let ending = if lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
    let mut edited = String::with_capacity(file.len() + 1024);
    let goes = |line: &str| what == Old::Goes && options_of(line, old).is_some();
    edited.extend(lines.iter().filter(|line| !goes(line)).copied());
    if !is_there {
        // The new line is the last one, so that the remaining lines stay unchanged.
        if !edited.is_empty() && !edited.ends_with('\n') {
            edited.push_str(ending);
        }
        let gap = if options.is_empty() { "" } else { " " };
        edited.extend([options, gap, &new.line(), " ", COMPONENT, ending]);
    }
    Some(edited)
}

/// Reports whether a line of the file accepts a key.
pub fn holds(file: &str, key: &PublicKey) -> bool {
    file.split_inclusive('\n').any(|line| options_of(line, key).is_some())
}

/// Returns the options of a line that accepts this key; `None` for every other line.
fn options_of<'a>(line: &'a str, key: &PublicKey) -> Option<&'a str> {
    let line = line.trim_matches([' ', '\t', '\r', '\n']);
    if line.starts_with('#') {
        return None;
    }
    if PublicKey::parse(line).is_some_and(|k| k == *key) {
        return Some("");
    }
    let (options, rest) = line.split_at(end_of_options(line));
    // A `cert-authority` line accepts keys that this key has signed, and not the key itself.
    let signs = options.split(',').any(|option| option.eq_ignore_ascii_case("cert-authority"));
    (!signs && PublicKey::parse(rest).is_some_and(|k| k == *key)).then_some(options)
}

/// Returns the index at which the options of a line end: the first space or tab that is not between quotes, or the end of the line.
fn end_of_options(line: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    let ends = |c: char| {
        let ends = !quoted && (c == ' ' || c == '\t');
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        ends
    };
    line.find(ends).unwrap_or(line.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINEW";
    const OLD: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAOLD==";
    const OTHER: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItOTHER";

    fn key(line: &str) -> PublicKey {
        PublicKey::parse(line).unwrap()
    }

    fn edited(file: &str, what: Old) -> Option<String> {
        edit(file, &key(NEW), &key(OLD), what)
    }

    /// Fills in `{N}`, `{O}` and `{X}` for the new, the old and a foreign key, and `{A}` for the line that is added.
    fn filled(text: &str) -> String {
        let added = format!("{NEW} {COMPONENT}");
        text.replace("{A}", &added).replace("{N}", NEW).replace("{O}", OLD).replace("{X}", OTHER)
    }

    #[test]
    fn a_key_is_added_or_replaced_and_other_lines_stay() {
        // Columns: name, original file, file with both keys, file with only the new key.
        for (about, file, both, last) in [
            ("the one line", "{O}\n", Some("{O}\n{A}\n"), Some("{A}\n")),
            ("no newline at the end", "{O}", Some("{O}\n{A}\n"), Some("{A}\n")),
            ("a comment of several words", "{O} of a user\n", Some("{O} of a user\n{A}\n"), Some("{A}\n")),
            (
                "others stay as they are",
                "# ours\r\n\r\n{O} x\r\n  {X} y  z\r\n",
                Some("# ours\r\n\r\n{O} x\r\n  {X} y  z\r\n{A}\r\n"),
                Some("# ours\r\n\r\n  {X} y  z\r\n{A}\r\n"),
            ),
            ("mixed endings stay mixed", "{X}\n{O}\r\n", Some("{X}\n{O}\r\n{A}\n"), Some("{X}\n{A}\n")),
            (
                "the same conditions",
                "from=\"10.0.0.0/8, \\\" 1\",restrict {O} x\n",
                Some("from=\"10.0.0.0/8, \\\" 1\",restrict {O} x\nfrom=\"10.0.0.0/8, \\\" 1\",restrict {A}\n"),
                Some("from=\"10.0.0.0/8, \\\" 1\",restrict {A}\n"),
            ),
            ("both are there", "{N} mine\n{O}\n", None, Some("{N} mine\n")),
            ("twice", "{O}\n{X}\n{O} y\n", Some("{O}\n{X}\n{O} y\n{A}\n"), Some("{X}\n{A}\n")),
            ("indented", "\t {O}\n", Some("\t {O}\n{A}\n"), Some("{A}\n")),
            (
                "without padding",
                "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAOLD\n",
                Some("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAOLD\n{A}\n"),
                Some("{A}\n"),
            ),
            (
                "what an interrupted write has left",
                "{O}\nssh-ed25519 AAAAC3",
                Some("{O}\nssh-ed25519 AAAAC3\n{A}\n"),
                Some("ssh-ed25519 AAAAC3\n{A}\n"),
            ),
            ("only the new one", "{N}\n", None, None),
            ("neither", "{X}\n", None, None),
            ("nothing", "", None, None),
            ("commented out", "# {O}\n#{O}\n", None, None),
            ("an authority", "cert-authority {O}\n", None, None),
            ("an authority with conditions", "from=\"x\",Cert-Authority {O}\n", None, None),
            ("its name in a comment", "{X} {O}\n", None, None),
            ("its name in an option", "environment=\"A={O}\" {X}\n", None, None),
            ("a longer key", "{O}AA\n", None, None),
            ("another type", "ssh-dss AAAAB3NzaC1yc2EAAAADAQABAAAOLD==\n", None, None),
        ] {
            assert_eq!(edited(&filled(file), Old::Stays), both.map(filled), "{about}");
            assert_eq!(edited(&filled(file), Old::Goes), last.map(filled), "{about}");
            if let Some(both) = both {
                assert_eq!(edited(&filled(both), Old::Goes), last.map(filled), "{about}: one after the other");
            }
        }
        assert_eq!(edit(&filled("{O}\n"), &key(OLD), &key(OLD), Old::Goes), None, "a key is not replaced by itself");
    }

    #[test]
    fn malformed_keys_are_not_parsed() {
        for text in ["", "ssh-rsa", "ssh-rsa x", "AAAA AAAA", "ssh-rsa AAAA\"B", "ssh-rsa AAAA\u{e9}"] {
            assert_eq!(PublicKey::parse(text), None, "{text}");
        }
        assert_eq!(PublicKey::parse(OLD).map(|k| k.line()).as_deref(), Some(OLD));
    }

    fn any_line() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(OLD.to_string()),
            Just(NEW.to_string()),
            Just(OTHER.to_string()),
            Just(format!("restrict {OLD} x")),
            Just(format!("# {OLD}")),
            Just(format!("cert-authority {OLD}")),
            Just(format!("{OLD} \u{e4}")),
            "[ -~\u{e4}]{0,40}",
        ]
    }

    fn any_file() -> impl Strategy<Value = String> {
        let ending = prop_oneof![4 => Just("\n"), 4 => Just("\r\n"), 1 => Just("")];
        proptest::collection::vec((any_line(), ending), 0..8)
            .prop_map(|lines| lines.into_iter().map(|(line, ending)| line + ending).collect())
    }

    proptest! {
        #[test]
        fn other_lines_stay_and_one_of_the_keys_is_accepted(file in any_file()) {
            let (new, old) = (key(NEW), key(OLD));
            let before: Vec<&str> = file.split_inclusive('\n').collect();
            match edited(&file, Old::Stays) {
                Some(both) => {
                    prop_assert!(both.starts_with(&file), "not a byte of it moves");
                    prop_assert!(holds(&both, &new) && holds(&both, &old));
                    prop_assert_eq!(edited(&both, Old::Stays), None);
                }
                None => prop_assert!(holds(&file, &new) || !holds(&file, &old)),
            }
            match edited(&file, Old::Goes) {
                Some(last) => {
                    prop_assert!(holds(&file, &old));
                    prop_assert!(holds(&last, &new) && !holds(&last, &old));
                    prop_assert_eq!(edited(&last, Old::Goes), None);
                    let stay = before.iter().filter(|l| options_of(l, &old).is_none());
                    let after: Vec<&str> = last.split_inclusive('\n').collect();
                    for (stays, is) in stay.zip(&after) {
                        prop_assert_eq!(stays.trim_end_matches(['\r', '\n']), is.trim_end_matches(['\r', '\n']));
                    }
                }
                None => prop_assert!(!holds(&file, &old)),
            }
        }

        #[test]
        fn an_edit_of_any_file_does_not_panic(file in "\\PC*", options in "[a-z\"\\\\, =]{0,20}") {
            let _ = edited(&file, Old::Goes);
            let _ = edited(&format!("{options} {OLD}\n"), Old::Goes);
        }
    }
}
