//! Pure. Reading foreign JSON: keys in any case, every error collected with its path. And writing it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::cni::error::{CniError, code};
use crate::net::gather::Gather;
use crate::net::{Family, subnet};

/// An invalid value, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Keys and indexes: `ipam.ranges[0][1].subnet`.
    pub path: String,
    /// What is wrong, and what would be valid.
    pub text: String,
    /// The value is valid, but asks for something that humanz does not have.
    pub unsupported: bool,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// One error for all of `faults` (at least one): code 2 if all are unsupported fields, else 7.
pub(super) fn error(faults: &[FieldError]) -> CniError {
    let texts: Vec<String> = faults.iter().map(FieldError::to_string).collect();
    let all = texts.join("; ");
    if faults.iter().all(|fault| fault.unsupported) {
        CniError::new(code::UNSUPPORTED_FIELD, format!("unsupported field {all}"))
    } else {
        CniError::config(format!("invalid network configuration: {all}"))
    }
}

/// So many errors are kept; the others are counted.
const KEPT: usize = 50;

/// The errors so far.
#[derive(Debug, Default)]
pub(super) struct FieldErrors {
    kept: RefCell<Vec<FieldError>>,
    /// All others, and those that are unsupported fields.
    others: Cell<(usize, usize)>,
}

impl FieldErrors {
    /// In the order of their discovery; at the end, how many more there were.
    pub fn into_vec(self) -> Vec<FieldError> {
        let (mut errors, (others, unsupported)) = (self.kept.into_inner(), self.others.get());
        if others > 0 {
            let (path, text) = ("further errors".to_owned(), others.to_string());
            errors.push(FieldError { path, text, unsupported: unsupported == others });
        }
        errors
    }

    fn push(&self, path: String, text: String, unsupported: bool) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < KEPT {
            return kept.push(FieldError { path, text, unsupported });
        }
        let (others, of_these) = self.others.get();
        self.others.set((others + 1, of_these + usize::from(unsupported)));
    }
}

/// One value of a document, never null. The readers collect an error and give `None`.
#[derive(Clone, Debug)]
pub(super) struct JsonField<'a> {
    value: &'a Value,
    path: String,
    faults: &'a FieldErrors,
}

