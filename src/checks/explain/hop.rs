//! Pure. One step of a packet's path, and what becomes of the packet there.

use std::fmt;

use crate::net::{Object, Problem, ProblemKind};

/// One thing on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its name, the same in every release: `pod-route`, `firewall` …
    pub name: &'static str,
    /// Where it is: `default/web`, `this host`, `h2`.
    pub place: String,
    /// What was found, as a sentence without a full stop.
    pub seen: String,
    pub verdict: HopVerdict,
}

/// What becomes of a packet at a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopVerdict {
    /// It goes on.
    Fine,
    /// It may go on; somebody should look.
    Odd(HopFix),
    /// It is lost here; what to do about it.
    Lost(HopFix),
}

/// What to do at a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopFix {
    Text(String),
    /// After `first`, if there is something to do first, `by` restores the rest.
    Restored {
        first: Option<String>,
        by: Restorer,
    },
}

/// What restores the state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restorer {
    Agent,
    /// The next ADD of the plugin: no agent runs there.
    Plugin,
}

impl HopFix {
    /// `first`, then what the agent restores.
    pub fn then_agent(first: impl Into<String>) -> HopFix {
        HopFix::Restored { first: Some(first.into()), by: Restorer::Agent }
    }
}

impl<T: Into<String>> From<T> for HopFix {
    fn from(text: T) -> HopFix {
        HopFix::Text(text.into())
    }
}

impl fmt::Display for HopFix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, by) = match self {
            HopFix::Text(text) => return f.write_str(text),
            HopFix::Restored { first, by } => (first, by),
        };
        let then = match first {
            Some(first) if first.contains(REASON) => format!("{first}; "),
            Some(first) => format!("{first}{REASON}"),
            None if *by == Restorer::Agent => "humanz-agent doctor # ".to_owned(),
            None => String::new(),
        };
        f.write_str(&then)?;
        f.write_str(match by {
            Restorer::Agent => "the agent puts it back: is it running?",
            Restorer::Plugin => "start a pod: its ADD puts it back (no agent runs here)",
        })
    }
}

impl Hop {
    /// What is wrong here, unless the packet goes on.
    pub fn problem(&self) -> Option<Problem> {
        let (kind, fix) = match &self.verdict {
            HopVerdict::Fine => return None,
            HopVerdict::Odd(fix) => (ProblemKind::PacketDoubtful, fix),
            HopVerdict::Lost(fix) => (ProblemKind::PacketLost, fix),
        };
        let subject = Object::named(format!("{} of {}", self.name, self.place));
        Some(Problem::new(kind, subject, &self.seen).with_fix(fix.to_string()))
    }

    pub fn fine(name: &'static str, place: &str, seen: impl fmt::Display) -> Hop {
        Hop { name, place: place.to_owned(), seen: seen.to_string(), verdict: HopVerdict::Fine }
    }

    pub fn lost(
        name: &'static str,
        place: &str,
        seen: impl fmt::Display,
        fix: impl Into<HopFix>,
    ) -> Hop {
        let verdict = HopVerdict::Lost(fix.into());
        Hop { verdict, ..Hop::fine(name, place, seen) }
    }

    pub fn odd(
        name: &'static str,
        place: &str,
        seen: impl fmt::Display,
        fix: impl Into<HopFix>,
    ) -> Hop {
        let verdict = HopVerdict::Odd(fix.into());
        Hop { verdict, ..Hop::fine(name, place, seen) }
    }

    /// Packets do not get further.
    pub fn is_lost(&self) -> bool {
        matches!(self.verdict, HopVerdict::Lost(_))
    }
}

/// The place that is no pod's and no other host's.
pub const HERE: &str = "this host";

/// The same fixes for a host that the plugin serves without an agent.
pub fn without_agent(hops: &mut [Hop]) {
    for hop in hops {
        if let HopVerdict::Lost(fix) | HopVerdict::Odd(fix) = &mut hop.verdict
            && let HopFix::Restored { by, .. } = fix
        {
            *by = Restorer::Plugin;
        }
    }
}

/// Between a command and why it is the one: a shell takes the rest for a comment.
const REASON: &str = " # ";

/// The fix for an agent that does not do its work.
pub const AGENT: HopFix = HopFix::Restored { first: None, by: Restorer::Agent };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_agent_the_plugin_restores_what_the_agent_would() {
        let first = "ip link set humanz0 up";
        let mut hops = [
            Hop::lost("bridge", HERE, "humanz0 is down", HopFix::then_agent(first)),
            Hop::odd("bridge", HERE, "humanz0 has no port", AGENT),
            Hop::lost("route", HERE, "no route", "add one"),
        ];
        let fixes =
            |hops: &[Hop]| hops.iter().map(|hop| hop.problem()?.fix).collect::<Vec<Option<_>>>();
        let before = fixes(&hops);
        without_agent(&mut hops);
        let add = "start a pod: its ADD puts it back (no agent runs here)";
        let wanted = [format!("{first} # {add}"), add.to_owned(), "add one".to_owned()];
        assert_eq!(fixes(&hops), wanted.map(Some));
        assert!(before[0].as_ref().unwrap().starts_with(&format!("{first} # the agent")));
    }
}
