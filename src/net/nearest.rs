//! Pure. What was probably meant by a word that is not known.

/// The one of `known` that is most like `word`: it begins so, or has the same letters but for a third. Of several the
/// one with the same first letter: `lst` is meant for `ls`, not for `set`. Of short words the first letter is the same: `h2`
/// may be meant for `h1`, but `ls` not for `ns`, nor `stop` for `pods`.
pub fn nearest<'a, S: AsRef<str>>(word: &str, known: &'a [S]) -> Option<&'a str> {
    let known = || known.iter().map(AsRef::as_ref);
    if let Some(known) = known().find(|known| word.len() > 1 && known.starts_with(word)) {
        return Some(known);
    }
    let letter = |word: &str| word.chars().next().map(|first| first.to_ascii_lowercase());
    let first = |known: &str| letter(known) != letter(word);
    let near = known().min_by_key(|known| (letters_apart(word, known), first(known)))?;
    let (apart, longer) = (letters_apart(word, near), near.len().max(word.len()));
    let is_near = apart <= 1.max(near.len() / 3);
    (is_near && 2 * apart <= longer && !(first(near) && (longer < 6 || 2 * apart == longer)))
        .then_some(near)
}

/// How many letters must be replaced, added or left out, whatever their order.
fn letters_apart(a: &str, b: &str) -> usize {
    // Of each letter so many more in `a`. Counted in one pass: anybody may write thousands of long words.
    let mut surplus = [0_isize; 256];
    for (word, one) in [(a, 1), (b, -1)] {
        for letter in word.bytes().filter(u8::is_ascii_graphic) {
            surplus[usize::from(letter)] += one;
        }
    }
    let apart = |sign: isize| surplus.iter().map(|more| (sign * more).max(0).unsigned_abs()).sum();
    usize::max(apart(1), apart(-1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_compared_whatever_their_order() {
        for (a, b, apart) in
            [("", "abc", 3), ("chek", "check", 1), ("jsno", "json", 0), ("a", "b", 1)]
        {
            assert_eq!(letters_apart(a, b), apart, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_word_is_found_or_none() {
        let known = ["group", "network", "networks", "ip"];
        for (word, near) in [
            ("gruop", Some("group")),
            ("net", Some("network")),
            ("networks", Some("networks")),
            ("i", Some("ip")),
            ("netwrk", Some("network")),
            ("labels", None),
        ] {
            assert_eq!(nearest(word, &known), near, "{word}");
        }
        assert_eq!(nearest("x", &[""; 0]), None);
        assert_eq!((nearest("stop", &["pods"]), nearest("drops", &["pods"])), (None, None));
        assert_eq!((nearest("h2", &["h1"]), nearest("ls", &["ns"])), (Some("h1"), None));
    }
}
