//! Pure. A hash that is the same on every host, in every release.

use std::fmt::{self, Display, Write};
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// SipHash-2-4 (key zero) of `parts`, each followed by a byte that cannot occur in UTF-8, so that
/// `["ab", "c"]` and `["a", "bc"]` differ.
///
/// Names of links and MAC addresses are made of it: it must never change.
pub fn stable(parts: &[&str]) -> u64 {
    let parts: Vec<&dyn Display> = parts.iter().map(|part| part as &dyn Display).collect();
    stable_texts(&parts)
}

/// [`stable`] of the texts of `parts`, which are not made.
pub fn stable_texts(parts: &[&dyn Display]) -> u64 {
    let mut hasher = TextHasher(SipHasher24::new());
    for part in parts {
        write!(hasher, "{part}").expect("a hasher takes every text");
        hasher.0.write(&[0xff]);
    }
    hasher.0.finish()
}

struct TextHasher(SipHasher24);

impl Write for TextHasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_fixed_for_ever() {
        assert_eq!(stable(&["humanz", "container", "eth0"]), 0x20e1be14698432df);
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(stable(&["ab", "c"]), stable(&["a", "bc"]));
    }
}
