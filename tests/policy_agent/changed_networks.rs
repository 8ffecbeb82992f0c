//! Networks that change while a host does not learn of it.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::etcd::{FROM_ETCD, apply};
use crate::support::ping::round_trip;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, local, soon};
use crate::tenants::{
    SOON_GIVEN_BACK, add, blocks, is_apart, is_in, namespace, network, reaches, try_add,
    two_tenants,
};

/// Blocks that a host has for any pods, below this range.
fn for_any_pods(cluster: &Cluster, range: &str) -> Vec<String> {
    let range: ipnetwork::IpNetwork = range.parse().unwrap();
    let is_there = |key: &String| {
        let (address, prefix) = key.split_once('/').unwrap().1.rsplit_once('-').unwrap();
        range.contains(address.parse().unwrap()) && prefix != "30"
    };
    blocks(cluster).into_iter().filter(is_there).collect()
}

/// A plugin waits in the queue of the agent's socket.
fn waits(host: &Node) -> bool {
    let sockets = host.run("cat /proc/net/unix").stdout;
    sockets.lines().filter(|line| line.contains("policy.sock")).count() > 1
}

#[test]
fn a_host_that_does_not_know_of_pins_takes_no_block_of_their_addresses() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let plain = || network("blue/front", json!({"subnets": ["10.32.0.0/24"]}));
    let humanz = |line: &str| drop(Agent::run(h2, line, FROM_ETCD).ok());
    apply(h2, &[plain(), namespace("shop", json!({"tenant": "blue", "network": "front"}))]);
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let start = |pod: &str| -> Pod {
        eventually(&format!("{pod} to start"), SOON, || {
            h1.run(&format!("ip netns del {}", pod.replace('/', "-")));
            try_add(h1, pod, json!({})).map_err(|error| error.to_string())
        })
    };
    // The block that this host takes first, and again.
    let first = start("shop/first");
    let key = blocks(&cluster).into_iter().find(|key| key.starts_with("h1/")).unwrap();
    let block = key["h1/".len()..].replace('-', "/");
    first.delete();
    for round in 0..5 {
        soon("all blocks to be given back", || blocks(&cluster).is_empty());
        agents[0].process.signal(Signal::SIGSTOP);
        humanz(&format!("net set blue/front --pins {block}"));
        let name = format!("shop/new{round}");
        let pod = std::thread::scope(|scope| {
            let added = scope.spawn(|| try_add(h1, &name, json!({})));
            soon("its plugin to wait", || waits(h1));
            agents[0].process.signal(Signal::SIGCONT);
            added.join().unwrap()
        });
        let taken = for_any_pods(&cluster, &block);
        assert!(taken.is_empty(), "round {round}: {block} is kept for pins, and taken: {taken:?}");
        let pod = pod.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(!is_in(pod.v4(), &block), "{}", pod.result);
        pod.delete();
        apply(h2, &[plain()]);
        // So that the next round begins where this one did.
        let again = eventually("the host to learn of it", SOON, || {
            let again = start(&format!("shop/again{round}"));
            match is_in(again.v4(), &block) {
                true => Ok(again),
                false => {
                    let address = again.v4();
                    again.delete();
                    soon("its block to go", || blocks(&cluster).is_empty());
                    Err(format!("{address} is not in {block}"))
                }
            }
        });
        again.delete();
    }
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_network_in_use_is_widened_and_its_pods_stay() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let small = json!({"subnets": ["10.35.0.0/29"], "blocks": {"v4": 30}});
    let shop = namespace("shop", json!({"tenant": "blue", "network": "small"}));
    apply(host, &[network("blue/small", small), shop]);
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = ["shop/a", "shop/b"].map(|pod| add(host, pod));
    let full = try_add(host, "shop/c", json!({})).err().unwrap();
    assert_eq!(full.code, 11, "{full}");
    host.run("ip netns del shop-c").ok();
    let problem = local::wait_problem(host, "pool-full", "subnet 10.35.0.0/29");
    let fix = "humanz-agent net show blue/small # widen it, by --cidr of net set";
    assert_eq!(problem["fix"], fix);
    let set = |cidr: &str, more: &str| {
        Agent::run(host, &format!("net set blue/small --cidr {cidr}{more}"), FROM_ETCD)
    };
    for (cidr, more) in [
        ("10.35.0.0/30", " --block-v4 30"),
        ("10.36.0.0/28", ""),
        ("10.35.0.0/28", " --block-v4 29"),
    ] {
        let refused = set(cidr, more);
        assert_eq!(refused.status.code(), Some(1), "{cidr}: {refused}");
    }
    assert_eq!(set("10.35.0.0/28", "").ok(), "~ Network blue/small\n");
    local::status_when(host, "room in the network", |status| {
        !local::has_problem(status, "pool-full")
    });
    let more = ["shop/c", "shop/d"].map(|pod| {
        eventually(&format!("{pod} to start"), SOON, || {
            host.run(&format!("ip netns del {}", pod.replace('/', "-")));
            try_add(host, pod, json!({})).map_err(|error| error.to_string())
        })
    });
    assert!(more.iter().all(|pod| is_in(pod.v4(), "10.35.0.8/29")));
    for pod in &pods {
        soon("the pods of before", || round_trip(&more[0], pod.v4()).is_ok());
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    }
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_network_is_full_until_a_pod_or_a_block_of_another_host_goes() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let small = json!({"subnets": ["10.35.0.0/29"], "blocks": {"v4": 30}});
    let shop = namespace("shop", json!({"tenant": "blue", "network": "small"}));
    apply(h1, &[network("blue/small", small), shop]);
    let settings = [SOON_GIVEN_BACK, &[("RESYNC_INTERVAL", "1s")]].concat();
    let agents = cluster.start_agents(&settings);
    let [a, b] = [add(h1, "shop/a"), add(h2, "shop/b")];
    let is_full = |host: &Node, wanted: bool| {
        local::status_when(host, &format!("full: {wanted}"), |status| {
            local::problem(status, "pool-full", "subnet 10.35.0.0/29").is_some() == wanted
        })
    };
    // Nobody was refused yet.
    is_full(h1, false);
    let refused = || {
        let refused = try_add(h1, "shop/c", json!({})).err().unwrap();
        assert_eq!(refused.code, 11, "{refused}");
        h1.run("ip netns del shop-c").ok();
    };
    refused();
    is_full(h1, true);
    is_full(h2, false);
    a.delete();
    is_full(h1, false);
    let a = add(h1, "shop/a");
    refused();
    is_full(h1, true);
    b.delete();
    is_full(h1, false);
    let c = add(h1, "shop/c");
    [a, c].into_iter().for_each(Pod::delete);
    agents.iter().for_each(Agent::stop);
}

