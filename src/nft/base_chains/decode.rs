//! Pure. What a rule of nftables asks and does, read from its program of expressions.

use std::collections::{BTreeMap, BTreeSet};

use crate::netlink::{AttributeList, NetlinkError, Reply};
use crate::nft::numbers::{expression as n, rule};
use crate::nft::{Data, FoundSet, Userdata, Verdict, found};

use crate::nft::base_chains::chain::Direction;
use crate::nft::base_chains::numbers as other;
use crate::nft::base_chains::rule::{ChainRule, Criterion, Match};
use crate::nft::base_chains::value::{Loaded, known};
use crate::nft::base_chains::xt;

/// A rule as the kernel lists it.
#[derive(Debug)]
pub struct Program {
    handle: Option<u64>,
    comment: Option<String>,
    steps: Vec<Step>,
}

/// An expression, as far as it matters here. Registers are numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Load(u32, Loaded),
    /// From a register to a register through a mask.
    Mask(u32, u32, Vec<u8>),
    Compare {
        register: u32,
        negated: bool,
        value: Vec<u8>,
    },
    /// Whether a register is less or more than something.
    Order(u32),
    Lookup {
        register: u32,
        set: String,
        negated: bool,
        decides: bool,
    },
    Ask(Match),
    Decide(Verdict),
    /// Changes nothing: a counter, a log entry, a comment.
    Passes,
    /// May load anything anywhere.
    Other,
}

/// The rule in `reply`.
pub fn program(reply: &Reply<'_>) -> Result<Option<Program>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let expressions = expressions(&attributes)?;
    let native = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default()).comment;
    let comment = native.or_else(|| expressions.iter().find_map(xt::comment));
    let steps = expressions.iter().map(step).collect::<Result<_, _>>()?;
    Ok(Some(Program { handle: attributes.be64(rule::HANDLE), comment, steps }))
}

/// Sets by name.
pub type FoundSets = BTreeMap<String, FoundSet>;

impl Program {
    /// The sets and maps that it looks into.
    pub fn sets(&self) -> BTreeSet<String> {
        let names = self.steps.iter().filter_map(|step| match step {
            Step::Lookup { set, .. } => Some(set.clone()),
            _ => None,
        });
        names.collect()
    }

    /// The rules that this one amounts to: as many as there are verdicts in the map that it looks
    /// into, else one. `name` is that of an interface, by its index.
    pub fn rules(&self, sets: &FoundSets, name: &dyn Fn(u32) -> Option<String>) -> Vec<ChainRule> {
        let mut registers: BTreeMap<u32, Loaded> = BTreeMap::new();
        let mut conditions = Vec::new();
        let held = |registers: &BTreeMap<u32, Loaded>, register: &u32| {
            registers.get(register).cloned().unwrap_or(Loaded::Special)
        };
        for step in &self.steps {
            match step {
                Step::Load(to, loaded) => drop(registers.insert(*to, loaded.clone())),
                Step::Mask(from, to, mask) => {
                    let loaded = held(&registers, from).masked(mask);
                    registers.insert(*to, loaded);
                }
                Step::Compare { register, negated, value } => {
                    conditions.extend(held(&registers, register).equals(value, *negated, name));
                }
                Step::Order(register) => conditions.push(held(&registers, register).is_between()),
                Step::Lookup { register, set, negated, decides: false } => {
                    let loaded = held(&registers, register);
                    conditions.extend(match sets.get(set) {
                        Some(set) => {
                            let keys = set.elements.iter().flat_map(|element| &element.key);
                            loaded.is_among(keys, *negated)
                        }
                        None => vec![loaded.is_between()],
                    });
                }
                Step::Lookup { register, set, .. } => {
                    return self.of_map(&conditions, &held(&registers, register), sets.get(set));
                }
                Step::Ask(condition) => conditions.push(condition.clone()),
                Step::Decide(verdict) => return vec![self.rule(conditions, verdict.clone())],
                Step::Passes => {}
                Step::Other => registers.clear(),
            }
        }
        vec![self.rule(conditions, Verdict::Continue)]
    }

