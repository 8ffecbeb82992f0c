//! Pure. The objects in a text, one after the other: of JSON only one is held at a time.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::kube::yaml;

/// Lists inside lists.
const DEPTH_LIMIT: u32 = 4;

/// Gives `take` the objects in a text: JSON, or documents of YAML; those of a list one by one.
///
/// # Errors
/// It is neither; `take` may have been given some.
pub fn each(text: &str, take: &mut dyn FnMut(Value)) -> Result<(), String> {
    if !text.trim_start().starts_with(['{', '[']) {
        yaml::documents(text)?.into_iter().for_each(|one| flatten(one, take, DEPTH_LIMIT));
        return Ok(());
    }
    let mut json = serde_json::Deserializer::from_slice(text.as_bytes());
    while json.end().is_err() {
        let one = EachObject { take, depth: DEPTH_LIMIT };
        one.deserialize(&mut json).map_err(|error| format!("{error}"))?;
    }
    Ok(())
}

fn flatten(value: Value, take: &mut dyn FnMut(Value), depth: u32) {
    let is_list =
        |object: &Value| object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match value {
        Value::Null => {}
        Value::Array(all) if depth > 0 => {
            all.into_iter().for_each(|one| flatten(one, take, depth - 1));
        }
        mut list if depth > 0 && is_list(&list) => {
            flatten(list["items"].take(), take, depth - 1);
        }
        object => take(object),
    }
}

/// Reads what may be a list.
struct EachObject<'a> {
    take: &'a mut dyn FnMut(Value),
    depth: u32,
}

impl<'de> DeserializeSeed<'de> for EachObject<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.depth {
            0 => Value::deserialize(from).map(|value| flatten(value, self.take, 0)),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for EachObject<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, or a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let EachObject { take, depth } = self;
        while all.next_element_seed(EachObject { take, depth: depth - 1 })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let object = Value::deserialize(MapAccessDeserializer::new(map))?;
        flatten(object, self.take, self.depth);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        (self.take)(value.into());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        (self.take)(value.into());
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        (self.take)(value.into());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        (self.take)(value.into());
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        (self.take)(value.into());
        Ok(())
    }
}
