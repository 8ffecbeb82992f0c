//! Pure. The annotations and labels by which a pod asks something of humanz, and others that look like them.

use std::fmt;

use crate::net::nearest::nearest;

/// Each with its alias.
pub const TENANT: [&str; 2] = ["humanz.io/tenant", "io.contiv.tenant"];
pub const GROUP: [&str; 2] = ["humanz.io/group", "io.contiv.net-group"];
pub const NETWORK: [&str; 2] = ["humanz.io/network", "io.contiv.network"];
/// Annotations alone.
pub const NETWORKS: &str = "humanz.io/networks";
pub const IP: &str = "humanz.io/ip";

const PREFIX: &str = "humanz.io/";
const LABELS: [&str; 3] = [TENANT[0], GROUP[0], NETWORK[0]];
const ANNOTATIONS: [&str; 5] = [TENANT[0], GROUP[0], NETWORK[0], NETWORKS, IP];

/// The longest part of a key that is shown, in characters.
const SHOWN: usize = 60;

/// Something of a pod that looks like ours and has no effect. A later release may know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownKey {
    is_label: bool,
    key: String,
}

/// Those among the keys of a pod's annotations and labels.
pub fn unknown<'a>(
    annotations: impl IntoIterator<Item = &'a str>,
    labels: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = UnknownKey> {
    let is_unknown = |key: &str, known: &[&str]| key.starts_with(PREFIX) && !known.contains(&key);
    let found = |is_label: bool| move |key: &str| UnknownKey { is_label, key: key.to_owned() };
    let annotations = annotations.into_iter().filter(move |key| is_unknown(key, &ANNOTATIONS));
    let labels = labels.into_iter().filter(move |key| is_unknown(key, &LABELS));
    annotations.map(found(false)).chain(labels.map(found(true)))
}

impl UnknownKey {
    /// What was perhaps meant, or what there is.
    pub fn hint(&self) -> String {
        if self.is_label && ANNOTATIONS.contains(&&*self.key) {
            return format!("{} is an annotation, not a label", self.key);
        }
        let known: &[&str] = if self.is_label { &LABELS } else { &ANNOTATIONS };
        let words: Vec<&str> = known.iter().map(|it| it.trim_start_matches(PREFIX)).collect();
        match nearest(self.key.trim_start_matches(PREFIX), &words) {
            Some(near) => format!("did you mean {PREFIX}{near}?"),
            None => format!("there are {}", known.join(", ")),
        }
    }
}

impl fmt::Display for UnknownKey {
    /// `annotation "humanz.io/labels"`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_label { "label" } else { "annotation" };
        write!(f, "{what} {:?}", self.key.chars().take(SHOWN).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(annotations: &[&str], labels: &[&str]) -> Vec<String> {
        let all = unknown(annotations.iter().copied(), labels.iter().copied());
        all.map(|it| format!("{it}: {}", it.hint())).collect()
    }

    #[test]
    fn what_is_known_and_what_is_not_ours_is_passed_over() {
        let known = [TENANT, GROUP, NETWORK].concat();
        assert_eq!(found(&[&known[..], &[NETWORKS, IP]].concat(), &known), [""; 0]);
        let others = ["app", "io.contiv.x", "humanz.iox", "x.humanz.io/group", "", "humanz.io"];
        assert_eq!(found(&others, &others), [""; 0]);
    }

    #[test]
    fn what_looks_like_ours_is_said_with_what_was_meant() {
        let annotations = ", humanz.io/group, humanz.io/network, humanz.io/networks, humanz.io/ip";
        let all = format!("there are humanz.io/tenant{annotations}");
        for (key, hint) in [
            ("humanz.io/labels", all.as_str()),
            ("humanz.io/", &all),
            ("humanz.io/audit", &all),
            ("humanz.io/groups", "did you mean humanz.io/group?"),
            ("humanz.io/Group", "did you mean humanz.io/group?"),
            ("humanz.io/ips", "did you mean humanz.io/ip?"),
        ] {
            assert_eq!(found(&[key], &[]), [format!("annotation {key:?}: {hint}")]);
        }
        let ip = "label \"humanz.io/ip\": humanz.io/ip is an annotation, not a label";
        assert_eq!(found(&[], &["humanz.io/ip"]), [ip]);
    }

    #[test]
    fn a_hostile_key_is_cut_and_has_no_control_characters() {
        let key = format!("humanz.io/\u{1b}[2J\n{}", "x".repeat(500));
        let shown = found(&[&key], &[]).concat();
        assert!(shown.len() < 250 && !shown.chars().any(char::is_control), "{shown}");
    }
}
