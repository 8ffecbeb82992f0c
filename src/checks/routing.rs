//! Pure. What else routes packets to pods of other hosts: routes of others, and rules before ours.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::{Family, IfName, Object, PerFamily, Problem, ProblemKind, subnet};
use crate::netlink::route::{ForeignRoute, MAIN};
use crate::netlink::rule::{RoutingRule, RuleAction};
use crate::plan::routes::Routes;

/// So many are listed.
const SHOWN: usize = 16;

/// IP6_RT_PRIO_USER of linux/ipv6_route.h: the metric of our routes of IPv6; those of IPv4 have none.
const METRIC_V6: u32 = 1024;

/// The routes of others in the main table among `found` that packets to a pod subnet of `wanted` take.
pub fn routes_in_the_way(wanted: &Routes, found: &[ForeignRoute]) -> Vec<Problem> {
    let lengths: BTreeSet<u8> = wanted.keys().map(IpNetwork::prefix).gather();
    let taken = |route: &ForeignRoute| {
        let lengths = lengths.iter().filter(|length| **length <= route.destination.prefix());
        let mut around = lengths
            .map(|length| subnet::masked(subnet::with_prefix(route.destination.ip(), *length)));
        around.find(|subnet| wanted.contains_key(subnet) && wins(route, *subnet))
    };
    let main = found.iter().filter(|route| route.table == MAIN && !route.of_kernel);
    main.filter_map(|route| Some(route_problem(route, taken(route)?))).take(SHOWN).collect()
}

/// `found` without the routes that are known to be in the way: one fault is one problem.
pub fn without_repeats<'a>(
    found: Vec<Problem>,
    known: impl Iterator<Item = &'a Problem>,
) -> Vec<Problem> {
    let in_the_way = known.filter(|problem| problem.kind == ProblemKind::RouteInTheWay);
    let said: Vec<&Object> = in_the_way.map(|problem| &problem.subject).collect();
    let repeats = |problem: &Problem| {
        problem.kind == ProblemKind::RouteConflict && said.contains(&&problem.subject)
    };
    found.into_iter().filter(|problem| !repeats(problem)).collect()
}

fn wins(route: &ForeignRoute, subnet: IpNetwork) -> bool {
    let ours = match subnet::family(subnet) {
        Family::V4 => 0,
        Family::V6 => METRIC_V6,
    };
    route.destination.prefix() > subnet.prefix() || route.priority.unwrap_or(0) <= ours
}

fn route_problem(route: &ForeignRoute, subnet: IpNetwork) -> Problem {
    let what = format!(
        "another program's route, {route} (protocol {}), takes what is for pods of {subnet}",
        route.protocol
    );
    let fix = format!("{} route del {route}", command(route.destination));
    Problem::new(ProblemKind::RouteInTheWay, Object::Route(route.destination), what).with_fix(fix)
}

fn command(network: IpNetwork) -> &'static str {
    match subnet::family(network) {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    }
}

/// The rules that take pods' packets to the subnets of `wanted` before the main table is asked.
///
/// `pods`: this host's own pod subnets. `tables`: the routes of the tables that rules name.
pub fn rules_in_the_way(
    wanted: &Routes,
    (bridge, pods): (&IfName, &PerFamily<IpNetwork>),
    rules: &[RoutingRule],
    tables: &BTreeMap<u32, Vec<ForeignRoute>>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (family, pods) in pods.entries() {
        let mut wanted: Vec<IpNetwork> =
            wanted.keys().copied().filter(|to| subnet::family(*to) == family).collect();
        let Some(shortest) = wanted.iter().map(IpNetwork::prefix).min() else { continue };
        let mut rules: Vec<&RoutingRule> =
            rules.iter().filter(|rule| rule.family == family).collect();
        rules.sort_by_key(|rule| rule.priority);
        for rule in rules {
            if is_main(rule, shortest) {
                break;
            }
            // As the fix of such a problem makes it.
            if let Some(to) = rule.destination.filter(|_| is_main(&to_all(rule), shortest)) {
                wanted.retain(|wanted| {
                    to.prefix() > wanted.prefix() || !to.contains(wanted.network())
                });
            }
            if !catches(rule, bridge, *pods) {
                continue;
            }
            let of_rule = |to: &&IpNetwork| {
                rule.destination.is_none_or(|network| subnet::overlap(network, **to))
            };
            let found =
                wanted.iter().filter(of_rule).find_map(|to| Some((*to, taken(rule, *to, tables)?)));
            problems.extend(found.map(|(to, by)| rule_problem(rule, to, &by)));
        }
    }
    problems.truncate(SHOWN);
    problems
}

