//! Pure. Which versions of a resource the Kubernetes API serves.
//!
//! Source: kubernetes.io, "API Discovery": `APIGroup` at `/apis/GROUP`, `APIResourceList` at
//! `/apis/GROUP/VERSION`.

use serde_json::Value;

/// Versions that are read, the preferred one first.
const KNOWN: [&str; 2] = ["v1alpha2", "v1beta1"];

/// Versions of one group that are asked about; Kubernetes' own groups have four at most.
const VERSIONS_LIMIT: usize = 16;

/// Longest name of a version, in bytes. Source: RFC 1123, a label.
const NAME_LIMIT: usize = 63;

/// The versions of a group, in the server's order; names that are none are left out.
///
/// # Errors
/// Not an APIGroup.
pub fn versions(bytes: &[u8]) -> Result<Vec<String>, String> {
    let group = of_kind("APIGroup", bytes)?;
    let versions = group["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let names = versions.iter().filter_map(|version| version["version"].as_str());
    Ok(names.filter(|name| is_name(name)).take(VERSIONS_LIMIT).map(str::to_owned).collect())
}

/// Whether a version has the resource `name`, as `clusternetworkpolicies`.
///
/// # Errors
/// Not an APIResourceList.
pub fn has(bytes: &[u8], name: &str) -> Result<bool, String> {
    let list = of_kind("APIResourceList", bytes)?;
    let resources = list["resources"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(resources.iter().any(|resource| resource["name"] == name))
}

/// The version to follow: one that is known, else the server's first.
pub fn preferred(served: Vec<String>) -> Option<String> {
    let known = KNOWN.iter().find(|known| served.iter().any(|version| version == *known));
    known.map(|known| (*known).to_owned()).or_else(|| served.into_iter().next())
}

fn of_kind(kind: &str, bytes: &[u8]) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if value["kind"] == kind { Ok(value) } else { Err(format!("not an {kind}")) }
}

/// It becomes part of a path.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=NAME_LIMIT).contains(&text.len()) && text.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(served: &[&str], wanted: Option<&str>) {
        let versions = served.iter().map(|version| (*version).to_owned()).collect();
        assert_eq!(preferred(versions).as_deref(), wanted, "{served:?}");
    }

    #[test]
    fn a_known_version_is_preferred_and_an_unknown_one_followed_too() {
        check(&[], None);
        check(&["v1beta1", "v1alpha2"], Some("v1alpha2"));
        check(&["v1", "v1beta1"], Some("v1beta1"));
        check(&["v2", "v1"], Some("v2"));
    }

    #[test]
    fn names_that_would_change_the_path_are_left_out() {
        let said = br#"{"kind":"APIGroup","versions":[{"version":"../../api"},{"version":"v1?x"},
            {"version":""},{"version":7},{},{"version":"v1beta1"}]}"#;
        assert_eq!(versions(said).unwrap(), ["v1beta1"]);
        let many: Vec<String> =
            (0..1000).map(|number| format!(r#"{{"version":"v{number}"}}"#)).collect();
        let many = format!(r#"{{"kind":"APIGroup","versions":[{}]}}"#, many.join(","));
        assert_eq!(versions(many.as_bytes()).unwrap().len(), VERSIONS_LIMIT);
        for bad in ["", "[]", "{}", "null", r#"{"kind":"Status"}"#] {
            assert!(versions(bad.as_bytes()).is_err() && has(bad.as_bytes(), "x").is_err());
        }
        let list = br#"{"kind":"APIResourceList","resources":[{"name":"a/status"},{"name":"b"}]}"#;
        assert!(has(list, "b").unwrap() && !has(list, "a").unwrap());
    }
}
