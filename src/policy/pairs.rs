//! Pure. Who may reach what: what the pods of a host may send to, and get from, each kind of other end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::net::Family;
use crate::net::gather::Gather;
use crate::policy::change::{self, OtherEnd, PodKind, Surroundings};
use crate::policy::members::{self, Members};
use crate::policy::partial::Knowledge;
use crate::policy::{Direction, Endpoint, NamedPort, Rule, Transport, Tuple};

/// Conditions of rules that are looked at, at most.
const CONDITIONS: usize = 10_000_000;

/// Pairs, at most: more than anybody reads.
const PAIRS: usize = 10_000;

/// What one end may send to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairVerdicts {
    pub source: String,
    pub destination: String,
    /// Services by their names.
    pub allowed: Vec<String>,
    pub denied: Vec<String>,
    /// This host does not know it.
    pub unknown: Vec<String>,
    /// One end may be a pod of another host, which judges that end.
    pub judged_elsewhere: bool,
}

/// All pairs of which one end is a pod of this host; `None`: there are too many.
pub fn pairs(known: &Knowledge<'_>, around: &Surroundings<'_>) -> Option<Vec<PairVerdicts>> {
    let rules: Vec<&Rule> = known.rules.iter().collect();
    let kinds = change::alike(known.pods, &rules);
    let others = around.other_ends(&rules);
    let services = change::services(&rules, &named_ports(known));
    let pairs = kinds.len().saturating_mul(kinds.len() + 2 * others.len());
    let conditions: usize = rules.iter().map(|rule| change::conditions(rule)).sum();
    let tried = pairs.saturating_mul(services.len()).saturating_mul(conditions);
    if pairs > PAIRS || tried > CONDITIONS {
        return None;
    }
    // What is no pod is none that a rule finds.
    let mut outside = known.members.clone();
    for selector in members::peers(rules.iter().copied()) {
        outside.entry(selector).or_default();
    }
    let judge = PairJudge { known, outside, services };
    let mut found = Vec::new();
    for kind in &kinds {
        found.extend(kinds.iter().filter_map(|other| judge.pods(kind, other)));
        for end in &others {
            found.extend(Direction::BOTH.into_iter().filter_map(|way| judge.other(kind, end, way)));
        }
    }
    Some(found)
}

fn named_ports<'a>(known: &Knowledge<'a>) -> Vec<&'a NamedPort> {
    let own = known.pods.iter().flat_map(|pod| &pod.ports);
    let found = known.members.values().flat_map(|found| &**found);
    own.chain(found.flat_map(|member| &member.ports)).gather::<BTreeSet<_>>().into_iter().collect()
}

struct PairJudge<'a> {
    known: &'a Knowledge<'a>,
    /// For what is no pod.
    outside: Members,
    services: Vec<(String, Transport)>,
}

