//! Pure. Who may reach what: what the pods of a host may send to, and get from, each kind of other end.
//!
//! Anybody may write policies: what is looked at is known to be little before it is looked at.

use std::net::IpAddr;

use crate::net::Family;
use crate::net::gather::Gather;
use crate::policy::change::{self, OtherEnd, PodKind, RuleCosts, Surroundings, TooMany};
use crate::policy::members::{self, Members};
use crate::policy::partial::Knowledge;
use crate::policy::{Direction, Endpoint, Rule, Transport, Tuple};

/// Comparisons of words, addresses and ports, at most: a second or two.
const COMPARISONS: usize = 100_000_000;

/// Pairs, at most: more than anybody reads.
const PAIRS: usize = 10_000;

/// Pairs by services, at most: some 10 MB of text.
const VERDICTS: usize = 300_000;

/// What one end may send to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairVerdicts {
    pub source: String,
    pub destination: String,
    /// Services by their names; with the family where the other one has another verdict.
    pub allowed: Vec<String>,
    pub denied: Vec<String>,
    /// This host does not know it.
    pub unknown: Vec<String>,
    /// One end may be a pod of another host, which judges that end.
    pub judged_elsewhere: bool,
}

/// All pairs of which one end is a pod of this host; `None`: there are too many.
pub fn pairs(known: &Knowledge<'_>, around: &Surroundings<'_>) -> Option<Vec<PairVerdicts>> {
    find(known, around).ok().flatten()
}

fn find(
    known: &Knowledge<'_>,
    around: &Surroundings<'_>,
) -> Result<Option<Vec<PairVerdicts>>, TooMany> {
    let rules = change::concerning(known.rules, known.pods)?;
    change::refuse_looks(known.pods, &rules)?;
    let kinds = change::alike(known.pods, &rules);
    let others = around.other_ends(&rules)?;
    let wanted = members::peers(rules.iter().copied());
    let needed = wanted.iter().filter_map(|it| Some((it.clone(), known.members.get(it)?.clone())));
    let needed: Members = needed.gather();
    let services = change::services(&rules, &change::named_ports(known.pods, &needed));
    let pairs = kinds.len().saturating_mul(kinds.len() + 2 * others.len());
    if pairs > PAIRS || pairs.saturating_mul(services.len()) > VERDICTS {
        return Ok(None);
    }
    let met = others.iter().flat_map(|end| end.addresses.iter().copied()).gather();
    let elsewhere = members::having(&needed, &met);
    // What is no pod is none that a rule finds.
    let outside = members::no_more(elsewhere.clone(), wanted);
    let judge = PairJudge { known, elsewhere, outside, services };
    let ends: Vec<JudgedKind<'_>> =
        kinds.into_iter().map(|kind| JudgedKind::new(kind, &rules)).collect();
    Ok((judge.comparisons(&ends, others.len()) <= COMPARISONS).then(|| judge.all(&ends, &others)))
}

/// Pods with the rules that concern them, in each direction.
struct JudgedKind<'a> {
    kind: PodKind<'a>,
    ingress: Vec<&'a Rule>,
    egress: Vec<&'a Rule>,
}

