//! Pure. The chains that the kernel calls: what is forwarded, and what pods send to their own node.

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, Protocol, subnet};
use crate::nft::{Action, Base, Chain, ChainPolicy, Field, Hook, Match, NftRule, Value, Verdict};
use crate::policy::compile::forms::plain;
use crate::policy::compile::name::{
    EPOCH_SET, FORWARD_CHAIN, INPUT_CHAIN, STAMP_CHAIN, UNTRACKED, numbered,
};
use crate::policy::service::DNS_PORT;

/// Before the priority `filter` of others, whose verdicts are then final for what is allowed here.
const PRIORITY: i32 = -5;

/// The chains of both hooks, and those that they lead to. `networks`: where this host's pods have their
/// addresses. `bits`: those of a connection's mark that hold the epoch.
pub fn hooks(networks: &[IpNetwork], families: &[Family], bits: u32) -> ([Chain; 2], Vec<Chain>) {
    let judged = || {
        let present = vec![Match::ConnectionMarkIn(bits, EPOCH_SET.to_owned())];
        plain("judged in this epoch", present, Action::Verdict(Verdict::Accept))
    };
    let chains = families.iter().map(|family| to_own_node(*family, judged()));
    ([forward(networks, families, judged()), input(networks)], chains.collect())
}

fn base(hook: Hook) -> Option<Base> {
    let (kind, policy) = ("filter".to_owned(), ChainPolicy::Accept);
    Some(Base { kind, hook, priority: PRIORITY, policy })
}

/// Connections from and to this host's subnets, and from and to addresses of its pods outside of those.
fn forward(networks: &[IpNetwork], families: &[Family], judged: NftRule) -> Chain {
    let mut rules = vec![judged];
    if families.contains(&Family::V6) {
        let bridged = vec![Match::NoConnection, Match::BridgedNdp];
        let accept = Action::Verdict(Verdict::Accept);
        rules.push(plain("neighbour discovery on the bridge", bridged, accept));
    }
    for network in networks {
        rules.extend(untracked(*network));
    }
    for network in networks {
        let family = subnet::family(*network);
        let jump = |comment, field, chain| {
            let verdict = Verdict::Jump(numbered(chain, family));
            plain(comment, vec![Match::Within(field, *network)], Action::Verdict(verdict))
        };
        rules.push(jump("from pods", Field::ConnectionSource(family), "from"));
        rules.push(jump("to pods", Field::ConnectionDestination(family), "to"));
    }
    rules.push(stamp());
    Chain { name: FORWARD_CHAIN.to_owned(), base: base(Hook::FORWARD), rules }
}

/// Connections of pods to their own node. What is not tracked passes: neighbour discovery is such, and what the
/// host itself tracks not, as caches of names do.
fn input(networks: &[IpNetwork]) -> Chain {
    let from_pods = |network: &IpNetwork| {
        let family = subnet::family(*network);
        let matches = vec![Match::Within(Field::ConnectionSource(family), *network)];
        let verdict = Verdict::Goto(numbered("node", family));
        plain("from pods to their node", matches, Action::Verdict(verdict))
    };
    let of_no_connection = |network: &IpNetwork| {
        let source = Field::Source(subnet::family(*network));
        closed(Match::Invalid, source, *network)
    };
    let rules =
        networks.iter().map(from_pods).chain(networks.iter().map(of_no_connection)).collect();
    Chain { name: INPUT_CHAIN.to_owned(), base: base(Hook::INPUT), rules }
}

/// What the node began itself passes, by its own address on the bridge too, and so does its resolver.
fn to_own_node(family: Family, judged: NftRule) -> Chain {
    let accept = |comment, matches| plain(comment, matches, Action::Verdict(Verdict::Accept));
    let loopback: IfName = "lo".parse().expect("it is a name");
    let mut rules = vec![
        judged,
        accept("replies to the node", vec![Match::Reply]),
        accept("the node itself", vec![Match::InputInterface(loopback)]),
    ];
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let protocol = Match::Is(Field::ConnectionProtocol, Value::Protocol(protocol.number()));
        let port = Match::Is(Field::ConnectionPort, Value::port(DNS_PORT));
        rules.push(accept("the node's resolver", vec![protocol, port]));
    }
    let verdict = Action::Verdict(Verdict::Jump(numbered("from", family)));
    rules.push(plain("from pods", Vec::new(), verdict));
    rules.push(stamp());
    Chain { name: numbered("node", family), base: None, rules }
}

fn stamp() -> NftRule {
    plain("allowed", Vec::new(), Action::Verdict(Verdict::Goto(STAMP_CHAIN.to_owned())))
}

/// Packets of no connection have no tuple to be judged by: only pods without rules get them.
fn untracked(network: IpNetwork) -> [NftRule; 2] {
    let family = subnet::family(network);
    let ends = [Field::Source(family), Field::Destination(family)];
    ends.map(|field| closed(Match::NoConnection, field, network))
}

fn closed(state: Match, field: Field, network: IpNetwork) -> NftRule {
    let open = numbered("open", subnet::family(network));
    let matches = vec![state, Match::Within(field, network), Match::NotIn(field, open)];
    plain("of no connection", matches, Action::Verdict(Verdict::Goto(UNTRACKED.to_owned())))
}
