//! Pure. YAML as JSON values.

use serde::Deserialize;
use serde_json::Value;

/// The documents of a text. An empty one is null.
///
/// # Errors
/// Where it is not YAML, or has no counterpart in JSON.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    // A byte order mark would be the first column: the keys below it stood in another one.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents = yaml_serde::Deserializer::from_str(text).map(|document| {
        // Not directly into JSON: that would take the last of several equal keys.
        let value = yaml_serde::Value::deserialize(document)?;
        yaml_serde::from_value(value)
    });
    documents.collect::<Result<_, _>>().map_err(|error: yaml_serde::Error| error.to_string())
}

/// The only document of a text.
///
/// # Errors
/// As in [`documents`], or there are several.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut documents = documents(text)?;
    match documents.pop() {
        Some(only) if documents.is_empty() => Ok(only),
        None => Ok(Value::Null),
        Some(_) => Err("it has several documents".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn refused(text: &str, why: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }

    #[test]
    fn each_document_is_a_value() {
        let all = documents("---\na: 1\n---\nb: [x, {c: null}]\n...\n# end\n").unwrap();
        assert_eq!(all, [json!({"a": 1}), json!({"b": ["x", {"c": null}]})]);
        assert_eq!(parse("").unwrap(), Value::Null);
        assert_eq!(parse("\u{feff}a: 1\nb: 2\n").unwrap(), json!({"a": 1, "b": 2}));
        assert_eq!(parse("# nothing\n\n").unwrap(), Value::Null);
        assert_eq!(parse("a: |\n  x\n  y\nb: \"1\"\n").unwrap(), json!({"a": "x\ny\n", "b": "1"}));
    }

    #[test]
    fn ambiguous_or_endless_yaml_is_refused() {
        refused("a: 1\na: 2\n", "duplicate");
        refused("a: 1\n---\nb: 2\n", "several documents");
        refused("a: \"open\n", "end of stream");
        refused(&"- ".repeat(10_000), "recursion limit");
        let tenfold = |(old, new)| format!("{new}: &{new} [{}]\n", format!("*{old},").repeat(10));
        let laughs: String = ('a'..='i').zip('b'..='j').map(tenfold).collect();
        refused(&format!("a: &a [x]\n{laughs}"), "repetition limit");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "[-a:#'\"\\\\ \n{}\\[\\]&*!|>?,%.~<0]{0,80}") {
            let _value = documents(&text);
        }
    }
}
