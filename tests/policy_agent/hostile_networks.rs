//! `Network` objects in etcd that nobody's command has checked: each is one problem, no host has addresses of it, and
//! pods of all other networks start and run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, Node, Place, eventually, local, soon, wait};
use crate::tenants::{
    add, blocks, is_apart, is_in, namespace, network, reaches, try_add, two_tenants,
};

const ROOT: &str = "/humanz/v1-policies/Network";

/// The object of the network `evil/NAME`.
fn evil(name: &str, spec: Value) -> Vec<u8> {
    network(&format!("evil/{name}"), spec).to_string().into_bytes()
}

/// Values of networks of the tenant `evil`, by name, each with what its problem says.
type Hostile = BTreeMap<&'static str, (Vec<u8>, &'static str)>;

fn hostile() -> Hostile {
    let of_spec = |(name, spec, why)| (name, (evil(name, spec), why));
    let of_value = |(name, value, why)| (name, (value, why));
    let specs = specs().into_iter().map(of_spec);
    specs.chain(values().into_iter().map(of_value)).collect()
}

fn specs() -> Vec<(&'static str, Value, &'static str)> {
    let of = |subnets: Value| json!({"subnets": subnets});
    let with = |key: &str, value: Value| json!({"subnets": ["10.60.0.0/16"], key: value});
    let long_key = "x".repeat(100_000);
    vec![
        ("hostbits", of(json!(["10.63.7.9/16"])), "the subnet is 10.63.0.0/16"),
        ("noroom", of(json!(["10.64.0.0/26"])), "is not wider than a block"),
        ("one", of(json!(["10.64.1.1/32"])), "is not wider than a block"),
        ("none", of(json!([])), "subnets is missing"),
        ("everything", of(json!(["0.0.0.0/0"])), "subnets[0]"),
        ("loopback", of(json!(["127.0.0.0/8"])), "is every host's own"),
        ("multicast", of(json!(["ff00::/16"])), "subnets[0]"),
        ("second", of(json!(["10.65.0.0/16", "10.66.0.0/16"])), "is a second IPv4"),
        ("number", of(json!(7)), "must be a list"),
        ("numbers", of(json!([7, null])), "must be a text"),
        ("shell", of(json!(["$(reboot)"])), "is not a subnet"),
        ("mtu", with("mtu", json!("big")), "mtu: must be"),
        ("nat", with("nat", json!(1)), "nat: must be true"),
        ("field", with("gateway", json!("10.60.0.1")), "\"gateway\" is not known"),
        ("wordy", with(&long_key, json!(1)), "is not known"),
        ("text", json!("10.69.0.0/16"), "must be an object"),
        ("list", json!([]), "must be an object"),
    ]
}

fn values() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let object = |name: &str| network(name, json!({"subnets": ["10.62.0.0/16"]}));
    let text = |value: Value| value.to_string().into_bytes();
    let with = |name: &str, key: &str, value: Value| {
        let mut object = object(&format!("evil/{name}"));
        object[key] = value;
        text(object)
    };
    let mut long = text(object("evil/long"));
    long.resize(1 << 20, b' ');
    let two = text(json!([object("evil/two"), object("evil/x")]));
    vec![
        ("long", long, "more than 524288 bytes"),
        ("garbled", b"{\"apiVersion\": ".to_vec(), "what this host knew of it holds"),
        ("binary", b"\xff\x00\xfe".to_vec(), "is not UTF-8"),
        ("deep", "[".repeat(10_000).into_bytes(), "what this host knew of it holds"),
        ("empty", Vec::new(), "is not one object"),
        ("two", two, "is not one object"),
        ("unlike", text(object("evil/other")), "it is about Network evil/other"),
        ("tenant", text(object("blue/tenant")), "it is about Network blue/tenant"),
        ("kind", with("kind", "kind", json!("Group")), "it is about Group"),
        ("version", with("version", "apiVersion", json!("humanz.io/v9")), "is not kept in etcd"),
        ("nameless", with("nameless", "metadata", json!({})), "metadata.name is missing"),
    ]
}

/// What is said of policies, by its subject.
fn problems(host: &Node) -> Vec<(String, String)> {
    let status = local::status(host);
    let all = status["problems"].as_array().unwrap().iter();
    let text = |problem: &Value, key: &str| problem[key].as_str().unwrap_or_default().to_owned();
    let own = all.filter(|problem| problem["kind"] == "policy");
    own.map(|problem| (text(problem, "subject"), text(problem, "what"))).collect()
}

