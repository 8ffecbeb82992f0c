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
    /// What that means.
    pub verdict: HopVerdict,
}

/// What becomes of a packet at a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopVerdict {
    /// It goes on.
    Fine,
    /// It may go on; somebody should look.
    Odd(String),
    /// It is lost here; what to do about it.
    Lost(String),
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
        Some(Problem::new(kind, subject, &self.seen).with_fix(fix))
    }

    pub fn fine(name: &'static str, place: &str, seen: impl fmt::Display) -> Hop {
        Hop { name, place: place.to_owned(), seen: seen.to_string(), verdict: HopVerdict::Fine }
    }

    pub fn lost(
        name: &'static str,
        place: &str,
        seen: impl fmt::Display,
        fix: impl fmt::Display,
    ) -> Hop {
        let verdict = HopVerdict::Lost(fix.to_string());
        Hop { verdict, ..Hop::fine(name, place, seen) }
    }

    pub fn odd(
        name: &'static str,
        place: &str,
        seen: impl fmt::Display,
        fix: impl fmt::Display,
    ) -> Hop {
        let verdict = HopVerdict::Odd(fix.to_string());
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
        if let HopVerdict::Lost(fix) | HopVerdict::Odd(fix) = &mut hop.verdict {
            *fix = fix.replace(AGENT, "start a pod: its ADD puts it back (no agent runs here)");
        }
    }
}

/// What stands for an agent that does not do its work.
pub const AGENT: &str =
    "the agent puts it back: is humanz-agent running? (humanz-agent doctor says)";
