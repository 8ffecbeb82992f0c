use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use super::*;
use crate::net::Family;
use crate::policy::partial::Knowledge;
use crate::policy::read::documents;
use crate::policy::running::RuleChange;
use crate::policy::{Endpoint, Members, Networks, Rules, members};

fn own(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"tenant": "blue", "name": name}, "spec": spec})
}

fn policy(name: &str, port: u16) -> Value {
    let rule = json!({"direction": "in", "action": "allow", "protocol": "tcp", "ports": [port]});
    own("GroupPolicy", name, json!({"rules": [rule]}))
}

fn group(name: &str, policies: &[&str], default: &str) -> Value {
    own("Group", name, json!({"policies": policies, "default": default}))
}

fn network_policy(name: &str, app: &str, peer: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": [peer], "ports": [{"port": 5432}]}]}})
}

fn rules(objects: &[Value]) -> Rules {
    documents::read(objects, true).rules
}

fn names(rules: &Rules) -> Vec<String> {
    let mut all: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
    all.sort();
    all
}

/// What is made of rules is what reading all objects again gives.
#[test]
fn changed_groups_and_policies_are_as_if_everything_were_read_again() {
    let objects = [
        policy("front", 80),
        policy("back", 81),
        group("web", &["front", "back"], "deny"),
        group("app", &["back"], "allow"),
        network_policy("db", "db", json!({"podSelector": {}})),
    ];
    for new in [
        vec![],
        vec![policy("back", 82)],
        vec![policy("front", 83), policy("back", 84)],
        vec![group("app", &["front"], "deny")],
        vec![group("web", &[], "allow")],
        vec![group("new", &["back", "late"], "deny"), policy("late", 85)],
        vec![own("GroupPolicy", "back", json!({"rules": 7}))],
        vec![own("Group", "web", json!({"policies": "front"}))],
        vec![own("Group", "web", json!({"policies": ["front", 7]}))],
        vec![network_policy("db", "web", json!({"podSelector": {}}))],
        vec![network_policy("more", "web", json!({"podSelector": {}}))],
        objects.to_vec(),
    ] {
        let is_kept = |old: &&Value| {
            let key = |it: &Value| (it["kind"].to_string(), it["metadata"].to_string());
            !new.iter().any(|changed| key(changed) == key(old))
        };
        let all: Vec<Value> = objects.iter().filter(is_kept).chain(&new).cloned().collect();
        let found = replaced(&rules(&objects), &new).unwrap();
        assert_eq!(names(&found.rules), names(&rules(&all)), "{new:#?}");
        assert_eq!(found.unlisted, []);
    }
}

#[test]
fn what_rules_do_not_say_is_no_guess() {
    let rules = rules(&[policy("front", 80), group("web", &["front"], "deny")]);
    let refused = |new: Value| replaced(&rules, &[new]).unwrap_err();
    assert!(refused(group("web", &["none"], "deny")).contains("GroupPolicy blue/none, of which"));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});
    assert!(refused(pod).starts_with("take \"Pod\" \"x\" of \"v1\" out"));
    for (field, value) in [("apiVersion", "v1"), ("kind", "Moon")] {
        for mut object in [policy("front", 1), network_policy("db", "db", json!({}))] {
            object[field] = value.into();
            assert!(refused(object.clone()).contains(" out: it is no policy"), "{object}");
        }
    }
    let mut later = network_policy("db", "db", json!({}));
    later["apiVersion"] = "networking.k8s.io/v9".into();
    assert!(refused(later).contains("version \"v9\" is not known"));
    for object in [json!(null), json!([]), json!({"kind": 7}), own("Group", "A b", json!({}))] {
        assert!(replaced(&rules, slice::from_ref(&object)).is_err(), "{object}");
    }
    let unlisted = replaced(&rules, &[policy("late", 1)]).unwrap().unlisted;
    assert_eq!(unlisted.iter().map(ToString::to_string).collect::<Vec<_>>(), ["blue/late"]);
}

fn pod(name: &str, labels: Value, address: &str, host: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "spec": {"nodeName": host}, "status": {"podIPs": [{"ip": address}]}})
}

#[test]
fn an_answer_of_one_family_alone_has_its_name() {
    let said = |v4: bool, v6: bool| by_family("tcp/1", vec![(Family::V4, v4), (Family::V6, v6)]);
    assert_eq!(said(true, true), [("tcp/1".to_owned(), true)]);
    let apart = [("tcp/1 (IPv4)".to_owned(), true), ("tcp/1 (IPv6)".to_owned(), false)];
    assert_eq!(said(true, false), apart);
    assert_eq!(by_family("tcp/1", vec![(Family::V6, true)]), [("tcp/1".to_owned(), true)]);
    assert_eq!(by_family::<bool>("tcp/1", Vec::new()), []);
}