impl<'a> JsonField<'a> {
    pub fn root(value: &'a Value, faults: &'a FieldErrors) -> JsonField<'a> {
        JsonField { value, path: String::new(), faults }
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// The path of `key` in this object.
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of `key`; `None` if it is missing or null, or this is not an object (which is an error
    /// of [`JsonField::object`]).
    ///
    /// The exact key takes precedence over one in other case: runtimes written in Go ignore case, and
    /// one library writes both `cniVersion` and `CNIVersion`.
    pub fn get(&self, key: &str) -> Option<JsonField<'a>> {
        let fields = self.value.as_object()?;
        let exact = fields.get(key).filter(|value| !value.is_null());
        let any = || {
            let others = fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(key));
            others.map(|(_, value)| value).find(|value| !value.is_null())
        };
        let value = exact.or_else(any)?;
        Some(JsonField { value, path: self.path_of(key), faults: self.faults })
    }

    /// The object under `key`.
    pub fn object(&self, key: &str) -> Option<JsonField<'a>> {
        let field = self.get(key)?;
        if field.value.is_object() { Some(field) } else { field.refuse("an object") }
    }

    /// `key` exists, also with null.
    pub fn has(&self, key: &str) -> bool {
        let fields = self.value.as_object();
        fields.is_some_and(|fields| fields.keys().any(|other| other.eq_ignore_ascii_case(key)))
    }

    /// The keys and values of this object; null values are left out.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, JsonField<'a>)> + '_ {
        let fields = self.value.as_object().into_iter().flatten();
        fields.filter(|(_, value)| !value.is_null()).map(|(key, value)| {
            let field = JsonField { value, path: self.path_of(key), faults: self.faults };
            (key.as_str(), field)
        })
    }

    /// The members of this list, read by `read`; `right` describes them.
    pub fn list<T>(
        &self,
        right: &str,
        read: impl Fn(JsonField<'a>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Some(members) = self.value.as_array() else {
            return self.refuse(&format!("a list of {right}"));
        };
        let members = members.iter().enumerate().map(|(place, value)| JsonField {
            value,
            path: format!("{}[{place}]", self.path),
            faults: self.faults,
        });
        Some(members.filter_map(read).collect())
    }

    pub fn bool(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| self.refuse("true or false"))
    }

    pub fn text(&self) -> Option<&'a str> {
        self.value.as_str().or_else(|| self.refuse("a text"))
    }

    /// A text; `None` if it is empty.
    pub fn filled(&self) -> Option<&'a str> {
        self.text().filter(|text| !text.is_empty())
    }

    pub fn texts(&self) -> Option<Vec<String>> {
        self.list("texts", |member| member.text().map(str::to_owned))
    }

    /// A whole number in `range`.
    pub fn number(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let number = self.value.as_u64().and_then(|number| u32::try_from(number).ok());
        let right = || format!("a whole number from {} to {}", range.start(), range.end());
        number.filter(|number| range.contains(number)).or_else(|| self.refuse(&right()))
    }

    /// A text parsed as `T`; `None` if it is empty.
    pub fn parsed<T>(&self) -> Option<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        match self.filled()?.parse() {
            Ok(value) => Some(value),
            Err(error) => self.fault(error.to_string()),
        }
    }

    /// An IP address without a prefix length; `None` if the text is empty.
    pub fn address(&self) -> Option<IpAddr> {
        let address = self.filled()?.parse().ok();
        address.or_else(|| self.refuse("an IP address, as in 10.244.1.2 or fd00::2"))
    }

    /// An IP address with or without a prefix length; without: /32 or /128.
    pub fn address_or_cidr(&self) -> Option<IpNetwork> {
        let address = self.text()?;
        let right = "an IP address, as in 10.244.1.2 or 10.244.1.2/24";
        address_or_cidr(address).or_else(|| self.refuse(right))
    }

    /// An address with a prefix length.
    pub fn cidr(&self) -> Option<IpNetwork> {
        let cidr = cidr(self.text()?);
        cidr.or_else(|| self.refuse("an address with a prefix length, as in 10.244.1.0/24"))
    }

    /// An address with a prefix length and without host bits.
    pub fn network(&self) -> Option<IpNetwork> {
        let written = self.cidr()?;
        let network = subnet::masked(written);
        if network == written {
            return Some(network);
        }
        self.fault(format!("{written} has host bits set; the subnet is {network}"))
    }

    /// An error: this is not `right`.
    pub fn refuse<T>(&self, right: &str) -> Option<T> {
        self.fault(format!("must be {right}, not {}", shown(self.value)))
    }

    /// An error: humanz does not have this.
    pub fn unsupported(&self, instead: &str) {
        let text = format!("{} ({instead})", shown(self.value));
        self.faults.push(self.path.clone(), text, true);
    }

    /// The number of errors so far.
    pub fn error_count(&self) -> usize {
        self.faults.kept.borrow().len() + self.faults.others.get().0
    }

    /// An error at `path` in this object.
    pub fn fault_at(&self, path: &str, text: impl Into<String>) {
        self.faults.push(self.path_of(path), text.into(), false);
    }

    /// An error of this value.
    pub fn fault<T>(&self, text: impl Into<String>) -> Option<T> {
        self.faults.push(self.path.clone(), text.into(), false);
        None
    }
}

/// `text` as address/length. Other than [`IpNetwork`]'s parser, this requires the length, as a number.
pub(super) fn cidr(text: &str) -> Option<IpNetwork> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let digits = (1..=3).contains(&length.len()) && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = length.parse().ok().filter(|_| digits)?;
    (length <= Family::of(address).bits()).then(|| subnet::with_prefix(address, length))
}

/// `text` as an address with or without a length; without: /32 or /128.
pub(super) fn address_or_cidr(text: &str) -> Option<IpNetwork> {
    text.parse().ok().map(subnet::host).or_else(|| cidr(text))
}