/// etcd lost networks and blocks alike: hosts put their blocks back, and the networks' objects come back to them.
#[test]
fn networks_are_applied_again_after_a_loss_of_data_while_pods_run() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let [a, b, red] = [add(h1, "blue/a"), add(h2, "blue/b"), add(h1, "red/a")];
    soon("the other host", || reaches(&a, &b));
    let before = blocks(&cluster);
    cluster.etcd.restart_empty();
    eventually("hosts to put their blocks back", 3 * SOON, || {
        let now = blocks(&cluster);
        if now == before { Ok(()) } else { Err(format!("{now:?}, not {before:?}")) }
    });
    let named = cluster.etcd.list("/humanz/v1-blocks/");
    assert!(named.iter().all(|(_, network)| network.contains('/')), "{named:?}");
    // A network that takes their addresses is refused, and those that they were of are not.
    let other = network("red/other", json!({"subnets": ["10.32.0.0/16"]}));
    h1.write("/etc/objects.json", &json!([other]).to_string());
    let refused = Agent::run(h1, "policy apply -f /etc/objects.json", FROM_ETCD);
    assert!(refused.stderr.contains("hosts have blocks of 10.32.0.0/16"), "{refused}");
    apply(h1, &two_tenants());
    let late = add(h1, "blue/late");
    assert!(is_in(late.v4(), "10.32.0.0/16"), "{}", late.result);
    soon("both hosts", || reaches(&late, &b) && reaches(&a, &b));
    assert!(!reaches(&red, &b) && !reaches(&red, &late));
    assert_eq!(blocks(&cluster), before);
    agents.iter().for_each(Agent::stop);
}

