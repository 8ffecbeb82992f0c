//! Networks of tenants: hosts lease blocks of them, and pods have addresses there.

use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::cni::{Attachment, Failure, Network};
use crate::support::ping::round_trip;
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, facts, local, soon};

/// Blocks without pods go after a second.
pub const SOON_GIVEN_BACK: &[(&str, &str)] =
    &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "on"), ("BLOCK_RELEASE_AFTER", "1s")];

pub fn network(name: &str, spec: Value) -> Value {
    let (tenant, name) = name.split_once('/').unwrap();
    json!({"apiVersion": "humanz.io/v1", "kind": "Network",
        "metadata": {"tenant": tenant, "name": name}, "spec": spec})
}

pub fn namespace(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule", "metadata": {"name": name}, "spec": spec})
}

/// Two tenants, each with a namespace of its name, and a network of both families.
pub fn two_tenants() -> Vec<Value> {
    vec![
        network("blue/front", json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"]})),
        network("red/front", json!({"subnets": ["10.33.0.0/16", "fd00:33::/64"], "nat": false})),
        namespace("blue", json!({"tenant": "blue", "network": "front"})),
        namespace("red", json!({"tenant": "red", "network": "front"})),
    ]
}

/// The same, with a further network of one of them and a namespace that may have both.
pub fn with_two_networks() -> Vec<Value> {
    let more = [
        network("blue/back", json!({"subnets": ["10.34.0.0/16", "fd00:34::/64"]})),
        namespace("shop", json!({"tenant": "blue", "network": "front", "allow": ["back"]})),
    ];
    [two_tenants(), more.into()].concat()
}

/// A pod `namespace/name` that says this of itself.
pub fn try_add(host: &Node, pod: &str, annotations: Value) -> Result<Pod, Box<Failure>> {
    let (namespace, name) = pod.split_once('/').unwrap();
    let container = format!("{namespace}-{name}");
    make_netns(host, &container);
    let args =
        format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};app={name}");
    let runtime = json!({"io.kubernetes.cri.pod-annotations": annotations});
    let attachment = Attachment { args, runtime, ..Attachment::new(&container) };
    Pod::connect(host, &Network::of(host), attachment)
}

pub fn add(host: &Node, pod: &str) -> Pod {
    try_add(host, pod, json!({})).unwrap_or_else(|error| panic!("{pod}: ADD: {error}"))
}

pub fn is_in(address: IpAddr, network: &str) -> bool {
    network.parse::<ipnetwork::IpNetwork>().unwrap().contains(address)
}

pub fn blocks(cluster: &Cluster) -> Vec<String> {
    let keys = cluster.etcd.list("/humanz/v1-blocks/");
    keys.into_iter().map(|(key, _)| key["/humanz/v1-blocks/".len()..].to_owned()).collect()
}

pub fn reaches(from: &Pod, to: &Pod) -> bool {
    [to.v4(), to.v6()].into_iter().all(|address| round_trip(from, address).is_ok())
}

pub fn is_apart(from: &Pod, to: &Pod) -> bool {
    [to.v4(), to.v6()].into_iter().all(|address| {
        let ping = from.run(&format!("ping -n -c 1 -W 1 {address}"));
        ping.stdout.contains(" 100% packet loss")
    })
}

