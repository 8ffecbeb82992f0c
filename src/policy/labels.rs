//! Pure. Labels, and what a selector asks of them, in a canonical form.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::sorted::Sorted;

/// Labels of an object. What is no label by Kubernetes' syntax stands here too; no selector asks for it.
pub type Labels = BTreeMap<Box<str>, Box<str>>;

/// Requirements that labels must meet, all of them; none: every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LabelSelector(Sorted<Requirement>);

/// One of `matchExpressions`; `matchLabels` is `In` with one value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Requirement {
    In(LabelKey, Sorted<LabelValue>),
    /// Met without the label too.
    NotIn(LabelKey, Sorted<LabelValue>),
    Exists(LabelKey),
    DoesNotExist(LabelKey),
}

/// `prefix/name` or `name`: the name 1 to 63 letters, digits, `-`, `_`, `.`, first and last no sign;
/// the prefix a DNS name of at most 253 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelKey(Box<str>);

/// Empty, or as the name of a [`LabelKey`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelValue(Box<str>);

/// A text that is no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a label's {1}")]
pub struct LabelError(String, &'static str);

impl Requirement {
    pub fn key(&self) -> &str {
        match self {
            Requirement::In(key, _)
            | Requirement::NotIn(key, _)
            | Requirement::Exists(key)
            | Requirement::DoesNotExist(key) => &key.0,
        }
    }

    /// Its key and its values.
    fn bytes(&self) -> usize {
        match self {
            Requirement::In(key, of) | Requirement::NotIn(key, of) => {
                key.0.len() + of.iter().map(|value| value.0.len()).sum::<usize>()
            }
            Requirement::Exists(key) | Requirement::DoesNotExist(key) => key.0.len(),
        }
    }

    fn words(&self) -> usize {
        match self {
            Requirement::In(_, of) | Requirement::NotIn(_, of) => 1 + of.len(),
            Requirement::Exists(_) | Requirement::DoesNotExist(_) => 1,
        }
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        let value = |key: &LabelKey| labels.get(&*key.0);
        match self {
            Requirement::In(key, of) => value(key).is_some_and(|value| has(of, value)),
            Requirement::NotIn(key, of) => value(key).is_none_or(|value| !has(of, value)),
            Requirement::Exists(key) => value(key).is_some(),
            Requirement::DoesNotExist(key) => value(key).is_none(),
        }
    }
}

impl LabelSelector {
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> LabelSelector {
        LabelSelector(requirements.into_iter().collect())
    }

    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter()
    }

    /// A label that every object which meets it has, with one of these values, if it asks for one.
    pub fn one_of(&self) -> Option<(&str, impl Iterator<Item = &str>)> {
        self.0.iter().find_map(|requirement| match requirement {
            Requirement::In(key, of) => Some((&*key.0, of.iter().map(|value| &*value.0))),
            _ => None,
        })
    }

    /// Keys and values that it asks for.
    pub fn words(&self) -> usize {
        self.0.iter().map(Requirement::words).sum()
    }

    /// Length of all keys and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Requirement::bytes).sum()
    }

    /// Every object meets it.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

fn has(of: &[LabelValue], value: &str) -> bool {
    of.binary_search_by(|one| (*one.0).cmp(value)).is_ok()
}

fn is_label_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = [text.bytes().next(), text.bytes().last()];
    let whole = ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()));
    whole && text.len() <= 63 && text.bytes().all(inner)
}

fn is_label_prefix(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(inner)
}

impl TryFrom<String> for LabelKey {
    type Error = LabelError;

    fn try_from(text: String) -> Result<LabelKey, LabelError> {
        let good = match text.split_once('/') {
            Some((prefix, name)) => is_label_prefix(prefix) && is_label_name(name),
            None => is_label_name(&text),
        };
        let error = || LabelError(text.chars().take(64).collect(), "key");
        if good { Ok(LabelKey(text.into())) } else { Err(error()) }
    }
}

impl TryFrom<String> for LabelValue {
    type Error = LabelError;

    fn try_from(text: String) -> Result<LabelValue, LabelError> {
        let error = || LabelError(text.chars().take(64).collect(), "value");
        let good = text.is_empty() || is_label_name(&text);
        if good { Ok(LabelValue(text.into())) } else { Err(error()) }
    }
}

impl From<LabelKey> for String {
    fn from(key: LabelKey) -> String {
        key.0.into()
    }
}

impl From<LabelValue> for String {
    fn from(value: LabelValue) -> String {
        value.0.into()
    }
}

impl fmt::Display for Requirement {
    /// As `kubectl --selector` has it: `app=web`, `app in (a,b)`, `app notin (a)`, `app`, `!app`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |of: &[LabelValue]| of.iter().map(|value| &*value.0).collect::<Vec<_>>().join(",");
        match self {
            Requirement::In(key, of) if of.len() == 1 => write!(f, "{}={}", key.0, list(of)),
            Requirement::In(key, of) => write!(f, "{} in ({})", key.0, list(of)),
            Requirement::NotIn(key, of) => write!(f, "{} notin ({})", key.0, list(of)),
            Requirement::Exists(key) => f.write_str(&key.0),
            Requirement::DoesNotExist(key) => write!(f, "!{}", key.0),
        }
    }
}

impl fmt::Display for LabelSelector {
    /// `app=web,tier=front`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(","))
    }
}
