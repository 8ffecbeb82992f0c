//! What the Kubernetes API refuses of custom resources, by their definitions: the schema, and its rules in CEL.
//!
//! A rule that compares with the former object (`oldSelf`) would need that one; there is none.

use std::collections::HashMap;
use std::sync::Arc;

use cel::objects::Key;
use cel::{Context, Env, Program, Value as CelValue};
use regex_lite::Regex;
use serde_json::Value;

use crate::cidr;

/// The schemas of CustomResourceDefinitions, by kind.
pub struct Definitions {
    schemas: HashMap<String, Value>,
    env: Arc<Env>,
}

/// Why an object is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Where, and why.
    Schema(String),
    /// These rules; the API looks at them where the schema takes the object.
    Rules(Vec<Rule>),
}

/// A rule of a schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Kind and fields, as `Network.spec.subnets[]`.
    pub place: String,
    pub rule: String,
    pub message: String,
}

impl Definitions {
    pub fn new(definitions: &[Value]) -> Self {
        let schema = |definition: &Value| {
            let kind = definition["spec"]["names"]["kind"].as_str().unwrap().to_owned();
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            (kind, schema.clone())
        };
        Self { schemas: definitions.iter().map(schema).collect(), env: Arc::new(Env::stdlib()) }
    }

    /// Why the API refuses `object`; a field that it does not know counts, as with `kubectl`.
    pub fn refusal(&self, object: &Value) -> Option<Refusal> {
        let kind = object["kind"].as_str().unwrap();
        let schema = &self.schemas[kind];
        let fields = object.as_object().unwrap().iter();
        let own =
            fields.filter(|(name, _)| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
        let own = Value::Object(own.map(|(name, value)| (name.clone(), value.clone())).collect());
        if let Some(fault) = fault(schema, &own, kind) {
            return Some(Refusal::Schema(fault));
        }
        let mut refusing = Vec::new();
        each_rule(schema, kind, Some(object), &mut |rule, value| {
            if !value.is_some_and(|value| self.holds(&rule, value)) {
                refusing.push(rule);
            }
        });
        (!refusing.is_empty()).then_some(Refusal::Rules(refusing))
    }

    /// Every rule.
    pub fn rules(&self) -> Vec<Rule> {
        let mut all = Vec::new();
        for (kind, schema) in &self.schemas {
            each_rule(schema, kind, None, &mut |rule, _| all.push(rule));
        }
        all
    }

    /// A rule that cannot be evaluated refuses.
    fn holds(&self, rule: &Rule, value: &Value) -> bool {
        let program: Program =
            self.env.compile(&rule.rule).unwrap_or_else(|e| panic!("{rule:?}: {e}"));
        let mut context = Context::with_env(Arc::clone(&self.env));
        cidr::add_functions(&mut context);
        context.add_variable_from_value("self", in_cel(value));
        program.execute(&context).is_ok_and(|holds| holds == CelValue::Bool(true))
    }
}

/// With an object, each rule with each value that it is about; without one, each once.
fn each_rule(
    schema: &Value,
    place: &str,
    value: Option<&Value>,
    see: &mut dyn FnMut(Rule, Option<&Value>),
) {
    let text = |rule: &Value, name: &str| rule[name].as_str().unwrap_or_default().to_owned();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let known = ["rule", "message"];
        assert!(
            rule.as_object().unwrap().keys().all(|name| known.contains(&name.as_str())),
            "{rule}"
        );
        assert!(!text(rule, "rule").contains("oldSelf"), "{rule}");
        let (rule, message) = (text(rule, "rule"), text(rule, "message"));
        see(Rule { place: place.to_owned(), rule, message }, value);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let inner = value.map(|value| value.get(name));
        if inner != Some(None) {
            each_rule(schema, &format!("{place}.{name}"), inner.flatten(), see);
        }
    }
    if let Some(items) = schema.get("items") {
        let place = format!("{place}[]");
        match value {
            None => each_rule(items, &place, None, see),
            Some(all) => {
                let all = all.as_array().into_iter().flatten();
                all.for_each(|item| each_rule(items, &place, Some(item), see));
            }
        }
    }
}

/// RFC 3339.
const DATE_TIME: &str = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$";

/// What of `value` the schema refuses.
fn fault(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let refused = |why: &str| Some(format!("{place}: {value} {why}"));
    let is_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        None if schema["x-kubernetes-int-or-string"] == true => value.is_i64() || value.is_string(),
        other => panic!("type {other:?}"),
    };
    if !is_type || schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return refused("is of another type");
    }
    if is_beyond(schema, value) {
        return refused("is beyond the limits");
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !Regex::new(pattern).unwrap().is_match(text)
    {
        return refused("does not match");
    }
    if let (Some("date-time"), Some(text)) = (schema["format"].as_str(), value.as_str())
        && !Regex::new(DATE_TIME).unwrap().is_match(text)
    {
        return refused("is no time");
    }
    let missing = |name: &Value| value.get(name.as_str().unwrap()).is_none();
    if schema["required"].as_array().is_some_and(|all| all.iter().any(missing)) {
        return refused("lacks a field");
    }
    let field = |(name, value): (&String, &Value)| match schema["properties"].get(name) {
        Some(schema) => fault(schema, value, &format!("{place}.{name}")),
        None => refused("has an unknown field"),
    };
    let inside = value.as_object().and_then(|fields| fields.iter().find_map(field));
    let item = |item| fault(&schema["items"], item, &format!("{place}[]"));
    inside.or_else(|| value.as_array()?.iter().find_map(item))
}

/// A number, or the length of a list or text, is too small or too large.
fn is_beyond(schema: &Value, value: &Value) -> bool {
    let number = |name: &str| schema[name].as_i64();
    let length = value.as_array().map(Vec::len).or(value.as_str().map(|text| text.chars().count()));
    let length = length.map(|length| i64::try_from(length).unwrap());
    let below = |found: Option<i64>, least: Option<i64>| {
        found.zip(least).is_some_and(|(found, least)| found < least)
    };
    let least = if value.is_array() { "minItems" } else { "minLength" };
    let most = if value.is_array() { "maxItems" } else { "maxLength" };
    below(value.as_i64(), number("minimum"))
        || below(number("maximum"), value.as_i64())
        || below(length, number(least))
        || below(number(most), length)
}

fn in_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => CelValue::Int(number),
            None => CelValue::Float(number.as_f64().unwrap()),
        },
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(all) => CelValue::List(Arc::new(all.iter().map(in_cel).collect())),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                (Key::String(Arc::new(name.clone())), in_cel(value))
            };
            CelValue::Map(fields.iter().map(field).collect::<HashMap<Key, CelValue>>().into())
        }
    }
}