#[test]
fn pods_of_two_tenants_have_addresses_of_their_networks_and_do_not_reach_each_other() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [(h1, "blue/a"), (h2, "blue/b"), (h1, "red/a"), (h2, "red/b"), (h1, "plain/a")];
    let [blue1, blue2, red1, red2, plain] = pods.map(|(host, pod)| add(host, pod));
    for pod in [&blue1, &blue2] {
        assert!(
            is_in(pod.v4(), "10.32.0.0/16") && is_in(pod.v6(), "fd00:32::/64"),
            "{}",
            pod.result
        );
    }
    for pod in [&red1, &red2] {
        assert!(
            is_in(pod.v4(), "10.33.0.0/16") && is_in(pod.v6(), "fd00:33::/64"),
            "{}",
            pod.result
        );
    }
    assert!(is_in(plain.v4(), "10.244.0.0/16"));
    let held = blocks(&cluster);
    assert_eq!(held.len(), 8, "one of each network, family and host: {held:?}");
    assert!(held.iter().all(|key| key.ends_with("-26") || key.ends_with("-122")), "{held:?}");
    for (from, to) in [(&blue1, &blue2), (&blue2, &blue1), (&red1, &red2), (&red2, &red1)] {
        soon(&format!("{} reaches {}", from.label(), to.label()), || reaches(from, to));
    }
    // On another host, and on the same one, where the bridge would do.
    for (from, to) in [
        (&blue1, &red2),
        (&red2, &blue1),
        (&blue1, &red1),
        (&red1, &blue1),
        (&plain, &blue1),
        (&blue1, &plain),
    ] {
        assert!(is_apart(from, to), "{} reaches {}", from.label(), to.label());
    }
    // What leaves the cluster has the node's address, if the network says nothing else.
    assert!(round_trip(&blue1, cluster.outside.v4().into()).is_ok());
    assert!(
        round_trip(&red1, cluster.outside.v4().into()).is_err(),
        "its own address gets no answer"
    );
    assert!(round_trip(&plain, cluster.outside.v4().into()).is_ok());
    for pod in [&blue1, &blue2, &red1, &red2, &plain] {
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    }
    let latest = Network::of(h1).with_version("1.1.0");
    latest.status(h1).unwrap();
    let attachments = [&blue1.attachment, &plain.attachment];
    latest.gc(h1, &attachments).unwrap();
    assert!(reaches(&blue2, &blue1), "GC keeps what is valid");
    assert!(is_apart(&blue2, &red1), "and removes what is not");
    blue2.delete();
    let again = add(h2, "blue/again");
    soon("the next pod", || reaches(&again, &blue1));
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_pod_gets_no_network_that_its_namespace_does_not_allow() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let more = [
        network("blue/back", json!({"subnets": ["10.34.0.0/16"], "hostPorts": false})),
        namespace("shop", json!({"tenant": "blue", "network": "front", "allow": ["back"]})),
    ];
    apply(host, &[two_tenants(), more.into()].concat());
    let _agents = cluster.start_agents(FROM_ETCD);
    let word = |network: &str| json!({"humanz.io/network": network});
    let back = try_add(host, "shop/a", word("back")).unwrap();
    assert!(is_in(back.v4(), "10.34.0.0/16"));
    let contiv = json!({"io.contiv.network": "back", "io.contiv.tenant": "blue"});
    assert!(is_in(try_add(host, "shop/b", contiv).unwrap().v4(), "10.34.0.0/16"));
    for (pod, asked, code) in [
        ("shop/c", word("red/front"), 7),
        ("shop/d", json!({"humanz.io/network": "front", "humanz.io/tenant": "red"}), 7),
        ("blue/e", word("blue/back"), 7),
        ("shop/f", word("../../etc"), 7),
        ("shop/g", word("nothing"), 7),
    ] {
        let refused = try_add(host, pod, asked).err().unwrap_or_else(|| panic!("{pod} started"));
        assert_eq!(refused.code, code, "{pod}: {refused}");
        assert!(refused.to_string().contains("network"), "{refused}");
    }
    assert_eq!(facts::veths(host).len(), 2, "nothing is left of the others");
    // A configuration that asks nobody.
    let mut own = Network::of(host);
    own.plugins[0]["delegated"] = json!(false);
    make_netns(host, "own");
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=own".to_owned();
    let own = Pod::connect(host, &own, Attachment { args, ..Attachment::new("own") }).unwrap();
    assert!(is_in(own.v4(), "10.244.0.0/16"));
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "io.kubernetes.cri.pod-annotations": word("back")});
    make_netns(host, "ports");
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=ports".to_owned();
    let attachment = Attachment { args, runtime: ports, ..Attachment::new("ports") };
    let refused = Pod::connect(host, &Network::of(host), attachment).err().unwrap();
    assert!(refused.code == 7 && refused.to_string().contains("hostPorts"), "{refused}");
}

/// Five pods for each block of eight addresses.
pub fn small(subnet: &str) -> [Value; 2] {
    [
        network("blue/small", json!({"subnets": [subnet], "blocks": {"v4": 29}})),
        namespace("blue", json!({"tenant": "blue", "network": "small"})),
    ]
}

