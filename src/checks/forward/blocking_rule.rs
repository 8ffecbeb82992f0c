//! Pure. A chain of another program that drops pod traffic, as a problem with its fix.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::forward::traffic::Traffic;
use crate::net::{Family, Object, Problem, ProblemKind};
use crate::nft::base_chains::{ChainRef, HookDirection};
use crate::nft::{NftChain, TableFamily};

/// So many hosts are named one by one.
const NAMED: usize = 3;

/// A chain that drops pod traffic, or may do so, and that humanz does not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingRule {
    pub place: ChainRef,
    pub cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It drops packets in these directions.
    Drops {
        /// From pods, to pods, or both.
        directions: Vec<HookDirection>,
        /// The chain with the rule; `None` if the policy drops.
        chain: Option<String>,
        /// Only those to and from pods of these hosts; `None` for all hosts.
        hosts: Option<DroppedHosts>,
    },
    /// It drops packets of one kind, and others pass.
    DropsPacket {
        source: IpAddr,
        destination: IpAddr,
        /// The chain with the rule; `None` if the policy drops.
        chain: Option<String>,
    },
    /// It drops unless a rule accepts that is not understood.
    NotUnderstood,
    /// The error, whole.
    Unreadable(String),
}

/// Other hosts whose pods' packets are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedHosts {
    /// The first few, each with its pod subnets.
    named: Vec<(String, Vec<IpNetwork>)>,
    more: usize,
}

impl DroppedHosts {
    pub(super) fn of(mut subnets: Vec<(&str, IpNetwork)>) -> DroppedHosts {
        subnets.sort_unstable();
        subnets.dedup();
        let of_host = |host: &[(&str, IpNetwork)]| {
            (host[0].0.to_owned(), host.iter().map(|(_, subnet)| *subnet).collect())
        };
        let mut named: Vec<_> = subnets.chunk_by(|a, b| a.0 == b.0).map(of_host).collect();
        let more = named.len().saturating_sub(NAMED);
        named.truncate(NAMED);
        DroppedHosts { named, more }
    }
}

impl fmt::Display for DroppedHosts {
    /// `10.244.5.0/24 and fd00:10:0:5::/64 (host b)`, with commas, `and 7 more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|(host, subnets)| {
            let subnets = subnets.iter().map(ToString::to_string).collect::<Vec<_>>();
            format!("{} (host {host})", subnets.join(" and "))
        });
        f.write_str(&named.collect::<Vec<_>>().join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        Ok(())
    }
}

/// Adds what a chain drops one way: to what it drops the other way, if those are the same pods, and
/// where they are of some hosts the rules are of one chain.
pub(super) fn add(causes: &mut Vec<Cause>, cause: Cause) {
    let Cause::Drops { directions: added, chain: by, hosts: others } = &cause else { return };
    let same = causes.iter_mut().find_map(|known| match known {
        Cause::Drops { directions, chain, hosts }
            if hosts == others && (hosts.is_none() || chain == by) =>
        {
            Some(directions)
        }
        _ => None,
    });
    match same {
        Some(directions) => directions.extend(added),
        None => causes.push(cause),
    }
}

impl BlockingRule {
    /// Which pod traffic is dropped, by which chain, and what to do.
    pub fn problem(&self, traffic: &Traffic) -> Problem {
        let BlockingRule { place, cause } = self;
        let problem =
            |kind, what: String| Problem::new(kind, Object::Chain(place.to_string()), what);
        let (chain, packets, is_about_some) = match cause {
            Cause::Unreadable(error) => {
                let what = format!("{place}: may drop pod traffic and cannot be read: {error}");
                let list = list(place, place.chain());
                return problem(ProblemKind::ForwardUnreadable, what)
                    .with_fix(format!("{list} # read its rules"));
            }
            Cause::NotUnderstood => {
                let what = format!("{place}: may drop pod traffic: a rule is not understood");
                let list = list(place, place.chain());
                return problem(ProblemKind::ForwardUnclear, what)
                    .with_fix(format!("{list} # read its rules"));
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
        let fix = match (chain, place) {
            (Some(_), ChainRef::Nft(NftChain { table, .. })) if table.starts_with("firewalld") => {
                fix(place, traffic)
            }
            (Some(chain), _) if is_about_some => {
                let list = list(place, chain);
                format!("{list} # finds it: delete it if it is not wanted (any more)")
            }
            _ => fix(place, traffic),
        };
        problem(ProblemKind::ForwardBlocked, format!("{place}: {by} drops {packets}")).with_fix(fix)
    }
}

/// The packets in these directions, of all hosts or some.
fn packets(directions: &[HookDirection], hosts: Option<&DroppedHosts>) -> String {
    match (directions, hosts) {
        ([HookDirection::In], None) => "what pods send".to_owned(),
        ([HookDirection::Out], None) => "what other hosts' pods send to pods".to_owned(),
        (_, None) => "pod traffic".to_owned(),
        ([HookDirection::In], Some(hosts)) => format!("what pods send to pods of {hosts}"),
        ([HookDirection::Out], Some(hosts)) => format!("what pods of {hosts} send to pods"),
        (_, Some(hosts)) => format!("traffic with pods of {hosts}"),
    }
}

/// The command that lists `chain`, which is called by the chain at `place` or is that.
fn list(place: &ChainRef, chain: &str) -> String {
    match place {
        ChainRef::Nft(NftChain { family, table, .. }) if !place.is_iptables() => {
            format!("nft -a list chain {family} {table} {chain}")
        }
        _ => format!("{} -S {chain}", iptables(place)),
    }
}

/// The program of iptables that has the chain.
pub fn iptables(place: &ChainRef) -> &'static str {
    match place {
        ChainRef::Legacy(Family::V4, _) => "iptables-legacy",
        ChainRef::Legacy(Family::V6, _) => "ip6tables-legacy",
        ChainRef::Nft(NftChain { family: TableFamily::Ip6, .. }) => "ip6tables",
        ChainRef::Nft(_) => "iptables",
    }
}

/// What the owner of the chain can do about it.
fn fix(place: &ChainRef, traffic: &Traffic) -> String {
    let bridge = &traffic.bridge;
    match place {
        // Every pod is known by its address, whichever interface its packets come by.
        ChainRef::Nft(NftChain { table, .. }) if table == "firewalld" => {
            let sources = traffic.pools.iter().map(|pool| format!(" --add-source={pool}"));
            let sources: String = sources.collect();
            format!("firewall-cmd --permanent --zone=trusted{sources} && firewall-cmd --reload")
        }
        ChainRef::Nft(NftChain { table, .. }) if table == "firewalld_policy_drop" => {
            "systemctl restart firewalld # if this stays: it is loading its rules now".to_owned()
        }
        ChainRef::Nft(NftChain { family, table, chain }) if !place.is_iptables() => format!(
            "nft 'insert rule {family} {table} {chain} iifname \"{bridge}\" accept' && nft 'insert rule {family} \
             {table} {chain} oifname \"{bridge}\" accept' # and likewise in the file that makes the table"
        ),
        _ => {
            let (program, chain) = (iptables(place), place.chain());
            format!(
                "{program} -I {chain} -i {bridge} -j ACCEPT && {program} -I {chain} -o {bridge} -j ACCEPT # and \
                 likewise in the file that makes the rules"
            )
        }
    }
}