/// Each of `values` is one problem on `host`, and there is no other.
fn are_reported(host: &Node, values: &Hostile) {
    let is_about = |subject: &str, name: &str| {
        subject == format!("Network evil/{name}") || subject.ends_with(&format!("/evil/{name}"))
    };
    eventually("one problem of each object", wait::SOON, || {
        let found = problems(host);
        for (name, (_, why)) in values {
            let own: Vec<_> = found.iter().filter(|(subject, _)| is_about(subject, name)).collect();
            match own[..] {
                [(_, what)] if what.contains(why) && what.len() < 500 => {}
                _ => return Err(format!("{name}: {own:?}")),
            }
        }
        if found.len() == values.len() { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// Pods of the namespace `evil` may have every network of the tenant.
fn let_ask(cluster: &Cluster) {
    let rule = namespace("evil", json!({"tenant": "evil", "network": "none", "allow": ["*"]}));
    cluster.etcd.put("/humanz/v1-policies/NamespaceRule/evil", rule.to_string());
}

#[test]
fn hostile_networks_are_one_problem_each_and_harm_no_other_network() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let_ask(&cluster);
    let agents = cluster.start_agents(FROM_ETCD);
    let [blue1, blue2, red1] =
        [(h1, "blue/a"), (h2, "blue/b"), (h1, "red/a")].map(|(host, pod)| add(host, pod));
    soon("both hosts", || reaches(&blue1, &blue2));
    let (values, before) = (hostile(), blocks(&cluster));
    for (name, (value, _)) in &values {
        cluster.etcd.put(&format!("{ROOT}/evil/{name}"), value.clone());
    }
    for host in [h1, h2] {
        are_reported(host, &values);
    }
    for name in values.keys() {
        let asks = json!({"humanz.io/network": name});
        let Err(refused) = try_add(h1, &format!("evil/{name}"), asks) else {
            panic!("a pod started in evil/{name}")
        };
        assert!([7, 11].contains(&refused.code), "{name}: {refused}");
        h1.run(&format!("ip netns del evil-{name}")).ok();
    }
    assert_eq!(blocks(&cluster), before, "nobody leased anything");
    // Others start, also after a restart by what is on disk and in etcd.
    agents[0].stop();
    let again = Agent::start(h1, FROM_ETCD);
    again.wait_ready();
    are_reported(h1, &values);
    let [blue3, plain] = ["blue/c", "plain/a"].map(|pod| add(h1, pod));
    assert!(is_in(blue3.v4(), "10.32.0.0/16") && is_in(plain.v4(), "10.244.0.0/16"));
    soon("the new pod", || reaches(&blue3, &blue2) && reaches(&blue2, &blue1));
    assert!(is_apart(&red1, &blue2));
    for name in values.keys() {
        cluster.etcd.delete(&format!("{ROOT}/evil/{name}"));
    }
    soon("the end of all problems", || problems(h1).is_empty() && problems(h2).is_empty());
    [&again, &agents[1]].into_iter().for_each(Agent::stop);
}

#[test]
fn networks_that_overlap_each_other_or_the_settings_get_no_block_and_close_no_third_one() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let_ask(&cluster);
    let agents = cluster.start_agents(FROM_ETCD);
    let [blue1, blue2] = [(h1, "blue/a"), (h2, "blue/b")].map(|(host, pod)| add(host, pod));
    soon("both hosts", || reaches(&blue1, &blue2));
    let before = blocks(&cluster);
    let put = |name: &str, subnet: &str| {
        cluster.etcd.put(&format!("{ROOT}/evil/{name}"), evil(name, json!({"subnets": [subnet]})));
    };
    for (name, subnet) in
        [("wide", "10.80.0.0/16"), ("part", "10.80.4.0/22"), ("settings", "10.244.128.0/17")]
    {
        put(name, subnet);
    }
    for host in [h1, h2] {
        eventually("one problem of each overlap", wait::SOON, || {
            let mut found = problems(host);
            found.sort();
            let subjects: Vec<&str> = found.iter().map(|(subject, _)| subject.as_str()).collect();
            let all = subjects == ["Network evil/part", "Network evil/settings"];
            if all { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }
    for name in ["wide", "part", "settings"] {
        let asks = json!({"humanz.io/network": name});
        let refused = try_add(h2, &format!("evil/{name}"), asks).err().unwrap();
        let why = "its addresses are not its own";
        assert!(refused.code == 11 && refused.to_string().contains(why), "{name}: {refused}");
    }
    assert_eq!(blocks(&cluster), before, "nobody leased anything");
    let [blue3, plain] = ["blue/c", "plain/a"].map(|pod| add(h2, pod));
    assert!(is_in(plain.v4(), "10.244.0.0/16"));
    soon("the new pod", || reaches(&blue3, &blue1));

    // One over a network with pods: they run on; others wait for its end.
    put("blue", "10.32.0.0/17");
    local::wait_problem(h1, "policy", "Network evil/blue");
    assert!(reaches(&blue1, &blue2) && reaches(&blue2, &blue3));
    assert_eq!(try_add(h1, "blue/late", json!({})).err().unwrap().code, 11);
    assert_eq!(blocks(&cluster), before);
    cluster.etcd.delete(&format!("{ROOT}/evil/blue"));
    let late = eventually("a pod of the network", wait::SOON, || {
        h1.run("ip netns del blue-late");
        try_add(h1, "blue/late", json!({})).map_err(|error| error.to_string())
    });
    soon("the late pod", || reaches(&late, &blue2));
    agents.iter().for_each(Agent::stop);
}
