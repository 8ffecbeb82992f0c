//! Pods with fixed addresses, which they have on whichever host they run.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::mute_agent::answering;
use crate::support::cni::{Attachment, Failure, Network};
use crate::support::ping::{Pinger, round_trip};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, facts, local, soon};
use crate::tenants::{add, blocks, is_in, namespace, network, reaches, try_add};

const V4: &str = "10.32.255.2";
const V6: &str = "fd00:32::ffff:2";

/// A network of both families that keeps some addresses, and a namespace whose pods are in it.
fn pinning() -> Vec<Value> {
    let spec = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"],
        "pins": ["10.32.255.0/24", "fd00:32::ffff:0/112"]});
    vec![
        network("blue/front", spec),
        namespace("shop", json!({"tenant": "blue", "network": "front"})),
    ]
}

fn humanz(host: &Node, line: &str) -> String {
    Agent::run(host, line, FROM_ETCD).ok()
}

fn refused_add(host: &Node, pod: &str) -> Box<Failure> {
    host.run(&format!("ip netns del {}", pod.replace('/', "-")));
    try_add(host, pod, json!({})).err().unwrap_or_else(|| panic!("{pod} started"))
}

/// What `explain` says on `host` once it has learned of the others.
fn explained(host: &Node, ends: &str, status: i32, words: &str) {
    eventually(&format!("explain {ends}: {words}"), SOON, || {
        let ended = Agent::run(host, &format!("explain --quiet {ends}"), FROM_ETCD);
        let is_it = ended.status.code() == Some(status) && ended.to_string().contains(words);
        if is_it { Ok(()) } else { Err(ended.to_string()) }
    });
}

/// As a runtime does, in a namespace made anew each time.
fn again(host: &Node, pod: &str) -> Pod {
    let name = pod.replace('/', "-");
    eventually(&format!("{pod} to start"), SOON, || {
        host.run(&format!("ip netns del {name}"));
        try_add(host, pod, json!({})).map_err(|error| error.to_string())
    })
}

fn has(pod: &Pod, addresses: [&str; 2]) -> bool {
    [pod.v4(), pod.v6()] == addresses.map(|text| text.parse::<IpAddr>().unwrap())
}

fn mac(pod: &Pod) -> String {
    pod.result["interfaces"][2]["mac"].as_str().unwrap().to_owned()
}

