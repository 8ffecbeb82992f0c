//! Pure. What a host has in force of the policies that it is to enforce.

use serde::{Deserialize, Serialize};

/// As its agent publishes it; in JSON a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyEnforcement {
    /// `POLICY=off`.
    Off,
    /// What all its sources said last.
    InForce,
    /// Those of before: a source is not followed, or the kernel's table is not as it is to be.
    Behind,
    /// Policies are on, none are known, and there is no table: every packet of running pods passes.
    NotInForce,
    /// A word of another release.
    #[serde(other)]
    Unknown,
}

impl PolicyEnforcement {
    /// Of a host where policies are on. `known`: some source has said which there are. `unjudged`: that is not so, and
    /// there is no table. `follows`: each source is followed, and the table was made.
    pub fn of(known: bool, unjudged: bool, follows: bool) -> PolicyEnforcement {
        match (unjudged, known && follows) {
            (true, _) => PolicyEnforcement::NotInForce,
            (false, true) => PolicyEnforcement::InForce,
            (false, false) => PolicyEnforcement::Behind,
        }
    }

    /// For people; what is not known is `?`.
    pub fn words(self) -> &'static str {
        match self {
            PolicyEnforcement::Off => "off",
            PolicyEnforcement::InForce => "in force",
            PolicyEnforcement::Behind => "behind",
            PolicyEnforcement::NotInForce => "not in force",
            PolicyEnforcement::Unknown => "?",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_in_force_where_all_is_known_and_made() {
        for (known, unjudged, follows, words) in [
            (true, false, true, "in force"),
            (true, false, false, "behind"),
            (false, false, true, "behind"),
            (false, true, false, "not in force"),
        ] {
            assert_eq!(PolicyEnforcement::of(known, unjudged, follows).words(), words);
        }
    }

    #[test]
    fn a_word_of_another_release_is_not_known_and_anything_else_is_refused() {
        let read = |text: &str| serde_json::from_str::<PolicyEnforcement>(text).ok();
        assert_eq!(read("\"in-force\""), Some(PolicyEnforcement::InForce));
        let long = format!("\"{}\"", "x".repeat(4000));
        for word in ["\"\\u001b[2J\"", "\"on-the-moon\"", &long] {
            assert_eq!(read(word).map(PolicyEnforcement::words), Some("?"));
        }
        for bad in ["1", "null", "[]", "{}", "{\"in-force\":1}"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
