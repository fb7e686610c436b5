//! Text from outside the operator (hosts, servers, commits, resolvers), made safe to display in logs, events,
//! conditions and terminals.
//!
//! All parts of the operator use this sanitiser and this decoder.

use std::borrow::Cow;

/// Returns at most `most` characters of `text`, in one line, without white space at its ends. Replaces control characters with spaces, and removes
/// [deceptive](is_deceptive) characters.
pub fn line(text: &str, most: usize) -> String {
    let clean = text.chars().filter(|&c| !is_deceptive(c)).map(|c| if c.is_control() { ' ' } else { c });
    let clean: String = clean.skip_while(|c| c.is_whitespace()).take(most).collect();
    clean.trim_end().to_owned()
}

/// Removes control and [deceptive](is_deceptive) characters, but keeps line feeds and tabs. Trims white space at both
/// ends, and has no length limit.
pub fn lines(text: &str) -> String {
    let fine = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || is_deceptive(c));
    text.chars().filter(|&c| fine(c)).collect::<String>().trim().to_owned()
}

/// Returns at most `most` characters of a text, in quotes, for a message, and `…` if the text is longer. Escapes quotes, and characters that are
/// invisible or change the text around them, so that the fault is visible. Spaces stay.
pub fn quote(text: &str, most: usize) -> String {
    format!("\"{}\"{}", escape(text, most), if text.chars().nth(most).is_some() { "…" } else { "" })
}

/// Returns the text of [`quote`] without the quotes.
pub fn escape(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for c in text.chars().take(most) {
        match c {
            // A backslash is not doubled, because users would read both as part of a name such as DOMAIN\name.
            '\\' => escaped.push(c),
            c if is_deceptive(c) || (c.is_whitespace() && c != ' ') => escaped.extend(c.escape_default()),
            c => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

/// Error for bytes that cannot be decoded as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// Bytes that look like UTF-16 without a byte order mark.
    #[error("it looks like UTF-16 without a byte order mark: save it as text in UTF-8")]
    Utf16,
    /// Another encoding, or not text.
    #[error("it is not text in UTF-8 (line {line}): save it in UTF-8")]
    Encoding {
        /// First line that is not UTF-8, from 1. For damaged UTF-16, always 1.
        line: usize,
    },
}

impl NotText {
    /// Line of the fault, from 1.
    pub fn line(self) -> usize {
        match self {
            Self::Utf16 => 1,
            Self::Encoding { line } => line,
        }
    }
}

/// Decodes text from users or Windows programs: UTF-8, or UTF-16 with a byte order mark. Removes the mark.
///
/// # Errors
/// Fails for bytes in another encoding, and for bytes that are not text.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let text = String::from_utf16(&pairs.iter().map(|&pair| unit(pair)).collect::<Vec<_>>());
        text.ok().filter(|_| rest.is_empty()).map(Cow::Owned).ok_or(NotText::Encoding { line: 1 })
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0, c, ..] | [c, 0, ..] if *c != 0 => Err(NotText::Utf16),
        _ => match str::from_utf8(bytes) {
            // Windows editors put a byte order mark before the text.
            Ok(text) => Ok(Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text))),
            Err(error) => {
                let line = bytes[..error.valid_up_to()].split(|b| *b == b'\n').count();
                Err(NotText::Encoding { line })
            }
        },
    }
}

