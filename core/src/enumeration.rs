//! Names in a message, which must not grow with their number.

/// The first names of a list, and how many more there are.
pub(crate) fn first_names(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=3 => shown,
        n => format!("{shown} and {} more", n - 3),
    }
}
