//! Pure. A chain of somebody else that stops pod traffic, in words.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::forward::Traffic;
use crate::net::{AddressRange, Family, Object, Problem, ProblemKind};
use crate::nft::base_chains::{ChainRef, Direction};
use crate::nft::{NftChain, TableFamily};

/// So many hosts are named one by one.
const NAMED: usize = 3;

/// A chain that stops pod traffic, or may do so, and that humanz does not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingRule {
    /// The chain.
    pub place: ChainRef,
    /// Why nothing was done.
    pub reason: Cause,
    /// Whose traffic it stops.
    pub traffic: Traffic,
}

/// Why an obstacle is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It stops packets that go these ways.
    Drops {
        /// From pods, to pods, or both.
        directions: Vec<Direction>,
        /// The chain with the rule that does it; `None` if the policy does.
        chain: Option<String>,
        /// Only those to and from pods of these hosts; `None` for all hosts.
        hosts: Option<Hosts>,
    },
    /// It stops packets of one kind, and others pass.
    DropsPacket {
        /// Where they come from.
        source: IpAddr,
        /// Where they go.
        destination: IpAddr,
        /// The chain with the rule that does it; `None` if the policy does.
        chain: Option<String>,
    },
    /// It cannot be read: the error, whole.
    Unreadable(String),
}

/// Other hosts whose pods are stopped, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The first few, each with addresses of its pods: one range for each of its subnets.
    named: Vec<(String, Vec<AddressRange>)>,
    /// How many more there are.
    more: usize,
}

impl Hosts {
    /// Those among `others` (each with a pod subnet, those of one host next to each other) that have
    /// addresses in `ranges`, which are in order and do not touch; `None` if there is none.
    pub fn with<'a>(
        ranges: &[AddressRange],
        others: impl Iterator<Item = (&'a str, IpNetwork)>,
    ) -> Option<Hosts> {
        let hit = others.filter_map(|(host, subnet)| {
            let subnet = AddressRange::from(subnet);
            let range =
                ranges.get(ranges.partition_point(|range| range.last() < subnet.first()))?;
            Some((range.common(&subnet)?, host))
        });
        let (mut named, mut more): (Vec<(String, Vec<AddressRange>)>, _) = (Vec::new(), 0);
        let mut last = None;
        for (range, host) in hit {
            let again = last.replace(host) == Some(host);
            if !again && named.len() < NAMED {
                named.push((host.to_owned(), Vec::new()));
            } else if !again {
                more += 1;
            }
            if let Some((_, ranges)) = named.last_mut().filter(|_| more == 0) {
                ranges.push(range);
            }
        }
        (!named.is_empty()).then_some(Hosts { named, more })
    }
}

impl fmt::Display for Hosts {
    /// `10.244.5.0/24 and fd00:10:0:5::/64 (host b)`, with commas, `and 7 more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|(host, ranges)| {
            let ranges = ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
            format!("{} (host {host})", ranges.join(" and "))
        });
        f.write_str(&named.collect::<Vec<_>>().join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        Ok(())
    }
}

/// Adds what a chain stops one way: with what it stops the other way, if those are the same pods, and
/// where they are some the rules are of one chain.
pub fn add(reasons: &mut Vec<Cause>, reason: Cause) {
    let Cause::Drops { directions: added, chain: by, hosts: others } = &reason else { return };
    let same = reasons.iter_mut().find_map(|known| match known {
        Cause::Drops { directions, chain, hosts }
            if hosts == others && (hosts.is_none() || chain == by) =>
        {
            Some(directions)
        }
        _ => None,
    });
    match same {
        Some(directions) => directions.extend(added),
        None => reasons.push(reason),
    }
}