/// Every packet to a prefix of that length finds the routes of the main table here.
fn is_main(rule: &RoutingRule, shortest: u8) -> bool {
    let selects = rule.source.is_some() || rule.destination.is_some() || rule.input.is_some();
    let all = !(selects || rule.marked || rule.narrow || rule.inverted);
    match rule.action {
        RuleAction::Lookup { table: MAIN, suppress } => {
            all && suppress.is_none_or(|length| length < shortest.into())
        }
        _ => false,
    }
}

/// The same rule for all destinations.
fn to_all(rule: &RoutingRule) -> RoutingRule {
    RoutingRule { destination: None, ..rule.clone() }
}

/// Packets of pods match the rule. What a mark or a port chooses is meant for few.
fn catches(rule: &RoutingRule, bridge: &IfName, pods: IpNetwork) -> bool {
    let selects = rule.source.is_some() || rule.destination.is_some() || rule.input.is_some();
    if rule.inverted {
        // What has no mark: all packets of pods.
        return rule.marked && !selects && !rule.narrow;
    }
    let of_pods = rule.source.is_none_or(|source| subnet::overlap(source, pods));
    let comes_in = rule.input.as_deref().is_none_or(|input| input == bridge.as_str());
    of_pods && comes_in && !rule.marked && !rule.narrow
}

/// What takes a packet to `to` that the rule catches.
fn taken(
    rule: &RoutingRule,
    to: IpNetwork,
    tables: &BTreeMap<u32, Vec<ForeignRoute>>,
) -> Option<String> {
    let RuleAction::Lookup { table, suppress } = rule.action else {
        return match rule.action {
            RuleAction::Refuse(what) => Some(what.to_owned()),
            _ => None,
        };
    };
    if table == MAIN {
        return None;
    }
    let takes = |route: &&ForeignRoute| {
        let is_asked = suppress.is_none_or(|length| u32::from(route.destination.prefix()) > length);
        is_asked && !route.is_throw() && subnet::overlap(route.destination, to)
    };
    let route = tables.get(&table)?.iter().find(takes)?;
    Some(format!("{route} of table {table}"))
}

