//! Pure. Text in lines of a width.

/// Where a word that has no room may be continued in the next line. Each also breaks where those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breaks {
    Nowhere,
    /// Behind the commas of a list.
    Commas,
    /// Behind a slash that a name follows: that of a namespace or folder, not that of a subnet.
    Slashes,
    /// Behind the hyphens and dots of a name, not those of an option, a date or an address.
    Names,
}

impl Breaks {
    /// The gentlest first.
    pub const ALL: [Breaks; 4] = [Breaks::Nowhere, Breaks::Commas, Breaks::Slashes, Breaks::Names];

    /// Whether a line may end behind `mark`, which stands between these two.
    fn behind(self, before: char, mark: char, after: char) -> bool {
        let named = before.is_alphabetic() || after.is_alphabetic();
        match mark {
            ',' => self >= Breaks::Commas,
            '/' => self >= Breaks::Slashes && after.is_alphabetic(),
            '-' | '.' => self >= Breaks::Names && before.is_alphanumeric() && named,
            _ => false,
        }
    }
}

/// Lines of `width` columns at most, unless a word is longer.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width.max(1)).break_words(false);
    let options = options.word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(Into::into).collect()
}

/// The same; words that are longer go on in the next line where `breaks` lets them.
pub fn continued(text: &str, width: usize, breaks: Breaks) -> Vec<String> {
    // textwrap takes signs such as ✓ for two columns wide.
    if letters(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for line in wrapped(text, width) {
        if letters(&line) <= width {
            lines.push(line);
            continue;
        }
        let mut pieces = pieces(&line, breaks).into_iter();
        let mut begun = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            if letters(&begun) + letters(piece) > width {
                lines.push(std::mem::take(&mut begun));
            }
            begun.push_str(piece);
        }
        lines.push(begun);
    }
    lines
}

/// How many columns `text` needs at least.
pub fn longest_piece(text: &str, breaks: Breaks) -> usize {
    let words = text.split(' ').flat_map(|word| pieces(word, breaks));
    words.map(letters).max().unwrap_or(0)
}

/// How many columns `text` has.
pub fn letters(text: &str) -> usize {
    text.chars().count()
}

/// `word` in the parts that stay whole.
fn pieces(word: &str, breaks: Breaks) -> Vec<&str> {
    let option = word.starts_with('-');
    let breaks = if option { breaks.min(Breaks::Slashes) } else { breaks };
    let (mut pieces, mut start) = (Vec::new(), 0);
    let letters = word.char_indices();
    for (((_, before), (_, mark)), (at, after)) in
        letters.clone().zip(letters.clone().skip(1)).zip(letters.skip(2))
    {
        if breaks.behind(before, mark, after) {
            pieces.push(&word[start..at]);
            start = at;
        }
    }
    pieces.push(&word[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_broken_in_names_and_lists_alone() {
        for (word, breaks, parts) in [
            ("10.1.2.0/24,fd00::/64", Breaks::Nowhere, &["10.1.2.0/24,fd00::/64"][..]),
            ("10.1.2.0/24,fd00::/64", Breaks::Names, &["10.1.2.0/24,", "fd00::/64"]),
            ("team-a/web", Breaks::Commas, &["team-a/web"]),
            ("team-a/web", Breaks::Slashes, &["team-a/", "web"]),
            ("team-a/web", Breaks::Names, &["team-", "a/", "web"]),
            ("/etc/cni/net.d", Breaks::Slashes, &["/etc/", "cni/", "net.d"]),
            ("--env-file", Breaks::Names, &["--env-file"]),
            ("2026-11-26T10:00:00Z", Breaks::Names, &["2026-11-26T10:00:00Z"]),
            ("a.example.org", Breaks::Names, &["a.", "example.", "org"]),
            ("10.1.2.3", Breaks::Names, &["10.1.2.3"]),
            ("é-ü,", Breaks::Names, &["é-", "ü,"]),
            ("-", Breaks::Names, &["-"]),
            ("", Breaks::Names, &[""]),
        ] {
            assert_eq!(pieces(word, breaks), parts, "{word} {breaks:?}");
        }
    }

    #[test]
    fn a_text_that_fits_is_one_line_whatever_signs_are_in_it() {
        assert_eq!(continued("✓ 113.1µs", 9, Breaks::Nowhere), ["✓ 113.1µs"]);
        assert_eq!(continued("✓ 113.1µs", 8, Breaks::Nowhere), ["✓", "113.1µs"]);
    }
}