/// The object of those fields that have a value.
pub(super) fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter();
    Value::Object(fields.filter_map(|(key, value)| Some((key.to_owned(), value?))).gather())
}

/// `value` as JSON, at most 60 characters.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = match value {
        // These may have megabytes.
        Value::Array(_) => return "a list".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        Value::String(text) => format!("{:?}", text.chars().take(LONGEST).collect::<String>()),
        other => other.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The faults that `read` leaves in `document`.
    fn faults<T>(document: &Value, read: impl Fn(&JsonField) -> T) -> Vec<String> {
        let faults = FieldErrors::default();
        read(&JsonField::root(document, &faults));
        faults.into_vec().iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn keys_match_in_any_case_and_the_exact_one_takes_precedence() {
        let document = json!({ "CNIVersion": "old", "cniVersion": "new", "bandWidth": "x" });
        let none = FieldErrors::default();
        let root = JsonField::root(&document, &none);
        assert_eq!(root.get("cniVersion").unwrap().text(), Some("new"));
        assert_eq!(root.get("bandwidth").unwrap().text(), Some("x"));
    }

    #[test]
    fn null_is_absent() {
        let document = json!({ "mtu": null, "MTU": 9000, "dns": null });
        let none = FieldErrors::default();
        let root = JsonField::root(&document, &none);
        assert_eq!(root.get("mtu").unwrap().number(0..=9999), Some(9000));
        assert!(root.get("dns").is_none() && root.has("dns"));
    }

    #[test]
    fn an_error_has_path_value_and_what_is_valid() {
        let document = json!({ "ipam": { "ranges": [[{}, { "subnet": 7 }]] }, "mtu": "x" });
        let subnets = |root: &JsonField| {
            let ranges = root.object("ipam")?.get("ranges")?;
            ranges.list("lists", |set| set.list("ranges", |range| range.get("subnet")?.cidr()))
        };
        let expected = "ipam.ranges[0][1].subnet: must be a text, not 7";
        assert_eq!(faults(&document, subnets), [expected]);
        let expected = "mtu: must be a whole number from 0 to 65535, not \"x\"";
        assert_eq!(faults(&document, |root| root.get("mtu")?.number(0..=65535)), [expected]);
        let expected = "mtu: must be an object, not \"x\"";
        assert_eq!(faults(&document, |root| root.object("mtu").is_none()), [expected]);
    }

    #[test]
    fn numbers_are_whole_and_in_range() {
        for bad in [json!(-1), json!(1.5), json!(1500.0), json!("1"), json!(5_000_000_000u64)] {
            let document = json!({ "n": bad });
            let found = faults(&document, |root| root.get("n")?.number(0..=u32::MAX));
            assert_eq!(found.len(), 1, "{document}");
        }
    }

    #[test]
    fn a_long_value_is_cut() {
        let document = json!({ "mtu": "ü".repeat(5000) });
        let found = faults(&document, |root| root.get("mtu")?.bool());
        assert!(found[0].chars().count() < 120, "{found:?}");
    }

    #[test]
    fn addresses_with_a_length() {
        assert_eq!(cidr("10.1.2.3/24"), Some("10.1.2.3/24".parse().unwrap()));
        assert_eq!(cidr("fd00::1/64"), Some("fd00::1/64".parse().unwrap()));
        let bad = ["10.1.2.3", "10.1.2.3/", "10.1.2.3/33", "10.1.2.3/+8", "10.1.2.3/255.0.0.0"];
        for bad in bad.into_iter().chain(["10.1.2/24", "fd00::/129", "/24", "", "fd00::1%eth0/64"])
        {
            assert_eq!(cidr(bad), None, "{bad:?} was taken");
        }
    }

    #[test]
    fn the_error_is_2_only_if_everything_is_unsupported() {
        let fault = |unsupported| FieldError { path: "p".into(), text: "t".into(), unsupported };
        assert_eq!(error(&[fault(true), fault(true)]).code, 2);
        assert_eq!(error(&[fault(true), fault(false)]).code, 7);
        assert_eq!(error(&[fault(false)]).msg, "invalid network configuration: p: t");
    }
}
