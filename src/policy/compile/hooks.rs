//! Pure. The chains that the kernel calls: what is forwarded, and what pods send to their own node.

use ipnetwork::IpNetwork;

use crate::net::{Family, IfName, Protocol, subnet};
use crate::nft::{Action, Base, Chain, ChainPolicy, Field, Hook, Match, NftRule, Value, Verdict};
use crate::policy::compile::forms::plain;
use crate::policy::compile::name::{
    ALONE, APART, ERROR_CHAIN, FOREIGN, FORWARD_CHAIN, INPUT_CHAIN, JUDGED_CHAIN, MISTAKEN,
    OUTPUT_CHAIN, STAMP_CHAIN, UNTRACKED, numbered,
};
use crate::policy::service::{self, DNS_PORT};

/// Before the priority `filter` of others, whose verdicts are then final for what is allowed here.
const PRIORITY: i32 = -5;

/// The chains of both hooks, and those that they lead to. `networks`: where this host's pods have their
/// addresses.
pub fn hooks(networks: &[IpNetwork], families: &[Family]) -> ([Chain; 3], Vec<Chain>) {
    let chains = families.iter().map(|family| to_own_node(*family));
    let chains = chains.chain([errors(networks), mistaken(networks), apart()]);
    let chains = chains.chain([alone(networks, families)]);
    let chains = chains.chain(families.iter().map(|it| foreign(*it)));
    let called = [forward(networks), input(networks), output(networks)];
    (called, chains.collect())
}

fn base(hook: Hook) -> Option<Base> {
    let (kind, policy) = ("filter".to_owned(), ChainPolicy::Accept);
    Some(Base { kind, hook, priority: PRIORITY, policy })
}

/// Connections from and to this host's subnets, and from and to addresses of its pods outside of those.
fn forward(networks: &[IpNetwork]) -> Chain {
    let mistaken = |condition| {
        let jump = Action::Verdict(Verdict::Jump(MISTAKEN.to_owned()));
        plain("not what it is taken for", vec![condition], jump)
    };
    let jump = Action::Verdict(Verdict::Jump(APART.to_owned()));
    let apart = plain("errors, or of no connection", vec![Match::RelatedOrNoConnection], jump);
    let mut rules = vec![apart, mistaken(Match::ReplyAsks), judged(), mistaken(Match::PickedUp)];
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
        closed(Some(Match::Invalid), source, *network)
    };
    let rules = networks.iter().map(from_pods).chain(networks.iter().map(of_no_connection));
    let rules = [to_errors()].into_iter().chain(rules).collect();
    Chain { name: INPUT_CHAIN.to_owned(), base: base(Hook::INPUT), rules }
}

/// What the node sends to pods passes, but for what would turn a connection round that was cut.
fn output(networks: &[IpNetwork]) -> Chain {
    let picked_up = |network: &IpNetwork| {
        closed(Some(Match::PickedUp), Field::Destination(subnet::family(*network)), *network)
    };
    let rules = networks.iter().map(picked_up).collect();
    Chain { name: OUTPUT_CHAIN.to_owned(), base: base(Hook::OUTPUT), rules }
}

/// The kernel takes a packet in the midst of a connection that it has forgotten for the begin of one, in its own
/// direction: a pod that ends its entry for a connection that was cut would get it back by the next packet of the
/// other end. And it takes who asks for a connection for one who answers where the former pod of an address had
/// asked. Only pods without rules get such packets.
fn mistaken(networks: &[IpNetwork]) -> Chain {
    let rules = networks.iter().flat_map(both_ends).collect();
    Chain { name: MISTAKEN.to_owned(), base: None, rules }
}

