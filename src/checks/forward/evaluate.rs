//! Pure. What becomes of a packet in a chain of others.
//!
//! The packet is the first of a connection, and there is nothing special about it but perhaps the
//! port that it goes to: a rule for another protocol, port or mark is not about it. A rule that is
//! not understood may be.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::net::{AddressRange, Family, subnet};
use crate::nft::base_chains::{BaseChain, ChainRule, Criterion, Direction, End, Match};
use crate::nft::{Policy, Verdict};

/// The first packet of a connection, on its way through this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The interface that it came in by.
    pub input: &'a str,
    /// The interface that it goes out by.
    pub output: &'a str,
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// The protocol (IANA's number) and the port that it goes to; `None` if there is nothing special
    /// about it.
    pub transport: Option<(u8, u16)>,
}

/// The number of UDP (RFC 768).
pub const UDP: u8 = 17;

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainVerdict {
    /// It goes on its way.
    Accepts,
    /// It would be dropped, but a rule before may accept it that is not understood.
    MayDrop,
    /// The policy of the chain drops it.
    DroppedByPolicy,
    /// A rule of this chain drops it.
    DroppedIn {
        /// The chain: this one, or one that it calls.
        chain: String,
        /// The rule, or one on the way to it, is about interfaces or addresses.
        aimed: bool,
    },
}

/// The kernel's own limit on chains that call chains (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;

/// What becomes of `packet` in `chain`, which is called `name`.
pub fn evaluate(chain: &BaseChain, name: &str, packet: &Packet<'_>) -> ChainVerdict {
    Walk::new(chain, packet).outcome(name)
}

/// What becomes of all packets that are like `packet` but for the address at one end, which is any of
/// the range.
///
/// # Errors
/// Not the same for all: the first address of the part that is to be asked about apart from what is
/// before it.
pub fn fate_of_all(
    chain: &BaseChain,
    packet: &Packet<'_>,
    any: (End, AddressRange),
) -> Result<ChainVerdict, IpAddr> {
    let mut walk = Walk { any: Some(any), ..Walk::new(chain, packet) };
    let fate = walk.outcome(chain.place.chain());
    walk.cut.map_or(Ok(fate), Err)
}

/// How a walk through rules ends.
#[derive(Clone)]
enum Outcome {
    Accepted,
    Stopped {
        chain: String,
        aimed: bool,
    },
    /// Nothing was decided.
    Open,
}

/// How a chain was come to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    /// Every rule on the way holds for certain.
    certain: bool,
    aimed: bool,
    depth: usize,
}

struct Walk<'a> {
    chain: &'a BaseChain,
    packet: &'a Packet<'a>,
    may_be_accepted: bool,
    /// The chains that were walked through, and how that ended: chains of ten calls each are not
    /// walked through ten times for each that calls them.
    walked: HashMap<(&'a str, Way), Outcome>,
    /// Not one packet but many: the addresses that they have at one end …
    any: Option<(End, AddressRange)>,
    /// … and the first of those that a rule on the way tells from the ones before.
    cut: Option<IpAddr>,
}

