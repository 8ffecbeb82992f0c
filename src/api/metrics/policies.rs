//! Metrics of policies: their sources, pods in quarantine, and packets by policy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::api::metrics::page::Page;
use crate::flows::store::FlowStore;
use crate::nft::Nft;
use crate::nft::found::Count;
use crate::policy::Rules;
use crate::policy::compile::{POLICY_TABLE, counter};
use crate::policy::sources::SourceState;
use crate::policy::view::{QuarantineReason, View};

/// Series of packets by policy; further ones are added up. 1,000 policies with local pods have 2,000.
const SERIES: usize = 4000;

/// Policy, direction, verdict.
type SeriesLabels = (String, &'static str, String);

/// `view`: what is known of policies; `None` where they are off.
pub fn policies(page: &mut Page, view: Option<&View>) {
    let rules = view.and_then(|view| Some(&view.known.as_deref()?.rules));
    let help = "Rules of policies that hold.";
    page.gauge("humanz_policy_rules", help, rules.map_or(0, |rules| rules.iter().len()) as f64);
    let help = "Pods of this host in quarantine: only their node reaches them.";
    let quarantined = view.map(View::quarantined).unwrap_or_default();
    let mut pods = page.gauges("humanz_policy_quarantined_pods", help);
    for reason in QuarantineReason::ALL {
        let count = quarantined.iter().filter(|one| one.reason == reason).count();
        pods.sample(&[("reason", reason.name())], count as f64);
    }
    sources(page, view.map(|view| view.sources.as_slice()).unwrap_or_default());
    let counted = || Nft::open().and_then(|nft| nft.counters(POLICY_TABLE));
    if let Some((rules, Ok(counted))) = rules.map(|rules| (rules, counted())) {
        packets(page, rules, &counted);
    }
}

/// What is counted of who connects to what, where it is.
pub fn flows(page: &mut Page, store: &FlowStore) {
    if !store.is_on() {
        return;
    }
    let (entries, overruns, lost_reports) = store.sizes();
    page.gauge("humanz_flows", "Flows that are distinguished.", entries as f64);
    let help = "Times that connections began faster than they were counted.";
    page.counter("humanz_flows_overruns_total", help, overruns);
    let help = "Reports of denied packets that were not read in time.";
    page.counter("humanz_flows_lost_reports_total", help, lost_reports);
}

fn sources(page: &mut Page, sources: &[SourceState]) {
    let help = "Whether a source of policies is followed, and what it said last holds.";
    let mut healthy = page.gauges("humanz_policy_source_healthy", help);
    for source in sources {
        healthy.sample(&[("source", source.provider.name())], f64::from(source.healthy));
    }
    let help = "When what holds of a source was read, in seconds since 1970.";
    let mut read = page.gauges("humanz_policy_source_read_timestamp_seconds", help);
    for source in sources {
        let at = source.read.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        if let Some(at) = at {
            read.sample(&[("source", source.provider.name())], at.as_secs_f64());
        }
    }
}

fn packets(page: &mut Page, rules: &Rules, counted: &BTreeMap<String, Count>) {
    let help =
        "Packets by the policy that judged them: of what is allowed the first of each connection.";
    let mut samples = page.counters("humanz_policy_packets_total", help);
    for ((policy, direction, verdict), packets) in by_policy(rules, counted) {
        let labels =
            [("policy", policy.as_str()), ("direction", direction), ("verdict", verdict.as_str())];
        samples.sample(&labels, packets as f64);
    }
}

fn by_policy(rules: &Rules, counted: &BTreeMap<String, Count>) -> BTreeMap<SeriesLabels, u64> {
    let mut series: BTreeMap<SeriesLabels, u64> = BTreeMap::new();
    let beside_rules = [
        ("unknown", "quarantine"),
        ("untracked", "no connection"),
        ("foreign", "error about a connection of others"),
    ];
    for (name, policy) in beside_rules {
        let packets = counted.get(name).map_or(0, |count| count.packets);
        series.insert((policy.to_owned(), "", "deny".to_owned()), packets);
    }
    let mut added = BTreeSet::new();
    for rule in rules.iter() {
        let name = counter(rule);
        let Some(count) = counted.get(&name) else { continue };
        if !added.insert(name) {
            continue;
        }
        let audit = if rule.audit { "audit " } else { "" };
        let verdict = format!("{audit}{}", rule.verdict);
        let labels = (rule.origin.to_string(), rule.direction.name(), verdict.clone());
        let labels = match series.len() < SERIES || series.contains_key(&labels) {
            true => labels,
            false => ("others".to_owned(), "", verdict),
        };
        *series.entry(labels).or_default() += count.packets;
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;
    use crate::policy::{PolicyPeer, PolicyVerdict, Rule};

    fn policy(number: usize) -> String {
        format!(
            r#"{{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {{"namespace": "shop", "name": "p{number}"}}, "spec": {{"podSelector": {{}},
            "ingress": [{{"ports": [{{"port": 80}}]}}, {{"ports": [{{"port": 81}}]}}]}}}}"#
        )
    }

    fn series(policies: usize) -> BTreeMap<SeriesLabels, u64> {
        let text: String = (0..policies).map(policy).collect();
        let rules = documents::read(&documents::objects(&text).unwrap(), true).rules;
        let count = Count { packets: 3, bytes: 9 };
        by_policy(&rules, &rules.iter().map(|rule| (counter(rule), count)).collect())
    }

    #[test]
    fn rules_of_one_policy_and_verdict_are_one_series() {
        let found = series(1);
        let of = |verdict: &str| {
            found[&("NetworkPolicy shop/p0".to_owned(), "ingress", verdict.to_owned())]
        };
        assert_eq!((of("allow"), of("deny"), found.len()), (6, 3, 5));
    }

    #[test]
    fn a_packet_is_counted_once_and_for_the_rule_that_judged_it() {
        let text = r#"{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "c"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}}, "ingress": [
            {"action": "Pass", "from": [{"namespaces": {"matchLabels": {"a": "b"}}}]},
            {"action": "Deny", "from": [{"namespaces": {"matchLabels": {"c": "d"}}}]}]}}"#;
        let rules = documents::read(&documents::objects(text).unwrap(), true).rules;
        let doubtful = rules.iter().map(|rule| {
            let Some([PolicyPeer::Selected(selector)]) = rule.peers.as_deref() else { panic!() };
            let peers = Some(vec![PolicyPeer::Selected(selector.doubtful().unwrap())]);
            Rule { peers, verdict: PolicyVerdict::Deny, ..rule.clone() }
        });
        let twice = rules.iter().filter(|rule| rule.verdict == PolicyVerdict::Deny);
        let rules = Rules::new(rules.iter().chain(twice).cloned().chain(doubtful).collect());
        let counted = BTreeMap::from_iter(
            [("cnp/c/in/0", 100), ("cnp/c/in/0/doubtful", 20), ("cnp/c/in/1", 3)]
                .map(|(name, packets)| (name.to_owned(), Count { packets, bytes: 0 })),
        );
        let found = by_policy(&rules, &counted);
        let of = |verdict: &str| {
            found[&("ClusterNetworkPolicy c".to_owned(), "ingress", verdict.to_owned())]
        };
        assert_eq!((of("pass"), of("deny")), (100, 23));
    }

    #[test]
    fn the_number_of_series_has_a_limit_and_no_packet_is_lost() {
        let found = series(5000);
        assert!(found.len() <= SERIES + 2, "{}", found.len());
        assert_eq!(found.values().sum::<u64>(), 5000 * 9);
    }
}