#[test]
fn a_pinned_pod_has_its_addresses_on_whichever_host_it_runs() {
    let cluster = Cluster::new(3);
    let [h1, h2, h3] = [&cluster.hosts[0], &cluster.hosts[1], &cluster.hosts[2]];
    apply(h1, &pinning());
    let agents = cluster.start_agents(FROM_ETCD);
    assert_eq!(humanz(h1, "pin ls"), "there is no Pin\n");
    assert_eq!(humanz(h1, "pin create shop/db-0 --network blue/front"), "+ Pin shop/db-0\n");
    let watcher = add(h3, "shop/watcher");
    let beside = add(h1, "shop/beside");
    let state = |host: &str, state: &str| {
        let listed = humanz(h3, "pin ls");
        let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
        let wanted = ["shop/db-0", &format!("{V4},{V6}"), "blue/front", host, state];
        assert_eq!(row.join(" "), wanted.join(" "), "{listed}");
    };
    state("-", "free");
    explained(h3, "shop/watcher shop/db-0", 1, "no host has it: the pod does not run");
    let first = again(h1, "shop/db-0");
    assert!(has(&first, [V4, V6]), "{}", first.result);
    first.check().unwrap();
    let mac_first = mac(&first);
    state("h1", "in use");
    for pod in [&watcher, &beside] {
        assert!(!is_in(pod.v4(), "10.32.255.0/24") && !is_in(pod.v6(), "fd00:32::ffff:0/112"));
        soon(&pod.label(), || reaches(pod, &first) && reaches(&first, pod));
    }
    explained(h3, "shop/watcher shop/db-0", 0, "host h1 has it");
    explained(h3, "shop/db-0 shop/watcher", 0, "host h1 has it");
    let far = watcher.v4();
    explained(h1, &format!("shop/db-0 {far}"), 0, "10.32.255.2 of network blue/front is fixed");
    explained(h2, "shop/db-0 shop/db-0", 2, "run it on a host of one of them");
    explained(h3, "shop/db-9 shop/watcher", 2, "it is no address");
    // It moves while another host's pod sends to it, and back.
    let running = Pinger::start(&watcher, V4.parse().unwrap());
    soon("it to be answered", || running.answers() > 3);
    first.delete();
    let second = again(h2, "shop/db-0");
    assert!(has(&second, [V4, V6]) && mac(&second) == mac_first, "{}", second.result);
    let before = running.answers();
    soon("the same ping to be answered by the other host", || running.answers() > before + 3);
    for pod in [&watcher, &beside] {
        soon(&pod.label(), || reaches(pod, &second) && reaches(&second, pod));
    }
    state("h2", "in use");
    let report = running.report();
    println!("moved: {:?} without an answer", report.longest_gap());
    let gateways = |host: &Node| {
        let all = facts::addresses(host, "humanz0");
        all.into_iter()
            .filter(|it| is_in(it.split('/').next().unwrap().parse().unwrap(), "10.32.255.0/24"))
            .count()
    };
    soon("nothing to be left on the first host", || gateways(h1) == 0 && gateways(h2) == 1);
    second.delete();
    soon("it to be given back", || blocks(&cluster).iter().all(|key| !key.contains("10.32.255.")));
    let third = again(h1, "shop/db-0");
    assert!(has(&third, [V4, V6]));
    soon("back again", || reaches(&watcher, &third));
    // On the same host once more: at once, and after its block was given back.
    third.delete();
    let fourth = again(h1, "shop/db-0");
    assert!(has(&fourth, [V4, V6]));
    fourth.delete();
    soon("the addresses to be free", || {
        blocks(&cluster).iter().all(|key| !key.contains("10.32.255."))
    });
    let fifth = again(h1, "shop/db-0");
    assert!(has(&fifth, [V4, V6]));
    // Without its pin a pod has any address, and the pinned one stays with the pod that runs.
    humanz(h1, "pin rm shop/db-0");
    assert!(reaches(&watcher, &fifth));
    fifth.delete();
    soon("the pin to be gone on the host", || {
        let plans = h1.read("/run/humanz/ipam/.networks.json").unwrap();
        !plans.contains("db-0")
    });
    let free = again(h1, "shop/db-0");
    assert!(!is_in(free.v4(), "10.32.255.0/24"), "{}", free.result);
    agents.iter().for_each(Agent::stop);
}

/// An agent that has got an address may have given it back before the plugin reads of it.
#[test]
fn a_fixed_address_that_the_host_has_no_longer_is_given_to_no_pod() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &pinning());
    humanz(host, &format!("pin create shop/db-0 --address {V4}"));
    let agents = cluster.start_agents(FROM_ETCD);
    let _has_blocks = add(host, "shop/beside");
    agents[0].kill();
    let plans = host.read("/run/humanz/ipam/.networks.json").unwrap();
    assert!(plans.contains("db-0") && plans.contains("\"here\":[]"), "{plans}");
    // Its gateway goes a moment later.
    host.run("ip addr add 10.32.255.1/30 dev humanz0").ok();
    let says_so = answering(host, "0", &["{\"ready\": true}\n"]);
    let refused = refused_add(host, "shop/db-0");
    assert_eq!(refused.code, 11, "{refused}");
    assert!(refused.to_string().contains("has just been given back"), "{refused}");
    assert_eq!(host.run("find /run/humanz/ipam -name 10.32.255.*").ok(), "");
    drop(says_so);
}