fn rule_problem(rule: &RoutingRule, to: IpNetwork, by: &str) -> Problem {
    let RoutingRule { priority, .. } = rule;
    let what = format!(
        "an ip rule comes before the routes to pods of other hosts: {rule}; what is for {to} takes {by}"
    );
    let fix = match priority.checked_sub(1) {
        Some(before) if *priority > 1 => {
            format!("{} rule add priority {before} to {to} lookup main", command(to))
        }
        _ => format!("{} rule del priority {priority}", command(to)),
    };
    Problem::new(ProblemKind::RuleInTheWay, Object::named(format!("ip rule {priority}")), what)
        .with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::routes::NextHop;

    fn wanted() -> Routes {
        let hop = NextHop::direct("192.0.2.2".parse().unwrap(), 2);
        [("10.244.2.0/24", hop), ("fd00:0:0:2::/64", hop)]
            .map(|(to, hop)| (to.parse().unwrap(), hop))
            .into()
    }

    fn route(kind: &'static str, to: &str, priority: Option<u32>, table: u32) -> ForeignRoute {
        let destination = to.parse().unwrap();
        ForeignRoute { destination, kind, protocol: 3, of_kernel: false, priority, table }
    }

    fn check_routes(found: &[ForeignRoute], expected: &[&str]) {
        let problems = routes_in_the_way(&wanted(), found);
        let fixes: Vec<_> = problems.iter().map(|problem| problem.fix.clone().unwrap()).collect();
        assert_eq!(fixes, expected);
    }

    #[test]
    fn what_is_more_specific_or_has_our_destination_is_in_the_way() {
        check_routes(
            &[
                route("blackhole", "10.244.2.0/24", None, MAIN),
                route("unicast", "10.244.2.128/25", Some(50), MAIN),
                route("prohibit", "fd00:0:0:2::/64", Some(1024), MAIN),
            ],
            &[
                "ip route del blackhole 10.244.2.0/24",
                "ip route del 10.244.2.128/25 metric 50",
                "ip -6 route del prohibit fd00:0:0:2::/64 metric 1024",
            ],
        );
    }

    #[test]
    fn what_packets_to_pods_do_not_take_is_not() {
        let kernel =
            ForeignRoute { of_kernel: true, ..route("unicast", "10.244.2.0/25", None, MAIN) };
        check_routes(
            &[
                route("unicast", "10.244.0.0/16", None, MAIN),
                route("blackhole", "10.244.2.0/24", Some(100), MAIN),
                route("blackhole", "10.244.2.0/24", None, 100),
                route("unicast", "10.244.3.0/24", None, MAIN),
                kernel,
            ],
            &[],
        );
    }

    fn rule(priority: u32, table: u32) -> RoutingRule {
        RoutingRule {
            family: Family::V4,
            priority,
            source: None,
            destination: None,
            input: None,
            inverted: false,
            marked: false,
            narrow: false,
            action: RuleAction::Lookup { table, suppress: None },
        }
    }

    fn check_rules(rules: &[RoutingRule], expected: &[&str]) {
        let pods = PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: None };
        let usual = [rule(0, 255), rule(32766, MAIN), rule(32767, 253)];
        let rules = [rules, &usual].concat();
        let tables = [(100, vec![route("unicast", "0.0.0.0/0", None, 100)])].into();
        let bridge = "humanz0".parse().unwrap();
        let problems = rules_in_the_way(&wanted(), (&bridge, &pods), &rules, &tables);
        let fixes: Vec<_> = problems.iter().map(|problem| problem.fix.clone().unwrap()).collect();
        assert_eq!(fixes, expected);
    }

    #[test]
    fn the_fix_for_a_rule_in_the_way_is_the_end_of_it() {
        let before = "ip rule add priority 49 to 10.244.2.0/24 lookup main";
        let main = |to: &str| RoutingRule { destination: to.parse().ok(), ..rule(49, MAIN) };
        check_rules(&[main("10.244.2.0/24"), rule(50, 100)], &[]);
        check_rules(&[main("10.244.2.0/25"), rule(50, 100)], &[before]);
        let of_some = RoutingRule { narrow: true, ..main("10.244.2.0/24") };
        check_rules(&[of_some, rule(50, 100)], &[before]);
    }

    #[test]
    fn a_rule_that_leads_pods_packets_elsewhere_is_in_the_way() {
        let before = "ip rule add priority 49 to 10.244.2.0/24 lookup main";
        check_rules(&[rule(50, 100)], &[before]);
        check_rules(
            &[RoutingRule { source: "10.244.0.0/16".parse().ok(), ..rule(50, 100) }],
            &[before],
        );
        check_rules(
            &[RoutingRule { input: Some("humanz0".to_owned()), ..rule(50, 100) }],
            &[before],
        );
        check_rules(
            &[RoutingRule { action: RuleAction::Refuse("prohibit"), ..rule(50, 0) }],
            &[before],
        );
        let wireguard = RoutingRule { inverted: true, marked: true, ..rule(50, 100) };
        check_rules(std::slice::from_ref(&wireguard), &[before]);
        let main_first = RoutingRule {
            action: RuleAction::Lookup { table: MAIN, suppress: Some(0) },
            ..rule(49, 0)
        };
        check_rules(&[main_first, wireguard], &[]);
    }

    #[test]
    fn a_rule_about_other_packets_is_not() {
        let suppressed = RuleAction::Lookup { table: 100, suppress: Some(0) };
        check_rules(
            &[
                rule(50, 101),
                RoutingRule { action: suppressed, ..rule(51, 100) },
                RoutingRule { source: "192.0.2.1/32".parse().ok(), ..rule(52, 100) },
                RoutingRule { destination: "10.96.0.0/12".parse().ok(), ..rule(53, 100) },
                RoutingRule { input: Some("eth0".to_owned()), ..rule(54, 100) },
                RoutingRule { marked: true, ..rule(55, 100) },
                RoutingRule { narrow: true, ..rule(56, 100) },
                rule(32768, 100),
            ],
            &[],
        );
    }
}