impl BlockingRule {
    /// LinkRef chain stops which pod traffic, and what to do.
    pub fn problem(&self) -> Problem {
        let BlockingRule { place, reason, traffic } = self;
        let problem =
            |kind, what: String| Problem::new(kind, Object::Chain(place.to_string()), what);
        let (chain, packets, is_about_some) = match reason {
            Cause::Unreadable(error) => {
                let what = format!("{place}: may drop pod traffic and cannot be read: {error}");
                return problem(ProblemKind::ForwardUnreadable, what)
                    .with_fix("read its rules: nft list ruleset; iptables-legacy-save");
            }
            Cause::DropsPacket { source, destination, chain } => {
                (chain, format!("packets like this one, from {source} to {destination}"), true)
            }
            Cause::Drops { directions, chain, hosts } => {
                (chain, packets(directions, hosts.as_ref()), hosts.is_some())
            }
        };
        let by = match chain {
            None => "its policy".to_owned(),
            Some(chain) if chain == place.chain() => "a rule".to_owned(),
            Some(chain) => format!("a rule of chain {chain}"),
        };
        let fix = match chain {
            Some(chain) if is_about_some => fix_of_one(place, chain, traffic),
            _ => fix(place, traffic),
        };
        let what = format!("{place}: {by} drops {packets}");
        problem(ProblemKind::ForwardBlocked, what).with_fix(fix)
    }
}

impl fmt::Display for BlockingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem().fmt(f)
    }
}

/// The packets that go these ways, of all hosts or some.
fn packets(directions: &[Direction], hosts: Option<&Hosts>) -> String {
    match (directions, hosts) {
        ([Direction::In], None) => "what pods send".to_owned(),
        ([Direction::Out], None) => "what other hosts' pods send to pods".to_owned(),
        (_, None) => "pod traffic".to_owned(),
        ([Direction::In], Some(hosts)) => format!("what pods send to pods of {hosts}"),
        ([Direction::Out], Some(hosts)) => format!("what pods of {hosts} send to pods"),
        (_, Some(hosts)) => format!("traffic with pods of {hosts}"),
    }
}

/// What can be done about a rule that is about some pods: it was made for a reason, or forgotten.
fn fix_of_one(place: &ChainRef, chain: &str, traffic: &Traffic) -> String {
    let list = |program: &str| format!("{program} -S {chain}");
    let list = match place {
        ChainRef::Legacy(Family::V4, _) => list("iptables-legacy"),
        ChainRef::Legacy(Family::V6, _) => list("ip6tables-legacy"),
        ChainRef::Nft(NftChain { table, .. }) if table.starts_with("firewalld") => {
            return fix(place, traffic);
        }
        ChainRef::Nft(NftChain { family: TableFamily::Ip6, .. }) if place.is_iptables() => {
            list("ip6tables")
        }
        ChainRef::Nft(_) if place.is_iptables() => list("iptables"),
        ChainRef::Nft(NftChain { family, table, .. }) => {
            format!("nft -a list chain {family} {table} {chain}")
        }
    };
    format!("if it is not wanted (any more): find it with `{list}` and delete it")
}

/// What the owner of the chain can do about it.
fn fix(place: &ChainRef, traffic: &Traffic) -> String {
    let bridge = &traffic.bridge;
    match place {
        // Every pod is known by its address, whichever interface its packets come by.
        ChainRef::Nft(NftChain { table, .. }) if table == "firewalld" => {
            let sources = traffic.pools.iter().map(|pool| format!(" --add-source={pool}"));
            let sources: String = sources.collect();
            format!(
                "accept it: firewall-cmd --permanent --zone=trusted{sources} && firewall-cmd --reload"
            )
        }
        ChainRef::Nft(NftChain { table, .. }) if table == "firewalld_policy_drop" => {
            "wait, firewalld is loading its rules (if this stays: systemctl restart firewalld)"
                .to_owned()
        }
        ChainRef::Nft(NftChain { family, table, chain }) if !place.is_iptables() => format!(
            "accept it: nft 'insert rule {family} {table} {chain} iifname \"{bridge}\" accept' && nft \
             'insert rule {family} {table} {chain} oifname \"{bridge}\" accept', and likewise in the \
             file that makes the table"
        ),
        _ => format!("accept it: put a rule for {bridge} before it"),
    }
}
