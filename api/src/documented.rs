//! Constants whose doc comments are part of the reference.

/// Defines constants and their table from one list, so that none lacks a description. The description is the doc comment, in
/// Markdown.
macro_rules! documented {
    ($($(#[doc = $meaning:literal])+ $name:ident = $value:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $name: &str = $value;)+

        /// All values, with their descriptions in Markdown.
        pub const TABLE: &[(&str, &str)] = &[$(($value, concat!($($meaning),+))),+];
    };
}
pub(crate) use documented;
