//! Pure. Name service settings. CNI hands them on to the runtime; humanz applies none.

use serde_json::{Map, Value, json};

use crate::cni::json::Field;

/// Name service settings, as they stand in configurations and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers, the first one first.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
    /// Domains to search in, in order.
    pub search: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}

impl Dns {
    /// Nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }

    /// `{nameservers, domain, search, options}`.
    pub(super) fn read(field: &Field) -> Dns {
        let list = |key: &str| field.get(key).and_then(|list| list.texts()).unwrap_or_default();
        let domain = field.get("domain").and_then(|domain| domain.filled());
        Dns {
            nameservers: list("nameservers"),
            domain: domain.map(str::to_owned),
            search: list("search"),
            options: list("options"),
        }
    }

    /// `{servers, searches, options}`: what a runtime passes as capability `dns`.
    pub(super) fn read_capability(field: &Field) -> Dns {
        let list = |key: &str| field.get(key).and_then(|list| list.texts()).unwrap_or_default();
        Dns {
            nameservers: list("servers"),
            domain: None,
            search: list("searches"),
            options: list("options"),
        }
    }

    /// What is set.
    pub(super) fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |key: &str, list: &[String]| {
            if !list.is_empty() {
                object.insert(key.to_owned(), json!(list));
            }
        };
        put("nameservers", &self.nameservers);
        put("search", &self.search);
        put("options", &self.options);
        object.extend(self.domain.as_ref().map(|domain| ("domain".to_owned(), json!(domain))));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::FieldErrors;

    #[test]
    fn settings_come_back_as_they_went_in() {
        let faults = FieldErrors::default();
        for document in [
            json!({}),
            json!({ "nameservers": ["10.96.0.10", "fd00::a"], "domain": "cluster.local",
                "search": ["a.b", "c"], "options": ["ndots:5"] }),
        ] {
            assert_eq!(Dns::read(&Field::root(&document, &faults)).to_json(), document);
        }
    }

    #[test]
    fn runtimes_use_other_words() {
        let document = json!({ "servers": ["10.96.0.10"], "searches": ["a"], "options": ["b"] });
        let faults = FieldErrors::default();
        let dns = Dns::read_capability(&Field::root(&document, &faults));
        let expected = json!({ "nameservers": ["10.96.0.10"], "search": ["a"], "options": ["b"] });
        assert_eq!(dns.to_json(), expected);
    }
}