#[test]
fn a_fixed_address_that_another_host_has_is_waited_for_and_named() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &pinning());
    humanz(h1, &format!("pin create shop/db-0 --address {V4}"));
    let agents = cluster.start_agents(FROM_ETCD);
    let first = again(h1, "shop/db-0");
    assert!(first.v4() == V4.parse::<IpAddr>().unwrap() && is_in(first.v6(), "fd00:32::/64"));
    let refused = refused_add(h2, "shop/db-0");
    assert_eq!(refused.code, 11, "{refused}");
    for text in
        ["host h1 has 10.32.255.2", "humanz-agent nodes rm h1", "pin release shop/db-0 --force"]
    {
        assert!(refused.to_string().contains(text), "{refused}");
    }
    let runs = Agent::run(h2, "pin release shop/db-0 --force", FROM_ETCD);
    assert!(runs.status.code() == Some(1) && runs.stderr.contains("agent of host h1"), "{runs}");
    // An ADD that waits gets it at once when the pod ends.
    let moved = std::thread::scope(|scope| {
        h2.run("ip netns del shop-db-0");
        let waits = scope.spawn(|| try_add(h2, "shop/db-0", json!({})));
        // The moment is the input of this test, not a wait for something.
        std::thread::sleep(Duration::from_millis(300));
        first.delete();
        waits.join().unwrap()
    });
    let second = moved.unwrap_or_else(|_| again(h2, "shop/db-0"));
    assert!(second.v4() == V4.parse::<IpAddr>().unwrap());
    // Its host has it as long as its agent says nothing else, and starts the pod without one.
    agents[1].kill();
    second.delete();
    let third = again(h2, "shop/db-0");
    assert!(third.v4() == V4.parse::<IpAddr>().unwrap());
    third.delete();
    assert!(refused_add(h1, "shop/db-0").to_string().contains("host h2 has 10.32.255.2"));
    cluster.etcd.delete("/humanz/v1/alive/h2");
    let unsure = Agent::run(h1, "pin release shop/db-0", FROM_ETCD);
    assert!(unsure.status.code() == Some(1) && unsure.stderr.contains("--force if"), "{unsure}");
    assert_eq!(humanz(h1, "pin release shop/db-0 --force"), "- 10.32.255.0/30 of host h2\n");
    let fourth = again(h1, "shop/db-0");
    assert!(fourth.v4() == V4.parse::<IpAddr>().unwrap());
    // The host comes back and does not have it.
    let back = Agent::start(h2, FROM_ETCD);
    back.wait_ready();
    soon("it to know", || {
        facts::addresses(h2, "humanz0").iter().all(|it| !it.starts_with("10.32.255."))
    });
    assert!(refused_add(h2, "shop/db-0").to_string().contains("host h1 has 10.32.255.2"));
    let other = again(h2, "shop/other");
    soon("the other host", || round_trip(&other, fourth.v4()).is_ok());
    agents[0].kill();
    humanz(h1, "pin create shop/db-1 --network blue/front");
    let without = refused_add(h1, "shop/db-2");
    assert!(without.code == 11, "its v6 and v4 blocks are known, or asked for: {without}");
    back.stop();
}

/// Who could be asked for something is away.
#[test]
fn without_agent_or_etcd_a_pinned_pod_starts_where_its_address_is_and_nowhere_else() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &pinning());
    humanz(host, "pin create shop/db-0 --network blue/front");
    humanz(host, "pin create shop/db-1 --network blue/front");
    let agents = cluster.start_agents(FROM_ETCD);
    let first = again(host, "shop/db-0");
    cluster.etcd.kill();
    local::status_when(host, "etcd to be missed", |status| local::has_problem(status, "etcd"));
    first.delete();
    let second = again(host, "shop/db-0");
    assert!(has(&second, [V4, V6]));
    let refused = refused_add(host, "shop/db-1");
    assert!(refused.code == 11 && refused.to_string().contains("without etcd"), "{refused}");
    agents[0].kill();
    second.delete();
    let third = again(host, "shop/db-0");
    assert!(has(&third, [V4, V6]));
    let refused = refused_add(host, "shop/db-1");
    let text = refused.to_string();
    assert!(
        refused.code == 11 && text.contains("not all addresses that pod shop/db-1 has in it"),
        "{text}"
    );
    // The agent starts without etcd, and has it still.
    let agent = Agent::start(host, FROM_ETCD);
    agent.wait_ready();
    assert!(facts::addresses(host, "humanz0").iter().any(|it| it.starts_with("10.32.255.1/30")));
    third.check().unwrap();
    cluster.etcd.restart();
    third.delete();
    soon("it to be given back", || blocks(&cluster).iter().all(|key| !key.contains("10.32.255.")));
    agent.stop();
}

