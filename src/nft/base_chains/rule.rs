//! Pure. A rule of a chain that forwarded packets meet, as far as it matters to pods.

use crate::net::{AddressRange, Family, IfName};
use crate::nft::Verdict;
use crate::nft::base_chains::chain::Direction;

/// A rule, whoever made it and in whatever kind of table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRule {
    /// The kernel's number for it; `None` in older tables.
    pub handle: Option<u64>,
    /// What a packet must be like; all of it.
    pub matches: Vec<Match>,
    /// What becomes of such a packet.
    pub verdict: Verdict,
    /// Its comment.
    pub comment: Option<String>,
}

/// One question to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The question.
    pub asks: Criterion,
    /// The answer must be no.
    pub negated: bool,
}

/// What a condition asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// It comes in, or goes out, by one of these.
    Interface(Direction, Vec<NamePattern>),
    /// It comes from, or goes to, one of these addresses: in order, none overlapping.
    Address(End, Vec<AddressRange>),
    /// It is of this family.
    Family(Family),
    /// It is of one of these protocols (IANA's numbers).
    Protocol(Vec<u8>),
    /// It goes to a port in one of these ranges, first and last.
    Port(Vec<(u16, u16)>),
    /// It is something that not every packet is: of another port, a flag, a mark.
    Special,
    /// Nobody knows what.
    Unknown,
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// Names of interfaces: one, or all with the same start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    /// The name, or the start.
    pub text: String,
    /// More may follow.
    pub open: bool,
}

impl ChainRule {
    /// It accepts everything that comes in, or goes out, by `bridge`, and nothing else.
    pub fn accepts(&self, direction: Direction, bridge: &IfName) -> bool {
        let by = Criterion::Interface(direction, vec![NamePattern::exact(bridge.as_str())]);
        self.verdict == Verdict::Accept && self.matches == [by.holds()]
    }
}

impl Criterion {
    /// The answer must be yes.
    pub fn holds(self) -> Match {
        Match { asks: self, negated: false }
    }
}

impl NamePattern {
    /// The one name.
    pub fn exact(name: &str) -> NamePattern {
        NamePattern { text: name.to_owned(), open: false }
    }

    /// Whether `name` is one of them.
    pub fn fits(&self, name: &str) -> bool {
        match self.open {
            true => name.starts_with(&self.text),
            false => name == self.text,
        }
    }
}
