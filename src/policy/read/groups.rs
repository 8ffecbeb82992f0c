//! Pure. Groups and their policies, from etcd or a file.
//!
//! A rule that is not understood fails closed: one that allows matches nothing, another denies
//! everything. A group whose policies cannot all be read denies what none of its rules decides. A peer
//! that names no group or network that exists matches nothing, as it has no members.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::net::{Family, Protocol};
use crate::policy::name::{ObjectName, Scoped};
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::kubernetes::ip_block;
use crate::policy::read::parsed::Parsed;
use crate::policy::rule::{
    Direction, Limits, Origin, PolicyKind, PolicyPeer, PolicyVerdict, Rule, Tier,
};
use crate::policy::selector::Selector;
use crate::policy::service::{ICMP, ICMPV6, PortRange, Service};

/// Objects by tenant and name.
pub type Objects = BTreeMap<Scoped, Value>;

/// The highest priority, which is judged first.
const PRIORITY_LIMIT: u16 = 100;
/// IPPROTO_IGMP.
const IGMP: u8 = 2;
/// Rules of all groups; those of a group that would exceed it are left out, and the group closed.
const RULES_LIMIT: usize = 100_000;
/// After every rule of every policy of the group.
const DEFAULT: u32 = u32::MAX;

/// The rules of `groups` and of the `policies` that they list.
///
/// ```json
/// {"policies": ["front"], "default": "deny", "profile": "gold"}
/// {"rules": [{"direction": "in", "priority": 10, "action": "allow", "protocol": "tcp",
///   "ports": [80, "8000-8999", "http"], "peer": {"group": "web"}}]}
/// ```
///
/// A group: `policies` of its tenant, `profile` (see [`crate::policy::profile`]), and `default`, which is `allow` (the default), `deny`, or one of
/// them for each of `in` and `out`. A rule: `direction` as the group sees it; `priority` 1 (default) to
/// 100, higher ones first, at equal ones what denies; `action`; without `protocol` all of them, without
/// `ports` all; `icmpType` and `icmpCode`; `peer` has one of `group`, `network` (`name` of the tenant or
/// `tenant/name`), `cidr` (with `except`); without it anything. What the default allows goes on to the
/// next tier.
pub fn read(groups: &Objects, policies: &Objects) -> Parsed {
    let mut parsed = Parsed::default();
    let mut read = BTreeMap::new();
    for (name, value) in policies {
        let mut policy = GroupedPolicy::new(name);
        policy.read(&ObjectField::root(value));
        let problems = Parsed::new(&policy.origin, Vec::new(), &policy.faults);
        parsed.append(problems);
        read.insert(name, policy);
    }
    for (name, value) in groups {
        let left = RULES_LIMIT - parsed.rules.len().min(RULES_LIMIT);
        parsed.append(group(name, &ObjectField::root(value), &read, left));
    }
    parsed
}

/// At most `limit` rules of one group, and its default.
fn group(
    name: &Scoped,
    object: &ObjectField<'_>,
    policies: &BTreeMap<&Scoped, GroupedPolicy>,
    limit: usize,
) -> Parsed {
    let subject = Selector::Group(name.clone());
    let origin = Origin {
        source: PolicyKind::Group,
        namespace: Some(name.tenant.clone()),
        name: name.name.clone(),
        index: None,
    };
    let (mut rules, mut faults) = listed_rules(name, object, policies, limit);
    let known = object.only(&["policies", "default", "network", "profile", "schema"]);
    faults.extend(known.err());
    let closed = default(object).unwrap_or_else(|fault| {
        faults.push(fault);
        Direction::BOTH.into()
    });
    for direction in Direction::BOTH {
        if closed.contains(&direction) || !faults.is_empty() {
            rules.push(default_rule(&subject, &origin, direction));
        }
    }
    Parsed::new(&origin, rules, &faults)
}

