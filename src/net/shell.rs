//! Pure. Words of commands that are printed to be copied.

use std::fmt::Display;

/// `text` as a shell reads it as one word: as it is, or in quotes.
pub fn word(text: impl Display) -> String {
    let text = text.to_string();
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._/:,=-".contains(char);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_one_word_and_runs_nothing_of_it() {
        for (text, plain) in [
            ("10.4.0.0/24,fd04::/64", true),
            ("/etc/cni/net.d/10-humanz.conflist", true),
            ("10.4.0.0/24, fd04::/64", false),
            ("https://[::1]:2379", false),
            ("", false),
            ("it's \"$(id)\" `id` \\ ; * ~\nend", false),
            ("''", false),
            ("ü", false),
        ] {
            let word = word(text);
            assert_eq!(word == text, plain, "{word}");
            let read = Command::new("sh").args(["-c", &format!("printf '<%s>' {word}")]).output();
            let read = String::from_utf8(read.unwrap().stdout).unwrap();
            assert_eq!(read, format!("<{text}>"));
        }
    }
}
