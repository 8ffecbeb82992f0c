//! packaging/crds.yaml: what the API takes the agent reads, and what the agent does not read the API refuses.

use std::collections::BTreeSet;

use humanz::kube::Resource;
use humanz::policy::read::documents;
use humanz::sources::Item;
use humanz_test_support::definitions::{Definitions, Refusal};
use serde_json::{Value, json};

use crate::read;

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The API takes it, and the agent reads all of it.
    Taken,
    /// The schema refuses it, and so does the agent.
    Refused,
    /// A rule of the schema with this message, and the agent.
    RefusedBy(&'static str),
    /// The schema, though the agent would read it: there is another way to write it.
    Narrower,
    /// The agent alone, or the controller: no schema can compare two ends of one text.
    Closed,
}
use Fate::{Closed, Narrower, Refused, RefusedBy, Taken};

const NO_DEFAULT: Fate = RefusedBy("the tenant default is left out of the name");
const PORTS: Fate = RefusedBy("ports need a protocol that has ports: tcp, udp or sctp");
const TYPE: Fate = RefusedBy("icmpType needs protocol icmp or icmpv6");
const CODE: Fate = RefusedBy("icmpCode needs icmpType");
const PEER: Fate = RefusedBy("must have one of group, network and cidr");
const HOST_BITS: Fate = RefusedBy("must be a CIDR without host bits");
const FAMILIES: Fate = RefusedBy("a network has one subnet of each family");
const PINS: Fate = RefusedBy("pins must be parts of subnets, without host bits");
const MISSING: Fate = RefusedBy("subnets is missing");
const SETTINGS: Fate = RefusedBy(
    "the network default has shared and profile alone: its addresses are those of the settings",
);
const CIDR: Fate = RefusedBy("cidr must be a CIDR");
const EXCEPT: Fate = RefusedBy("except must be CIDRs of the family of cidr");

