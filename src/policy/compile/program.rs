//! Pure. Programs: what the rules of a pod decide in one direction, as chains of nftables.
//!
//! A program's name says all that it holds, so that a program never changes: a pod whose rules change
//! goes to another one.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::{Family, hash};
use crate::nft::{self, Action, Chain, Field, Match, NftRule};
use crate::policy::compile::conditions::Reader;
use crate::policy::compile::forms::{audited_denial, denial, plain};
use crate::policy::compile::name::{self, numbered};
use crate::policy::compile::sets::Sets;
use crate::policy::endpoint::{Endpoint, NamedPort};
use crate::policy::rule::{Direction, PolicyVerdict, Rule, Rules, Tier};
use crate::policy::selector::Selector;
use crate::policy::selector_index::SelectorIndex;
use crate::policy::service::Service;

pub struct Programs<'a> {
    rules: Vec<&'a Rule>,
    subjects: SelectorIndex<'a>,
    /// The places in `rules` of each subject.
    by_subject: Vec<Vec<usize>>,
    families: &'a [Family],
    log_group: u16,
    /// Verdicts by the places of the rules, and the ports that they ask for by name.
    known: BTreeMap<(Direction, Vec<usize>, Vec<&'a NamedPort>), PodVerdict>,
    chains: BTreeMap<String, Chain>,
    counters: BTreeSet<String>,
}

/// What a verdict map holds for a pod's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVerdict {
    pub verdict: nft::Verdict,
    /// Some rule may deny; rules that are only audited never do.
    pub decides: bool,
}

/// A rule's conditions, in one of its forms.
struct MatchedRule<'a> {
    rule: &'a Rule,
    matches: Vec<Match>,
}