/// What a host with db, web and mon says of a change, where far is web of another one.
fn changes(before: &[Value], new: &[Value]) -> Vec<String> {
    let own = [("db", 2), ("web", 3), ("web2", 4), ("mon", 5)].map(|(name, at)| {
        let app = json!({"app": name.trim_end_matches('2')});
        pod(name, app, &format!("10.244.1.{at}"), "h1")
    });
    changes_of(&own, before, new)
}

/// The same where `own` are the host's pods.
fn changes_of(own: &[Value], before: &[Value], new: &[Value]) -> Vec<String> {
    let far = pod("far", json!({"app": "web"}), "10.244.2.2", "h2");
    let pods: Vec<Endpoint> = documents::read(own, true).endpoints.pods;
    let all = documents::read(own.iter().chain([&far]), true).endpoints;
    let before = rules(before);
    let after = replaced(&before, new).unwrap().rules;
    let known = members::find(&members::peers(before.iter()), &all);
    let subnets: [IpNetwork; 1] = ["10.244.1.0/24".parse().unwrap()];
    let pools: [IpNetwork; 1] = ["10.244.0.0/16".parse().unwrap()];
    let addresses: BTreeSet<IpAddr> =
        ["10.244.1.1".parse().unwrap(), "192.0.2.1".parse().unwrap()].into();
    let networks = Networks::default();
    let knowledge = |rules| Knowledge {
        rules,
        pods: &pods,
        subnets: &subnets,
        members: &known,
        networks: &networks,
        own: &addresses,
    };
    let change = RuleChange { before: knowledge(&before), after: knowledge(&after) };
    let around =
        Surroundings { members: &known, subnets: &subnets, own: &addresses, pools: &pools };
    let text = |it: &ChangedVerdict| {
        let sign = match it.allowed {
            Some(true) => "+",
            Some(false) => "-",
            None => "?",
        };
        let there = if it.judged_elsewhere { " (judged there)" } else { "" };
        format!("{sign} {} -> {} {}{there}", it.source, it.destination, it.service)
    };
    compare(&change, &around).unwrap().iter().map(text).collect()
}

fn selected(app: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": app}}})
}

fn block(cidr: &str, except: &[&str]) -> Value {
    json!({"ipBlock": {"cidr": cidr, "except": except}})
}

#[test]
fn a_rule_for_another_label_changes_its_pods_and_leaves_what_a_host_cannot_know_open() {
    let web = network_policy("db", "db", selected("web"));
    assert_eq!(changes(slice::from_ref(&web), slice::from_ref(&web)), Vec::<String>::new());
    assert_eq!(
        changes(&[web], &[network_policy("db", "db", selected("mon"))]),
        [
            "? 10.244.2.2 of other hosts (pods app=web of namespace shop) -> shop/db tcp/5432 (judged there)",
            "? other pods in 10.244.0.0/16 -> shop/db tcp/5432 (judged there)",
            "+ shop/mon -> shop/db tcp/5432",
            "- shop/web (and 1 like it) -> shop/db tcp/5432",
        ]
    );
}

#[test]
fn a_change_of_one_family_alone_names_it() {
    let [v4, v6] = ["203.0.113.0/24", "2001:db8::/32"].map(|cidr| block(cidr, &[]));
    let mut both = network_policy("db", "dual", v4.clone());
    both["spec"]["ingress"][0]["from"] = json!([v4.clone(), v6.clone()]);
    let mut pod = pod("dual", json!({"app": "dual"}), "10.244.1.9", "h1");
    pod["status"]["podIPs"] = json!([{"ip": "10.244.1.9"}, {"ip": "fd00:1::9"}]);
    let found = changes_of(&[pod.clone()], &[both], &[network_policy("db", "dual", v4)]);
    assert_eq!(found, ["- 2001:db8::/32 -> shop/dual tcp/5432"]);
    let mut peer = pod.clone();
    peer["metadata"]["name"] = json!("peer");
    peer["metadata"]["labels"]["app"] = json!("peer");
    peer["status"]["podIPs"] = json!([{"ip": "10.244.1.10"}, {"ip": "fd00:1::10"}]);
    let [own4, own6] = ["10.244.1.0/24", "fd00:1::/64"].map(|cidr| block(cidr, &[]));
    let mut both = network_policy("db", "dual", own4.clone());
    both["spec"]["ingress"][0]["from"] = json!([own4.clone(), own6]);
    let found = changes_of(&[pod, peer], &[both], &[network_policy("db", "dual", own4)]);
    assert!(found.contains(&"- shop/peer -> shop/dual tcp/5432 (IPv6)".to_owned()), "{found:#?}");
    assert!(!found.iter().any(|line| line.contains("IPv4")), "{found:#?}");
}

