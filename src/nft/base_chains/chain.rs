//! Pure. A chain that forwarded packets meet, and what it does to those of pods.

use std::collections::BTreeMap;
use std::fmt;

use crate::net::{Family, IfName};
use crate::nft::base_chains::direction::HookDirection;
use crate::nft::base_chains::rule::ChainRule;
use crate::nft::{ChainPolicy, NftChain, TableFamily};

/// A base chain at the hook `forward` or `input`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    pub place: ChainRef,
    /// What happens to a packet at its end.
    pub policy: ChainPolicy,
    pub rules: Vec<ChainRule>,
    /// The rules of the chains that it calls, by their names.
    pub called: BTreeMap<String, Vec<ChainRule>>,
}

/// Where a chain is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainRef {
    /// In a table of nftables; iptables-nft keeps its chains there too.
    Nft(NftChain),
    /// In the kernel's older tables, which only the iptables-legacy program can read: a chain of
    /// the table `filter`.
    Legacy(Family, &'static str),
}

/// A rule of ours to insert at the head of a chain of iptables, or to remove from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEdit {
    pub place: ChainRef,
    pub action: EditKind,
    /// Which way the packets go that the rule accepts.
    pub direction: HookDirection,
    pub bridge: IfName,
}

/// What an [`Edit`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// Insert at the head.
    Insert,
    /// Remove, by the kernel's number where there is one.
    Remove(Option<u64>),
}

impl ChainRef {
    /// Made and read by iptables, so that a rule of ours may stand in it.
    pub fn is_iptables(&self) -> bool {
        match self {
            ChainRef::Legacy(..) => true,
            ChainRef::Nft(NftChain { family, table, chain }) => {
                let single = matches!(family, TableFamily::Ip | TableFamily::Ip6);
                single && table == "filter" && chain == "FORWARD"
            }
        }
    }

    /// The chain's name.
    pub fn chain(&self) -> &str {
        match self {
            ChainRef::Legacy(_, chain) => chain,
            ChainRef::Nft(NftChain { chain, .. }) => chain,
        }
    }

    /// Packets of `family` meet it.
    pub fn sees(&self, family: Family) -> bool {
        match self {
            ChainRef::Legacy(own, _) => *own == family,
            ChainRef::Nft(NftChain { family: table, .. }) => match table {
                TableFamily::Inet => true,
                TableFamily::Ip => family == Family::V4,
                TableFamily::Ip6 => family == Family::V6,
                TableFamily::Other(_) => false,
            },
        }
    }
}

impl fmt::Display for ChainRef {
    /// `iptables chain FORWARD`, `ip6tables-legacy chain FORWARD`, `nft table inet filter, chain
    /// forward`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainRef::Legacy(Family::V4, chain) => write!(f, "iptables-legacy chain {chain}"),
            ChainRef::Legacy(Family::V6, chain) => write!(f, "ip6tables-legacy chain {chain}"),
            ChainRef::Nft(NftChain { family, table, chain }) => match self.is_iptables() {
                true if *family == TableFamily::Ip6 => f.write_str("ip6tables chain FORWARD"),
                true => f.write_str("iptables chain FORWARD"),
                false => write!(f, "nft table {family} {table}, chain {chain}"),
            },
        }
    }
}

impl fmt::Display for RuleEdit {
    /// `insert rule -i humanz0 -j ACCEPT in iptables chain FORWARD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            EditKind::Insert => "insert",
            EditKind::Remove(_) => "remove",
        };
        let RuleEdit { place, direction, bridge, .. } = self;
        write!(f, "{action} rule {} {bridge} -j ACCEPT in {place}", direction.option())
    }
}