/// What the node began itself passes, by its own address on the bridge too, and so does its resolver.
fn to_own_node(family: Family) -> Chain {
    let accept = |comment, matches| plain(comment, matches, Action::Verdict(Verdict::Accept));
    let loopback: IfName = "lo".parse().expect("it is a name");
    let mut rules = vec![
        judged(),
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

fn to_errors() -> NftRule {
    let jump = Action::Verdict(Verdict::Jump(ERROR_CHAIN.to_owned()));
    plain("errors about connections", vec![Match::RelatedOrInvalid], jump)
}

/// ICMP of this host's pods that has to do with a connection, or should have. The kernel takes an error for one of
/// the connection that it quotes, with its mark, whoever sends it.
fn errors(networks: &[IpNetwork]) -> Chain {
    let from_pods = |network: &IpNetwork| {
        let family = subnet::family(*network);
        let matches = vec![
            Match::Is(Field::Protocol, Value::Protocol(service::icmp(family))),
            Match::Within(Field::Source(family), *network),
        ];
        let verdict = Verdict::Jump(numbered(ERROR_CHAIN, family));
        plain("errors of pods", matches, Action::Verdict(verdict))
    };
    let rules = networks.iter().map(from_pods).collect();
    Chain { name: ERROR_CHAIN.to_owned(), base: None, rules }
}

/// An error passes if its sender is an end of the connection. Of no connection that this host knows there is none:
/// another host might know one.
fn foreign(family: Family) -> Chain {
    let own = |end: fn(Family) -> Field| {
        let ends = vec![Field::Source(family), end(family)];
        let matches = vec![Match::AllIn(ends, numbered("self", family))];
        plain("of the pod's own connection", matches, Action::Verdict(Verdict::Return))
    };
    let error = |kinds: &(u8, u8)| {
        let [first, last] = [[kinds.0, 0], [kinds.1, u8::MAX]].map(u16::from_be_bytes);
        let matches = vec![Match::Is(Field::Icmp, Value::Ports(first, last))];
        plain("of others", matches, Action::Verdict(Verdict::Goto(FOREIGN.to_owned())))
    };
    let own = [own(Field::ConnectionSource), own(Field::ConnectionDestination)];
    let rules = own.into_iter().chain(service::icmp_errors(family).iter().map(error)).collect();
    Chain { name: numbered(ERROR_CHAIN, family), base: None, rules }
}

fn judged() -> NftRule {
    let jump = Action::Verdict(Verdict::Jump(JUDGED_CHAIN.to_owned()));
    plain("judged in this epoch", Vec::new(), jump)
}

fn stamp() -> NftRule {
    plain("allowed", Vec::new(), Action::Verdict(Verdict::Goto(STAMP_CHAIN.to_owned())))
}

fn apart() -> Chain {
    let jump = Action::Verdict(Verdict::Jump(ALONE.to_owned()));
    let alone = plain("of no connection", vec![Match::NoConnection], jump);
    Chain { name: APART.to_owned(), base: None, rules: vec![to_errors(), alone] }
}

/// Packets of no connection have no tuple to be judged by: only pods without rules get them.
fn alone(networks: &[IpNetwork], families: &[Family]) -> Chain {
    let bridged = families.contains(&Family::V6).then(|| {
        let accept = Action::Verdict(Verdict::Accept);
        plain("neighbour discovery on the bridge", vec![Match::BridgedNdp], accept)
    });
    let rules = bridged.into_iter().chain(networks.iter().flat_map(both_ends)).collect();
    Chain { name: ALONE.to_owned(), base: None, rules }
}

fn both_ends(network: &IpNetwork) -> [NftRule; 2] {
    let family = subnet::family(*network);
    [Field::Source(family), Field::Destination(family)].map(|field| closed(None, field, *network))
}

fn closed(state: Option<Match>, field: Field, network: IpNetwork) -> NftRule {
    let open = numbered("open", subnet::family(network));
    let pod = [Match::Within(field, network), Match::NotIn(field, open)];
    let matches = state.into_iter().chain(pod).collect();
    plain("of no connection", matches, Action::Verdict(Verdict::Goto(UNTRACKED.to_owned())))
}