#[test]
fn a_full_block_is_followed_by_another_and_empty_ones_are_given_back() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &small("10.35.0.0/24"));
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let pods: Vec<Pod> = (0..12).map(|number| add(h1, &format!("blue/p{number}"))).collect();
    let mut addresses: Vec<IpAddr> = pods.iter().map(Pod::v4).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 12);
    assert_eq!(blocks(&cluster).len(), 3, "{:?}", blocks(&cluster));
    let far = add(h2, "blue/far");
    for pod in &pods {
        soon(&pod.label(), || round_trip(&far, pod.v4()).is_ok());
        assert!(round_trip(&pods[0], pod.v4()).is_ok(), "{}", pod.label());
    }
    let mut pods = pods;
    let last = pods.remove(0);
    pods.into_iter().for_each(Pod::delete);
    let kept = eventually("blocks without pods to be given back", SOON, || {
        let held = blocks(&cluster);
        if held.len() == 2 { Ok(held) } else { Err(format!("{held:?}")) }
    });
    assert!(kept.iter().any(|key| key.starts_with("h2/")), "{kept:?}");
    let gateways = |host: &Node| {
        let addresses = facts::addresses(host, "humanz0");
        addresses.into_iter().filter(|it| it.starts_with("10.35.")).count()
    };
    soon("gateways of former blocks to go", || gateways(h1) == 1 && gateways(h2) == 1);
    soon("routes to former blocks to go", || {
        facts::routes(h2).keys().filter(|to| to.starts_with("10.35.")).count() == 1
    });
    assert!(round_trip(&far, last.v4()).is_ok());
    // A network with pods stays.
    Agent::run(h1, "policy rm NamespaceRule blue", FROM_ETCD).ok();
    let refused = Agent::run(h1, "policy rm Network blue/small", FROM_ETCD);
    assert!(refused.stderr.contains("hosts have blocks of 10.35.0.0/24 (h1, h2)"), "{refused}");
    [last, far].into_iter().for_each(Pod::delete);
    eventually("the network to be removed", SOON, || {
        let removed = Agent::run(h1, "policy rm Network blue/small", FROM_ETCD);
        if removed.succeeded() { Ok(()) } else { Err(removed.to_string()) }
    });
    soon("the file for plugins to go", || h1.read("/run/humanz/ipam/.networks.json").is_none());
    agents.iter().for_each(Agent::stop);
}

#[test]
fn of_two_hosts_that_want_the_last_block_one_gets_it() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &small("10.35.0.0/28"));
    let _agents = cluster.start_agents(SOON_GIVEN_BACK);
    let mut pods: Vec<Pod> = (0..5).map(|number| add(h1, &format!("blue/p{number}"))).collect();
    let both = std::thread::scope(|scope| {
        let adds = [(h1, "blue/x1"), (h2, "blue/x2")]
            .map(|(host, pod)| scope.spawn(move || try_add(host, pod, json!({}))));
        adds.map(|add| add.join().unwrap())
    });
    let [first, second] = both;
    let (got, refused) = match (first, second) {
        (Ok(got), Err(refused)) | (Err(refused), Ok(got)) => (got, refused),
        (first, second) => panic!("{:?} {:?}", first.is_ok(), second.is_ok()),
    };
    assert_eq!(refused.code, 11, "{refused}");
    assert!(refused.to_string().contains("no block of 10.35.0.0/28"), "{refused}");
    assert!(pods.iter().all(|pod| pod.v4() != got.v4()));
    assert_eq!(blocks(&cluster).len(), 2, "{:?}", blocks(&cluster));
    let loser = if is_on(&got, h1) { h2 } else { h1 };
    // Freed, it goes to the other host.
    got.delete();
    if loser.name() == "h1" {
        pods.truncate(5)
    } else {
        pods.drain(..).for_each(Pod::delete)
    }
    eventually("a block for the other host", SOON, || {
        let again = try_again(loser, "blue/later");
        again.map(drop).map_err(|error| error.to_string())
    });
}

fn is_on(pod: &Pod, host: &Node) -> bool {
    pod.label().starts_with(&format!("{}/", host.name()))
}

/// As a runtime does: in another namespace each time.
fn try_again(host: &Node, pod: &str) -> Result<Pod, Box<Failure>> {
    static TRIES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = TRIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    try_add(host, &format!("{pod}{number}"), json!({}))
}