/// The rules of the policies that the group lists, and what is wrong with that list.
fn listed_rules(
    name: &Scoped,
    object: &ObjectField<'_>,
    policies: &BTreeMap<&Scoped, GroupedPolicy>,
    limit: usize,
) -> (Vec<Rule>, Vec<Fault>) {
    let subject = Selector::Group(name.clone());
    let (mut rules, mut faults) = (Vec::new(), Vec::new());
    let listed = match listed(object, name) {
        Ok(listed) => listed,
        Err(fault) => return (rules, vec![fault]),
    };
    for (field, listed) in listed {
        match policies.get(&listed) {
            None => faults.push(field.fault(format!("policy {listed} does not exist"))),
            Some(policy) if !policy.complete => {
                faults.push(field.fault(format!("policy {listed} is not understood")));
            }
            Some(policy) if rules.len() + policy.rules.len() > limit => {
                let why = format!("groups have more than {RULES_LIMIT} rules");
                faults.push(field.fault(why));
            }
            Some(policy) => rules.extend(policy.rules_of(&subject)),
        }
    }
    (rules, faults)
}

/// What denies that direction where no rule of a policy allows it.
fn default_rule(subject: &Selector, origin: &Origin, direction: Direction) -> Rule {
    Rule {
        tier: Tier::Group,
        priority: DEFAULT,
        origin: origin.clone(),
        direction,
        subject: subject.clone(),
        peers: None,
        services: None,
        verdict: PolicyVerdict::Deny,
        audit: false,
    }
}

/// The policies that a group lists, each once.
fn listed<'a>(
    object: &ObjectField<'a>,
    group: &Scoped,
) -> Result<Vec<(ObjectField<'a>, Scoped)>, Fault> {
    let (mut listed, mut seen) = (Vec::new(), BTreeSet::new());
    for field in object.list("policies")? {
        let policy = Scoped { tenant: group.tenant.clone(), name: field.name()? };
        if seen.insert(policy.clone()) {
            listed.push((field, policy));
        }
    }
    Ok(listed)
}

/// The directions in which what no rule decides is denied.
fn default(object: &ObjectField<'_>) -> Result<BTreeSet<Direction>, Fault> {
    let denied = |field: ObjectField<'_>| match field.text()? {
        "deny" => Ok(true),
        "allow" => Ok(false),
        other => Err(field.fault(format!("{} is not allow or deny", quoted(other)))),
    };
    let Some(field) = object.get("default") else { return Ok(BTreeSet::new()) };
    if field.is_text() {
        return Ok(if denied(field)? { Direction::BOTH.into() } else { BTreeSet::new() });
    }
    field.only(&["in", "out"])?;
    let mut closed = BTreeSet::new();
    for (name, direction) in [("in", Direction::Ingress), ("out", Direction::Egress)] {
        if field.get(name).map_or(Ok(false), denied)? {
            closed.insert(direction);
        }
    }
    Ok(closed)
}

/// A policy, before it is known which groups it is for.
struct GroupedPolicy {
    origin: Origin,
    tenant: ObjectName,
    audit: bool,
    rules: Vec<GroupRule>,
    faults: Vec<Fault>,
    /// Its list of rules could be read.
    complete: bool,
}

/// A rule of a policy.
struct GroupRule {
    index: u16,
    direction: Direction,
    priority: u32,
    verdict: PolicyVerdict,
    peers: Option<Vec<PolicyPeer>>,
    services: Option<Vec<Service>>,
    audit: bool,
}

impl GroupRule {
    /// Denies everything, before all others.
    fn closed(index: u16, direction: Direction) -> GroupRule {
        GroupRule {
            index,
            direction,
            priority: 0,
            verdict: PolicyVerdict::Deny,
            peers: None,
            services: None,
            audit: false,
        }
    }
}

impl GroupedPolicy {
    fn new(name: &Scoped) -> GroupedPolicy {
        let origin = Origin {
            source: PolicyKind::GroupPolicy,
            namespace: Some(name.tenant.clone()),
            name: name.name.clone(),
            index: None,
        };
        let tenant = name.tenant.clone();
        GroupedPolicy {
            origin,
            tenant,
            audit: false,
            rules: Vec::new(),
            faults: Vec::new(),
            complete: true,
        }
    }

    fn read(&mut self, object: &ObjectField<'_>) {
        if let Err(fault) = self.lines(object) {
            self.faults.push(fault);
            self.complete = false;
        }
    }

