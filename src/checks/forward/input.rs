//! Pure. Whether firewalls of other programs let tunnels of other hosts in.

use std::net::IpAddr;

use crate::checks::forward::evaluate::{UDP, evaluate};
use crate::net::{Family, IfName, Object, Problem, ProblemKind};
use crate::nft::base_chains::{BaseChain, ChainRef, FirstPacket, HookChains};
use crate::nft::{NftChain, TableFamily};

/// What must get in: packets of another host's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelTraffic {
    /// The interface that they come by.
    pub uplink: IfName,
    /// The other host.
    pub source: IpAddr,
    /// This host.
    pub destination: IpAddr,
    pub udp_port: u16,
}

/// The chains that drop packets of `tunnel` for certain.
pub fn problems(tunnel: &TunnelTraffic, found: &HookChains) -> Vec<Problem> {
    let packet = FirstPacket {
        input: tunnel.uplink.as_str(),
        output: "",
        source: tunnel.source,
        destination: tunnel.destination,
        transport: Some((UDP, tunnel.udp_port)),
    };
    let family = Family::of(tunnel.destination);
    let met = found.chains.iter().filter(|chain| chain.place.sees(family));
    let drops = met.filter(|chain| evaluate(chain, &packet).dropping_chain().is_some());
    drops.map(|chain| problem(chain, tunnel.udp_port)).collect()
}

fn problem(chain: &BaseChain, udp_port: u16) -> Problem {
    let place = &chain.place;
    let what = format!("{place}: drops the tunnels of other hosts (UDP port {udp_port})");
    Problem::new(ProblemKind::InputBlocked, Object::Chain(place.to_string()), what)
        .with_fix(fix(chain, udp_port))
}

fn fix(chain: &BaseChain, udp_port: u16) -> String {
    if chain.called.keys().any(|name| name.starts_with("ufw")) {
        return format!("ufw allow {udp_port}/udp");
    }
    let iptables = |program| format!("{program} -I INPUT -p udp --dport {udp_port} -j ACCEPT");
    match &chain.place {
        ChainRef::Nft(NftChain { table, .. }) if table.starts_with("firewalld") => {
            format!("firewall-cmd --permanent --add-port={udp_port}/udp && firewall-cmd --reload")
        }
        ChainRef::Legacy(Family::V4, _) => iptables("iptables-legacy"),
        ChainRef::Legacy(Family::V6, _) => iptables("ip6tables-legacy"),
        ChainRef::Nft(NftChain { family: TableFamily::Ip, chain, .. }) if chain == "INPUT" => {
            iptables("iptables")
        }
        ChainRef::Nft(NftChain { family: TableFamily::Ip6, chain, .. }) if chain == "INPUT" => {
            iptables("ip6tables")
        }
        ChainRef::Nft(NftChain { family, table, chain }) => {
            format!("nft insert rule {family} {table} {chain} udp dport {udp_port} accept")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::base_chains::{ChainRule, RuleMatch};
    use crate::nft::{ChainPolicy, Verdict};

    fn check(place: ChainRef, called: &[&str], accepted: &[u16], wanted: &[&str]) {
        let accept = |port: &u16| ChainRule {
            handle: None,
            matches: vec![RuleMatch::ports(&[(*port, *port)])],
            verdict: Verdict::Accept,
            comment: None,
        };
        let rules = accepted.iter().map(accept).collect();
        let called = called.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        let chains = vec![BaseChain { place, policy: ChainPolicy::Drop, rules, called }];
        let found = HookChains { chains, unreadable: Vec::new() };
        let tunnel = TunnelTraffic {
            uplink: "eth0".parse().unwrap(),
            source: "192.0.2.7".parse().unwrap(),
            destination: "192.0.2.1".parse().unwrap(),
            udp_port: 10400,
        };
        let lines: Vec<String> =
            problems(&tunnel, &found).iter().map(ToString::to_string).collect();
        assert_eq!(lines, wanted);
    }

    fn nft(family: TableFamily, table: &str, chain: &str) -> ChainRef {
        ChainRef::Nft(NftChain { family, table: table.to_owned(), chain: chain.to_owned() })
    }

    #[test]
    fn a_chain_that_drops_tunnels_is_reported_with_the_fix() {
        let drops = ": drops the tunnels of other hosts (UDP port 10400); ";
        let at = || nft(TableFamily::Ip, "filter", "INPUT");
        let line = "nft table ip filter, chain INPUT";
        let fix = "iptables -I INPUT -p udp --dport 10400 -j ACCEPT";
        check(at(), &[], &[22], &[&format!("{line}{drops}{fix}")]);
        check(at(), &["ufw-before-input"], &[], &[&format!("{line}{drops}ufw allow 10400/udp")]);
        let at = nft(TableFamily::Inet, "firewalld", "filter_INPUT");
        let fix = "firewall-cmd --permanent --add-port=10400/udp && firewall-cmd --reload";
        check(at.clone(), &[], &[], &[&format!("{at}{drops}{fix}")]);
        let at = nft(TableFamily::Inet, "filter", "input");
        let fix = "nft insert rule inet filter input udp dport 10400 accept";
        check(at.clone(), &[], &[], &[&format!("{at}{drops}{fix}")]);
    }

    #[test]
    fn a_chain_that_accepts_them_is_not() {
        check(ChainRef::Legacy(Family::V4, "INPUT"), &[], &[22, 10400], &[]);
        check(ChainRef::Legacy(Family::V6, "INPUT"), &[], &[], &[]);
        check(nft(TableFamily::Ip6, "filter", "INPUT"), &[], &[], &[]);
    }
}
