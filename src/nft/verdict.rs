//! Pure. Verdicts: what a chain or a verdict map decides about a packet.

use std::fmt;

use crate::netlink::{AttributeList, Attributes};
use crate::nft::numbers::expression as n;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    /// Of others' rules also `reject`.
    Drop,
    /// The next rule.
    Continue,
    /// The end of this chain.
    Return,
    /// The chain of this name decides; if it does not, the next rule.
    Jump(String),
    /// The chain of this name decides; if it does not, the end of this chain.
    Goto(String),
}

impl Verdict {
    /// The verdict as data of an expression or an element.
    pub(super) fn encode(&self) -> Attributes {
        let (code, chain) = match self {
            Verdict::Accept => (n::ACCEPT, None),
            Verdict::Drop => (n::DROP, None),
            Verdict::Continue => (n::CONTINUE, None),
            Verdict::Return => (n::RETURN, None),
            Verdict::Jump(chain) => (n::JUMP, Some(chain)),
            Verdict::Goto(chain) => (n::GOTO, Some(chain)),
        };
        let chain = chain.map(|chain| [chain.as_bytes(), &[0]].concat());
        let verdict = Attributes::new().be32(n::VERDICT_CODE, code);
        Attributes::new().nest(n::DATA_VERDICT, verdict.put_some(n::VERDICT_CHAIN, chain))
    }

    /// `None` for a verdict that humanz does not know (`queue`).
    pub(super) fn read(verdict: &AttributeList<'_>) -> Option<Verdict> {
        let chain = || verdict.text(n::VERDICT_CHAIN).unwrap_or_default();
        match verdict.be32(n::VERDICT_CODE)? {
            n::ACCEPT => Some(Verdict::Accept),
            n::DROP => Some(Verdict::Drop),
            n::CONTINUE => Some(Verdict::Continue),
            n::RETURN => Some(Verdict::Return),
            n::JUMP => Some(Verdict::Jump(chain())),
            n::GOTO => Some(Verdict::Goto(chain())),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}
