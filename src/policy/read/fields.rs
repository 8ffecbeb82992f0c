//! Pure. Fields of a JSON value that anybody may have written, and what is wrong with them.

use std::fmt;
use std::ops::RangeInclusive;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::net::subnet;
use crate::policy::name::ObjectName;

/// A value and its place in the object.
#[derive(Clone, Debug)]
pub struct ObjectField<'a> {
    path: String,
    value: &'a Value,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    path: String,
    what: String,
}

/// Longest list that is read; longer ones are refused as a whole.
const ITEMS_LIMIT: usize = 10_000;

impl<'a> ObjectField<'a> {
    /// The whole object.
    pub fn root(value: &'a Value) -> ObjectField<'a> {
        ObjectField { path: String::new(), value }
    }

    pub fn fault(&self, what: impl Into<String>) -> Fault {
        Fault { path: self.path.clone(), what: what.into() }
    }

    /// The field, if it is there and not null.
    pub fn get(&self, name: &str) -> Option<ObjectField<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let dot = if self.path.is_empty() { "" } else { "." };
        Some(ObjectField { path: format!("{}{dot}{name}", self.path), value })
    }

    /// # Errors
    /// The field is not there.
    pub fn need(&self, name: &str) -> Result<ObjectField<'a>, Fault> {
        self.get(name).ok_or_else(|| self.fault(format!("{name} is missing")))
    }

    /// The value itself.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    pub fn is_text(&self) -> bool {
        self.value.is_string()
    }

    /// A text that is no number.
    pub fn is_word(&self) -> bool {
        self.value.as_str().is_some_and(|text| !is_digits(text))
    }

    /// # Errors
    /// It is no object, or has fields other than `known`. What stands alone is the `spec` of an object.
    pub fn only(&self, known: &[&str]) -> Result<(), Fault> {
        let wrong = || match self.value.is_null() && self.path.is_empty() {
            true => self.fault("spec is missing"),
            false => self.fault("must be an object"),
        };
        let object = self.value.as_object().ok_or_else(wrong)?;
        // A field that is null is one that is not there.
        let unknown =
            object.iter().find(|(key, value)| !known.contains(&key.as_str()) && !value.is_null());
        match unknown {
            Some((key, _)) => Err(self.fault(format!("field {} is not known", quoted(key)))),
            None => Ok(()),
        }
    }

    /// The keys and values of an object.
    ///
    /// # Errors
    /// It is no object, or has too many fields.
    pub fn entries(
        &self,
    ) -> Result<impl Iterator<Item = (&'a str, ObjectField<'a>)> + use<'a>, Fault> {
        let object = self.value.as_object().ok_or_else(|| self.fault("must be an object"))?;
        if object.len() > ITEMS_LIMIT {
            return Err(self.fault(format!("has more than {ITEMS_LIMIT} fields")));
        }
        let path = self.path.clone();
        let field =
            move |key: &str, value| ObjectField { path: format!("{path}[{}]", quoted(key)), value };
        Ok(object.iter().map(move |(key, value)| (key.as_str(), field(key, value))))
    }

    /// # Errors
    /// It is no list, or too long.
    pub fn items(&self) -> Result<Vec<ObjectField<'a>>, Fault> {
        let list = self.value.as_array().ok_or_else(|| self.fault("must be a list"))?;
        if list.len() > ITEMS_LIMIT {
            return Err(self.fault(format!("has more than {ITEMS_LIMIT} entries")));
        }
        let item = |(at, value)| ObjectField { path: format!("{}[{at}]", self.path), value };
        Ok(list.iter().enumerate().map(item).collect())
    }

    /// The entries of the list `name`; none if it is not there.
    ///
    /// # Errors
    /// It is no list, or too long.
    pub fn list(&self, name: &str) -> Result<Vec<ObjectField<'a>>, Fault> {
        self.get(name).map_or(Ok(Vec::new()), |field| field.items())
    }

    /// # Errors
    /// It is not true or false.
    pub fn flag(&self) -> Result<bool, Fault> {
        self.value.as_bool().ok_or_else(|| self.fault("must be true or false"))
    }

    /// # Errors
    /// It is no text.
    pub fn text(&self) -> Result<&'a str, Fault> {
        self.value.as_str().ok_or_else(|| self.fault("must be a text"))
    }

    /// A number, or its digits: nothing that takes a number takes a name of digits alone.
    ///
    /// # Errors
    /// It is no whole number in `range`.
    pub fn number(&self, range: RangeInclusive<u16>) -> Result<u16, Fault> {
        let number = match self.value {
            Value::Number(number) => number.as_u64().and_then(|number| u16::try_from(number).ok()),
            Value::String(text) if is_digits(text) => text.parse().ok(),
            _ => None,
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            self.fault(format!("must be a number from {} to {}", range.start(), range.end()))
        })
    }

    /// # Errors
    /// It is no name.
    pub fn name(&self) -> Result<ObjectName, Fault> {
        self.text()?.parse().map_err(|error| self.fault(format!("{error}")))
    }

    /// A network; host bits are cleared, as Kubernetes does.
    ///
    /// # Errors
    /// It is no CIDR.
    pub fn network(&self) -> Result<IpNetwork, Fault> {
        let text = self.text()?;
        let network = text.contains('/').then(|| text.parse().ok()).flatten();
        let error = || self.fault(format!("{} is not a CIDR", quoted(text)));
        network.map(subnet::masked).ok_or_else(error)
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// At most 60 characters of `text`, in quotes and without control characters.
pub fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

impl Fault {
    /// The object as a whole.
    pub fn of_object(what: String) -> Fault {
        Fault { path: String::new(), what }
    }

    /// With what follows from it.
    pub fn so(self, consequence: &str) -> Fault {
        Fault { what: format!("{}; {consequence}", self.what), ..self }
    }
}

impl fmt::Display for Fault {
    /// `spec.ingress[0].ports[1].port: must be a number from 1 to 65535`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.what),
            path => write!(f, "{path}: {}", self.what),
        }
    }
}
