//! Pure. What a base chain of another program does with a packet.

use std::collections::HashMap;

use crate::nft::base_chains::{BaseChain, ChainRule, FirstPacket, RuleMatch};
use crate::nft::{ChainPolicy, Verdict};

/// The number of UDP (RFC 768).
pub const UDP: u8 = 17;

/// What a chain does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainVerdict {
    Accepts,
    /// It would be dropped, but a rule before that is not understood may accept it.
    MayDrop,
    DroppedByPolicy,
    /// A rule of this chain drops it.
    DroppedIn {
        /// The base chain, or one that it calls.
        chain: String,
        /// The rule, or one that led to it, is about interfaces or addresses.
        targeted: bool,
    },
}

/// The kernel's own limit on chains that call chains (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;

/// What `chain` does with `packet`.
pub fn evaluate(chain: &BaseChain, packet: &FirstPacket<'_>) -> ChainVerdict {
    let mut walk = Walk { chain, packet, may_be_accepted: false, walked: HashMap::new() };
    let call = ChainCall { certain: true, targeted: false, depth: 0 };
    let dropped = match (walk.through(chain.place.chain(), &chain.rules, call), chain.policy) {
        (RuleOutcome::Accepted, _) | (RuleOutcome::Open, ChainPolicy::Accept) => {
            return ChainVerdict::Accepts;
        }
        (RuleOutcome::Dropped { chain, targeted }, _) => {
            ChainVerdict::DroppedIn { chain, targeted }
        }
        (RuleOutcome::Open, ChainPolicy::Drop) => ChainVerdict::DroppedByPolicy,
    };
    if walk.may_be_accepted { ChainVerdict::MayDrop } else { dropped }
}

impl ChainVerdict {
    /// The chain with the rule that drops for certain, `None` inside for the policy.
    pub fn dropping_chain(self) -> Option<Option<String>> {
        match self {
            ChainVerdict::Accepts | ChainVerdict::MayDrop => None,
            ChainVerdict::DroppedByPolicy => Some(None),
            ChainVerdict::DroppedIn { chain, .. } => Some(Some(chain)),
        }
    }
}

/// How a walk through rules ends.
#[derive(Clone)]
enum RuleOutcome {
    Accepted,
    Dropped {
        chain: String,
        targeted: bool,
    },
    /// Nothing was decided.
    Open,
}

/// How a chain was reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ChainCall {
    /// Every rule before holds for certain.
    certain: bool,
    targeted: bool,
    depth: usize,
}

struct Walk<'a> {
    chain: &'a BaseChain,
    packet: &'a FirstPacket<'a>,
    may_be_accepted: bool,
    /// The chains that were walked through, and how that ended: chains of ten calls each are not
    /// walked through ten times for each that calls them.
    walked: HashMap<(&'a str, ChainCall), RuleOutcome>,
}

impl<'a> Walk<'a> {
    fn through(&mut self, name: &str, rules: &'a [ChainRule], call: ChainCall) -> RuleOutcome {
        for rule in rules {
            let Some(certain) = holds(rule, self.packet) else { continue };
            let certain = call.certain && certain;
            let targeted = call.targeted || rule.matches.iter().any(RuleMatch::is_targeted);
            match &rule.verdict {
                Verdict::Accept if certain => return RuleOutcome::Accepted,
                Verdict::Accept => self.may_be_accepted = true,
                Verdict::Drop if certain => {
                    return RuleOutcome::Dropped { chain: name.to_owned(), targeted };
                }
                Verdict::Return if certain => return RuleOutcome::Open,
                Verdict::Continue | Verdict::Drop | Verdict::Return => {}
                Verdict::Jump(target) | Verdict::Goto(target) => {
                    let call = ChainCall { certain, targeted, depth: call.depth + 1 };
                    let end = self.call(target, call);
                    let goes_on = !certain || matches!(rule.verdict, Verdict::Jump(_));
                    match end {
                        RuleOutcome::Open if goes_on => {}
                        end if certain => return end,
                        _ => {}
                    }
                }
            }
        }
        RuleOutcome::Open
    }

    fn call(&mut self, target: &'a str, call: ChainCall) -> RuleOutcome {
        if let Some(known) = self.walked.get(&(target, call)) {
            return known.clone();
        }
        match self.chain.called.get(target) {
            Some(rules) if call.depth < DEPTH => {
                let end = self.through(target, rules, call);
                self.walked.insert((target, call), end.clone());
                end
            }
            _ => {
                self.may_be_accepted = true;
                RuleOutcome::Open
            }
        }
    }
}

/// `None` if the rule does not concern the packet, true if it does for certain.
fn holds(rule: &ChainRule, packet: &FirstPacket<'_>) -> Option<bool> {
    let mut certain = true;
    for found in &rule.matches {
        match found.holds(packet) {
            Some(true) => {}
            Some(false) => return None,
            None => certain = false,
        }
    }
    Some(certain)
}

#[cfg(test)]
mod tests;
