//! Pods that ask for what nothing gives them: in namespaces without a rule, and where there are no networks.

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply, own, pings};
use crate::support::cni::{Attachment, Failure, Network};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, facts, local, soon};
use crate::tenants::{add, is_in, namespace, network, try_add, two_tenants};

/// What plugins go by.
const PLANS: &str = "/run/humanz/ipam/.networks.json";

const POLICIES_OFF: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48")];

/// The ways to ask for the network `red/front`.
fn ways() -> [Value; 6] {
    [
        json!({"humanz.io/network": "red/front"}),
        json!({"humanz.io/network": "front", "humanz.io/tenant": "red"}),
        json!({"io.contiv.network": "front", "io.contiv.tenant": "red"}),
        json!({"humanz.io/networks": "red/front"}),
        json!({"humanz.io/networks": "default,red/front@eth1"}),
        json!({"humanz.io/networks": "front@eth1", "humanz.io/tenant": "red"}),
    ]
}

/// A container without a pod, as podman and nerdctl start, that says this by `CNI_ARGS`.
fn try_container(host: &Node, name: &str, words: &str) -> Result<Pod, Box<Failure>> {
    make_netns(host, name);
    let args = format!("IgnoreUnknown=1;{words}");
    Pod::connect(host, &Network::of(host), Attachment { args, ..Attachment::new(name) })
}

fn is_of_settings(pod: &Pod) -> bool {
    is_in(pod.v4(), "10.244.0.0/16")
}

fn is_written(host: &Node, has_rule: bool) -> bool {
    let text = host.read(PLANS).unwrap_or_default();
    text.contains(&format!("\"ruled\":{has_rule}"))
}

fn all_are_refused(host: &Node, names: &str) {
    let before = facts::veths(host).len();
    for (number, words) in ways().into_iter().enumerate() {
        for namespace in ["plain", "default"] {
            let pod = format!("{namespace}/{names}{number}");
            let Err(refused) = try_add(host, &pod, words.clone()) else {
                panic!("{pod} started: {words}")
            };
            let text = refused.to_string();
            assert_eq!(refused.code, 7, "{pod}: {text}");
            let fix = format!("humanz-agent ns create {namespace} --tenant red --allow red/front");
            assert!(text.contains("has no NamespaceRule") && text.contains(&fix), "{text}");
        }
    }
    let words = "humanz.io/network=red/front";
    let refused = try_container(host, &format!("{names}-alone"), words).err().unwrap();
    assert!(refused.code == 7 && refused.to_string().contains("NamespaceRule"), "{refused}");
    assert_eq!(facts::veths(host).len(), before, "nothing is left of them");
}

#[test]
fn a_pod_of_a_namespace_without_a_rule_gets_nothing_that_it_asks_for() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let (networks, rules): (Vec<Value>, Vec<Value>) =
        two_tenants().into_iter().partition(|it| it["kind"] == "Network");
    apply(host, &networks);
    let agents = cluster.start_agents(FROM_ETCD);
    soon("the plans without rules", || is_written(host, false));
    let early = try_add(host, "plain/early", ways()[0].clone()).unwrap();
    assert!(is_in(early.v4(), "10.33.0.0/16"), "no rule is there yet");

    apply(host, &rules);
    soon("the plans with rules", || is_written(host, true));
    all_are_refused(host, "spy");
    for (name, words) in [
        ("a", json!({})),
        ("b", json!({"humanz.io/network": "default"})),
        ("c", json!({"humanz.io/networks": "default/default"})),
    ] {
        assert!(is_of_settings(&try_add(host, &format!("plain/{name}"), words).unwrap()));
    }
    assert!(is_in(add(host, "red/own").v4(), "10.33.0.0/16"));

    // By what an older release wrote, while the agent is away.
    agents[0].stop();
    let text = host.read(PLANS).unwrap();
    host.write(PLANS, &text.replace(",\"ruled\":true", ""));
    assert!(!is_written(host, true));
    all_are_refused(host, "old");
    let agent = Agent::start(host, FROM_ETCD);
    agent.wait_ready();

    // One that is not understood is there all the same, as is one whose key is not.
    for name in ["blue", "red"] {
        Agent::run(host, &format!("ns rm {name}"), FROM_ETCD).ok();
    }
    soon("no rule", || is_written(host, false));
    for (number, key) in ["far", "a/b", ""].into_iter().enumerate() {
        let key = format!("/humanz/v1-policies/NamespaceRule/{key}");
        cluster.etcd.put(&key, "{");
        soon("the rule that is not understood", || is_written(host, true));
        all_are_refused(host, &format!("bad{number}-"));
        cluster.etcd.delete(&key);
        soon("its end", || is_written(host, false));
    }
    let late = try_add(host, "plain/late", ways()[0].clone()).unwrap();
    assert!(is_in(late.v4(), "10.33.0.0/16"));
    agent.stop();
}

/// The group `ops` may reach `db`, and nobody else.
fn guarded() -> Vec<Value> {
    let rule = json!({"direction": "in", "action": "allow", "peer": {"group": "ops"}});
    vec![
        own("GroupPolicy", "from-ops", json!({"rules": [rule]})),
        own("Group", "db", json!({"policies": ["from-ops"], "default": {"in": "deny"}})),
        own("Group", "ops", json!({})),
    ]
}