#[test]
fn without_an_agent_pods_start_in_known_blocks_and_nothing_leaks_when_it_is_killed() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let first = add(host, "blue/a");
    // It is killed while a plugin waits for a block.
    agents[0].process.signal(Signal::SIGSTOP);
    let refused = std::thread::scope(|scope| {
        let waits = scope.spawn(|| try_add(host, "red/a", json!({})));
        std::thread::sleep(Duration::from_millis(500));
        agents[0].kill();
        waits.join().unwrap().err().unwrap()
    });
    assert_eq!(refused.code, 11, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("red/front") && text.contains("humanz-agent"), "{text}");
    assert_eq!(facts::veths(host).len(), 1, "no leak");
    // Its block is known.
    let second = add(host, "blue/b");
    let plain = add(host, "plain/a");
    assert!(first.v4() != second.v4() && is_in(plain.v4(), "10.244.0.0/16"));
    let agent = Agent::start(host, FROM_ETCD);
    agent.wait_ready();
    let third =
        eventually("a block", SOON, || try_again(host, "red/b").map_err(|error| error.to_string()));
    assert!(is_in(third.v4(), "10.33.0.0/16"));
    assert_eq!(blocks(&cluster).len(), 4, "{:?}", blocks(&cluster));
    soon("pods of one network", || round_trip(&first, second.v4()).is_ok());
    agent.stop();
}

#[test]
fn pods_of_networks_outlive_a_restart_without_etcd() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let [blue1, blue2, red1] =
        [(h1, "blue/a"), (h2, "blue/b"), (h1, "red/a")].map(|(h, p)| add(h, p));
    soon("both hosts", || reaches(&blue1, &blue2) && reaches(&blue2, &blue1));
    let before = [facts::addresses(h1, "humanz0"), facts::addresses(h2, "humanz0")];
    agents.iter().for_each(Agent::stop);
    cluster.etcd.kill();
    let agents = [h1, h2].map(|host| Agent::start(host, FROM_ETCD));
    for agent in &agents {
        agent.wait_ready();
    }
    assert!(reaches(&blue1, &blue2) && is_apart(&red1, &blue2));
    assert_eq!(before, [facts::addresses(h1, "humanz0"), facts::addresses(h2, "humanz0")]);
    let routes = facts::routes(h1);
    assert!(routes.keys().any(|to| to.starts_with("10.32.")), "{routes:?}");
    let third = add(h1, "blue/c");
    assert!(is_in(third.v4(), "10.32.0.0/16"));
    cluster.etcd.restart();
    soon("the new pod", || reaches(&third, &blue2));
    assert!(reaches(&blue1, &blue2));
    agents.iter().for_each(Agent::stop);
}

#[test]
fn hostile_keys_of_blocks_take_nothing_and_are_reported() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let [blue1, blue2] = [(h1, "blue/a"), (h2, "blue/b")].map(|(host, pod)| add(host, pod));
    soon("both hosts", || reaches(&blue1, &blue2));
    let held = blocks(&cluster);
    let own = held.iter().find(|key| key.starts_with("h1/10.32.")).unwrap();
    let stolen = own.strip_prefix("h1/").unwrap();
    let root = "/humanz/v1-blocks";
    for key in [
        &format!("nobody/{stolen}"),
        "h2/10.32.0.0-17",
        "h2/10.244.0.0-17",
        "h2/0.0.0.0-0",
        "nobody/10.32.128.0-17",
        "h2/$(reboot)",
        "x",
    ] {
        cluster.etcd.put(&format!("{root}/{key}"), "blue/front");
    }
    let subjects = [
        "host nobody".to_owned(),
        "host h2".to_owned(),
        format!("etcd key {root}/h2/$(reboot)"),
        format!("etcd key {root}/x"),
    ];
    local::status_when(h1, "the keys to be reported", |status| {
        subjects.iter().all(|it| local::problem(status, "other-host", it).is_some())
    });
    assert!(reaches(&blue1, &blue2) && reaches(&blue2, &blue1));
    // Overwritten, and deleted: the owner stays, and puts it back.
    cluster.etcd.put(&format!("{root}/{own}"), "red/front");
    cluster.etcd.delete(&format!("{root}/nobody/{stolen}"));
    // Who may delete keys of others, and has one over the same addresses, has them then: roles forbid the first.
    cluster.etcd.delete(&format!("{root}/nobody/10.32.128.0-17"));
    cluster.etcd.delete(&format!("{root}/{own}"));
    soon("the key to be put back", || cluster.etcd.get(&format!("{root}/{own}")).is_some());
    soon("both hosts again", || reaches(&blue1, &blue2) && reaches(&blue2, &blue1));
    let next = add(h1, "blue/c");
    soon("the next pod", || reaches(&next, &blue2));
    agents.iter().for_each(Agent::stop);
    // A file that is garbled closes, and says so.
    h1.write("/run/humanz/ipam/.networks.json", "{\"networks\":[[");
    let refused = try_add(h1, "blue/d", json!({})).err().unwrap();
    assert!(refused.code == 11 && refused.to_string().contains(".networks.json"), "{refused}");
}

