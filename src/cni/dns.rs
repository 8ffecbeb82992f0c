//! Pure. DNS settings, which are only passed on to the runtime.

use serde_json::{Value, json};

use crate::cni::json::{JsonField, object};

/// DNS settings of configurations and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }

    /// `{nameservers, domain, search, options}`.
    pub(super) fn read(field: &JsonField) -> Dns {
        let domain = field.get("domain").and_then(|domain| domain.filled());
        let domain = domain.map(str::to_owned);
        Dns { domain, ..Dns::of_keys(field, ["nameservers", "search", "options"]) }
    }

    /// `{servers, searches, options}`: the runtime's capability `dns`.
    pub(super) fn read_capability(field: &JsonField) -> Dns {
        Dns::of_keys(field, ["servers", "searches", "options"])
    }

    fn of_keys(field: &JsonField, keys: [&str; 3]) -> Dns {
        let list = |key: &str| field.get(key).and_then(|list| list.texts()).unwrap_or_default();
        let [nameservers, search, options] = keys.map(list);
        Dns { nameservers, domain: None, search, options }
    }

    pub(super) fn to_json(&self) -> Value {
        let list = |list: &[String]| (!list.is_empty()).then(|| json!(list));
        object([
            ("nameservers", list(&self.nameservers)),
            ("domain", self.domain.as_ref().map(|domain| json!(domain))),
            ("search", list(&self.search)),
            ("options", list(&self.options)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::FieldErrors;

    #[test]
    fn settings_are_written_as_they_were_read() {
        let faults = FieldErrors::default();
        for document in [
            json!({}),
            json!({ "nameservers": ["10.96.0.10", "fd00::a"], "domain": "cluster.local",
                "search": ["a.b", "c"], "options": ["ndots:5"] }),
        ] {
            assert_eq!(Dns::read(&JsonField::root(&document, &faults)).to_json(), document);
        }
    }

    #[test]
    fn the_capability_has_other_keys() {
        let document = json!({ "servers": ["10.96.0.10"], "searches": ["a"], "options": ["b"] });
        let faults = FieldErrors::default();
        let dns = Dns::read_capability(&JsonField::root(&document, &faults));
        let expected = json!({ "nameservers": ["10.96.0.10"], "search": ["a"], "options": ["b"] });
        assert_eq!(dns.to_json(), expected);
    }
}
