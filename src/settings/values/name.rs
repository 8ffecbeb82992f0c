//! Pure. Names, keys and paths.

use std::path::{Component, PathBuf};

use crate::lease::records::{NodeName, NodeNameError};
use crate::policy::{Networks, Scoped};

/// A path from the root, without `..`.
pub fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() && !path.components().any(|part| part == Component::ParentDir) {
        Ok(path)
    } else {
        Err("must be a path that begins with / and has no ..".into())
    }
}

/// [`absolute`], or `none`.
pub fn path_or_none(text: &str) -> Result<Option<PathBuf>, String> {
    if text == "none" { Ok(None) } else { absolute(text).map(Some) }
}

/// The CNI configuration: `.conflist`, or `.conf` (also `.json`) for the single-plugin form.
pub fn config_file(text: &str) -> Result<PathBuf, String> {
    let path = absolute(text)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("conflist" | "conf" | "json") => Ok(path),
        _ => Err("must end in .conflist, .conf or .json: runtimes read nothing else".into()),
    }
}

/// An etcd key: begins with `/`, does not end with it.
pub fn key(text: &str) -> Result<String, String> {
    if text.starts_with('/') && !text.ends_with('/') && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err("must begin with / and not end with /".into())
    }
}

/// A host's name as a part of an etcd key.
pub fn node_name(text: &str) -> Result<NodeName, String> {
    text.parse().map_err(|error: NodeNameError| error.to_string())
}

/// A group of the tenant `default`, or `TENANT/NAME`.
pub fn group(text: &str) -> Result<Scoped, String> {
    let default = Networks::default_name().tenant;
    Scoped::parse(text, &default).map_err(|error| error.to_string())
}

/// The name of a network: a letter or digit, then letters, digits, `_`, `.`, `-`.
///
/// Source: CNI SPEC §1, key `name`.
pub fn cni_name(text: &str) -> Result<String, String> {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(rest) {
        Ok(text.to_owned())
    } else {
        Err("must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'"
            .into())
    }
}

/// The name of the plugin's file; not one that has another meaning.
pub fn plugin_type(text: &str) -> Result<String, String> {
    match text {
        "humanz-agent" | "loopback" => Err("has a meaning of its own; choose another name".into()),
        "" | "." | ".." => Err("must be the name of a file".into()),
        _ if text.contains(['/', '\0']) => Err("must be the name of a file, without /".into()),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_meaning_are_refused() {
        for bad in ["humanz-agent", "loopback", "", "..", "a/b"] {
            assert!(plugin_type(bad).is_err(), "{bad:?} was taken");
        }
        for bad in ["", "a/b", "a b", "..", "hôte"] {
            assert!(node_name(bad).is_err(), "{bad:?} was taken");
        }
        for bad in ["", "-a", "te%%st", "a/b"] {
            assert!(cni_name(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_key_is_a_path_without_an_end() {
        assert!(key("/humanz").is_ok());
        for bad in ["", "/", "humanz", "/humanz/"] {
            assert!(key(bad).is_err(), "{bad:?} was taken");
        }
    }
}
