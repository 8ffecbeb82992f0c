//! Pure. What a rule of nftables compares and decides, read from its expressions.

use std::collections::BTreeMap;

use crate::net::Family;
use crate::netlink::{AttributeList, NetlinkError};
use crate::nft::base_chains::direction::HookDirection;
use crate::nft::base_chains::expression_list::Expression;
use crate::nft::base_chains::rule::{ChainRule, Comparison, PacketAddress, PacketField, RuleMatch};
use crate::nft::base_chains::xt;
use crate::nft::numbers::{expression as n, rule};
use crate::nft::{Data, FoundSet, Userdata, Verdict};

/// Sets by name.
pub type FoundSets = BTreeMap<String, FoundSet>;

/// The rules that one amounts to: as many as there are verdicts in the map that it looks into, else
/// one. `interface`: the name of an interface, by its index.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn rules(
    rule: &AttributeList<'_>,
    expressions: &[Expression],
    sets: &FoundSets,
    interface: &dyn Fn(u32) -> Option<String>,
) -> Result<Vec<ChainRule>, NetlinkError> {
    let native = Userdata::read(rule.get(rule::USERDATA).unwrap_or_default()).comment;
    let comment = native.or_else(|| expressions.iter().find_map(xt::comment));
    let decoded = |(matches, verdict)| {
        let handle = rule.be64(rule::HANDLE);
        ChainRule { handle, matches, verdict, comment: comment.clone() }
    };
    let mut decoder = Decoder { sets, interface, registers: BTreeMap::new(), matches: Vec::new() };
    for expression in expressions {
        if let Some(verdicts) = decoder.step(expression)? {
            return Ok(verdicts.into_iter().map(decoded).collect());
        }
    }
    Ok(vec![decoded((decoder.matches, Verdict::Continue))])
}

/// A register's content, as far as it is known.
#[derive(Clone)]
enum Loaded {
    Field(PacketField, Option<Vec<u8>>),
    /// The index of an interface.
    Index(HookDirection),
}

struct Decoder<'a> {
    sets: &'a FoundSets,
    interface: &'a dyn Fn(u32) -> Option<String>,
    registers: BTreeMap<u32, Loaded>,
    matches: Vec<RuleMatch>,
}

type Verdicts = Vec<(Vec<RuleMatch>, Verdict)>;

impl Decoder<'_> {
    /// The verdicts, each with what must hold, of an expression that decides.
    fn step(&mut self, (name, data): &Expression) -> Result<Option<Verdicts>, NetlinkError> {
        match name.as_str() {
            "counter" | "log" | "notrack" | "dynset" | "objref" | "flow_offload" => {}
            "meta" => self.load(data.be32(n::META_REGISTER), meta(data.be32(n::META_KEY))),
            "ct" => {
                let field = Loaded::Field(ct(data.be32(n::CONNECTION_KEY)), None);
                self.load(data.be32(n::CONNECTION_REGISTER), field);
            }
            "payload" => {
                self.load(data.be32(n::PAYLOAD_REGISTER), Loaded::Field(payload(data), None));
            }
            "bitwise" => self.mask(data)?,
            "cmp" => self.compare(data)?,
            "lookup" => return Ok(self.lookup(data)),
            "immediate" => {
                let verdict = match data.nested(n::IMMEDIATE_DATA)? {
                    Some(data) => data.nested(n::DATA_VERDICT)?,
                    None => None,
                };
                match verdict.map(|verdict| Verdict::read(&verdict)) {
                    Some(Some(verdict)) => return Ok(Some(self.decide(verdict))),
                    // `queue`
                    Some(None) => {}
                    None => self.registers.clear(),
                }
            }
            "reject" => return Ok(Some(self.decide(Verdict::Drop))),
            "limit" | "quota" | "connlimit" => self.matches.push(RuleMatch::unknown()),
            "match" => self.matches.extend(xt::matches(data)),
            "target" => {
                if let Some("REJECT" | "DROP") = data.text(n::XT_NAME).as_deref() {
                    return Ok(Some(self.decide(Verdict::Drop)));
                }
            }
            // May load anything into any register.
            _ => self.registers.clear(),
        }
        Ok(None)
    }

    fn decide(&mut self, verdict: Verdict) -> Verdicts {
        vec![(std::mem::take(&mut self.matches), verdict)]
    }

    /// Without a register the expression stores, as `meta mark set` does.
    fn load(&mut self, register: Option<u32>, loaded: Loaded) {
        self.registers.extend(register.map(|register| (register, loaded)));
    }

    fn loaded(&self, register: Option<u32>) -> Loaded {
        let loaded = register.and_then(|register| self.registers.get(&register));
        loaded.cloned().unwrap_or(Loaded::Field(PacketField::Special, None))
    }

    fn mask(&mut self, data: &AttributeList<'_>) -> Result<(), NetlinkError> {
        let mask = data.nested(n::BITWISE_MASK)?;
        let mask = mask.as_ref().and_then(|mask| mask.get(n::DATA_VALUE));
        let Some(mask) = mask else {
            self.registers.clear();
            return Ok(());
        };
        let masked = match self.loaded(data.be32(n::BITWISE_SOURCE)) {
            // `tcp flags syn`, `meta pkttype & …`: an ordinary packet has none of these.
            Loaded::Field(PacketField::Special, _) => Loaded::Field(PacketField::Zero, None),
            Loaded::Field(field, None) => Loaded::Field(field, Some(mask.to_vec())),
            _ => Loaded::Field(PacketField::Unknown, None),
        };
        self.load(data.be32(n::BITWISE_DESTINATION), masked);
        Ok(())
    }

    fn compare(&mut self, data: &AttributeList<'_>) -> Result<(), NetlinkError> {
        let value = data.nested(n::COMPARE_DATA)?;
        let value = value.as_ref().and_then(|value| value.get(n::DATA_VALUE));
        let loaded = self.loaded(data.be32(n::COMPARE_REGISTER));
        let operation = data.be32(n::COMPARE_OPERATION);
        let negated = operation == Some(n::NOT_EQUAL);
        let found = match (loaded, operation, value) {
            (Loaded::Field(field, mask), Some(n::EQUAL | n::NOT_EQUAL), Some(value)) => {
                RuleMatch { field, mask, test: Comparison::Begins(value.to_vec()), negated }
            }
            (Loaded::Index(direction), Some(n::EQUAL | n::NOT_EQUAL), Some(value)) => {
                let index = value.try_into().ok().map(u32::from_ne_bytes);
                let name = index.and_then(self.interface);
                let found = name.map(|name| RuleMatch::interface(direction, &name));
                found.unwrap_or_else(RuleMatch::never).negated(negated)
            }
            (Loaded::Field(field, _), ..) => RuleMatch::new(field, Comparison::Unknown),
            _ => RuleMatch::unknown(),
        };
        self.matches.push(found);
        Ok(())
    }

    fn lookup(&mut self, data: &AttributeList<'_>) -> Option<Verdicts> {
        let negated = data.be32(n::LOOKUP_FLAGS).unwrap_or(0) & n::LOOKUP_INVERTED != 0;
        let decides = data.be32(n::LOOKUP_DESTINATION) == Some(n::REGISTER_VERDICT);
        let (field, mask) = match self.loaded(data.be32(n::LOOKUP_REGISTER)) {
            Loaded::Field(field, mask) => (field, mask),
            Loaded::Index(_) => (PacketField::Unknown, None),
        };
        let within =
            |keys| RuleMatch { field, mask: mask.clone(), test: Comparison::Within(keys), negated };
        let set = data.text(n::LOOKUP_SET).and_then(|set| self.sets.get(&set));
        let Some(set) = set else {
            self.matches.push(RuleMatch::new(field, Comparison::Unknown).negated(negated));
            return decides.then(|| self.decide(Verdict::Accept));
        };
        if !decides {
            self.matches
                .push(within(set.elements.iter().map(|element| element.bounds()).collect()));
            return None;
        }
        let verdicts = set.elements.iter().filter_map(|element| {
            let Some(Data::Verdict(verdict)) = &element.data else { return None };
            let matches = [&self.matches[..], &[within(vec![element.bounds()])]].concat();
            Some((matches, Verdict::clone(verdict)))
        });
        Some(verdicts.collect())
    }
}

