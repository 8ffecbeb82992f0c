//! What systemd reads, and what cannot be meant.

use proptest::prelude::*;

use crate::settings::env_file::*;

/// The one assignment in `text` is `A` with this value.
fn check(text: &str, value: &str) {
    let found = parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{text:?}: {faults:?}"));
    assert_eq!(found.keys().collect::<Vec<_>>(), ["A"], "{text:?}");
    assert_eq!(found["A"].value, value, "{text:?}");
}

fn faults(text: &[u8]) -> Vec<String> {
    parse(text).err().unwrap_or_default().iter().map(SyntaxError::to_string).collect()
}

#[test]
fn a_line_is_a_name_and_a_value() {
    check("A=b", "b");
    check("  A = b c \t\r\n", "b c");
    check("A=", "");
    check("A=b=c", "b=c");
    check("A=10.0.0.0/8 # no comment here", "10.0.0.0/8 # no comment here");
    check("# A=c \\\n; A=d\n\nA=b\n#A=e", "b");
    check("A=b\nA=c", "c");
}

#[test]
fn quotes_keep_what_is_in_them() {
    check("A=\"b c \"", "b c ");
    check("A='b \"c\" \\' 'd'", "b \"c\" \\d");
    check("A=\"b\\\"\\$\\`\\\\ \\n\"", "b\"$`\\ \\n");
    check("A=b\"c\"", "b\"c\"");
    check("A=\"b\" c", "bc");
    check("A=$HOME", "$HOME");
}

#[test]
fn a_backslash_joins_lines_and_takes_a_meaning_away() {
    check("A=b,\\\nc", "b,c");
    check("A=\"b,\\\nc\"", "b,c");
    check("A=\\ b\\ ", " b ");
    check("A=b\\", "b");
}

#[test]
fn what_is_no_assignment_is_reported_with_its_line() {
    let text = b"A=b\nETCD_HOST\n\nexport C=d\n1E=f\nG-H=i\n=j\nK=\x07\nL='m\nn";
    assert_eq!(
        faults(text),
        [
            "line 2: \"ETCD_HOST\" has no =; write NAME=value",
            "line 4: export belongs to shells; write NAME=value",
            "line 5: \"1E\" is no name of a variable; write NAME=value",
            "line 6: \"G-H\" is no name of a variable; write NAME=value",
            "line 7: \"\" is no name of a variable; write NAME=value",
            "line 8: the value of K holds a control character",
            "line 9: a quote has no end",
        ]
    );
}

#[test]
fn what_is_no_text_is_reported_with_its_line() {
    assert_eq!(faults(b"A=b\nC=\xff\n"), ["line 2: is not UTF-8 text"]);
    assert_eq!(faults(b"A=\"b\n c\""), ["line 1: the value of A holds a control character"]);
    assert_eq!(faults(b"A=\0"), ["line 1: the value of A holds a control character"]);
}

#[test]
fn a_value_is_where_it_begins() {
    assert_eq!(parse(b"\n#\nA=b\\\nc\nB=d").unwrap()["B"].line, 5);
}

proptest! {
    #[test]
    fn nothing_is_too_strange(text: Vec<u8>, pieces in "[A=#;'\"\\\\ \n\r$b]{0,60}") {
        for text in [text.as_slice(), pieces.as_bytes()] {
            match parse(text) {
                Ok(found) => prop_assert!(found.keys().all(|name| is_name(name))),
                Err(faults) => prop_assert!(!faults.is_empty()),
            }
        }
    }

    #[test]
    fn what_is_written_in_single_quotes_comes_back(value in "[^'\\p{Cc}]*") {
        let text = format!("A='{value}'\n");
        prop_assert_eq!(&parse(text.as_bytes()).unwrap()["A"].value, &value);
    }
}
