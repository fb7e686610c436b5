//! Reports: one JSON object per line.

use serde_json::{Map, Value};

/// Name and value of a field.
pub(super) type Field = (&'static str, Cell);

/// Value of a field. Aims are judged on the measured value, which is rounded only for printing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Exact(Value),
    /// Number, and its number of printed decimal places.
    Measured(f64, i32),
}

impl Cell {
    /// Value that could not be measured.
    pub(super) const NONE: Self = Self::Exact(Value::Null);

    fn number(&self) -> Option<f64> {
        match self {
            Self::Exact(value) => value.as_f64(),
            Self::Measured(number, _) => Some(*number).filter(|n| n.is_finite()),
        }
    }

    /// Returns the printed value.
    fn printed(&self) -> Value {
        match self {
            Self::Exact(value) => value.clone(),
            Self::Measured(number, digits) => {
                let unit = 10_f64.powi(*digits);
                Value::from((number * unit).round() / unit)
            }
        }
    }
}

impl<T: Into<Value>> From<T> for Cell {
    fn from(value: T) -> Self {
        Self::Exact(value.into())
    }
}

/// Prints one result: an object on a line of its own.
pub(super) fn add(fields: &[Field]) {
    let object: Map<String, Value> = fields.iter().map(|(name, cell)| ((*name).into(), cell.printed())).collect();
    println!("{}", Value::Object(object));
}

/// Returns the number in the field `name`, as it was measured.
pub(super) fn number(fields: &[Field], name: &str) -> Option<f64> {
    fields.iter().find(|(field, _)| *field == name)?.1.number()
}

/// Returns a number that is printed with one decimal place.
pub(super) fn round(value: f64) -> Cell {
    Cell::Measured(value, 1)
}

/// Returns a number that is printed with two decimal places, for ratios.
pub(super) fn share(value: f64) -> Cell {
    Cell::Measured(value, 2)
}

/// Returns the ratio of `value` to `to`, or [`Cell::NONE`] without `to`.
pub(super) fn ratio(value: f64, to: Option<f64>) -> Cell {
    to.map_or(Cell::NONE, |to| share(value / to))
}