#[test]
fn a_pod_of_a_namespace_without_a_rule_is_in_no_group_and_status_says_so() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &guarded());
    let agents = cluster.start_agents(FROM_ETCD);
    let asks = |group: &str| json!({"humanz.io/group": group});
    let db = try_add(host, "shop/db", asks("db")).unwrap();
    let spy = try_add(host, "plain/spy", asks("ops")).unwrap();
    soon("a group that nobody gave", || pings(&spy, db.v4()) && pings(&spy, db.v6()));

    let rules =
        [namespace("shop", json!({"group": "db"})), namespace("ops", json!({"group": "ops"}))];
    apply(host, &rules);
    soon("its end", || !pings(&spy, db.v4()) && !pings(&spy, db.v6()));
    let ops = add(host, "ops/tools");
    soon("the group that a rule gives", || pings(&ops, db.v4()));
    let late = try_add(host, "plain/late", asks("ops")).unwrap();
    let contiv = try_add(host, "default/late", json!({"io.contiv.net-group": "ops"})).unwrap();
    let alone = try_container(host, "alone", "humanz.io/group=ops").unwrap();
    for pod in [&spy, &late, &contiv, &alone] {
        assert!(!pings(pod, db.v4()) && !pings(pod, db.v6()), "{}", pod.label());
    }
    assert!(pings(&ops, db.v4()));

    let why =
        "group default/ops is not allowed for pods of this namespace, which has no NamespaceRule";
    let fix = "humanz-agent ns create plain --tenant default --allow default/ops";
    let status = local::status_when(host, "what was refused", |status| {
        local::problems(status, "policy").count() == 4
    });
    for pod in ["plain/late", "default/late"] {
        let of_pod = local::problem(&status, "policy", &format!("pod {pod}"));
        assert!(of_pod.is_some(), "{pod}: {status:#}");
    }
    let of_spy = local::problem(&status, "policy", "pod plain/spy").unwrap();
    assert!(of_spy["fix"].as_str().unwrap().contains(fix), "{of_spy}");
    let shown = Agent::run(host, "endpoint show plain/spy", FROM_ETCD).stdout;
    assert!(!shown.contains("default/ops"), "{shown}");
    let explained = Agent::run(host, "explain plain/spy shop/db", FROM_ETCD).stdout;
    assert!(explained.contains(why) && explained.contains(fix), "{explained}");
    assert!(explained.contains("denied"), "{explained}");
    let rule = namespace("plain", json!({"allow": ["ops"]}));
    apply(host, &[rule]);
    soon("the rule", || pings(&spy, db.v4()) && pings(&late, db.v6()));
    assert!(!pings(&contiv, db.v4()));
    agents.iter().for_each(Agent::stop);
}

fn all_lack(host: &Node, names: &str, what: &str) {
    let before = facts::veths(host).len();
    for (number, words) in ways().into_iter().enumerate() {
        let pod = format!("plain/{names}{number}");
        let Err(refused) = try_add(host, &pod, words.clone()) else {
            panic!("{pod} started: {words}")
        };
        let text = refused.to_string();
        assert_eq!(refused.code, 11, "{pod}: {text}");
        assert!(text.contains("red/front is not known") && text.contains(what), "{text}");
    }
    let words = "humanz.io/network=red/front";
    let refused = try_container(host, &format!("{names}-alone"), words).err().unwrap();
    assert!(refused.code == 11 && refused.to_string().contains(what), "{refused}");
    assert_eq!(facts::veths(host).len(), before, "nothing is left of them");
    let bad = try_add(host, &format!("plain/{names}-bad"), json!({"humanz.io/network": "../x"}));
    assert_eq!(bad.err().unwrap().code, 7);
    for (name, words) in [
        ("a", json!({})),
        ("b", json!({"humanz.io/network": "default"})),
        ("c", json!({"io.contiv.network": "default/default"})),
        ("d", json!({"humanz.io/networks": "default"})),
        ("e", json!({"humanz.io/network": "", "humanz.io/networks": ""})),
        ("f", json!({"io.contiv.tenant": "red", "humanz.io/group": "red/web"})),
        ("g", json!({"humanz.io/ntework": "red/front", "other/network": "x"})),
    ] {
        let pod = try_add(host, &format!("plain/{names}-{name}"), words).unwrap();
        assert!(is_of_settings(&pod), "{}", pod.result);
    }
    let app = try_container(host, &format!("{names}-app"), "app=web").unwrap();
    assert!(is_of_settings(&app));
    // A configuration that asks nobody.
    let mut own = Network::of(host);
    own.plugins[0]["delegated"] = json!(false);
    let name = format!("{names}-own");
    make_netns(host, &name);
    let args = "IgnoreUnknown=1;humanz.io/network=red/front".to_owned();
    let own = Pod::connect(host, &own, Attachment { args, ..Attachment::new(&name) }).unwrap();
    assert!(is_of_settings(&own));
}

#[test]
fn a_pod_that_asks_for_a_network_where_there_is_none_does_not_start_in_another() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(POLICIES_OFF);
    all_lack(host, "off", "POLICY=on");
    agents[0].stop();
    let agent = Agent::start(host, FROM_ETCD);
    agent.wait_ready();
    all_lack(host, "none", "humanz-agent net ls");
    apply(host, &[network("red/front", json!({"subnets": ["10.33.0.0/16"]}))]);
    let mut number = 0;
    let pod = eventually("the network", SOON, || {
        number += 1;
        let pod = try_add(host, &format!("plain/late{number}"), ways()[0].clone());
        pod.map_err(|error| error.to_string())
    });
    assert!(is_in(pod.v4(), "10.33.0.0/16"));
    agent.stop();
}