/// Somebody deletes the key of a network, or etcd loses all of them and gets them back one by one.
#[test]
fn a_network_whose_object_is_lost_under_its_pods_keeps_them_apart_from_others() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let mut agents = cluster.start_agents(FROM_ETCD);
    let [a, b, red] = [add(h1, "blue/a"), add(h2, "blue/b"), add(h1, "red/r")];
    let before = blocks(&cluster);
    let lost = |host: &Node| {
        let said = local::status_when(host, "the network to be missed", |status| {
            local::problem(status, "policy", "Network blue/front").is_some()
        });
        let problem = local::problem(&said, "policy", "Network blue/front").cloned().unwrap();
        let fix = problem["fix"].as_str().unwrap().strip_prefix("humanz-agent ").unwrap();
        let fix = fix.strip_suffix(" # makes it again").unwrap();
        assert_eq!(fix, "net create blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64");
        fix.to_owned()
    };
    let is_as_it_was = || {
        soon("pods of one network", || reaches(&a, &b) && reaches(&b, &a));
        assert!(
            is_apart(&red, &a) && is_apart(&a, &red) && is_apart(&red, &b) && is_apart(&b, &red)
        );
    };
    let make_again = |fix: &str| {
        Agent::run(h1, fix, FROM_ETCD).ok();
        soon("the network to be there again", || {
            let status = local::status(h2);
            local::problem(&status, "policy", "Network blue/front").is_none()
        });
    };

    cluster.etcd.delete("/humanz/v1-policies/Network/blue/front");
    make_again(&[h1, h2].map(lost)[0]);
    is_as_it_was();

    cluster.etcd.restart_empty();
    eventually("hosts to put their blocks back", 3 * SOON, || {
        let now = blocks(&cluster);
        if now == before { Ok(()) } else { Err(format!("{now:?}, not {before:?}")) }
    });
    let red_again = "net create red/front --cidr 10.33.0.0/16 --cidr fd00:33::/64 --nat no";
    Agent::run(h1, red_again, FROM_ETCD).ok();
    lost(h1);
    is_as_it_was();
    agents[0].stop();
    agents[0] = Agent::start(h1, FROM_ETCD);
    agents[0].wait_ready();
    let fix = lost(h1);
    is_as_it_was();
    make_again(&fix);
    apply(h1, &two_tenants());
    let late = add(h1, "blue/late");
    assert!(is_in(late.v4(), "10.32.0.0/16"), "{}", late.result);
    is_as_it_was();
    agents.iter().for_each(Agent::stop);
}

/// Somebody writes other addresses into its key, or etcd has an older state: `net set` is refused while there are pods.
#[test]
fn a_network_that_has_other_addresses_under_its_pods_keeps_them_apart_until_they_end() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let [a, b, red] = [add(h1, "blue/a"), add(h2, "blue/b"), add(h1, "red/r")];
    soon("pods of one network", || reaches(&a, &b));
    let moved = network("blue/front", json!({"subnets": ["10.40.0.0/16", "fd00:40::/64"]}));
    cluster.etcd.put("/humanz/v1-policies/Network/blue/front", moved.to_string());
    for host in [h1, h2] {
        let problem = local::wait_problem(host, "policy", "Network blue/front");
        let fix = "humanz-agent net set blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64 # has";
        assert!(problem["fix"].as_str().unwrap().starts_with(fix), "{problem}");
    }
    soon("pods of one network", || reaches(&a, &b) && reaches(&b, &a));
    assert!(is_apart(&red, &a) && is_apart(&a, &red) && is_apart(&red, &b) && is_apart(&b, &red));
    [a, b].into_iter().for_each(Pod::delete);
    for host in [h1, h2] {
        local::status_when(host, "the former addresses to be given back", |status| {
            local::problem(status, "policy", "Network blue/front").is_none()
        });
    }
    let [a, b] = [(h1, "blue/c"), (h2, "blue/d")].map(|(host, pod)| add(host, pod));
    assert!([&a, &b].iter().all(|pod| is_in(pod.v4(), "10.40.0.0/16")), "{}", a.result);
    soon("pods of one network", || reaches(&a, &b));
    assert!(is_apart(&red, &a) && is_apart(&b, &red));
    agents.iter().for_each(Agent::stop);
}