fn host_file(host: &Node, path: &str) -> String {
    host.read(path).unwrap_or_else(|| panic!("{path} is missing"))
}

#[test]
fn blocks_of_networks_are_reached_through_tunnels() {
    let cluster = Cluster::routed(1, 1);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [
        (h1, "blue/a"),
        (h2, "blue/b"),
        (h1, "red/a"),
        (h2, "red/b"),
        (h1, "plain/a"),
        (h2, "plain/b"),
    ];
    let [blue1, blue2, red1, red2, plain1, plain2] = pods.map(|(host, pod)| add(host, pod));
    for (from, to) in [(&blue1, &blue2), (&blue2, &blue1), (&red1, &red2), (&plain1, &plain2)] {
        soon(&format!("{} reaches {}", from.label(), to.label()), || reaches(from, to));
    }
    assert!(is_apart(&blue1, &red2) && is_apart(&red1, &blue2) && is_apart(&plain1, &blue2));
    agents.iter().for_each(Agent::stop);
}

/// Whoever removes a host that lives gives its blocks to others: it comes back without them.
#[test]
fn a_host_that_was_removed_starts_no_pod_in_a_block_that_another_one_has() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &small("10.35.0.0/28"));
    let agents = cluster.start_agents(FROM_ETCD);
    let former = add(h2, "blue/former");
    let pods: Vec<Pod> = (0..5).map(|number| add(h1, &format!("blue/p{number}"))).collect();
    agents[1].kill();
    Agent::run(h1, "nodes rm h2 --force", FROM_ETCD).ok();
    assert!(blocks(&cluster).iter().all(|key| key.starts_with("h1/")), "{:?}", blocks(&cluster));
    let sixth = add(h1, "blue/p5");
    let block = |address: IpAddr| ipnetwork::IpNetwork::new(address, 29).unwrap().network();
    assert_eq!(block(sixth.v4()), block(former.v4()), "the free block was that of h2");
    let again = Agent::start(h2, SOON_GIVEN_BACK);
    again.wait_ready();
    eventually("the refusal, once the agent has read etcd", SOON, || {
        let Err(refused) = try_again(h2, "blue/later") else { panic!("an address of h1's block") };
        let is_it = refused.code == 11 && refused.to_string().contains("no block of");
        if is_it { Ok(()) } else { Err(refused.to_string()) }
    });
    for pod in &pods {
        assert!(pod.v4() != former.v4() && pod.v4() != sixth.v4());
    }
    // It says so, everywhere where problems are.
    let lost = format!("block {}/29", block(former.v4()));
    let problem = local::wait_problem(h2, "lease", &lost);
    let what = problem["what"].as_str().unwrap();
    for (subcommand, words) in [("status", "nodes rm h1"), ("doctor", what)] {
        let shown = Agent::run(h2, subcommand, FROM_ETCD).stdout;
        assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{shown}");
    }
    let counted = || {
        local::get(h2, "/metrics")
            .1
            .contains("humanz_problems{kind=\"lease\",severity=\"error\"} 1")
    };
    assert!(counted());
    // Once its former pod is gone, so is the last of the block.
    former.delete();
    local::status_when(h2, "no lost block", |status| !local::has_problem(status, "lease"));
    assert!(!counted());
    soon("the gateway of the lost block to go", || {
        facts::addresses(h2, "humanz0").iter().all(|it| !it.starts_with("10.35."))
    });
    let seen = Agent::run(h1, "ipam ls", FROM_ETCD);
    assert!(seen.stdout.contains("blue/small"), "{seen}");
    let status = local::status(h1);
    let blocks = status["lease"]["blocks"].as_array().unwrap();
    assert!(
        !blocks.is_empty() && blocks.iter().all(|it| it["network"] == "blue/small"),
        "{status}"
    );
    again.stop();
    agents[0].stop();
    h1.write("/run/humanz/ipam/.networks.json", "{");
    let unknown = Agent::run(h1, "ipam ls", FROM_ETCD);
    let fault = "networks of tenants are not known: /run/humanz/ipam/.networks.json: EOF";
    assert!(unknown.status.code() == Some(1) && unknown.stdout.contains(fault), "{unknown}");
}