#[test]
fn networks_and_what_lies_between_them_are_tried() {
    let before = network_policy("db", "db", block("192.0.2.0/24", &["192.0.2.128/25"]));
    let after = network_policy("db", "db", block("192.0.2.128/25", &[]));
    assert_eq!(
        changes(slice::from_ref(&before), &[after]),
        ["- 192.0.2.0/24 -> shop/db tcp/5432", "+ 192.0.2.128/25 -> shop/db tcp/5432"]
    );
    let open = network_policy("db", "db", block("0.0.0.0/0", &["192.0.2.128/25"]));
    let opened = changes(&[before], &[open]);
    assert!(opened.contains(&"+ 0.0.0.0/0 -> shop/db tcp/5432".to_owned()), "{opened:?}");
    assert!(opened.iter().any(|it| it.contains("other pods in 10.244.0.0/16 ->")), "{opened:?}");
    assert!(!opened.iter().any(|it| it.contains("/25") || it.contains("this host")), "{opened:?}");
}

#[test]
fn a_first_policy_closes_its_pods_to_everything_but_their_node() {
    let found = changes(&[], &[network_policy("db", "db", selected("web"))]);
    let count = |text: &str| found.iter().filter(|it| it.contains(text)).count();
    assert_eq!(count("shop/mon -> shop/db"), 4, "{found:#?}");
    assert_eq!(count("shop/web (and 1 like it) -> shop/db"), 3, "{found:#?}");
    assert_eq!(count("other IPv4 addresses -> shop/db"), 4, "{found:#?}");
    // On 5432 that is open which pods of other hosts are web, and on other ports that does not matter.
    assert_eq!(count("? other pods in 10.244.0.0/16 -> shop/db tcp/5432"), 1, "{found:#?}");
    assert_eq!(count("- other pods in 10.244.0.0/16 -> shop/db"), 3, "{found:#?}");
    assert_eq!(count("this host"), 0, "{found:#?}");
    assert_eq!(count("shop/db ->"), 0, "{found:#?}");
}

#[test]
fn pods_of_one_kind_are_tried_with_each_other() {
    let found = changes(&[], &[network_policy("web", "web", selected("mon"))]);
    let both = "- shop/web (and 1 like it) -> shop/web (and 1 like it) tcp/5432";
    assert!(found.iter().any(|it| it == both), "{found:#?}");
    assert!(!found.iter().any(|it| it.contains("shop/mon -> shop/web (and 1 like it) tcp/5432")));
}

#[test]
fn more_than_can_be_tried_is_refused() {
    let ports: Vec<Value> =
        (1..=1000).map(|port| json!({"port": 20 * port, "endPort": 20 * port + 10})).collect();
    let mut wide = network_policy("db", "db", json!({}));
    let cidrs = (0..=255u8).map(|at| block(&format!("10.{at}.0.0/16"), &[])).collect::<Vec<_>>();
    wide["spec"]["ingress"] = json!([{"from": cidrs, "ports": ports}]);
    let after = rules(&[wide]);
    let (none, members) = (Rules::default(), Members::new());
    let pods = documents::read(&[pod("db", json!({"app": "db"}), "10.244.1.2", "h1")], true)
        .endpoints
        .pods;
    let nowhere = BTreeSet::new();
    let networks = Networks::default();
    let knowledge = |rules| Knowledge {
        rules,
        pods: &pods,
        subnets: &[],
        members: &members,
        networks: &networks,
        own: &nowhere,
    };
    let change = RuleChange { before: knowledge(&none), after: knowledge(&after) };
    let around = Surroundings { members: &members, subnets: &[], own: &nowhere, pools: &[] };
    let refused = compare(&change, &around).err().map(|why| why.to_string());
    assert!(refused.as_ref().is_some_and(|it| it.contains("too many to try")), "{refused:?}");
}

/// Anybody may write selectors as long as an object can be.
#[test]
fn the_name_of_an_end_is_short_whatever_finds_it() {
    let any = |first: u32| {
        let values = (first..first + 1299).map(|at| format!("v{at}"));
        let values: Vec<String> = values.chain(["web".to_owned()]).collect();
        let labels = json!([{"key": "app", "operator": "In", "values": values}]);
        json!({"podSelector": {"matchExpressions": labels}})
    };
    let policies = |first: u32| {
        let one = |at: u32| network_policy(&format!("p{at}"), "db", any(first + at));
        (0..10).map(one).collect::<Vec<_>>()
    };
    let found = changes(&policies(0), &policies(100));
    let of_far: Vec<_> = found.iter().filter(|it| it.contains("10.244.2.2 of other")).collect();
    assert!(!of_far.is_empty(), "{found:#?}");
    for line in of_far {
        assert!(line.len() < 400 && line.contains("…, and 7 more) ->"), "{line}");
    }
}