impl<'a> Walk<'a> {
    fn new(chain: &'a BaseChain, packet: &'a Packet<'a>) -> Walk<'a> {
        let walked = HashMap::new();
        Walk { chain, packet, may_be_accepted: false, walked, any: None, cut: None }
    }

    fn outcome(&mut self, name: &str) -> ChainVerdict {
        let way = Way { certain: true, aimed: false, depth: 0 };
        let end = match (self.through(name, &self.chain.rules, way), self.chain.policy) {
            (Outcome::Accepted, _) | (Outcome::Open, Policy::Accept) => {
                return ChainVerdict::Accepts;
            }
            (Outcome::Stopped { chain, aimed }, _) => ChainVerdict::DroppedIn { chain, aimed },
            (Outcome::Open, Policy::Drop) => ChainVerdict::DroppedByPolicy,
        };
        if self.may_be_accepted { ChainVerdict::MayDrop } else { end }
    }

    fn through(&mut self, name: &str, rules: &'a [ChainRule], way: Way) -> Outcome {
        for rule in rules {
            let met = self.meets(rule);
            if self.cut.is_some() {
                return Outcome::Open;
            }
            let Some(certain) = met else { continue };
            let certain = way.certain && certain;
            let aimed = way.aimed || rule.matches.iter().any(is_aimed);
            match &rule.verdict {
                Verdict::Continue => {}
                Verdict::Accept if certain => return Outcome::Accepted,
                Verdict::Accept => self.may_be_accepted = true,
                Verdict::Drop if certain => {
                    return Outcome::Stopped { chain: name.to_owned(), aimed };
                }
                Verdict::Drop => {}
                Verdict::Return if certain => return Outcome::Open,
                Verdict::Return => {}
                Verdict::Jump(target) | Verdict::Goto(target) => {
                    let way = Way { certain, aimed, depth: way.depth + 1 };
                    let end = self.call(target, way);
                    let goes_on = !certain || matches!(rule.verdict, Verdict::Jump(_));
                    match end {
                        Outcome::Open if goes_on => {}
                        end if certain => return end,
                        _ => {}
                    }
                }
            }
        }
        Outcome::Open
    }

    fn call(&mut self, target: &'a str, way: Way) -> Outcome {
        if let Some(known) = self.walked.get(&(target, way)) {
            return known.clone();
        }
        match self.chain.called.get(target) {
            Some(rules) if way.depth < DEPTH => {
                let end = self.through(target, rules, way);
                self.walked.insert((target, way), end.clone());
                end
            }
            _ => {
                self.may_be_accepted = true;
                Outcome::Open
            }
        }
    }
}

/// Whether `range` is all in `ranges` (in order, none overlapping), or none of it is.
///
/// # Errors
/// Some of it is: the first address that is not as those before it.
fn is_among(range: &AddressRange, ranges: &[AddressRange]) -> Result<bool, IpAddr> {
    let at = ranges.partition_point(|other| other.last() < range.first());
    match ranges.get(at) {
        Some(other) if other.first() <= range.last() => {
            if other.first() > range.first() {
                Err(other.first())
            } else if other.last() < range.last() {
                Err(subnet::offset(other.last(), 1))
            } else {
                Ok(true)
            }
        }
        _ => Ok(false),
    }
}

fn is_aimed(condition: &Match) -> bool {
    matches!(condition.asks, Criterion::Interface(..) | Criterion::Address(..))
}

impl Walk<'_> {
    /// Whether the rule is about it: `None` if not, true if for certain.
    fn meets(&mut self, rule: &ChainRule) -> Option<bool> {
        let mut certain = true;
        // Addresses last: those of a rule that is not about it anyway tell nobody apart.
        let is_last = |condition: &&Match| matches!(condition.asks, Criterion::Address(..));
        let first = rule.matches.iter().filter(|condition| !is_last(condition));
        for Match { asks, negated } in first.chain(rule.matches.iter().filter(is_last)) {
            match self.answers(asks) {
                Some(yes) if yes == *negated => return None,
                Some(_) => {}
                None => certain = false,
            }
        }
        Some(certain)
    }

    fn answers(&mut self, asks: &Criterion) -> Option<bool> {
        let packet = self.packet;
        Some(match asks {
            Criterion::Interface(direction, names) => {
                let name = match direction {
                    Direction::In => packet.input,
                    Direction::Out => packet.output,
                };
                names.iter().any(|pattern| pattern.fits(name))
            }
            Criterion::Address(end, ranges) => self.address_is_among(*end, ranges),
            Criterion::Family(family) => Family::of(packet.source) == *family,
            Criterion::Protocol(numbers) => {
                packet.transport.is_some_and(|(protocol, _)| numbers.contains(&protocol))
            }
            Criterion::Port(ranges) => packet.transport.is_some_and(|(_, port)| {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&port))
            }),
            Criterion::Special => false,
            Criterion::Unknown => return None,
        })
    }

    fn address_is_among(&mut self, end: End, ranges: &[AddressRange]) -> bool {
        let one = match end {
            End::Source => self.packet.source,
            End::Destination => self.packet.destination,
        };
        let any = self.any.filter(|(other, _)| *other == end);
        let range = any.map_or(AddressRange::single(one), |(_, range)| range);
        is_among(&range, ranges).unwrap_or_else(|at| {
            self.cut.get_or_insert(at);
            false
        })
    }
}

#[cfg(test)]
mod tests;