/// Nothing that was kept says then that READY has to wait for the blocks, and the plugin has the file of before.
#[test]
fn a_host_that_was_removed_and_kept_no_policies_starts_no_pod_in_a_block_that_another_one_has() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &small("10.35.0.0/28"));
    let mut agents = cluster.start_agents(FROM_ETCD);
    let former = add(h2, "blue/former");
    let _pods: Vec<Pod> = (0..5).map(|number| add(h1, &format!("blue/p{number}"))).collect();
    let kept = || h2.list("/var/lib/humanz").contains(&"policy.json".to_owned());
    soon("policies to be kept", kept);
    agents.remove(1).kill();
    Agent::run(h1, "nodes rm h2 --force", FROM_ETCD).ok();
    let _taker = add(h1, "blue/p5");
    for turn in 0..3 {
        // As it is while newer policies are in force than were kept.
        h2.run("mv /var/lib/humanz/policy.json /var/lib/humanz/policy.json.outdated").ok();
        let again = Agent::start(h2, FROM_ETCD);
        again.wait_ready();
        loop {
            let refused = try_again(h2, "blue/later").err();
            let refused = refused.unwrap_or_else(|| panic!("turn {turn}: an address of h1"));
            assert_eq!(refused.code, 11, "{refused}");
            if refused.to_string().contains("no block of") {
                break;
            }
        }
        soon("what holds to be kept", kept);
        again.kill();
    }
    drop(former);
    agents.remove(0).stop();
}

/// Without the file a pod of a tenant would start in the network of the settings.
#[test]
fn a_lost_or_changed_file_of_networks_is_written_again_and_one_that_knows_none_starts_no_pod() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &small("10.35.0.0/28"));
    let agents = cluster.start_agents(FROM_ETCD);
    add(host, "blue/one").delete();
    let file = "/run/humanz/ipam/.networks.json";
    host.run(&format!("rm {file}")).ok();
    // Anything wakes the agent.
    apply(host, &[namespace("green", json!({}))]);
    let has_green = |text: String| text.contains("green");
    soon("the file to be there again", || host.read(file).is_some_and(has_green));
    let whole = host_file(host, file);
    for other in ["{", &whole.replace("10.35.", "10.99.")] {
        host.write(file, other);
        host.run("ip addr add 203.0.113.9/32 dev lo").ok();
        host.run("ip addr del 203.0.113.9/32 dev lo").ok();
        soon("the file to be as it was", || host_file(host, file) == whole);
    }
    agents.iter().for_each(Agent::stop);
    let mut plans: Value = serde_json::from_str(&host_file(host, file)).unwrap();
    plans["cluster"] = Value::Null;
    host.write(file, &plans.to_string());
    let refused = try_again(host, "green/two").err().unwrap();
    assert_eq!(refused.code, 11, "{refused}");
    let why = "does not know yet which networks there are";
    assert!(refused.to_string().contains(why), "{refused}");
}

/// Something is in its place, or the folder cannot be made.
#[test]
fn a_file_of_networks_that_cannot_be_written_is_a_problem_until_it_can() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &small("10.35.0.0/28"));
    let agents = cluster.start_agents(FROM_ETCD);
    let file = "/run/humanz/ipam/.networks.json";
    soon("the file", || host.read(file).is_some());
    // The agent may still write it.
    host.shell(&format!("until rm -f {file} && mkdir {file}; do :; done")).ok();
    // Anything wakes the agent.
    apply(host, &[namespace("green", json!({}))]);
    let subject = format!("plan of networks {file}");
    let problem = local::wait_problem(host, "change-failed", &subject);
    assert_eq!(problem["fix"], "a directory is in the way: remove it", "{problem}");
    host.run(&format!("rmdir {file}")).ok();
    apply(host, &[namespace("red", json!({}))]);
    soon("the file again", || host.read(file).is_some());
    local::status_when(host, "no problem", |status| !local::has_problem(status, "change-failed"));
    agents.iter().for_each(Agent::stop);

    host.shell("mkdir /run/read-only; mount -t tmpfs -o ro none /run/read-only").ok();
    let settings = [FROM_ETCD, &[("IPAM_DIR", "/run/read-only/ipam")]].concat();
    let agent = Agent::start(host, &settings);
    soon("the agent answers", || local::connect(host).is_ok());
    let subject = "plan of networks /run/read-only/ipam/.networks.json";
    let problem = local::wait_problem(host, "change-failed", subject);
    assert!(problem["fix"].as_str().unwrap().starts_with("findmnt # "), "{problem}");
    agent.stop();
}
