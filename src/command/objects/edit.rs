//! Pure. What was typed for an object, and the object that it makes.

use std::collections::BTreeMap;
use std::convert::Infallible;
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

/// A number, as custom resources have it; whatever else was typed is refused with the object.
#[derive(Debug)]
pub struct Number(Value);

impl FromStr for Number {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Number, Infallible> {
        Ok(Number(text.parse::<u64>().map_or_else(|_| json!(text), Value::from)))
    }
}

/// A prefix length, `27` or `/27`.
#[derive(Debug)]
pub struct PrefixLength(Number);

impl FromStr for PrefixLength {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<PrefixLength, Infallible> {
        text.strip_prefix('/').unwrap_or(text).parse().map(PrefixLength)
    }
}

/// What was typed for an option, or not.
pub trait TypedOption {
    /// The field of `spec` as it was typed; nothing if it was not.
    fn spec(&self, field: &'static str) -> SpecFields;
}

/// An empty text takes the field out.
impl TypedOption for Option<String> {
    fn spec(&self, field: &'static str) -> SpecFields {
        let value = |text: &String| (!text.is_empty()).then(|| json!(text));
        self.iter().map(|text| (field, value(text))).collect()
    }
}

/// A single empty text takes the field out.
impl TypedOption for Vec<String> {
    fn spec(&self, field: &'static str) -> SpecFields {
        match &self[..] {
            [] => Vec::new(),
            [one] if one.is_empty() => vec![(field, None)],
            all => vec![(field, Some(json!(all)))],
        }
    }
}

/// An empty text takes the field out.
impl TypedOption for Option<Number> {
    fn spec(&self, field: &'static str) -> SpecFields {
        self.iter().flat_map(|number| number.spec(field)).collect()
    }
}

impl TypedOption for Number {
    fn spec(&self, field: &'static str) -> SpecFields {
        vec![(field, (self.0 != json!("")).then(|| self.0.clone()))]
    }
}

impl TypedOption for Option<PrefixLength> {
    fn spec(&self, field: &'static str) -> SpecFields {
        self.iter().flat_map(|PrefixLength(number)| number.spec(field)).collect()
    }
}

impl TypedOption for Option<YesNo> {
    fn spec(&self, field: &'static str) -> SpecFields {
        self.iter().map(|YesNo(is)| (field, Some(json!(is)))).collect()
    }
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
        return Err(format!("{name} exists already: set changes it"));
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
        return Err(format!("no field of {name} is given"));
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
    there.get(name).ok_or_else(|| {
        let near =
            StoredName::meant(&[name.kind.name], (name.scope.as_ref(), &name.name), there.keys());
        format!("{name} is not there{}", near.unwrap_or_else(|| ": create makes it".to_owned()))
    })
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
        let mut fields = words(&["front", "back"]).spec("policies");
        fields.extend(Some("deny".to_owned()).spec("default"));
        let mut there = StoredObjects::new();
        assert!(changed(&there, &name, &fields).unwrap_err().contains("is not there"));
        there.extend(created(&there, &name, &fields).unwrap().put);
        let object = json!({"apiVersion": "humanz.io/v1", "kind": "Group",
            "metadata": {"name": "web", "tenant": "blue"},
            "spec": {"policies": ["front", "back"], "default": "deny"}});
        assert_eq!(there[&name], object);
        assert!(created(&there, &name, &fields).unwrap_err().contains("exists already"));
        assert!(changed(&there, &name, &Vec::new()).unwrap_err().contains("no field of"));
        let mut fields = words(&[""]).spec("policies");
        fields.extend(None::<String>.spec("default"));
        fields.extend(Some(YesNo(true)).spec("shared"));
        let after = changed(&there, &name, &fields).unwrap().put.remove(&name).unwrap();
        assert_eq!(after["spec"], json!({"default": "deny", "shared": true}));
    }

    #[test]
    fn a_field_inside_of_another_changes_alone_and_the_last_one_takes_that_out() {
        let mut object = json!({"spec": {"blocks": "text"}});
        let typed = |field, typed: &str| Some(typed.to_owned()).spec(field);
        put(&mut object, &typed("blocks.v4", "27"));
        put(&mut object, &typed("blocks.v6", "120"));
        assert_eq!(object, json!({"spec": {"blocks": {"v4": "27", "v6": "120"}}}));
        put(&mut object, &typed("blocks.v4", ""));
        assert_eq!(object, json!({"spec": {"blocks": {"v6": "120"}}}));
        put(&mut object, &typed("blocks.v6", ""));
        assert_eq!(object, json!({"spec": {}}));
    }
}