/// Reports whether a character is invisible or changes the appearance of the text around it: bidirectional controls, line separators, joiners,
/// and characters without width.
pub fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_and_deceptive_characters_are_removed() {
        for (text, expected) in [
            ("", ""),
            ("  no\r\nroom \n", "no  room"),
            ("\u{1b}[31mred\u{202e}der\u{7}", "[31mredder"),
            ("win\u{2066}-1\u{2069} \u{200b}\u{feff}", "win-1"),
            ("pass\u{ad}word", "password"),
            ("\u{e0041}tag", "tag"),
            ("grüße 你好 🙂", "grüße 你好 🙂"),
        ] {
            assert_eq!(line(text, 100), expected, "{text:?}");
        }
        assert_eq!(line(&"ä".repeat(5000), 300).chars().count(), 300);
        assert_eq!(lines("\u{1b}[1ma\r\n\tb\u{2067}c\0\n"), "[1ma\n\tbc");
    }

    #[test]
    fn a_quote_shows_the_fault_of_its_text() {
        for (text, expected) in [
            ("plain", r#""plain""#),
            (" 10.20.0.15", r#"" 10.20.0.15""#),
            ("\u{feff}username=a", r#""\u{feff}username=a""#),
            ("a\tb\r\n", r#""a\tb\r\n""#),
            ("a\u{a0}b\u{200b}\u{3164}", r#""a\u{a0}b\u{200b}\u{3164}""#),
            ("a\u{202e}b\u{1b}[2J", r#""a\u{202e}b\u{1b}[2J""#),
            (r"DOMAIN\name", r#""DOMAIN\name""#),
            ("say \"x\"", r#""say \"x\"""#),
            ("grüße 你好", r#""grüße 你好""#),
            ("0123456789abcdefghi", r#""0123456789abcde"…"#),
        ] {
            assert_eq!(quote(text, 15), expected, "{text:?}");
        }
    }

    #[test]
    fn utf_8_and_utf_16_are_decoded() {
        let utf16 = |mark: &[u8], unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            mark.iter().copied().chain("grüße\r\n".encode_utf16().flat_map(unit)).collect()
        };
        let text = Ok("grüße\r\n");
        for (about, bytes, expected) in [
            ("UTF-8", "grüße\r\n".as_bytes().to_vec(), text),
            ("UTF-8 with a mark", "\u{feff}grüße\r\n".as_bytes().to_vec(), text),
            ("UTF-16 LE", utf16(&[0xff, 0xfe], u16::to_le_bytes), text),
            ("UTF-16 BE", utf16(&[0xfe, 0xff], u16::to_be_bytes), text),
            ("UTF-16 without a mark", utf16(&[], u16::to_le_bytes), Err(NotText::Utf16)),
            ("half a character", vec![0xff, 0xfe, b'a'], Err(NotText::Encoding { line: 1 })),
            ("half a pair", vec![0xff, 0xfe, 0x00, 0xd8], Err(NotText::Encoding { line: 1 })),
            ("Windows-1252", b"a\ngr\xfc\xdfe".to_vec(), Err(NotText::Encoding { line: 2 })),
            ("nothing", Vec::new(), Ok("")),
            ("a mark alone", vec![0xef, 0xbb, 0xbf], Ok("")),
        ] {
            assert_eq!(decode(&bytes).as_deref().map_err(|e| *e), expected, "{about}");
        }
    }

    fn hostile() -> impl Strategy<Value = String> {
        let marks =
            ["\u{202a}", "\u{202e}", "\u{2066}", "\u{2069}", "\u{200b}", "\u{200f}", "\u{feff}", "\u{85}", "\u{1b}"];
        let part = prop_oneof![any::<String>(), prop::sample::select(marks.to_vec()).prop_map(str::to_owned)];
        prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn sanitised_text_has_no_deceptive_characters(text in hostile(), most in 0..60_usize) {
            let one = line(&text, most);
            prop_assert!(one.chars().count() <= most);
            prop_assert!(!one.chars().any(|c| c.is_control() || is_deceptive(c)), "{:?}", one);
            prop_assert_eq!(&line(&one, most), &one);
            let many = lines(&text);
            prop_assert!(!many.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || is_deceptive(c)), "{:?}", many);
        }

        #[test]
        fn a_quote_is_one_line_without_deception(text in hostile(), most in 0..60_usize) {
            prop_assert!(!quote(&text, most).chars().any(|c| c.is_control() || is_deceptive(c)));
        }

        #[test]
        fn plain_text_is_unchanged(text in "[ -~]{0,80}") {
            prop_assert_eq!(line(&text, 80), text.trim());
        }
    }
}
