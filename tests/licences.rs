//! Every crate in the lock file may be shipped under the licences `.deny.toml` allows.
//!
//! The same check as `cargo deny check licenses`, without that program and without a network.

use std::path::Path;
use std::process::Command;

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed(&read(".deny.toml"));
    assert!(allowed.iter().any(|name| name == "MIT"), "no allow list in .deny.toml: {allowed:?}");
    let mut refused = Vec::new();
    for (package, licence) in packages() {
        if !is_allowed(&licence, &allowed) {
            refused.push(format!("{package}: {licence}"));
        }
    }
    assert!(refused.is_empty(), "not in .deny.toml's allow list:\n{}", refused.join("\n"));
}

#[test]
fn an_expression_needs_one_side_of_or_and_both_sides_of_and() {
    let allowed: Vec<String> = ["MIT", "ISC", "A WITH B"].map(String::from).to_vec();
    for (expression, wanted) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT/GPL-3.0", true),
        ("GPL-3.0 OR MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("MIT AND (GPL-3.0 OR LGPL-2.1)", false),
        ("A WITH B", true),
        ("A", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), wanted, "{expression}");
    }
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The strings of the one list called `allow`.
fn allowed(deny_toml: &str) -> Vec<String> {
    let list = deny_toml.split_once("allow = [").map_or("", |(_, rest)| rest);
    let list = list.split(']').next().unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(String::from).collect()
}

/// Name and licence expression of every package but our own.
fn packages() -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("run cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            (format!("{} {}", text("name"), text("version")), text("license"))
        })
        .collect()
}

fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

fn any_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut granted = all_of(rest, allowed);
    while take(rest, "OR") {
        granted |= all_of(rest, allowed);
    }
    granted
}

fn all_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut granted = one(rest, allowed);
    while take(rest, "AND") {
        granted &= one(rest, allowed);
    }
    granted
}

fn one(rest: &mut &[&str], allowed: &[String]) -> bool {
    if take(rest, "(") {
        let granted = any_of(rest, allowed);
        return take(rest, ")") && granted;
    }
    let Some((name, after)) = rest.split_first() else { return false };
    *rest = after;
    let mut name = name.to_string();
    if take(rest, "WITH") {
        let Some((exception, after)) = rest.split_first() else { return false };
        *rest = after;
        name = format!("{name} WITH {exception}");
    }
    allowed.contains(&name)
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    match rest.split_first() {
        Some((first, after)) if *first == word => {
            *rest = after;
            true
        }
        _ => false,
    }
}
