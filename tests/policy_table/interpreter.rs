//! What a table does with a packet, as nft(8) describes its statements. Written apart from the code
//! that makes the table.

use std::net::IpAddr;

use humanz::net::Family;
use humanz::nft::{
    Action, Chain, ChainPolicy, Data, Field, Hook, Match, NftRule, Ruleset, Value, Verdict,
};
use humanz::policy::{Transport, Tuple};

use super::world::own_addresses;

/// A packet that a host forwards, that is for it, or that it sends.
#[derive(Clone, Debug)]
pub struct Packet {
    pub hook: Hook,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub connection: Option<Connection>,
    /// The host has said that it is not to be tracked.
    pub untracked: bool,
    /// It is an ICMP error about the connection, or about one that nobody knows; its type.
    pub error: Option<u8>,
    /// The counters that counted it.
    pub counted: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub tuple: Tuple,
    pub mark: u32,
}

/// Where evaluation goes on.
enum Next {
    Rule,
    Return,
    Accept,
    Drop,
}

impl Packet {
    /// The first of a connection.
    pub fn first(tuple: Tuple) -> Packet {
        let connection = Some(Connection { tuple, mark: 0 });
        let (source, destination) = (tuple.source, tuple.destination);
        let (hook, counted) = (Hook::FORWARD, Vec::new());
        Packet { hook, source, destination, connection, untracked: false, error: None, counted }
    }

    /// As the host with this place meets it.
    pub fn at(self, host: usize) -> Packet {
        let own = own_addresses(host);
        let hook = match (own.contains(&self.source), own.contains(&self.destination)) {
            (true, _) => Hook::OUTPUT,
            (_, true) => Hook::INPUT,
            _ => Hook::FORWARD,
        };
        Packet { hook, ..self }
    }

    /// What passes and what does not; a connection's mark may change.
    pub fn passes(&mut self, ruleset: &Ruleset) -> bool {
        let hook = self.hook;
        let called = ruleset
            .chains
            .iter()
            .filter(|chain| chain.base.as_ref().is_some_and(|base| base.hook == hook));
        for chain in called {
            let policy = chain.base.as_ref().unwrap().policy;
            let passes = match self.chain(ruleset, chain) {
                Next::Accept => true,
                Next::Drop => false,
                Next::Rule | Next::Return => policy == ChainPolicy::Accept,
            };
            if !passes {
                return false;
            }
        }
        true
    }

    fn chain(&mut self, ruleset: &Ruleset, chain: &Chain) -> Next {
        for rule in &chain.rules {
            match self.rule(ruleset, rule) {
                Next::Rule => {}
                Next::Return => return Next::Rule,
                decided => return decided,
            }
        }
        Next::Rule
    }

    fn rule(&mut self, ruleset: &Ruleset, rule: &NftRule) -> Next {
        if !rule.matches.iter().all(|condition| self.holds(ruleset, condition)) {
            return Next::Rule;
        }
        match &rule.action {
            Action::Verdict(verdict) => self.verdict(ruleset, verdict),
            Action::Count(counter, verdict) => {
                self.counted.push(counter.clone());
                self.verdict(ruleset, verdict)
            }
            Action::Deny(bits, counter) => {
                let Some(connection) = &mut self.connection else { return Next::Rule };
                connection.mark &= !bits;
                self.counted.push(counter.clone());
                Next::Drop
            }
            Action::VerdictMap(fields, map) => match self.looked_up(ruleset, fields, map) {
                Some(Some(Data::Verdict(verdict))) => self.verdict(ruleset, &verdict),
                Some(other) => panic!("{map} holds {other:?}"),
                None => Next::Rule,
            },
            Action::MarkConnection(bits, value) => {
                if let Some(connection) = &mut self.connection {
                    connection.mark = connection.mark & !bits | value;
                }
                Next::Rule
            }
            Action::Log(..) => Next::Rule,
            other => panic!("{other}"),
        }
    }

    fn verdict(&mut self, ruleset: &Ruleset, verdict: &Verdict) -> Next {
        let named = |name: &str| ruleset.chains.iter().find(|chain| chain.name == name).unwrap();
        match verdict {
            Verdict::Accept => Next::Accept,
            Verdict::Drop => Next::Drop,
            Verdict::Continue => Next::Rule,
            Verdict::Return => Next::Return,
            Verdict::Jump(name) => self.chain(ruleset, named(name)),
            Verdict::Goto(name) => match self.chain(ruleset, named(name)) {
                Next::Rule => Next::Return,
                decided => decided,
            },
        }
    }

