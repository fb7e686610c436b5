//! A table for people, or one JSON object a line.

use serde_json::{Map, Value};

/// Name and value of a column.
pub(super) type Field = (&'static str, Value);

/// Prints results as they come. All have the same fields.
pub(super) struct Report {
    json: bool,
    begun: bool,
}

impl Report {
    /// A report that nothing is in yet.
    pub(super) fn new(json: bool) -> Self {
        Self { json, begun: false }
    }

    /// Prints one result: names and values in the order of the columns. The result is a line of its own.
    pub(super) fn add(&mut self, fields: &[(&str, Value)]) {
        if self.json {
            let object: Map<String, Value> =
                fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
            println!("{}", Value::Object(object));
            return;
        }
        if !self.begun {
            println!("{}", line(fields, |(name, _)| (*name).to_owned()));
            self.begun = true;
        }
        println!("{}", line(fields, |(_, value)| text(value)));
    }
}

/// Each column is as wide as its name, and no value is wider than that here.
fn line(fields: &[(&str, Value)], cell: impl Fn(&(&str, Value)) -> String) -> String {
    let cells = fields.iter().map(|field| format!("{:>width$}", cell(field), width = field.0.len().max(5)));
    cells.collect::<Vec<_>>().join("  ")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The number in the column `name`.
pub(super) fn number(fields: &[Field], name: &str) -> Option<f64> {
    fields.iter().find(|(field, _)| *field == name)?.1.as_f64()
}

/// A number with one digit after the point.
pub(super) fn round(value: f64) -> Value {
    Value::from((value * 10.0).round() / 10.0)
}

/// A number with two digits after the point, for shares of one.
pub(super) fn share(value: f64) -> Value {
    Value::from((value * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_names() {
        let fields = [("tool", Value::from("scp")), ("mib_per_second", round(123.456))];
        assert_eq!(line(&fields, |(name, _)| (*name).to_owned()), " tool  mib_per_second");
        assert_eq!(line(&fields, |(_, value)| text(value)), "  scp           123.5");
    }
}
