//! Constants whose doc comments are part of the reference.

/// Makes constants and their table from one list, so that none is without a meaning. The meaning is the doc comment, in Markdown.
macro_rules! documented {
    ($($(#[doc = $meaning:literal])+ $name:ident = $value:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $name: &str = $value;)+

        /// Values, all with their meanings in Markdown.
        pub const TABLE: &[(&str, &str)] = &[$(($value, concat!($($meaning),+))),+];
    };
}
pub(crate) use documented;