    fn lines(&mut self, object: &ObjectField<'_>) -> Result<(), Fault> {
        object.only(&["rules", "audit", "schema"])?;
        self.audit = object.get("audit").map_or(Ok(false), |field| field.flag())?;
        for (index, field) in (0..).zip(&object.list("rules")?) {
            match direction(field) {
                Ok(direction) => {
                    let line = self.line(field, index, direction);
                    self.rules.extend(line);
                }
                Err(fault) => {
                    self.faults.push(fault);
                    if verdict(field) != Ok(PolicyVerdict::Allow) {
                        self.rules.extend(Direction::BOTH.map(|to| GroupRule::closed(index, to)));
                    }
                }
            }
        }
        Ok(())
    }

    fn line(
        &mut self,
        field: &ObjectField<'_>,
        index: u16,
        direction: Direction,
    ) -> Option<GroupRule> {
        let audit = field.get("audit").map_or(Ok(false), |field| field.flag());
        let verdict = verdict(field);
        let closed = (PolicyVerdict::Deny, None, None);
        let (verdict, peers, services) = match (verdict, self.matches(field), &audit) {
            (Ok(verdict), Ok((peers, services)), Ok(_)) => (verdict, peers, services),
            (verdict, matches, audit) => {
                let allows = verdict == Ok(PolicyVerdict::Allow);
                let faults = [verdict.err(), matches.err(), audit.clone().err()];
                self.faults.extend(faults.into_iter().flatten());
                if allows {
                    return None;
                }
                closed
            }
        };
        let priority = self.priority(field, verdict);
        let audit = self.audit || audit == Ok(true);
        Some(GroupRule { index, direction, priority, verdict, peers, services, audit })
    }

    /// Its place in the tier: lower than all others if it is not understood and allows, else higher.
    fn priority(&mut self, field: &ObjectField<'_>, verdict: PolicyVerdict) -> u32 {
        let range = 1..=PRIORITY_LIMIT;
        let written = field.get("priority").map_or(Ok(1), |field| field.number(range));
        let allows = verdict == PolicyVerdict::Allow;
        let priority = written.unwrap_or_else(|fault| {
            self.faults.push(fault);
            if allows { 1 } else { PRIORITY_LIMIT }
        });
        2 * u32::from(PRIORITY_LIMIT - priority) + u32::from(verdict != PolicyVerdict::Deny)
    }

    fn matches(&self, field: &ObjectField<'_>) -> Result<Limits, Fault> {
        field.only(&[
            "id",
            "direction",
            "priority",
            "action",
            "protocol",
            "ports",
            "icmpType",
            "icmpCode",
            "peer",
            "audit",
        ])?;
        let peer = field.get("peer").map(|peer| self.peer(&peer)).transpose()?;
        Ok((peer.map(|peer| vec![peer]), services(field)?))
    }

    fn peer(&self, field: &ObjectField<'_>) -> Result<PolicyPeer, Fault> {
        field.only(&["group", "network", "cidr", "except"])?;
        match (field.get("group"), field.get("network"), field.get("cidr")) {
            (Some(group), None, None) => {
                Ok(PolicyPeer::Selected(Selector::Group(scoped(&group, &self.tenant)?)))
            }
            (None, Some(network), None) => {
                Ok(PolicyPeer::Selected(Selector::Network(scoped(&network, &self.tenant)?)))
            }
            (None, None, Some(_)) => ip_block(field),
            _ => Err(field.fault("must have one of group, network and cidr")),
        }
    }

    fn rules_of(&self, subject: &Selector) -> impl Iterator<Item = Rule> {
        self.rules.iter().map(|line| Rule {
            tier: Tier::Group,
            priority: line.priority,
            origin: Origin { index: Some(line.index), ..self.origin.clone() },
            direction: line.direction,
            subject: subject.clone(),
            peers: line.peers.clone(),
            services: line.services.clone(),
            verdict: line.verdict,
            audit: line.audit,
        })
    }
}

fn direction(field: &ObjectField<'_>) -> Result<Direction, Fault> {
    let direction = field.need("direction")?;
    match direction.text()? {
        "in" | "ingress" => Ok(Direction::Ingress),
        "out" | "egress" => Ok(Direction::Egress),
        other => Err(direction.fault(format!("{} is not in or out", quoted(other)))),
    }
}