    fn of_map(
        &self,
        conditions: &[Match],
        loaded: &Loaded,
        map: Option<&FoundSet>,
    ) -> Vec<ChainRule> {
        let Some(map) = map else {
            let unknown = [conditions, &[Criterion::Unknown.holds()]].concat();
            return vec![self.rule(unknown, Verdict::Accept)];
        };
        let rules = map.elements.iter().filter_map(|element| {
            let Some(Data::Verdict(verdict)) = &element.data else { return None };
            let asked = loaded.is_among(element.key.iter(), false);
            Some(self.rule([conditions, &asked[..]].concat(), verdict.clone()))
        });
        rules.collect()
    }

    fn rule(&self, conditions: Vec<Match>, verdict: Verdict) -> ChainRule {
        ChainRule {
            handle: self.handle,
            matches: conditions,
            verdict,
            comment: self.comment.clone(),
        }
    }
}

/// Name and data of an expression.
pub type Expression = (String, AttributeList);

fn expressions(rule: &AttributeList) -> Result<Vec<Expression>, NetlinkError> {
    let Some(list) = rule.nested(rule::EXPRESSIONS)? else { return Ok(Vec::new()) };
    let mut expressions = Vec::new();
    for (_, expression) in list.iter() {
        let expression = AttributeList::parse(expression)?;
        let data = match expression.nested(n::DATA)? {
            Some(data) => data,
            None => AttributeList::parse(&[])?,
        };
        expressions.extend(expression.text(n::NAME).map(|name| (name, data)));
    }
    Ok(expressions)
}

fn step(expression: &Expression) -> Result<Step, NetlinkError> {
    let (name, data) = expression;
    Ok(match name.as_str() {
        "counter" | "log" | "notrack" | "dynset" | "objref" | "flow_offload" => Step::Passes,
        "meta" => load(data.be32(n::META_REGISTER), meta(data.be32(n::META_KEY))),
        "ct" => load(data.be32(other::CT_REGISTER), ct(data.be32(other::CT_KEY))),
        "payload" => load(data.be32(n::PAYLOAD_REGISTER), payload(data)),
        "bitwise" => mask(data)?,
        "cmp" => compare(data)?,
        "lookup" => lookup(data),
        "immediate" => match data.nested(n::IMMEDIATE_DATA)? {
            Some(data) => match data.nested(n::DATA_VERDICT)? {
                Some(data) => Verdict::read(&data).map_or(Step::Passes, Step::Decide),
                None => Step::Other,
            },
            None => Step::Other,
        },
        "reject" => Step::Decide(Verdict::Drop),
        "limit" | "quota" | "connlimit" => Step::Ask(Criterion::Unknown.holds()),
        "match" => xt::condition(data).map_or(Step::Passes, Step::Ask),
        "target" => match data.text(n::XT_NAME).as_deref() {
            Some("REJECT" | "DROP") => Step::Decide(Verdict::Drop),
            _ => Step::Passes,
        },
        _ => Step::Other,
    })
}

/// Without a register to load into it stores instead, as `meta mark set` does.
fn load(register: Option<u32>, loaded: Loaded) -> Step {
    register.map_or(Step::Passes, |register| Step::Load(register, loaded))
}

fn meta(key: Option<u32>) -> Loaded {
    match key {
        Some(n::INPUT_NAME) => Loaded::Interface(Direction::In),
        Some(n::OUTPUT_NAME) => Loaded::Interface(Direction::Out),
        Some(other::INPUT_INDEX) => Loaded::Index(Direction::In),
        Some(other::OUTPUT_INDEX) => Loaded::Index(Direction::Out),
        Some(n::NF_PROTOCOL) => Loaded::Family,
        Some(other::PROTOCOL) => Loaded::Ethertype,
        Some(other::L4_PROTOCOL) => Loaded::Protocol,
        Some(other::MARK) => Loaded::Zero,
        _ => Loaded::Special,
    }
}

fn ct(key: Option<u32>) -> Loaded {
    match key {
        Some(other::CT_STATE) => Loaded::State(other::STATE_NEW),
        Some(other::CT_DIRECTION | other::CT_STATUS | other::CT_MARK) => Loaded::Zero,
        _ => Loaded::Special,
    }
}

fn payload(data: &AttributeList) -> Loaded {
    let place = data.be32(n::PAYLOAD_OFFSET).zip(data.be32(n::PAYLOAD_LENGTH));
    match (data.be32(n::PAYLOAD_BASE), place) {
        (Some(n::NETWORK_HEADER), Some((offset, bytes))) => known(offset, bytes),
        (Some(other::TRANSPORT_HEADER), Some((other::PORT_OFFSET, 2))) => Loaded::Port,
        _ => Loaded::Special,
    }
}