#[test]
fn hostile_pins_start_no_pod_with_another_address_and_take_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let plain = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"]});
    apply(h1, &[network("blue/front", plain), pinning().remove(1)]);
    let agents = cluster.start_agents(FROM_ETCD);
    let held = add(h1, "shop/held");
    // Kept for pins only after a host has a block there.
    let IpAddr::V4(v4) = held.v4() else { panic!("{}", held.result) };
    let [_, _, third, fourth] = v4.octets();
    let base = fourth & !63;
    let kept = format!("10.32.{third}.{base}/26");
    let over = format!("net set blue/front --pins {kept} --pins fd00:32::ffff:0/112");
    let refused = Agent::run(h1, &over, FROM_ETCD);
    let why = format!("hosts have blocks in {kept} for any pods (h1), as {kept}");
    assert!(refused.status.code() == Some(1) && refused.stderr.contains(&why), "{refused}");
    // Whoever writes into etcd asks nobody.
    let spec = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"],
        "pins": [kept, "fd00:32::ffff:0/112"]});
    let front = network("blue/front", spec);
    cluster.etcd.put("/humanz/v1-policies/Network/blue/front", front.to_string());
    let [own, inside] = [held.v4().to_string(), format!("10.32.{third}.{}", base + 62)];
    let range = "/humanz/v1-policies/Pin/shop";
    let put = |name: &str, addresses: &[&str]| {
        let object = json!({"apiVersion": "humanz.io/v1", "kind": "Pin",
            "metadata": {"namespace": "shop", "name": name}, "spec": {"addresses": addresses}});
        cluster.etcd.put(&format!("{range}/{name}"), object.to_string());
    };
    put("inside", &[&inside]);
    put("gateway", &["fd00:32::ffff:1"]);
    put("outside", &["10.244.1.2"]);
    put("elsewhere", &["203.0.113.2"]);
    put("loopback", &["127.0.0.1"]);
    put("two", &["fd00:32::ffff:2", "fd00:32::ffff:6"]);
    put("one", &["fd00:32::ffff:a"]);
    put("other", &["fd00:32::ffff:a"]);
    put("none", &[]);
    put("stolen", &[&own]);
    cluster.etcd.put(&format!("{range}/garbled"), "{\"spec\":");
    cluster.etcd.put(&format!("{range}/text"), "$(reboot)");
    for pin in ["gateway", "outside", "two", "one"] {
        local::wait_problem(h2, "policy", &format!("Pin shop/{pin}"));
    }
    // Whoever has read the last one has read all.
    for host in [h1, h2] {
        local::status_when(host, "the last pin", |status| {
            status["problems"].to_string().contains("Pin/shop/text")
        });
    }
    for name in [
        "gateway",
        "outside",
        "elsewhere",
        "loopback",
        "two",
        "one",
        "other",
        "none",
        "garbled",
        "text",
    ] {
        for host in [h1, h2] {
            let refused = refused_add(host, &format!("shop/{name}"));
            assert!(
                refused.code == 11 && refused.to_string().contains("pin of pod shop/"),
                "{refused}"
            );
        }
    }
    let refused = refused_add(h2, "shop/inside");
    assert!(refused.to_string().contains("host h1 has block 10.32."), "{refused}");
    let refused = refused_add(h1, "shop/stolen");
    assert!(refused.to_string().contains("this host has block 10.32."), "{refused}");
    let listed = Agent::run(h1, "pin ls", FROM_ETCD);
    assert!(
        listed.status.code() == Some(1) && listed.stdout.contains("is pinned to pod"),
        "{listed}"
    );
    // Others do not mind, and there is no command that would make such pins.
    let other = add(h2, "shop/fine");
    soon("other pods", || reaches(&other, &held) && reaches(&held, &other));
    for line in [
        "pin create shop/x --address 10.244.0.2",
        "pin create shop/x --address fd00:32::ffff:9",
        "pin create shop/x --address fd00:32::ffff:a",
        "pin create shop/x --network blue/none",
        "pin create shop/x",
        "net set blue/front --pins 10.32.0.0/16",
    ] {
        assert!(!Agent::run(h1, line, FROM_ETCD).succeeded(), "{line}");
    }
    agents.iter().for_each(Agent::stop);
}