impl<'a> JudgedKind<'a> {
    fn new(kind: PodKind<'a>, rules: &[&'a Rule]) -> JudgedKind<'a> {
        let is_it = |rule: &&Rule| rule.subject.matches_pod(kind.first);
        let (ingress, egress) = rules
            .iter()
            .copied()
            .filter(is_it)
            .partition(|rule| rule.direction == Direction::Ingress);
        JudgedKind { kind, ingress, egress }
    }

    fn rules(&self, way: Direction) -> &[&'a Rule] {
        match way {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

struct PairJudge<'a> {
    known: &'a Knowledge<'a>,
    /// What selectors find of the other ends.
    elsewhere: Members,
    /// The same for what is no pod.
    outside: Members,
    services: Vec<(String, Transport)>,
}

/// Who judges a connection: each end that is a pod of this host.
type JudgingEnds<'a, 'b> = &'b [(&'b JudgedKind<'a>, Direction)];

impl PairJudge<'_> {
    fn comparisons(&self, ends: &[JudgedKind<'_>], others: usize) -> usize {
        let costs = RuleCosts::new(&self.outside, self.known.pods);
        let of = |end: &JudgedKind<'_>| {
            Direction::BOTH.map(|way| 1 + costs.rules(end.rules(way).iter().copied()))
        };
        let once: usize = ends.iter().flat_map(of).sum();
        let families = Family::BOTH.len();
        once.saturating_mul(ends.len() + others)
            .saturating_mul(self.services.len().saturating_mul(families))
    }

    fn all(&self, ends: &[JudgedKind<'_>], others: &[OtherEnd]) -> Vec<PairVerdicts> {
        let mut found = Vec::new();
        for end in ends {
            found.extend(ends.iter().filter_map(|other| self.pods(end, other)));
            for other in others {
                let both = Direction::BOTH.into_iter();
                found.extend(both.filter_map(|way| self.other(end, other, way)));
            }
        }
        found
    }

    fn pods(&self, from: &JudgedKind<'_>, to: &JudgedKind<'_>) -> Option<PairVerdicts> {
        let is_same = std::ptr::eq(from.kind.first, to.kind.first);
        let second = if is_same { from.kind.second? } else { to.kind.first };
        let addresses = (&*from.kind.first.addresses, &*second.addresses);
        let pods = [from.kind.first.clone(), second.clone()];
        let known = Knowledge { pods: &pods, members: &self.elsewhere, ..*self.known };
        let ends = [(to, Direction::Ingress), (from, Direction::Egress)];
        let pair = PairVerdicts {
            source: from.kind.name(),
            destination: to.kind.name(),
            ..PairVerdicts::default()
        };
        self.judged(&known, addresses, &ends, pair)
    }

    fn other(
        &self,
        end: &JudgedKind<'_>,
        other: &OtherEnd,
        way: Direction,
    ) -> Option<PairVerdicts> {
        let kind = &end.kind;
        let (own, its) =
            ((kind.name(), &*kind.first.addresses), (other.name.clone(), &*other.addresses));
        let (from, to) = match way {
            Direction::Egress => (own, its),
            Direction::Ingress => (its, own),
        };
        let pods: [Endpoint; 1] = [kind.first.clone()];
        let members = if other.may_be_pod { &self.elsewhere } else { &self.outside };
        let known = Knowledge { pods: &pods, members, ..*self.known };
        let pair = PairVerdicts {
            source: from.0,
            destination: to.0,
            judged_elsewhere: other.may_be_pod,
            ..PairVerdicts::default()
        };
        self.judged(&known, (from.1, to.1), &[(end, way)], pair)
    }

    /// With every service, by each family that both ends have; `None`: they have none in common.
    fn judged(
        &self,
        known: &Knowledge<'_>,
        (from, to): (&[IpAddr], &[IpAddr]),
        ends: JudgingEnds<'_, '_>,
        mut pair: PairVerdicts,
    ) -> Option<PairVerdicts> {
        let of = |all: &[IpAddr], family| all.iter().copied().find(|it| Family::of(*it) == family);
        let both = |family| Some((family, of(from, family)?, of(to, family)?));
        let families: Vec<_> = Family::BOTH.into_iter().filter_map(both).collect();
        if families.is_empty() {
            return None;
        }
        for (name, transport) in &self.services {
            let judge = |(family, source, destination): &(Family, IpAddr, IpAddr)| {
                let transport = change::in_family(*transport, *family)?;
                let tuple = Tuple { source: *source, destination: *destination, transport };
                let said = ends
                    .iter()
                    .map(|(end, way)| known.end_by(end.rules(*way).iter().copied(), &tuple, *way));
                Some((*family, change::verdict(said.collect::<Vec<_>>().iter()).0))
            };
            pair.add(name, families.iter().filter_map(judge).collect());
        }
        Some(pair)
    }
}

impl PairVerdicts {
    /// What each family says of a service.
    fn add(&mut self, service: &str, said: Vec<(Family, Option<bool>)>) {
        for (service, verdict) in change::by_family(service, said) {
            let list = match verdict {
                Some(true) => &mut self.allowed,
                Some(false) => &mut self.denied,
                None => &mut self.unknown,
            };
            list.push(service);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::policy::Networks;
    use crate::policy::read::documents;
    use serde_json::{Value, json};

    fn pod(name: &str, addresses: &[&str]) -> Value {
        let addresses: Vec<Value> = addresses.iter().map(|it| json!({"ip": it})).collect();
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "h1"}, "status": {"podIPs": addresses},
            "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}}})
    }

    fn policy(namespace: &str, name: &str, app: &str, ingress: Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "ingress": [ingress]}})
    }

    /// Beside it the time that was needed.
    fn timed(objects: &[Value], here: &[&str]) -> (Option<Vec<PairVerdicts>>, Duration) {
        let read = documents::read(objects, true);
        let peers = members::peers(read.rules.iter());
        let members = members::find(&peers, &read.endpoints);
        let pods: Vec<Endpoint> = read.endpoints.pods.clone();
        let pods: Vec<Endpoint> =
            pods.into_iter().filter(|pod| here.contains(&pod.name.as_str())).collect();
        let subnets = ["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()];
        let pools = ["10.244.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()];
        let own = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
        let around =
            Surroundings { members: &members, subnets: &subnets, own: &own, pools: &pools };
        let known = Knowledge {
            rules: &read.rules,
            pods: &pods,
            subnets: &subnets,
            members: &members,
            networks: &Networks::default(),
            own: &own,
        };
        let began = Instant::now();
        (pairs(&known, &around), began.elapsed())
    }

    fn shown(objects: &[Value], here: &[&str]) -> Option<Vec<String>> {
        let text = |pair: &PairVerdicts| {
            let sums = [pair.allowed.join(", "), pair.denied.join(", "), pair.unknown.join(", ")];
            let there = if pair.judged_elsewhere { "*" } else { "" };
            format!("{} -> {}{there}: {}", pair.source, pair.destination, sums.join(" | "))
        };
        Some(timed(objects, here).0?.iter().map(text).collect())
    }

    fn database() -> Vec<Value> {
        let peer = json!({"podSelector": {"matchLabels": {"app": "web"}}});
        let db = policy("shop", "db", "db", json!({"from": [peer], "ports": [{"port": 5432}]}));
        let pods = [("db", "10.244.1.2"), ("web", "10.244.1.3"), ("other", "10.244.2.4")];
        [db].into_iter().chain(pods.map(|(name, address)| pod(name, &[address]))).collect()
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
    fn policies_of_pods_elsewhere_change_nothing() {
        let mut objects = database();
        let before = shown(&objects, &["db", "web"]).unwrap();
        let ports: Vec<Value> = (1..=700).map(|port| json!({"port": port})).collect();
        let block = json!({"ipBlock": {"cidr": "203.0.113.0/24"}});
        objects.push(policy("elsewhere", "all", "db", json!({"from": [block], "ports": ports})));
        assert_eq!(shown(&objects, &["db", "web"]).unwrap(), before);
    }

    #[test]
    fn both_families_are_judged_and_their_difference_is_shown() {
        let from = json!({"from": [{"ipBlock": {"cidr": "10.244.0.0/16"}}]});
        let objects = [
            policy("shop", "db", "db", from),
            pod("db", &["10.244.1.2", "fd00:1::2"]),
            pod("web", &["10.244.1.3", "fd00:1::3"]),
            pod("late", &["fd00:1::4"]),
        ];
        let found = shown(&objects, &["db", "web", "late"]).unwrap();
        let rest = |family: &str| {
            let all = ["tcp on other ports", "udp on other ports", "icmp type 8"];
            all.map(|service| format!("{service}{family}")).join(", ")
        };
        for wanted in [
            format!("shop/web -> shop/db: {} | {} | ", rest(" (IPv4)"), rest(" (IPv6)")),
            format!("shop/db -> shop/web: {} |  | ", rest("")),
            format!("shop/late -> shop/db:  | {} | ", rest("")),
            format!("shop/db -> shop/late: {} |  | ", rest("")),
        ] {
            assert!(found.contains(&wanted), "{wanted} is not in {found:#?}");
        }
    }

    #[test]
    fn too_many_are_not_tried() {
        let mut objects = database();
        for number in 0..250u8 {
            let name = format!("p{number}");
            objects.push(pod(&name, &[&format!("10.244.1.{number}")]));
            objects.push(policy("shop", &name, &name, json!({"from": []})));
        }
        let all: Vec<String> = (0..250).map(|number| format!("p{number}")).collect();
        assert_eq!(shown(&objects, &all.iter().map(|it| &**it).collect::<Vec<_>>()), None);
    }

    fn refused_soon(objects: &[Value], what: &str) {
        let (found, time) = timed(objects, &["db", "web"]);
        assert!(found.is_none(), "{what}");
        assert!(time < Duration::from_secs(20), "{what}: {time:?}");
    }

    /// Each of these takes minutes or gigabytes to try.
    #[test]
    fn rules_of_pods_here_that_cost_too_much_are_refused_soon() {
        let block = |number: u32| {
            let address = std::net::Ipv4Addr::from(0xcb00_0000 + 2 * number);
            json!({"ipBlock": {"cidr": format!("{address}/32")}})
        };
        let blocks =
            |range: std::ops::Range<u32>| json!({"from": range.map(block).collect::<Vec<_>>()});
        let with = |policies: Vec<Value>| [database(), policies].concat();
        let many = (0..3).map(|at| {
            policy("shop", &format!("p{at}"), "db", blocks(at * 10_000..(at + 1) * 10_000))
        });
        refused_soon(&with(many.collect()), "30000 networks");
        let excepts = |first: u32| {
            let except: Vec<String> = (0..5000)
                .map(|at| std::net::Ipv4Addr::from(first + at).to_string() + "/32")
                .collect();
            json!({"ipBlock": {"cidr": "203.0.0.0/8", "except": except}})
        };
        let many = (0..40).map(|at| {
            policy("shop", &format!("e{at}"), "db", json!({"from": [excepts(0xcb00_0000 + at)]}))
        });
        refused_soon(&with(many.collect()), "200000 exceptions");
        let ports = |first: u32| {
            (first..first + 10_000).map(|port| json!({"port": port})).collect::<Vec<_>>()
        };
        let many = (0..6).map(|at| {
            let from = json!({"from": [block(at)], "ports": ports(1 + at * 10_000)});
            policy("shop", &format!("s{at}"), "db", from)
        });
        refused_soon(&with(many.collect()), "60000 ports");
        let any = |first: u32| {
            let values: Vec<String> = (first..first + 10_000).map(|at| format!("v{at}")).collect();
            let labels = json!([{"key": "app", "operator": "In", "values": values}]);
            json!({"podSelector": {"matchExpressions": labels}})
        };
        let many = (0..30).map(|at| {
            policy("shop", &format!("v{at}"), "db", json!({"from": [any(at)], "ports": ports(1)}))
        });
        refused_soon(&with(many.collect()), "30 selectors with 10000 values");
    }
}
