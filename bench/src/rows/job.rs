//! The fields of a worker's parameters and figures.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The number of that name in a worker's parameters or figures.
pub fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("there is no number {name} in {value}"))
}

/// The whole number of that name in a worker's parameters.
pub fn whole(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("there is no whole number {name} in {value}"))
}

/// The text of that name in a worker's parameters.
pub fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value[name].as_str().with_context(|| format!("there is no text {name} in {value}"))
}

/// `left` with the fields of `right` added.
pub fn with(mut left: Value, right: Value) -> Value {
    if let (Some(left), Value::Object(right)) = (left.as_object_mut(), right) {
        left.extend(right);
    }
    left
}