fn verdict(field: &ObjectField<'_>) -> Result<PolicyVerdict, Fault> {
    let action = field.need("action")?;
    match action.text()? {
        "allow" => Ok(PolicyVerdict::Allow),
        "deny" => Ok(PolicyVerdict::Deny),
        "pass" => Ok(PolicyVerdict::Pass),
        other => Err(action.fault(format!("{} is not allow, deny or pass", quoted(other)))),
    }
}

/// `name` of `tenant`, or `tenant/name`.
pub fn scoped(field: &ObjectField<'_>, tenant: &ObjectName) -> Result<Scoped, Fault> {
    Scoped::parse(field.text()?, tenant).map_err(|error| field.fault(format!("{error}")))
}

/// What a rule says of protocol and ports.
fn services(field: &ObjectField<'_>) -> Result<Option<Vec<Service>>, Fault> {
    let ports = field.list("ports")?;
    let Some(protocol) = field.get("protocol") else {
        let limits = [field.get("icmpType"), field.get("icmpCode"), ports.into_iter().next()];
        return match limits.into_iter().flatten().next() {
            Some(limit) => Err(limit.fault("needs a protocol")),
            None => Ok(None),
        };
    };
    let numbers = numbers(&protocol)?;
    let icmp = numbers.iter().all(|number| [ICMP, ICMPV6].contains(number));
    match (field.get("icmpType"), field.get("icmpCode")) {
        (None, None) => {}
        (Some(kind), code) if icmp => {
            let kind = byte(&kind)?;
            let code = code.map(|code| byte(&code)).transpose()?;
            let service = |number: &u8| {
                let family = if *number == ICMP { Family::V4 } else { Family::V6 };
                Service::Icmp { family, kind, code }
            };
            // A type means something else in the other family: it has to be written as icmpv6.
            return Ok(Some(numbers.iter().take(1).map(service).collect()));
        }
        (kind, code) => {
            let limit = kind.or(code).unwrap_or_else(|| field.clone());
            return Err(limit.fault("needs protocol icmp or icmpv6, and a type"));
        }
    }
    if ports.is_empty() {
        return Ok(Some(numbers.into_iter().map(Service::Protocol).collect()));
    }
    let with_ports = numbers.first().copied().and_then(Protocol::of_number);
    let Some(with_ports) = with_ports else {
        return Err(protocol.fault("has no ports"));
    };
    ports.iter().map(|port| service(port, with_ports)).collect::<Result<_, _>>().map(Some)
}

/// IP protocols; `icmp` is that of both families.
fn numbers(field: &ObjectField<'_>) -> Result<Vec<u8>, Fault> {
    if !field.is_text() {
        return Ok(vec![byte(field)?]);
    }
    match field.text()?.to_ascii_lowercase().as_str() {
        "tcp" => Ok(vec![Protocol::Tcp.number()]),
        "udp" => Ok(vec![Protocol::Udp.number()]),
        "sctp" => Ok(vec![Protocol::Sctp.number()]),
        "icmp" => Ok(vec![ICMP, ICMPV6]),
        "icmpv6" => Ok(vec![ICMPV6]),
        "igmp" => Ok(vec![IGMP]),
        other => {
            let number = other.parse().ok().map(|number: u8| vec![number]);
            number.ok_or_else(|| field.fault(format!("{} is not a protocol", quoted(other))))
        }
    }
}

fn byte(field: &ObjectField<'_>) -> Result<u8, Fault> {
    let number = field.number(0..=u8::MAX.into())?;
    Ok(u8::try_from(number).unwrap_or(u8::MAX))
}

/// `80`, `"80"`, `"8000-8999"`, or a name.
fn service(field: &ObjectField<'_>, protocol: Protocol) -> Result<Service, Fault> {
    if !field.is_word() {
        return Ok(Service::Ports(protocol, PortRange::single(field.number(1..=u16::MAX)?)));
    }
    let text = field.text()?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return Ok(Service::Named(Some(protocol), field.name()?));
    }
    let range = first.parse().ok().zip(last.parse().ok());
    let range = range.filter(|(first, _)| *first > 0);
    let range = range.and_then(|(first, last)| PortRange::new(first, last));
    let error = || field.fault(format!("{} is not a port or a range of ports", quoted(text)));
    range.map(|range| Service::Ports(protocol, range)).ok_or_else(error)
}
