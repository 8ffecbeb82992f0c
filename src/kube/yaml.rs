//! Pure. The subset of YAML in kubeconfig files: blocks of mappings and lists, and scalars on one line.
//! All other YAML is refused.

use serde_json::{Map, Value};

/// Blocks inside each other; a kubeconfig has six.
const DEPTH_LIMIT: u32 = 32;

/// The value of a document. Numbers stay text.
///
/// # Errors
/// The line that is not supported, and why.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut lines = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.trim_start_matches(' ');
        let line = YamlLine { number: index + 1, indent: raw.len() - content.len(), content };
        match content.trim_end() {
            "" => {}
            "---" if lines.is_empty() && line.indent == 0 => {}
            "---" | "..." if line.indent == 0 => return Err(line.refused("a second document")),
            _ if content.starts_with('#') => {}
            _ if content.starts_with('\t') => return Err(line.refused("a tab as indentation")),
            trimmed => lines.push(YamlLine { content: trimmed, ..line }),
        }
    }
    let Some(first) = lines.first() else { return Ok(Value::Null) };
    let indent = first.indent;
    let mut blocks = Blocks { lines: &mut lines, next: 0 };
    let value = blocks.block(indent, 0)?;
    match blocks.peek() {
        None => Ok(value),
        Some(rest) => Err(rest.refused("this indentation")),
    }
}

#[derive(Clone, Copy)]
struct YamlLine<'a> {
    number: usize,
    indent: usize,
    content: &'a str,
}

impl YamlLine<'_> {
    fn refused(&self, what: &str) -> String {
        format!("line {}: {what} is not supported here", self.number)
    }

    fn is_item(&self) -> bool {
        self.content == "-" || self.content.starts_with("- ")
    }
}

struct Blocks<'a, 'b> {
    lines: &'b mut Vec<YamlLine<'a>>,
    next: usize,
}

impl<'a> Blocks<'a, '_> {
    fn peek(&self) -> Option<YamlLine<'a>> {
        self.lines.get(self.next).copied()
    }

    /// The block whose lines begin at column `indent`.
    fn block(&mut self, indent: usize, depth: u32) -> Result<Value, String> {
        let Some(first) = self.peek() else { return Ok(Value::Null) };
        if depth > DEPTH_LIMIT {
            return Err(first.refused("so deep a block"));
        }
        if first.is_item() { self.list(indent, depth) } else { self.mapping(indent, depth) }
    }

    fn list(&mut self, indent: usize, depth: u32) -> Result<Value, String> {
        let mut items = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent && line.is_item()) {
            let rest = line.content[1..].trim_start();
            if rest.is_empty() {
                self.next += 1;
                items.push(self.below(indent, depth)?);
            } else if rest.starts_with("- ")
                || entry(&YamlLine { content: rest, ..line })?.is_some()
            {
                // The item's own block begins behind the dash.
                let indent = indent + line.content.len() - rest.len();
                self.lines[self.next] = YamlLine { indent, content: rest, ..line };
                items.push(self.block(indent, depth + 1)?);
            } else {
                self.next += 1;
                items.push(scalar(rest, &line)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, indent: usize, depth: u32) -> Result<Value, String> {
        let mut map = Map::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent && !line.is_item()) {
            let (key, rest) = entry(&line)?.ok_or_else(|| line.refused("text without a key"))?;
            self.next += 1;
            let value = match rest {
                "" => {
                    let items = self.peek().filter(|next| next.indent == indent && next.is_item());
                    match items {
                        Some(_) => self.list(indent, depth + 1)?,
                        None => self.below(indent, depth)?,
                    }
                }
                rest => scalar(rest, &line)?,
            };
            if map.insert(key, value).is_some() {
                return Err(line.refused("a key for the second time"));
            }
        }
        Ok(Value::Object(map))
    }

    /// The block that is indented further than `indent`, if there is one.
    fn below(&mut self, indent: usize, depth: u32) -> Result<Value, String> {
        match self.peek() {
            Some(next) if next.indent > indent => self.block(next.indent, depth + 1),
            _ => Ok(Value::Null),
        }
    }
}

/// Key and rest of a line of a mapping; `None` if it is no such line.
fn entry<'a>(line: &YamlLine<'a>) -> Result<Option<(String, &'a str)>, String> {
    let content = line.content;
    if content.starts_with(['"', '\'']) {
        let (key, rest) = quoted(content, line)?;
        let rest = rest.trim_start();
        return Ok(rest.strip_prefix(':').map(|rest| (key, rest.trim_start())));
    }
    let split = content.split_once(": ").filter(|(key, _)| !key.contains(" #"));
    let split = split.or_else(|| Some((uncommented(content).strip_suffix(':')?, "")));
    let Some((key, rest)) = split else { return Ok(None) };
    if key.starts_with(SPECIAL) || key.is_empty() {
        return Err(line.refused(&format!("a key that begins like {content:.1}")));
    }
    let rest = rest.trim_start();
    Ok(Some((key.trim_end().to_owned(), if rest.starts_with('#') { "" } else { rest })))
}

