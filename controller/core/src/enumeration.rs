//! Lists and counts for messages, whose length must not grow with the number of items.

/// Returns the first three names of a list as text, and the number of the others if there are any: `a, b, c and 2 more`.
pub(crate) fn first_names(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=3 => shown,
        n => format!("{shown} and {} more", n - 3),
    }
}

/// Returns a number with its noun: `1 host`, `2 hosts`.
pub fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