/// What pods and other hosts could do to have an address that is not theirs.
#[test]
fn no_other_pod_or_host_takes_the_address_of_a_pinned_pod() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &pinning());
    humanz(h1, "pin create shop/db-0 --network blue/front");
    let agents = cluster.start_agents(FROM_ETCD);
    let claims = json!({"humanz.io/pod": "shop/db-0", "humanz.io/pin": V4, "humanz.io/name": "db-0",
        "io.kubernetes.cri.sandbox-name": "db-0", "K8S_POD_NAME": "db-0", "K8S_POD_NAMESPACE": "shop"});
    let claims_all = |pod: &str| try_add(h2, pod, claims.clone());
    let evil = claims_all("shop/evil").unwrap();
    assert!(!is_in(evil.v4(), "10.32.255.0/24"), "{}", evil.result);
    let plain = claims_all("default/db-0").unwrap();
    assert!(is_in(plain.v4(), "10.244.0.0/16"), "{}", plain.result);
    // It asks for the address itself.
    for (host, at) in [(h1, "here"), (h2, "there")] {
        make_netns(host, at);
        let asks = Attachment {
            args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={at}"),
            runtime: json!({"ips": [format!("{V4}/30")]}),
            ..Attachment::new(at)
        };
        let refused = Pod::connect(host, &Network::of(host), asks).err().unwrap();
        assert!(refused.code != 0, "{refused}");
    }
    let first = again(h1, "shop/db-0");
    assert!(has(&first, [V4, V6]));
    soon("both hosts", || reaches(&evil, &first));
    // A host that writes what its role lets it write.
    let root = "/humanz/v1-blocks";
    for key in [
        "h2/10.32.255.0-30",
        "h2/10.32.255.0-24",
        "h2/fd00:32::ffff:0-126",
        "nobody/10.32.255.0-29",
    ] {
        cluster.etcd.put(&format!("{root}/{key}"), "blue/front");
    }
    local::wait_problem(h1, "other-host", "host nobody");
    assert!(reaches(&evil, &first) && reaches(&first, &evil));
    assert_eq!(refused_add(h2, "shop/db-0").code, 11);
    // The pod may not leave its network, and has no other address in another one.
    humanz(h1, "net create blue/back --cidr 10.34.0.0/16");
    humanz(h1, "ns set shop --allow back");
    soon("the other network to be known", || {
        h1.read("/run/humanz/ipam/.networks.json").unwrap().contains("10.34.0.0/16")
    });
    first.delete();
    h1.run("ip netns del shop-db-0");
    let moved = eventually("the rule to be known", SOON, || {
        h1.run("ip netns del shop-db-0");
        match try_add(h1, "shop/db-0", json!({"humanz.io/network": "back"})) {
            Err(refused) if refused.to_string().contains("which is none of its networks") => {
                Ok(refused)
            }
            Err(refused) => Err(refused.to_string()),
            Ok(pod) => panic!("{}", pod.result),
        }
    });
    let fixes = ["puts all pods of the namespace there", "pin rm shop/db-0"];
    let said = moved.to_string();
    assert!(moved.code == 7 && fixes.iter().all(|fix| said.contains(fix)), "{moved}");
    agents.iter().for_each(Agent::stop);
}

#[test]
fn of_two_hosts_that_start_a_pinned_pod_one_does() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &pinning());
    humanz(h1, "pin create shop/db-0 --network blue/front");
    let agents = cluster.start_agents(FROM_ETCD);
    for _ in 0..6 {
        let both = std::thread::scope(|scope| {
            let adds = [h1, h2].map(|host| {
                host.run("ip netns del shop-db-0");
                scope.spawn(move || try_add(host, "shop/db-0", json!({})))
            });
            adds.map(|add| add.join().unwrap())
        });
        let started: Vec<Pod> = both.into_iter().filter_map(Result::ok).collect();
        assert!(started.len() < 2, "{V4} was given twice");
        for pod in started {
            assert!(has(&pod, [V4, V6]));
            pod.delete();
        }
    }
    let last = again(h2, "shop/db-0");
    assert!(has(&last, [V4, V6]));
    agents.iter().for_each(Agent::stop);
}