impl<'a> Programs<'a> {
    pub fn new(rules: &'a Rules, families: &'a [Family], log_group: u16) -> Programs<'a> {
        let rules: Vec<&Rule> = rules.iter().collect();
        let mut by_subject: BTreeMap<&Selector, Vec<usize>> = BTreeMap::new();
        for (place, rule) in rules.iter().enumerate() {
            by_subject.entry(&rule.subject).or_default().push(place);
        }
        let subjects = SelectorIndex::new(by_subject.keys().copied());
        Programs {
            rules,
            subjects,
            by_subject: by_subject.into_values().collect(),
            families,
            log_group,
            known: BTreeMap::new(),
            chains: BTreeMap::new(),
            counters: BTreeSet::new(),
        }
    }

    /// The chains and their counters.
    pub fn finish(self) -> (Vec<Chain>, BTreeSet<String>) {
        (self.chains.into_values().collect(), self.counters)
    }

    /// What a verdict map holds for an address of `pod`: `return` without rules.
    pub fn verdict(
        &mut self,
        direction: Direction,
        pod: &'a Endpoint,
        sets: &mut Sets<'_>,
    ) -> PodVerdict {
        let subjects = self.subjects.matching(pod).into_iter();
        let places = subjects.flat_map(|subject| &self.by_subject[subject]).copied();
        let mut places: Vec<usize> =
            places.filter(|place| self.rules[*place].direction == direction).collect();
        places.sort_unstable();
        if places.is_empty() {
            return PodVerdict { verdict: nft::Verdict::Return, decides: false };
        }
        let rules: Vec<&Rule> = places.iter().map(|place| self.rules[*place]).collect();
        let ports = if direction == Direction::Ingress { asked_for(&rules, pod) } else { vec![] };
        let key = (direction, places, ports);
        if let Some(verdict) = self.known.get(&key) {
            return verdict.clone();
        }
        let ports: Vec<NamedPort> = key.2.iter().map(|port| (*port).clone()).collect();
        let (audited, enforced): (Vec<&Rule>, Vec<&Rule>) =
            rules.into_iter().partition(|rule| rule.audit);
        let enforced = self.program(direction, &enforced, &ports, sets);
        let decides = enforced.is_some();
        let audited = self.program(direction, &audited, &ports, sets);
        let first = match audited {
            None => enforced,
            Some(audited) => Some(self.after_audit(audited, enforced)),
        };
        let verdict = first.map_or(nft::Verdict::Return, nft::Verdict::Goto);
        let verdict = PodVerdict { verdict, decides };
        self.known.insert(key, verdict.clone());
        verdict
    }

    /// The chain that calls `audited`, which always returns, and then goes to `enforced`.
    fn after_audit(&mut self, audited: String, enforced: Option<String>) -> String {
        let name = format!(
            "both_{:016x}",
            hash::stable(&[&audited, enforced.as_deref().unwrap_or_default()])
        );
        let jump = Action::Verdict(nft::Verdict::Jump(audited));
        let then = enforced.map(|enforced| {
            plain("what decides", Vec::new(), Action::Verdict(nft::Verdict::Goto(enforced)))
        });
        let rules = [plain("audit", Vec::new(), jump)].into_iter().chain(then).collect();
        self.chains.insert(name.clone(), Chain { name: name.clone(), base: None, rules });
        name
    }

    /// Makes a program; gives the name of its first chain, if any rule can match.
    fn program(
        &mut self,
        direction: Direction,
        rules: &[&'a Rule],
        ports: &[NamedPort],
        sets: &mut Sets<'_>,
    ) -> Option<String> {
        let mut tiers: BTreeMap<Tier, Vec<MatchedRule<'a>>> = BTreeMap::new();
        for rule in rules {
            let mut reader = Reader { rule, ports, families: self.families, sets };
            let alternatives = reader.alternatives();
            let lines = alternatives.into_iter().map(|matches| MatchedRule { rule, matches });
            tiers.entry(rule.tier).or_default().extend(lines);
        }
        tiers.retain(|_, lines| !lines.is_empty());
        let name = program_name(direction, &tiers);
        let chain_of = |tier: Tier| format!("{name}_{}", tier_name(tier));
        let order: Vec<Tier> = tiers.keys().copied().collect();
        let first = order.first().copied().map(chain_of);
        for (at, (tier, lines)) in tiers.iter().enumerate() {
            let next = order.get(at + 1).copied().map(chain_of);
            let is_first_below_admin =
                *tier > Tier::Admin && (at == 0 || order[at - 1] == Tier::Admin);
            let own = if is_first_below_admin { self.itself() } else { Vec::new() };
            let lines = lines.iter().flat_map(|line| self.rules_of(line, next.as_deref()));
            let end = next.iter().map(|next| {
                plain("next tier", Vec::new(), Action::Verdict(nft::Verdict::Goto(next.clone())))
            });
            let rules = own.into_iter().chain(lines).chain(end).collect();
            let counters = tiers.values().flatten().map(|line| name::counter(line.rule));
            self.counters.extend(counters);
            let name = chain_of(*tier);
            self.chains.insert(name.clone(), Chain { name, base: None, rules });
        }
        first
    }

    /// A pod may always connect to itself; only the tier Admin comes before.
    fn itself(&self) -> Vec<NftRule> {
        let rule = |family: &Family| {
            let ends =
                vec![Field::ConnectionSource(*family), Field::ConnectionDestination(*family)];
            let matches = vec![Match::AllIn(ends, numbered("self", *family))];
            plain("the pod itself", matches, Action::Verdict(nft::Verdict::Return))
        };
        self.families.iter().map(rule).collect()
    }

    /// `next`: the chain of the next tier.
    fn rules_of(&self, line: &MatchedRule<'_>, next: Option<&str>) -> Vec<NftRule> {
        let comment = line.rule.to_string();
        let (matches, counter) = (line.matches.clone(), name::counter(line.rule));
        let passed = match next {
            Some(next) => nft::Verdict::Goto(next.to_owned()),
            None => nft::Verdict::Return,
        };
        match line.rule.verdict {
            PolicyVerdict::Deny if line.rule.audit => {
                audited_denial(&comment, self.log_group, matches, counter).into()
            }
            PolicyVerdict::Deny => denial(&comment, self.log_group, matches, counter).into(),
            PolicyVerdict::Allow => {
                vec![plain(&comment, matches, Action::Count(counter, nft::Verdict::Return))]
            }
            PolicyVerdict::Pass => vec![plain(&comment, matches, Action::Count(counter, passed))],
        }
    }
}

/// The pod's ports that ingress rules may ask for by name.
fn asked_for<'a>(rules: &[&Rule], pod: &'a Endpoint) -> Vec<&'a NamedPort> {
    let services = || rules.iter().flat_map(|rule| rule.services.iter().flatten());
    let asks = |port: &&NamedPort| {
        services().any(|service| matches!(service, Service::Named(_, name) if *name == port.name))
    };
    let mut ports: Vec<&NamedPort> = pod.ports.iter().filter(asks).collect();
    ports.sort_unstable();
    ports
}

fn program_name(direction: Direction, tiers: &BTreeMap<Tier, Vec<MatchedRule<'_>>>) -> String {
    let lines = tiers.values().flatten();
    let texts: Vec<String> = lines
        .flat_map(|line| {
            let matches = line.matches.iter().map(ToString::to_string);
            let rule = format!("{} {}", name::counter(line.rule), line.rule.verdict);
            matches.chain([tier_name(line.rule.tier).to_owned(), rule, line.rule.to_string()])
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let direction = match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    format!("{direction}_{:016x}", hash::stable(&texts))
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Admin => "admin",
        Tier::Group => "group",
        Tier::NetworkPolicy => "np",
        Tier::Baseline => "baseline",
    }
}
