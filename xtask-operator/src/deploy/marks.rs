//! Marks for what Helm fills in: objects are made and written with them as with any text, and only the chart's writer turns them into actions.

/// Begins an action of a template.
pub(crate) const OPEN: char = '\u{E000}';
/// Ends one.
const CLOSE: char = '\u{E001}';

/// A text whose actions are marked.
pub(crate) fn mark(template: &str) -> String {
    template.replace("{{", &OPEN.to_string()).replace("}}", &CLOSE.to_string())
}

/// The template: braces in texts stand for themselves, marks become actions.
pub(crate) fn template(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}").replace(OPEN, "{{").replace(CLOSE, "}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_of_texts_are_no_actions() {
        let text = format!("a {} {{{{ b }}}}", mark("{{ .Values.x }}"));
        assert_eq!(template(&text), "a {{ .Values.x }} {{ \"{{\" }} b }}");
    }
}
