//! Output of a host, made safe to log: truncated, and without control characters.

use api::text;

/// Maximum number of bytes that are kept of a command's output.
pub(super) const LOG_LIMIT: usize = 4096;

/// Maximum number of characters of a server's message in an error.
const EXCERPT_LIMIT: usize = 200;

/// Last [`LOG_LIMIT`] bytes of a stream of any length.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    pub(super) fn push(&mut self, more: &[u8]) {
        let more = &more[more.len().saturating_sub(LOG_LIMIT)..];
        let excess = (self.bytes.len() + more.len()).saturating_sub(LOG_LIMIT);
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(more);
    }

    /// Returns the kept bytes as sanitised text with line breaks, decoded as lossy UTF-8.
    pub(super) fn text(&self) -> String {
        text::lines(&String::from_utf8_lossy(&self.bytes))
    }
}

/// Returns the beginning of a server's message on one line, sanitised.
pub(super) fn excerpt(words: &str) -> String {
    text::line(words, EXCERPT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept() {
        let mut tail = Tail::default();
        for i in 0..10_000_u32 {
            tail.push(format!("{i}\n").as_bytes());
        }
        assert!(tail.bytes.len() <= LOG_LIMIT && tail.bytes.capacity() <= 4 * LOG_LIMIT);
        assert!(tail.text().ends_with("9998\n9999"));
        tail.push(&vec![b'x'; 3 * LOG_LIMIT]);
        assert_eq!(tail.text(), "x".repeat(LOG_LIMIT));
    }

    #[test]
    fn output_is_sanitised() {
        let mut tail = Tail::default();
        tail.push(b"\x1b[31mred\x07\r\nnext\xff\xfe\0 line\xe2\x80\xae");
        assert_eq!(tail.text(), "[31mred\nnext\u{fffd}\u{fffd} line");
        assert_eq!(excerpt("a\nb\u{202e}c"), "a bc");
        assert_eq!(excerpt(&"é".repeat(500)).chars().count(), EXCERPT_LIMIT);
    }
}
