//! Pure. Fields of objects of Contiv.

use serde_json::{Map, Value, json};

use crate::net::shown::shown;
use crate::policy::name::ObjectName;

/// Characters of foreign texts in notes and faults.
const SHOWN: usize = 80;

pub type Fields = Map<String, Value>;

/// The field, if it says something: Contiv writes empty ones, and 0.
pub fn given<'a>(fields: &'a Fields, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| says_something(value))
}

fn says_something(value: &Value) -> bool {
    !(value.is_null() || *value == "" || *value == 0 || *value == json!([]) || *value == json!({}))
}

/// The text of a field.
///
/// # Errors
/// It is none, or empty.
pub fn string<'a>(fields: &'a Fields, field: &str) -> Result<&'a str, String> {
    let value = fields.get(field);
    value.and_then(Value::as_str).filter(|text| !text.is_empty()).ok_or_else(|| {
        let said = value.map_or_else(|| "nothing".to_owned(), text);
        format!("{field} is {said}, and must be a text")
    })
}

/// Fields that say something and are none of `known`; `key` and links are of every object.
pub fn others<'a>(fields: &'a Fields, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
    const COMMON: [&str; 5] = ["key", "tenantName", "link-sets", "links", "schema"];
    let is_other = |(field, value): &(&'a String, &Value)| {
        let is_known = known.contains(&field.as_str()) || COMMON.contains(&field.as_str());
        !is_known && says_something(value)
    };
    fields.iter().filter(is_other).map(|(field, _)| field.as_str())
}

/// A foreign value in one line.
pub fn text(value: &Value) -> String {
    shown(&value.to_string(), SHOWN)
}

/// A name as humanz has them.
///
/// # Errors
/// It is none.
pub fn name(value: &Value) -> Result<Value, String> {
    let name: Result<ObjectName, _> = value.as_str().unwrap_or_default().parse();
    name.map(|name| json!(name)).map_err(|_| format!("{} is not a name", text(value)))
}
