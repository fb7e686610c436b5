//! Object as Helm renders it, with its comments.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Object of the installation.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Template of the object in the chart, or its file.
    pub file: String,
    /// Comment above the object.
    pub about: String,
    /// YAML of the object with all comments.
    pub text: String,
    /// Content of the object.
    pub value: Value,
}

impl Object {
    /// Parses an object from its YAML.
    pub(super) fn read(file: &str, text: &str) -> Result<Self> {
        let text = text.trim_matches('\n');
        let value = serde_yaml::from_str(text).with_context(|| format!("{file} is not an object:\n{text}"))?;
        let about = joined(text.lines().take_while(|line| line.starts_with('#')));
        Ok(Self { file: file.to_owned(), about, text: format!("{text}\n"), value })
    }

    /// Returns the kind of the object, such as `ClusterRole`.
    pub(crate) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// Returns the comment above each rule of a role.
    pub(crate) fn whys(&self) -> Vec<String> {
        let lines: Vec<&str> = self.text.lines().skip_while(|line| *line != "rules:").collect();
        let is_comment = |line: &&&str| line.starts_with("  #");
        let above = |at: usize| {
            let count = lines[..at].iter().rev().take_while(is_comment).count();
            joined(lines[at - count..at].iter().map(|line| line.trim_start()))
        };
        (0..lines.len()).filter(|at| lines[*at].starts_with("  - ")).map(above).collect()
    }
}

/// Returns the text of comment lines.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| line.trim_start_matches('#').trim()).collect::<Vec<_>>().join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_those_of_the_object_and_of_its_rules() {
        let text = "# Who may\n# read.\nkind: Role\nrules:\n  # The first\n  # line.\n  - verbs: [get]\n    # Not this.\n  - verbs: [list]\n";
        let object = Object::read("a.yaml", text).unwrap();
        assert_eq!((object.kind(), object.about.as_str()), ("Role", "Who may read."));
        assert_eq!(object.whys(), ["The first line.", ""]);
    }
}