fn mask(data: &AttributeList) -> Result<Step, NetlinkError> {
    let mask = data.nested(n::BITWISE_MASK)?;
    let mask = mask.as_ref().and_then(|mask| mask.get(n::DATA_VALUE));
    let registers = data.be32(n::BITWISE_SOURCE).zip(data.be32(n::BITWISE_DESTINATION));
    let step = registers.zip(mask);
    Ok(step.map_or(Step::Other, |((from, to), mask)| Step::Mask(from, to, mask.to_vec())))
}

fn compare(data: &AttributeList) -> Result<Step, NetlinkError> {
    let Some(register) = data.be32(n::COMPARE_REGISTER) else { return Ok(Step::Other) };
    let value = data.nested(n::COMPARE_DATA)?;
    let value = value.as_ref().and_then(|value| value.get(n::DATA_VALUE));
    Ok(match (data.be32(n::COMPARE_OPERATION), value) {
        (Some(operation @ (n::EQUAL | n::NOT_EQUAL)), Some(value)) => {
            Step::Compare { register, negated: operation == n::NOT_EQUAL, value: value.to_vec() }
        }
        _ => Step::Order(register),
    })
}

fn lookup(data: &AttributeList) -> Step {
    let named = data.be32(n::LOOKUP_REGISTER).zip(data.text(n::LOOKUP_SET));
    let flags = data.be32(n::LOOKUP_FLAGS).unwrap_or(0);
    named.map_or(Step::Other, |(register, set)| Step::Lookup {
        register,
        set,
        negated: flags & n::LOOKUP_INVERTED != 0,
        decides: data.be32(other::LOOKUP_TO) == Some(n::REGISTER_VERDICT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::base_chains::rule::NamePattern;

    const IN: Step = Step::Load(1, Loaded::Interface(Direction::In));

    fn equals(value: &[u8]) -> Step {
        Step::Compare { register: 1, negated: false, value: value.to_vec() }
    }

    fn check(steps: &[Step], wanted: &[(Vec<Match>, Verdict)]) {
        let program = Program { handle: None, comment: None, steps: steps.to_vec() };
        let rules = program.rules(&FoundSets::new(), &|_| None);
        let rules: Vec<_> = rules.into_iter().map(|rule| (rule.matches, rule.verdict)).collect();
        assert_eq!(rules, wanted);
    }

    fn by(text: &str, open: bool) -> Match {
        let pattern = NamePattern { text: text.to_owned(), open };
        Criterion::Interface(Direction::In, vec![pattern]).holds()
    }

    #[test]
    fn an_interface_is_seen_through_counter_and_comment() {
        let accept = Step::Decide(Verdict::Accept);
        let wanted = [(vec![by("humanz0", false)], Verdict::Accept)];
        check(&[IN, equals(b"humanz0\0"), Step::Passes, accept.clone()], &wanted);
        check(&[Step::Passes, IN, equals(b"humanz0\0\0\0\0"), accept], &wanted);
    }

    #[test]
    fn a_name_without_its_final_zero_is_the_start_of_names() {
        let steps = [IN, equals(b"hum"), Step::Decide(Verdict::Drop)];
        check(&steps, &[(vec![by("hum", true)], Verdict::Drop)]);
    }

    #[test]
    fn a_drop_without_condition_has_none() {
        check(&[Step::Passes, Step::Decide(Verdict::Drop)], &[(vec![], Verdict::Drop)]);
        check(&[], &[(vec![], Verdict::Continue)]);
    }

    #[test]
    fn what_is_loaded_by_something_else_is_no_longer_the_interface() {
        let steps = [IN, Step::Other, equals(b"humanz0\0"), Step::Decide(Verdict::Accept)];
        check(&steps, &[(vec![Criterion::Special.holds()], Verdict::Accept)]);
    }

    #[test]
    fn a_map_that_is_not_known_may_accept() {
        let map = Step::Lookup { register: 1, set: "m".into(), negated: false, decides: true };
        check(&[IN, map], &[(vec![Criterion::Unknown.holds()], Verdict::Accept)]);
    }
}