    fn holds(&self, ruleset: &Ruleset, condition: &Match) -> bool {
        match condition {
            Match::Within(field, network) => match self.field(*field) {
                Some(Value::Addresses(range)) => network.contains(range.first()),
                _ => false,
            },
            Match::Is(field, value) => {
                self.field(*field).is_some_and(|found| covers(value, &found))
            }
            Match::In(field, set) => self.looked_up(ruleset, &[*field], set).is_some(),
            Match::AllIn(fields, set) => self.looked_up(ruleset, fields, set).is_some(),
            Match::NotIn(field, set) => {
                self.field(*field).is_some() && self.looked_up(ruleset, &[*field], set).is_none()
            }
            Match::ConnectionMark(bits, mark) => {
                self.connection.is_some_and(|connection| connection.mark & bits == *mark)
            }
            Match::NoConnection => self.connection.is_none(),
            Match::Invalid => self.connection.is_none() && !self.untracked,
            Match::RelatedOrInvalid => {
                self.error.is_some() || self.connection.is_none() && !self.untracked
            }
            Match::RelatedOrNoConnection => self.error.is_some() || self.connection.is_none(),
            // The tuples are those of connections without translation, but for those of a pod with itself.
            Match::Translated => {
                self.connection.is_some_and(|it| it.tuple.source == it.tuple.destination)
            }
            // A routed packet's hop limit is below.
            Match::BridgedNdp => false,
            // The first of a connection, from a pod.
            Match::Reply | Match::ReplyAsks | Match::PickedUp | Match::InputInterface(_) => false,
            Match::Limit { .. } => true,
            other => panic!("{other}"),
        }
    }

    /// `Some` if the set or map holds it; inside what a map holds for it.
    fn looked_up(&self, ruleset: &Ruleset, fields: &[Field], set: &str) -> Option<Option<Data>> {
        let key: Option<Vec<Value>> = fields.iter().map(|field| self.field(*field)).collect();
        find(ruleset, &key?, set)
    }

    /// A field that the packet lacks ends the rule.
    fn field(&self, field: Field) -> Option<Value> {
        let address =
            |family, address| (Family::of(address) == family).then(|| Value::address(address));
        let tuple = self.connection.map(|connection| connection.tuple);
        match field {
            Field::Source(family) => address(family, self.source),
            Field::Destination(family) => address(family, self.destination),
            Field::Protocol => Some(Value::Protocol(match (self.error, tuple) {
                (None, Some(tuple)) => tuple.protocol(),
                _ if self.source.is_ipv4() => 1,
                _ => 58,
            })),
            Field::Icmp => Some(Value::port(u16::from(self.error.unwrap_or_default()) << 8)),
            Field::ConnectionSource(family) => address(family, tuple?.source),
            Field::ConnectionDestination(family) => address(family, tuple?.destination),
            Field::ConnectionProtocol => Some(Value::Protocol(tuple?.protocol())),
            Field::ConnectionPort => Some(Value::port(match tuple?.transport {
                Transport::Port(_, port) => port,
                // Replies to a ping bear its identifier there.
                Transport::Icmp { .. } => 80,
                Transport::Other(_) => 0,
            })),
            Field::ConnectionIcmp => Some(Value::port(match tuple?.transport {
                Transport::Port(_, port) => port,
                Transport::Icmp { kind, code } => u16::from(kind) << 8 | u16::from(code),
                Transport::Other(_) => 0,
            })),
            other => panic!("{other}"),
        }
    }
}

fn find(ruleset: &Ruleset, key: &[Value], set: &str) -> Option<Option<Data>> {
    let set = ruleset.sets.iter().find(|found| found.name == set).unwrap();
    assert_eq!(set.shape.key.len(), key.len(), "{}", set.name);
    let holds = |element: &[Value]| element.iter().zip(key).all(|(of, value)| covers(of, value));
    let element = set.elements.iter().find(|element| holds(&element.key))?;
    Some(element.data.clone())
}

/// `of` is `value`, or a range with it.
fn covers(of: &Value, value: &Value) -> bool {
    match (of, value) {
        (Value::Addresses(of), Value::Addresses(value)) => of.common(value) == Some(*value),
        (Value::Ports(first, last), Value::Ports(value, _)) => (first..=last).contains(&value),
        (of, value) => of == value,
    }
}