impl PairJudge<'_> {
    fn pods(&self, from: &PodKind<'_>, to: &PodKind<'_>) -> Option<PairVerdicts> {
        let is_same = std::ptr::eq(from.first, to.first);
        let second = if is_same { from.second? } else { to.first };
        let ends = (&*from.first.addresses, &*second.addresses);
        let pods = [from.first.clone(), second.clone()];
        let known = Knowledge { pods: &pods, ..*self.known };
        let pair =
            PairVerdicts { source: from.name(), destination: to.name(), ..PairVerdicts::default() };
        self.judged(&known, ends, &Direction::BOTH, pair)
    }

    fn other(&self, kind: &PodKind<'_>, end: &OtherEnd, way: Direction) -> Option<PairVerdicts> {
        let (own, its) =
            ((kind.name(), &*kind.first.addresses), (end.name.clone(), &*end.addresses));
        let (from, to) = match way {
            Direction::Egress => (own, its),
            Direction::Ingress => (its, own),
        };
        let pods: [Endpoint; 1] = [kind.first.clone()];
        let members = if end.may_be_pod { self.known.members } else { &self.outside };
        let known = Knowledge { pods: &pods, members, ..*self.known };
        let pair = PairVerdicts {
            source: from.0,
            destination: to.0,
            judged_elsewhere: end.may_be_pod,
            ..PairVerdicts::default()
        };
        self.judged(&known, (from.1, to.1), &[way], pair)
    }

    /// With every service, IPv4 if both ends have it; `None`: they have no family in common.
    fn judged(
        &self,
        known: &Knowledge<'_>,
        (from, to): (&[IpAddr], &[IpAddr]),
        ways: &[Direction],
        mut pair: PairVerdicts,
    ) -> Option<PairVerdicts> {
        let of = |all: &[IpAddr], family| all.iter().copied().find(|it| Family::of(*it) == family);
        let both = |family| Some((family, of(from, family)?, of(to, family)?));
        let (family, source, destination) = Family::BOTH.into_iter().find_map(both)?;
        for (name, transport) in &self.services {
            let Some(transport) = change::in_family(*transport, family) else { continue };
            let tuple = Tuple { source, destination, transport };
            let ends: Vec<_> = ways.iter().map(|way| known.end(&tuple, *way)).collect();
            let list = match change::verdict(ends.iter()).0 {
                Some(true) => &mut pair.allowed,
                Some(false) => &mut pair.denied,
                None => &mut pair.unknown,
            };
            list.push(name.clone());
        }
        Some(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;
    use serde_json::{Value, json};

    fn pod(name: &str, address: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "h1"}, "status": {"podIP": address},
            "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}}})
    }

    fn shown(objects: &[Value], here: &[&str]) -> Option<Vec<String>> {
        let read = documents::read(objects, true);
        let peers = members::peers(read.rules.iter());
        let members = members::find(&peers, &read.endpoints);
        let pods: Vec<Endpoint> = read.endpoints.pods.clone();
        let pods: Vec<Endpoint> =
            pods.into_iter().filter(|pod| here.contains(&pod.name.as_str())).collect();
        let (subnets, pools) =
            (["10.244.1.0/24".parse().unwrap()], ["10.244.0.0/16".parse().unwrap()]);
        let own = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
        let around =
            Surroundings { members: &members, subnets: &subnets, own: &own, pools: &pools };
        let known = Knowledge {
            rules: &read.rules,
            pods: &pods,
            subnets: &subnets,
            members: &members,
            own: &own,
        };
        let text = |pair: &PairVerdicts| {
            let sums = [pair.allowed.join(", "), pair.denied.join(", "), pair.unknown.join(", ")];
            let there = if pair.judged_elsewhere { "*" } else { "" };
            format!("{} -> {}{there}: {}", pair.source, pair.destination, sums.join(" | "))
        };
        Some(pairs(&known, &around)?.iter().map(text).collect())
    }

    fn database() -> Vec<Value> {
        let peer = json!({"podSelector": {"matchLabels": {"app": "web"}}});
        let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "db"},
            "spec": {"podSelector": {"matchLabels": {"app": "db"}},
                "ingress": [{"from": [peer], "ports": [{"port": 5432}]}]}});
        vec![policy, pod("db", "10.244.1.2"), pod("web", "10.244.1.3"), pod("other", "10.244.2.4")]
    }

    #[test]
    fn each_pair_has_what_is_allowed_and_denied() {
        let found = shown(&database(), &["db", "web"]).unwrap();
        let rest = "tcp on other ports, udp on other ports, icmp type 8";
        for wanted in [
            format!("shop/web -> shop/db: tcp/5432 | {rest} | "),
            format!("shop/db -> shop/web: tcp/5432, {rest} |  | "),
            format!("other pods in 10.244.0.0/16 -> shop/db*:  | tcp/5432, {rest} | "),
            format!("this host (192.0.2.1) -> shop/db: tcp/5432, {rest} |  | "),
        ] {
            assert!(found.contains(&wanted), "{wanted} is not in {found:#?}");
        }
    }

    #[test]
    fn too_many_are_not_tried() {
        let mut objects = database();
        for number in 0..250u8 {
            objects.push(pod(&format!("p{number}"), &format!("10.244.1.{number}")));
            let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": "shop", "name": format!("p{number}")},
                "spec": {"podSelector": {"matchLabels": {"app": format!("p{number}")}}}});
            objects.push(policy);
        }
        let all: Vec<String> = (0..250).map(|number| format!("p{number}")).collect();
        assert_eq!(shown(&objects, &all.iter().map(|it| &**it).collect::<Vec<_>>()), None);
    }
}
