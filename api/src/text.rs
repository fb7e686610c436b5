//! Text from outside the operator (hosts, servers, commits, resolvers), made safe to display in logs, events,
//! conditions and terminals.
//!
//! All parts of the operator use this one sanitiser.

/// At most `most` characters of `text`, on one line. Control characters become spaces, [deceptive](is_deceptive)
/// characters are removed.
pub fn line(text: &str, most: usize) -> String {
    let clean = text.chars().filter(|&c| !is_deceptive(c)).map(|c| if c.is_control() { ' ' } else { c });
    let clean: String = clean.skip_while(|c| c.is_whitespace()).take(most).collect();
    clean.trim_end().to_owned()
}

/// The same without a limit, and with its lines and tabs.
pub fn lines(text: &str) -> String {
    let fine = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || is_deceptive(c));
    text.chars().filter(|&c| fine(c)).collect::<String>().trim().to_owned()
}

/// Whether a character changes the appearance of the text around it, or is invisible: it reorders (bidirectional
/// controls), breaks lines, joins or parts, or has no width.
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
    fn what_is_left_of_a_hostile_text() {
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

    fn hostile() -> impl Strategy<Value = String> {
        let marks =
            ["\u{202a}", "\u{202e}", "\u{2066}", "\u{2069}", "\u{200b}", "\u{200f}", "\u{feff}", "\u{85}", "\u{1b}"];
        let part = prop_oneof![any::<String>(), prop::sample::select(marks.to_vec()).prop_map(str::to_owned)];
        prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn nothing_that_deceives_gets_through(text in hostile(), most in 0..60_usize) {
            let one = line(&text, most);
            prop_assert!(one.chars().count() <= most);
            prop_assert!(!one.chars().any(|c| c.is_control() || is_deceptive(c)), "{:?}", one);
            prop_assert_eq!(&line(&one, most), &one);
            let many = lines(&text);
            prop_assert!(!many.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || is_deceptive(c)), "{:?}", many);
        }

        #[test]
        fn plain_text_stays_as_it_is(text in "[ -~]{0,80}") {
            prop_assert_eq!(line(&text, 80), text.trim());
        }
    }
}
