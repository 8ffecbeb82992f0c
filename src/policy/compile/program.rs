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
use crate::policy::compile::peers::PeerSelectors;
use crate::policy::compile::sets::Sets;
use crate::policy::endpoint::NamedPort;
use crate::policy::rule::{Direction, PolicyVerdict, Rule, Tier};

/// What the rules of a pod decide in one direction.
#[derive(Debug)]
pub struct Program {
    pub verdict: PodVerdict,
    pub chains: Vec<Chain>,
    pub counters: BTreeSet<String>,
    pub sets: Sets,
}

/// What a verdict map holds for a pod's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVerdict {
    pub verdict: nft::Verdict,
    /// Some rule may deny; rules that are only audited never do.
    pub decides: bool,
}

/// Makes the program of one direction.
pub struct ProgramWriter<'a> {
    pub direction: Direction,
    /// Of the pod, those that its rules ask for by name.
    pub ports: &'a [NamedPort],
    pub families: &'a [Family],
    /// How much room the sets of its peers need.
    pub peers: &'a PeerSelectors,
    pub log_group: u16,
    /// Those of a connection's mark that hold the epoch.
    pub mark_bits: u32,
}

/// A rule's conditions, in one of its forms.
struct MatchedRule<'a> {
    rule: &'a Rule,
    matches: Vec<Match>,
}

impl PodVerdict {
    /// That of a pod without rules.
    pub const OPEN: PodVerdict = PodVerdict { verdict: nft::Verdict::Return, decides: false };
}

impl Program {
    fn empty() -> Program {
        Program {
            verdict: PodVerdict::OPEN,
            chains: Vec::new(),
            counters: BTreeSet::new(),
            sets: Sets::default(),
        }
    }
}

impl<'a> ProgramWriter<'a> {
    /// The program of `rules`, which are in the order in which they are judged.
    pub fn program(&self, rules: Vec<&'a Rule>) -> Program {
        let mut program = Program::empty();
        let (audited, enforced): (Vec<&Rule>, Vec<&Rule>) =
            rules.into_iter().partition(|rule| rule.audit);
        let enforced = self.chains(&enforced, &mut program);
        let decides = enforced.is_some();
        let first = match self.chains(&audited, &mut program) {
            None => enforced,
            Some(audited) => Some(after_audit(audited, enforced, &mut program)),
        };
        let verdict = first.map_or(nft::Verdict::Return, nft::Verdict::Goto);
        program.verdict = PodVerdict { verdict, decides };
        program
    }

    /// Adds the chains of these rules; gives the name of the first, if any rule can match.
    fn chains(&self, rules: &[&'a Rule], program: &mut Program) -> Option<String> {
        let mut tiers: BTreeMap<Tier, Vec<MatchedRule<'a>>> = BTreeMap::new();
        for rule in rules {
            let ProgramWriter { ports, families, peers, .. } = *self;
            let mut reader = Reader { rule, ports, families, peers, sets: &mut program.sets };
            let alternatives = reader.alternatives();
            let lines = alternatives.into_iter().map(|matches| MatchedRule { rule, matches });
            tiers.entry(rule.tier).or_default().extend(lines);
        }
        tiers.retain(|_, lines| !lines.is_empty());
        let name = program_name(self.direction, &tiers);
        let chain_of = |tier: Tier| format!("{name}_{}", tier_name(tier));
        let order: Vec<Tier> = tiers.keys().copied().collect();
        let first = order.first().copied().map(chain_of);
        for (at, (tier, lines)) in tiers.iter().enumerate() {
            let next = order.get(at + 1).copied().map(chain_of);
            let is_first_below_admin =
                *tier > Tier::Admin && (at == 0 || order[at - 1] <= Tier::Admin);
            let own = if is_first_below_admin { self.itself() } else { Vec::new() };
            let lines = lines.iter().flat_map(|line| self.rules_of(line, next.as_deref()));
            let end = next.iter().map(|next| {
                plain("next tier", Vec::new(), Action::Verdict(nft::Verdict::Goto(next.clone())))
            });
            let rules = own.into_iter().chain(lines).chain(end).collect();
            program.chains.push(Chain { name: chain_of(*tier), base: None, rules });
        }
        program.counters.extend(tiers.values().flatten().map(|line| name::counter(line.rule)));
        first
    }

    /// A pod may always connect to itself; only the tiers up to Admin come before. What it sends to its own address
    /// does not leave it, but where the destination was translated: all others are spared the look-up.
    fn itself(&self) -> Vec<NftRule> {
        let rule = |family: &Family| {
            let ends =
                vec![Field::ConnectionSource(*family), Field::ConnectionDestination(*family)];
            let itself = Match::AllIn(ends, numbered("self", *family));
            let matches = vec![Match::Translated, itself];
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
            PolicyVerdict::Deny => {
                denial(&comment, (self.log_group, self.mark_bits), matches, counter).into()
            }
            PolicyVerdict::Allow => {
                vec![plain(&comment, matches, Action::Count(counter, nft::Verdict::Return))]
            }
            PolicyVerdict::Pass => vec![plain(&comment, matches, Action::Count(counter, passed))],
        }
    }
}

/// The chain that calls `audited`, which always returns, and then goes to `enforced`.
fn after_audit(audited: String, enforced: Option<String>, program: &mut Program) -> String {
    let name =
        format!("both_{:016x}", hash::stable(&[&audited, enforced.as_deref().unwrap_or_default()]));
    let jump = Action::Verdict(nft::Verdict::Jump(audited));
    let then = enforced.map(|enforced| {
        plain("what decides", Vec::new(), Action::Verdict(nft::Verdict::Goto(enforced)))
    });
    let rules = [plain("audit", Vec::new(), jump)].into_iter().chain(then).collect();
    program.chains.push(Chain { name: name.clone(), base: None, rules });
    name
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
        Tier::Tenant => "tenant",
        Tier::Admin => "admin",
        Tier::Group => "group",
        Tier::NetworkPolicy => "np",
        Tier::Baseline => "baseline",
    }
}