fn networks() -> Vec<(&'static str, Value, Fate)> {
    let with = |more: Value| {
        let mut spec = json!({"subnets": ["10.1.0.0/16", "fd00:1::/64"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    vec![
        ("blue.front", with(json!({})), Taken),
        ("front", json!({"subnets": ["10.1.0.0/16"], "shared": true}), Taken),
        (
            "blue.front",
            with(
                json!({"blocks": {"v4": 27, "v6": 120}, "mtu": 1400, "nat": false, "hostPorts": false}),
            ),
            Taken,
        ),
        ("blue.front", with(json!({"pins": ["10.1.255.0/24"], "profile": "gold"})), Taken),
        ("default", json!({"shared": true, "profile": "gold"}), Taken),
        ("default", json!({"subnets": ["10.1.0.0/16"]}), SETTINGS),
        ("default.front", with(json!({})), NO_DEFAULT),
        ("blue.front", json!({}), MISSING),
        ("blue.front", json!({"subnets": []}), Refused),
        ("blue.front", json!({"subnets": "10.1.0.0/16"}), Refused),
        ("blue.front", json!({"subnets": ["10.1.0.0"]}), HOST_BITS),
        ("blue.front", json!({"subnets": ["10.1.2.0/16"]}), HOST_BITS),
        ("blue.front", json!({"subnets": ["10.1.0.0/16", "10.2.0.0/16"]}), FAMILIES),
        ("blue.front", json!({"subnets": ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]}), Refused),
        ("blue.front", json!({"subnets": ["127.0.0.0/16"]}), Closed),
        ("blue.front", json!({"subnets": ["10.1.0.0/28"]}), Closed),
        ("blue.front", with(json!({"blocks": {"v4": 31}})), Refused),
        ("blue.front", with(json!({"blocks": {"v5": 27}})), Refused),
        ("blue.front", with(json!({"pins": ["10.2.0.0/24"]})), PINS),
        ("blue.front", with(json!({"pins": ["x"]})), PINS),
        ("blue.front", with(json!({"pins": ["10.1.255.1/24"]})), PINS),
        ("blue.front", with(json!({"pins": ["10.0.0.0/15"]})), PINS),
        ("blue.front", with(json!({"pins": ["fd00:1:0:0:8000::/65", "10.1.255.0/24"]})), Taken),
        ("blue.front", with(json!({"pins": ["10.1.0.0/31"]})), Closed),
        ("blue.front", with(json!({"mtu": 1279})), Refused),
        ("blue.front", with(json!({"mtu": "1400"})), Narrower),
        ("blue.front", with(json!({"shared": "yes"})), Refused),
        ("blue.front", with(json!({"gateway": "10.1.0.1"})), Refused),
        ("blue.front", json!(7), Refused),
    ]
}

fn groups() -> Vec<(&'static str, Value, Fate)> {
    vec![
        ("blue.web", json!({}), Taken),
        ("web", json!({"policies": ["front"]}), Taken),
        (
            "blue.web",
            json!({"policies": ["front"], "default": {"in": "deny", "out": "allow"}}),
            Taken,
        ),
        ("blue.web", json!({"profile": "gold"}), Taken),
        ("blue.web", json!({"profile": "blue/gold"}), Taken),
        ("default.web", json!({}), NO_DEFAULT),
        ("blue.web", json!({"default": "deny"}), Narrower),
        ("blue.web", json!({"default": {"in": "drop"}}), Refused),
        ("blue.web", json!({"default": {"up": "deny"}}), Refused),
        ("blue.web", json!({"policies": "front"}), Refused),
        ("blue.web", json!({"policies": ["a/b"]}), Refused),
        ("blue.web", json!({"policies": [""]}), Refused),
        ("blue.web", json!({"policies": [7]}), Refused),
        ("blue.web", json!({"policys": ["front"]}), Refused),
        ("blue.web", json!({"profile": "a/b/c"}), Refused),
        ("blue.web", json!({"profile": "x".repeat(254)}), Refused),
        ("blue.web", json!("deny"), Refused),
    ]
}

/// Policies with that one rule.
fn rules() -> Vec<(&'static str, Value, Fate)> {
    let all = vec![
        (json!({}), Taken),
        (json!({"priority": 1}), Taken),
        (json!({"priority": 100, "audit": true}), Taken),
        (json!({"priority": 0}), Refused),
        (json!({"priority": 101}), Refused),
        (json!({"audit": "yes"}), Refused),
        (json!({"direction": "both"}), Refused),
        (json!({"direction": null}), Refused),
        (json!({"direction": "ingress"}), Narrower),
        (json!({"action": "drop"}), Refused),
        (json!({"action": "pass"}), Taken),
        (json!({"peers": {}}), Refused),
        (json!({"protocol": "tcp", "ports": [1, 65535, "8000-8999", "http", "8080-tcp"]}), Taken),
        (json!({"protocol": "132", "ports": ["1-65535"]}), Taken),
        (json!({"protocol": "255"}), Taken),
        (json!({"protocol": "256"}), Refused),
        (json!({"protocol": "gre"}), Refused),
        (json!({"protocol": "TCP"}), Narrower),
        (json!({"protocol": 6}), Narrower),
        (json!({"protocol": "tcp", "ports": [0]}), Refused),
        (json!({"protocol": "tcp", "ports": [65536]}), Refused),
        (json!({"protocol": "tcp", "ports": ["0-9"]}), Refused),
        (json!({"protocol": "tcp", "ports": ["1-65536"]}), Refused),
        (json!({"protocol": "tcp", "ports": ["1-2-3"]}), Narrower),
        (json!({"protocol": "tcp", "ports": ["a b"]}), Refused),
        (json!({"protocol": "tcp", "ports": [[80]]}), Refused),
        (json!({"protocol": "tcp", "ports": ["80"]}), Narrower),
        (json!({"protocol": "tcp", "ports": ["9-8"]}), Closed),
        (json!({"ports": [80]}), PORTS),
        (json!({"protocol": "icmp", "ports": [80]}), PORTS),
        (json!({"protocol": "icmp", "icmpType": 8}), Taken),
        (json!({"protocol": "58", "icmpType": 255, "icmpCode": 0}), Taken),
        (json!({"protocol": "icmp", "icmpType": 256}), Refused),
        (json!({"protocol": "icmp", "icmpType": 8, "icmpCode": -1}), Refused),
        (json!({"protocol": "tcp", "icmpType": 8}), TYPE),
        (json!({"icmpType": 8}), TYPE),
        (json!({"protocol": "icmp", "icmpCode": 0}), CODE),
        (json!({"peer": {"group": "web"}}), Taken),
        (json!({"peer": {"group": "blue/web"}}), Taken),
        (json!({"peer": {"network": "blue/front"}}), Taken),
        (json!({"peer": {"network": "front", "cidr": "10.0.0.0/8"}}), PEER),
        (json!({"peer": {"network": "a/b/c"}}), Refused),
        (json!({"peer": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.3.4/32"]}}), Taken),
        (json!({"peer": {"cidr": "2001:db8::/32"}}), Taken),
        (json!({"peer": {"cidr": "10.1.2.3/8"}}), Taken),
        (json!({"peer": {}}), PEER),
        (json!({"peer": {"group": "web", "cidr": "10.0.0.0/8"}}), PEER),
        (json!({"peer": {"group": "../web"}}), Refused),
        (json!({"peer": {"pods": {}}}), Refused),
        (json!({"peer": {"cidr": "10.0.0.0"}}), CIDR),
        (json!({"peer": {"cidr": "10.0.0.0/33"}}), CIDR),
        (json!({"peer": {"cidr": "10.0.0.0/8", "except": ["fd00::/8"]}}), EXCEPT),
        (json!({"peer": {"cidr": "10.0.0.0/8", "except": ["x"]}}), EXCEPT),
    ];
    let policy = |(more, fate): (Value, Fate)| {
        let mut rule = json!({"direction": "in", "action": "allow"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        ("blue.front", json!({"rules": [rule]}), fate)
    };
    let more = vec![
        ("front", json!({"audit": true, "rules": []}), Taken),
        ("default.front", json!({}), NO_DEFAULT),
        ("front", json!({"rules": {}}), Refused),
        ("front", json!({"rule": []}), Refused),
    ];
    all.into_iter().map(policy).chain(more).collect()
}

fn profiles() -> Vec<(&'static str, Value, Fate)> {
    let mut all = vec![
        ("gold", json!({"dscp": 0}), Taken),
        ("blue.gold", json!({"dscp": 63}), Taken),
        ("gold", json!({"dscp": 64}), Refused),
        ("gold", json!({"dscp": -1}), Refused),
        ("gold", json!({"dscp": 4.5}), Refused),
        ("gold", json!({"dscp": "46"}), Narrower),
        ("gold", json!({"dcsp": 46}), Refused),
        ("gold", json!([]), Refused),
        ("default.gold", json!({}), NO_DEFAULT),
        ("gold", json!({"egressBurst": 80}), RefusedBy("egressBurst needs egressRate")),
        ("gold", json!({"ingressBurst": 80}), RefusedBy("ingressBurst needs ingressRate")),
    ];
    for (rate, burst) in [("egressRate", "egressBurst"), ("ingressRate", "ingressBurst")] {
        for (value, fate) in [
            (json!(8), Taken),
            (json!(i64::MAX), Taken),
            (json!("9"), Taken),
            (json!("100M"), Taken),
            (json!("9999999T"), Taken),
            (json!("999999999999999999"), Taken),
            (json!(7), Refused),
            (json!("7"), Refused),
            (json!("0k"), Refused),
            (json!("10m"), Refused),
            (json!("10Mbps"), Refused),
            (json!("-8"), Refused),
            (json!("99999999999T"), Refused),
            (json!([8]), Refused),
        ] {
            all.push(("gold", json!({rate: value}), fate));
        }
        for (value, fate) in [
            (json!(1), Taken),
            (json!("1"), Taken),
            (json!("2M"), Taken),
            (json!(0), Refused),
            (json!("0"), Refused),
        ] {
            all.push(("gold", json!({rate: "8k", burst: value}), fate));
        }
    }
    all
}

fn namespaces() -> Vec<(&'static str, Value, Fate)> {
    vec![
        ("shop", json!({}), Taken),
        (
            "shop",
            json!({"tenant": "blue", "group": "web", "allow": ["*", "db", "green/web"]}),
            Taken,
        ),
        ("shop", json!({"pods": [{"match": "db-*", "group": "blue/db"}]}), Taken),
        ("blue.shop", json!({}), RefusedBy("the name is that of a namespace")),
        ("shop", json!({"tenant": "blue/red"}), Refused),
        ("shop", json!({"tenant": ""}), Refused),
        ("shop", json!({"group": "a b"}), Refused),
        ("shop", json!({"allow": "*"}), Refused),
        ("shop", json!({"allow": ["**"]}), Refused),
        ("shop", json!({"allow": ["red/*"]}), Refused),
        ("shop", json!({"pods": [{"group": "db"}]}), Refused),
        ("shop", json!({"pods": [{"match": "db-*"}]}), Taken),
        ("shop", json!({"tenant": "blue", "network": "front"}), Taken),
        ("shop", json!({"pods": [{"match": "db-*", "network": "blue/back"}]}), Taken),
        ("shop", json!({"network": "../front"}), Refused),
        ("shop", json!({"pods": [{"match": 7, "group": "db"}]}), Refused),
        ("shop", json!({"labels": {}}), Refused),
        ("shop", json!(7), Refused),
    ]
}

/// The definition of each kind.
fn definitions() -> Vec<Value> {
    documents::objects(&read("packaging/crds.yaml")).unwrap()
}

fn schema(kind: &str) -> Value {
    let found = definitions().into_iter().find(|it| it["spec"]["names"]["kind"] == kind).unwrap();
    found["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// What the agent says is wrong with an object beside others that it may name.
fn problems(resource: Resource, name: &str, spec: &Value) -> Vec<String> {
    let own = |resource, name: &str, spec: &Value| match Item::read(
        resource,
        &json!({"metadata": {"name": name}, "spec": spec}),
    ) {
        Item::Own(object) => Ok(object),
        Item::Faulty(problem) => Err(vec![problem.what]),
        other => panic!("{other:?}"),
    };
    let object = match own(resource, name, spec) {
        Ok(object) => object,
        Err(faults) => return faults,
    };
    let mut all = vec![object];
    for (resource, name) in [(Resource::GroupPolicies, "front"), (Resource::NetProfiles, "gold")] {
        for name in [name.to_owned(), format!("blue.{name}")] {
            let beside = own(resource, &name, &json!({})).unwrap();
            let is_it = |one: &Value| {
                one["kind"] == beside["kind"] && one["metadata"] == beside["metadata"]
            };
            if !all.iter().any(is_it) {
                all.push(beside);
            }
        }
    }
    documents::read(&all, false).problems.into_iter().map(|problem| problem.what).collect()
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "humanz.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

#[test]
fn what_the_api_takes_is_read_and_what_is_not_read_it_refuses() {
    let api = Definitions::new(&definitions());
    let mut met = BTreeSet::new();
    for (resource, cases) in [
        (Resource::Networks, networks()),
        (Resource::Groups, groups()),
        (Resource::GroupPolicies, rules()),
        (Resource::NetProfiles, profiles()),
        (Resource::NamespaceRules, namespaces()),
    ] {
        for (name, spec, fate) in cases {
            let refusal = api.refusal(&object(resource.kind(), name, &spec));
            let problems = problems(resource, name, &spec);
            let case = format!("{name} {spec}: {refusal:?} {problems:?}");
            match (fate, refusal) {
                (Taken | Closed, None) | (Refused | Narrower, Some(Refusal::Schema(_))) => {}
                // That rule alone.
                (RefusedBy(message), Some(Refusal::Rules(rules)))
                    if rules.len() == 1 && rules[0].message == message =>
                {
                    met.extend(rules);
                }
                _ => panic!("{fate:?}, but {case}"),
            }
            assert_eq!(problems.is_empty(), matches!(fate, Taken | Narrower), "{case}");
        }
    }
    let rules: BTreeSet<_> = api.rules().into_iter().collect();
    assert_eq!(rules, met, "every rule has an object that it alone refuses");
}

/// Whatever else is a network, in the eyes of one of several readers of such texts; and how many of the five
/// objects below the agent reads although a rule refuses them, or refuses although no rule does.
const SUBNETS: [(&str, usize); 26] = [
    ("10.1.0.0/16", 0),
    ("fd00:1::/64", 0),
    ("FD00:1::/64", 0),
    // No addresses for pods.
    ("0.0.0.0/0", 1),
    ("::/0", 1),
    ("10.1.2.3/16", 0),
    ("10.1.0.0", 0),
    ("10.1.0.0/", 0),
    ("/16", 0),
    ("", 0),
    // Files and etcd may have them so.
    ("10.1.0.0/016", 4),
    ("10.1.0.0/+16", 4),
    ("10.1.0.0/255.255.0.0", 4),
    ("10.1.0.0/-1", 0),
    ("10.1.0.0/33", 0),
    ("fd00::/129", 0),
    ("010.1.0.0/16", 0),
    ("10.1/16", 0),
    ("10.1.0.0/16 ", 0),
    (" 10.1.0.0/16", 0),
    ("10.1.0.0/16/16", 0),
    ("10.1.0.0/1 6", 0),
    ("fe80::%eth0/64", 0),
    // No packet has such an address.
    ("::ffff:10.1.0.0/112", 2),
    ("::ffff:0:0/96", 2),
    ("::10.1.0.0/112", 0),
];

#[test]
fn rules_and_agents_take_the_same_subnets() {
    let api = Definitions::new(&definitions());
    let policy =
        |peer: Value| json!({"rules": [{"direction": "in", "action": "allow", "peer": peer}]});
    for (text, wanted) in SUBNETS {
        let pinned = json!({"subnets": ["10.0.0.0/8", "fd00::/16"], "pins": [text]});
        let mut differences = Vec::new();
        for (resource, spec) in [
            (Resource::Networks, json!({"subnets": [text]})),
            (Resource::Networks, pinned),
            (Resource::GroupPolicies, policy(json!({"cidr": text}))),
            (Resource::GroupPolicies, policy(json!({"cidr": "0.0.0.0/0", "except": [text]}))),
            (Resource::GroupPolicies, policy(json!({"cidr": "::/0", "except": [text]}))),
        ] {
            let refusal = api.refusal(&object(resource.kind(), "blue.front", &spec));
            let problems = problems(resource, "blue.front", &spec);
            if refusal.is_none() != problems.is_empty() {
                differences.push((spec, refusal, problems));
            }
        }
        assert_eq!(differences.len(), wanted, "{text}: {differences:#?}");
    }
}

/// In blocks of files (`tests/support/guide.rs`).
#[test]
fn the_api_takes_every_custom_resource_of_the_documents() {
    let api = Definitions::new(&definitions());
    let mut kinds = BTreeSet::new();
    for file in std::fs::read_dir("packaging").unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for block in text.split("```yaml").skip(1).filter_map(|rest| rest.split("```").next()) {
            let (_name, block) = block.split_once('\n').unwrap();
            for object in documents::objects(block).unwrap_or_default() {
                if object["apiVersion"] == "humanz.io/v1alpha1" {
                    assert_eq!(api.refusal(&object), None, "{}: {object}", file.display());
                    kinds.insert(object["kind"].as_str().unwrap().to_owned());
                }
            }
        }
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

/// A custom resource in a namespace could be written by the owner of that.
#[test]
fn no_owner_of_a_namespace_may_write_them_and_agents_only_read_them() {
    let mut plurals = Vec::new();
    for definition in definitions() {
        let spec = &definition["spec"];
        assert_eq!(spec["scope"], "Cluster", "{}", definition["metadata"]["name"]);
        let plural = spec["names"]["plural"].as_str().unwrap().to_owned();
        assert_eq!(definition["metadata"]["name"], format!("{plural}.humanz.io"));
        plurals.push(plural);
    }
    let own = Resource::OWN.into_iter();
    let mut wanted: Vec<_> = own.map(|resource| resource.query().name).collect();
    plurals.sort();
    wanted.sort_unstable();
    assert_eq!(plurals, wanted);
    // Hosts have networks from etcd.
    plurals.retain(|plural| plural != "networks");
    for manifest in ["packaging/policy-role.yaml", "packaging/daemonset-kubernetes.yaml"] {
        let roles = documents::objects(&read(manifest)).unwrap();
        let roles = roles.iter().filter(|role| role["kind"] == "ClusterRole");
        let rules: Vec<&Value> = roles.flat_map(|role| role["rules"].as_array().unwrap()).collect();
        let own: Vec<_> =
            rules.iter().filter(|rule| rule["apiGroups"] == json!(["humanz.io"])).collect();
        assert_eq!(own.len(), 1, "{manifest}");
        assert_eq!(own[0]["verbs"], json!(["list", "watch"]), "{manifest}");
        let mut named: Vec<String> = serde_json::from_value(own[0]["resources"].clone()).unwrap();
        named.sort();
        assert_eq!(named, plurals, "{manifest}");
        assert!(!read(manifest).contains("aggregate-to"), "{manifest}");
    }
    assert!(!read("packaging/crds.yaml").contains("aggregate-to"));
}

/// `kubectl explain` has a text for each.
#[test]
fn every_field_of_custom_resources_is_explained() {
    fn check(path: &str, schema: &Value) {
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(text.ends_with('.'), "{path}: {text:?}");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), inner);
        }
        let items = schema.get("items").filter(|items| items["type"] == "object");
        items.into_iter().for_each(|items| check(&format!("{path}[]"), items));
    }
    for definition in definitions() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        check(kind, &schema(kind));
    }
}
