//! Pure. What is listed and watched in the Kubernetes API.

use std::borrow::Cow;
use std::time::Duration;

/// What is listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// In the plural, for errors: `nodes`.
    pub name: &'static str,
    pub path: Cow<'static, str>,
    /// Which of them, as `name=value`.
    pub field_selector: Option<String>,
    /// Objects in a page: they differ in size.
    pub page: usize,
    /// Objects, at most; no cluster has more.
    pub limit: usize,
    /// A cluster without this resource has no such objects; else it is one that does not say which it has.
    pub is_optional: bool,
    /// The cluster had such objects before: one that starts may not have the resource yet.
    pub had_objects: bool,
    /// Longest time after which a cluster that lacks it is asked for it again.
    pub ask_again: Duration,
}

/// A new resource is in use within a minute.
pub const SOON_ASKED: Duration = Duration::from_secs(40);

impl Query {
    /// `apiVersion` of its objects: `v1`, `networking.k8s.io/v1`.
    pub fn version(&self) -> &str {
        let (version, _) = self.path.rsplit_once('/').unwrap_or_default();
        version.trim_start_matches("/apis/").trim_start_matches("/api/")
    }

    /// As further arguments of a path.
    pub fn selected(&self) -> String {
        let one = |selector| format!("&fieldSelector={}", escaped(selector));
        self.field_selector.as_deref().map(one).unwrap_or_default()
    }
}

/// `text` as a value in a query. Source: RFC 3986 §2.3.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(byte.into());
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
