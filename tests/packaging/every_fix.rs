//! Every fix of a problem begins with a command: one to copy, or one that shows what is to be changed.

use std::fs;

use crate::fixes::{PROGRAMS, parts};
use crate::{root, sources};

/// Fixes without a command, and why there is none.
const WITHOUT: [(&str, &str); 5] = [
    ("run this as root", "the same command again, whichever that was"),
    ("run it as root", "the same command again"),
    (
        "start a pod: the plugin repairs bridge",
        "the user's own pod does it, by the runtime's own command",
    ),
    (
        "a directory is in the way: remove it",
        "the fault has its path, and nobody shall remove it unseen",
    ),
    (
        "a file is in the way of a directory: move it away",
        "the fault has its path, and nobody shall remove it unseen",
    ),
];

/// What other texts, which begin with a command, have in them.
const PARTS: [&str; 8] = [
    "if {owner} is permanently gone: ",
    "set {namespace}",
    "create {namespace} --tenant ",
    "not set",
    " --add-source={pool}",
    "set NODE_IP there",
    "set BACKEND=auto there",
    "set ENCRYPTION=wireguard there (or",
];

/// Functions that make fixes and have none of the word in their names.
const MAKERS: [&str; 1] = ["own_key"];

#[test]
fn every_fix_begins_with_a_command() {
    let (mut seen, mut found, mut used) = (0, Vec::new(), vec![false; WITHOUT.len()]);
    for file in sources(&root().join("src")) {
        let path = file.to_string_lossy().into_owned();
        if !path.ends_with(".rs") || path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for fix in fixes(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()) {
            seen += 1;
            let is_command = PARTS.iter().any(|it| fix.starts_with(it))
                || fix.starts_with("humanz-agent ")
                || fix.starts_with('{')
                || PROGRAMS.iter().any(|it| fix.starts_with(it));
            match WITHOUT.iter().position(|(text, _)| fix.starts_with(text)) {
                Some(at) => used[at] = true,
                None if is_command => {}
                None => found.push(format!("{path}: {fix}")),
            }
        }
    }
    assert!(seen > 150 && found.is_empty(), "{seen}: {found:#?}");
    assert!(!used.contains(&false), "an exception that nothing needs: {used:?} of {WITHOUT:#?}");
}

/// The texts in `code` that are given to `with_fix`, by themselves or by a name that ends in `fix`, and those of
/// functions that make fixes.
fn fixes(code: &str) -> Vec<String> {
    let (code, texts) = parts(code);
    let mut all = Vec::new();
    for function in functions(&code) {
        let name = function.split(['(', '<']).next().unwrap_or_default();
        let mut places = Vec::new();
        if name == "fix" || name.ends_with("_fix") || MAKERS.contains(&name) {
            places.push(function.split_once('{').map_or("", |(_, body)| body));
        } else if function.contains(".with_fix(") {
            places.extend(after(function, ".with_fix(").map(|it| &it[..end(it, ")")]));
            let values = after(function, "fix = ").chain(after(function, "fix) = "));
            places.extend(values.flat_map(|it| last_parts(&it[..end(it, ";")])));
            if function.contains("fix: &str| {") {
                let calls = after(function, "problem(").map(|it| &it[..end(it, ")")]);
                places.extend(calls.filter_map(|call| split(call).pop()));
            }
        }
        let of = |place: &str| -> Vec<String> {
            let marks = place.split('"').skip(1).step_by(2);
            marks.map(|mark| texts[mark.parse::<usize>().unwrap()].clone()).collect()
        };
        // A single word is an argument of the text.
        all.extend(places.into_iter().flat_map(of).filter(|text| text.trim_end().contains(' ')));
    }
    all
}

/// The functions in `code`, each from its name on.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    code.split("\nfn ").flat_map(|it| it.split(" fn ")).skip(1)
}

/// What stands behind each `mark`.
fn after<'a>(code: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(mark).map(|(at, _)| &code[at + mark.len()..])
}

/// Where the first of `ends` is that is not in brackets.
fn end(code: &str, ends: &str) -> usize {
    let mut depth = 0;
    for (at, char) in code.char_indices() {
        match char {
            _ if depth == 0 && ends.contains(char) => return at,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// What commas part, but for those in brackets.
fn split(code: &str) -> Vec<&str> {
    let (mut all, mut rest) = (Vec::new(), code);
    while !rest.trim().is_empty() {
        let at = end(rest, ",");
        all.push(&rest[..at]);
        rest = rest.get(at + 1..).unwrap_or_default();
    }
    all
}

/// The last parts of the tuples in `value`, or the whole if it has none.
fn last_parts(value: &str) -> Vec<&str> {
    let tuple = |(at, _): (usize, &str)| {
        let before = value[..at].chars().next_back();
        let is_call = before.is_some_and(|it| it.is_alphanumeric() || "_!>)".contains(it));
        let inside = split(&value[at + 1..][..end(&value[at + 1..], ")")]);
        if is_call || inside.len() < 2 { None } else { inside.last().copied() }
    };
    let found: Vec<&str> = value.match_indices('(').filter_map(tuple).collect();
    if found.is_empty() { vec![value] } else { found }
}

#[test]
fn the_texts_of_fixes_are_found() {
    let code = r#"
fn a() {
    let (why, fix) = match x {
        None => ("its why", "cat a # (b"),
        Some(y) => (format!("{y} why"), format!("ls {} # c", z.map_or("no", f))),
    };
    problem.with_fix(fix); other.with_fix("rm the d")
}
fn usual_fix() -> String { "id # e".to_owned() }
fn no() { let fix = "not given on"; }
"#;
    assert_eq!(fixes(code), ["rm the d", "cat a # (b", "ls {} # c", "id # e"]);
}
