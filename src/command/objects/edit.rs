//! Pure. What was typed for an object, and the object that it makes.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::sources::{Change, StoredName};

/// Objects in etcd by their names.
pub type StoredObjects = BTreeMap<StoredName, Value>;

/// Fields of `spec`, `blocks.v4` for one inside of another: a value, or `None` to take it out.
pub type SpecFields = Vec<(&'static str, Option<Value>)>;

/// `yes` or `no`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YesNo(pub bool);

impl FromStr for YesNo {
    type Err = String;

    fn from_str(text: &str) -> Result<YesNo, String> {
        match text {
            "yes" => Ok(YesNo(true)),
            "no" => Ok(YesNo(false)),
            other => Err(format!("{other:?} is not yes or no")),
        }
    }
}

/// A text that was typed, or not; an empty one takes the field out.
pub fn text(field: &'static str, typed: Option<&String>) -> SpecFields {
    let value = |text: &String| (!text.is_empty()).then(|| json!(text));
    typed.map(|text| (field, value(text))).into_iter().collect()
}

/// Texts that were typed, or not; a single empty one takes the field out.
pub fn list(field: &'static str, typed: &[String]) -> SpecFields {
    match typed {
        [] => Vec::new(),
        [one] if one.is_empty() => vec![(field, None)],
        all => vec![(field, Some(json!(all)))],
    }
}

/// Whether that was typed, and what.
pub fn flag(field: &'static str, typed: Option<YesNo>) -> SpecFields {
    typed.map(|YesNo(is)| (field, Some(json!(is)))).into_iter().collect()
}

/// A new object of that name.
///
/// # Errors
/// There is one.
pub fn created(
    there: &StoredObjects,
    name: &StoredName,
    fields: &SpecFields,
) -> Result<Change, String> {
    if there.contains_key(name) {
        return Err(format!("{name} is there already: set changes it"));
    }
    let mut object = name.object(json!({}));
    put(&mut object, fields);
    Ok(change(name, object))
}

/// The object of that name with other fields; those that were not typed stay as they are.
///
/// # Errors
/// There is none, or nothing was typed.
pub fn changed(
    there: &StoredObjects,
    name: &StoredName,
    fields: &SpecFields,
) -> Result<Change, String> {
    if fields.is_empty() {
        return Err(format!("what is to be set of {name}?"));
    }
    let mut object = found(there, name)?.clone();
    put(&mut object, fields);
    Ok(change(name, object))
}

/// The object of that name.
///
/// # Errors
/// There is none.
pub fn found<'a>(there: &'a StoredObjects, name: &StoredName) -> Result<&'a Value, String> {
    there.get(name).ok_or_else(|| format!("{name} is not there: create makes it"))
}

/// That object in place of the one of its name.
pub fn change(name: &StoredName, object: Value) -> Change {
    Change { put: [(name.clone(), object)].into(), ..Change::default() }
}

fn put(object: &mut Value, fields: &SpecFields) {
    for (field, value) in fields {
        put_at(&mut object["spec"], field, value.as_ref());
    }
}

/// Puts a field, or takes it out, and with the last one what it was inside of.
fn put_at(object: &mut Value, field: &str, value: Option<&Value>) {
    if !object.is_object() {
        *object = json!({});
    }
    let Some(fields) = object.as_object_mut() else { return };
    match (field.split_once('.'), value) {
        (Some((outer, field)), _) => {
            let inner = fields.entry(outer).or_insert(Value::Null);
            put_at(inner, field, value);
            if inner.as_object().is_some_and(serde_json::Map::is_empty) {
                fields.remove(outer);
            }
        }
        (None, Some(value)) => drop(fields.insert(field.to_owned(), value.clone())),
        (None, None) => drop(fields.remove(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Kind;

    #[test]
    fn what_is_typed_changes_and_what_is_not_stays() {
        let name = StoredName::parse(Kind::find("group").unwrap(), "blue/web").unwrap();
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let deny = "deny".to_owned();
        let mut fields = list("policies", &words(&["front", "back"]));
        fields.extend(text("default", Some(&deny)));
        let mut there = StoredObjects::new();
        assert!(changed(&there, &name, &fields).unwrap_err().contains("is not there"));
        there.extend(created(&there, &name, &fields).unwrap().put);
        let object = json!({"apiVersion": "humanz.io/v1", "kind": "Group",
            "metadata": {"name": "web", "tenant": "blue"},
            "spec": {"policies": ["front", "back"], "default": "deny"}});
        assert_eq!(there[&name], object);
        assert!(created(&there, &name, &fields).unwrap_err().contains("there already"));
        assert!(changed(&there, &name, &Vec::new()).unwrap_err().contains("what is to be set"));
        let mut fields = list("policies", &words(&[""]));
        fields.extend(text("default", None));
        fields.extend(flag("shared", Some(YesNo(true))));
        let after = changed(&there, &name, &fields).unwrap().put.remove(&name).unwrap();
        assert_eq!(after["spec"], json!({"default": "deny", "shared": true}));
    }

    #[test]
    fn a_field_inside_of_another_changes_alone_and_the_last_one_takes_that_out() {
        let mut object = json!({"spec": {"blocks": "text"}});
        let typed = |field, typed: &str| text(field, Some(&typed.to_owned()));
        put(&mut object, &typed("blocks.v4", "27"));
        put(&mut object, &typed("blocks.v6", "120"));
        assert_eq!(object, json!({"spec": {"blocks": {"v4": "27", "v6": "120"}}}));
        put(&mut object, &typed("blocks.v4", ""));
        assert_eq!(object, json!({"spec": {"blocks": {"v6": "120"}}}));
        put(&mut object, &typed("blocks.v6", ""));
        assert_eq!(object, json!({"spec": {}}));
    }
}