fn meta(key: Option<u32>) -> Loaded {
    let field = match key {
        Some(n::INPUT_INDEX) => return Loaded::Index(HookDirection::In),
        Some(n::OUTPUT_INDEX) => return Loaded::Index(HookDirection::Out),
        Some(n::INPUT_NAME) => PacketField::Interface(HookDirection::In),
        Some(n::OUTPUT_NAME) => PacketField::Interface(HookDirection::Out),
        Some(n::NF_PROTOCOL) => PacketField::Family,
        Some(n::L4_PROTOCOL) => PacketField::Protocol,
        Some(n::MARK) => PacketField::Zero,
        _ => PacketField::Special,
    };
    Loaded::Field(field, None)
}

fn ct(key: Option<u32>) -> PacketField {
    match key {
        Some(n::CONNECTION_STATE) => PacketField::State,
        Some(n::CONNECTION_DIRECTION | n::CONNECTION_STATUS | n::CONNECTION_MARK) => {
            PacketField::Zero
        }
        _ => PacketField::Special,
    }
}

/// RFC 791 §3.1, RFC 8200 §3: the two families have their addresses at different places.
fn payload(data: &AttributeList<'_>) -> PacketField {
    let place = data.be32(n::PAYLOAD_OFFSET).zip(data.be32(n::PAYLOAD_LENGTH));
    let Some((offset, length)) = place else { return PacketField::Special };
    let address = |end, family, length: u32| PacketField::Address(end, family, length as usize);
    match (data.be32(n::PAYLOAD_BASE), offset, length) {
        (Some(n::NETWORK_HEADER), 12, 1..=4) => address(PacketAddress::Source, Family::V4, length),
        (Some(n::NETWORK_HEADER), 16, 1..=4) => {
            address(PacketAddress::Destination, Family::V4, length)
        }
        // One byte there is the time to live of IPv4.
        (Some(n::NETWORK_HEADER), 8, 2..=16) => address(PacketAddress::Source, Family::V6, length),
        (Some(n::NETWORK_HEADER), 24, 1..=16) => {
            address(PacketAddress::Destination, Family::V6, length)
        }
        // The protocol of IPv4, and the next header of IPv6.
        (Some(n::NETWORK_HEADER), 9 | 6, 1) => PacketField::Protocol,
        (Some(n::TRANSPORT_HEADER), n::PORT_OFFSET, 2) => PacketField::DestinationPort,
        _ => PacketField::Special,
    }
}