/// What begins with one of these is no plain text in YAML.
const SPECIAL: &[char] = &['{', '[', '&', '*', '!', '|', '>', '%', '@', '`', '?', ','];

fn scalar(text: &str, line: &YamlLine<'_>) -> Result<Value, String> {
    if text.starts_with(['"', '\'']) {
        let (value, rest) = quoted(text, line)?;
        if !uncommented(rest).trim().is_empty() {
            return Err(line.refused("text behind a closing quote"));
        }
        return Ok(Value::String(value));
    }
    let text = uncommented(text).trim_end();
    match text {
        "{}" => return Ok(Value::Object(Map::new())),
        "[]" => return Ok(Value::Array(Vec::new())),
        "" | "~" | "null" => return Ok(Value::Null),
        "true" => return Ok(Value::Bool(true)),
        "false" => return Ok(Value::Bool(false)),
        _ => {}
    }
    if text.starts_with(SPECIAL) {
        return Err(line.refused("a value that is no text on one line"));
    }
    if text.contains(": ") || text.ends_with(':') {
        return Err(line.refused("a second key"));
    }
    Ok(Value::String(text.to_owned()))
}

/// The text in quotes at the beginning of `text`, and what follows.
fn quoted<'a>(text: &'a str, line: &YamlLine<'_>) -> Result<(String, &'a str), String> {
    let unclosed = || line.refused("a quote that is not closed");
    if let Some(rest) = text.strip_prefix('\'') {
        let mut from = 0;
        loop {
            let end = from + rest[from..].find('\'').ok_or_else(unclosed)?;
            if !rest[end + 1..].starts_with('\'') {
                return Ok((rest[..end].replace("''", "'"), &rest[end + 1..]));
            }
            from = end + 2;
        }
    }
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let ends = *letter == '"' && !escaped;
        escaped = *letter == '\\' && !escaped;
        ends
    });
    let (end, _) = end.ok_or_else(unclosed)?;
    let (inside, rest) = text.split_at(end + 1);
    // What JSON escapes, YAML escapes alike.
    let value = serde_json::from_str(inside).map_err(|_| line.refused("an escape in quotes"))?;
    Ok((value, rest))
}

/// `text` without a comment at its end.
fn uncommented(text: &str) -> &str {
    if text.starts_with('#') {
        return "";
    }
    text.split_once(" #").map_or(text, |(text, _)| text).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, json: &str) {
        let wanted: Value = serde_json::from_str(json).unwrap();
        assert_eq!(parse(text), Ok(wanted), "{text}");
    }

    fn refused(text: &str, why: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }

    #[test]
    fn blocks_are_read_as_kubectl_writes_them() {
        check(
            "---\napiVersion: v1\nclusters:\n- cluster:\n    server: https://[::1]:6443\n  name: a\n- name: b # the other\ncontexts:\n  - context:\n      cluster: a\n    name: \"x y\"\nempty:\npreferences: {}\nusers: []\n",
            r#"{"apiVersion":"v1","clusters":[{"cluster":{"server":"https://[::1]:6443"},"name":"a"},{"name":"b"}],
            "contexts":[{"context":{"cluster":"a"},"name":"x y"}],"empty":null,"preferences":{},"users":[]}"#,
        );
    }

    #[test]
    fn scalars_are_text_unless_yaml_says_otherwise() {
        check(
            "a: it''s # not\nb: 'it''s: #1'\nc: \"q\\\"\\n# x\" # y\nd: true\ne: ~\nf: 6443\n'g h': x#y\ni: http://u:1\n",
            r##"{"a":"it''s","b":"it's: #1","c":"q\"\n# x","d":true,"e":null,"f":"6443","g h":"x#y","i":"http://u:1"}"##,
        );
        check("- 1\n-\n  - 2\n- - 3\n  - 4\n-\n", r#"["1",["2"],["3","4"],null]"#);
        check("", "null");
        check("# nothing\n\n", "null");
    }

    #[test]
    fn unsupported_yaml_is_refused() {
        refused("a: |\n  text\n", "no text on one line");
        refused("a: &x 1\n", "no text on one line");
        refused("a: [1, 2]\n", "no text on one line");
        refused("a: 1\n---\nb: 2\n", "second document");
        refused("a: 1\na: 2\n", "second time");
        refused("a: 1\n  b: 2\n", "indentation");
        refused("a: one\n  two\n", "indentation");
        refused("\ta: 1\n", "tab");
        refused("a: b: c\n", "second key");
        refused("a: \"open\n", "not closed");
        refused("a: 'open\n", "not closed");
        refused("a: \"x\" y\n", "behind a closing quote");
        refused("text\n", "without a key");
        refused("? a\n", "without a key");
        refused(&(0..100).map(|n| " ".repeat(n) + "a:\n").collect::<String>(), "so deep");
        refused(&"- ".repeat(10_000), "so deep");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "[-a:#'\"\\\\ \n{}\\[\\]|ü]{0,80}") {
            let _value = parse(&text);
        }
    }
}
