//! Pure. Foreign text as it is shown and logged: in one line, without control characters, and short.

/// The first `most` characters of `text`, with control characters escaped.
pub fn shown(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(most) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            // Also what reverses the direction of text.
            character => shown.extend(character.escape_debug()),
        }
    }
    let rest = characters.as_str().len();
    if rest > 0 { format!("{shown}… ({} bytes)", text.len()) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_short_and_without_control_characters() {
        assert_eq!(shown("/humanz/hosts/h1", 64), "/humanz/hosts/h1");
        assert_eq!(shown("a \"b\"", 64), "a \"b\"");
        assert_eq!(shown("\u{1b}[2J\n", 64), "\\u{1b}[2J\\n");
        assert_eq!(shown("\u{202e}x", 64), "\\u{202e}x");
        assert_eq!(shown(&"x".repeat(1 << 20), 3), "xxx… (1048576 bytes)");
    }
}
