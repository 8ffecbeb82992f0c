//! Profiles: the DSCP that packets of pods bear, whatever the pods do.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::etcd::FROM_ETCD;
use crate::support::cni::Network;
use crate::support::{Agent, Cluster, Node, Place, Pod, local, soon};
use crate::{add, alone, attachment, serve, write_policies};

/// The DSCPs that occur here.
const MARKS: [u8; 4] = [0, 8, 10, 46];

/// Counts echo requests that arrive, by family and DSCP.
fn note_marks(pod: &Pod) {
    let (mut counters, mut rules) = (String::new(), String::new());
    for mark in MARKS {
        for (family, icmp, ip) in [("v4", "icmp", "ip"), ("v6", "icmpv6", "ip6")] {
            counters += &format!("counter {family}x{mark} {{ }};");
            rules +=
                &format!("{icmp} type echo-request {ip} dscp {mark} counter name {family}x{mark};");
        }
    }
    let hook = "type filter hook input priority 0;";
    nft(pod, &format!("table inet seen {{ {counters} chain in {{ {hook} {rules} }}; }}"));
}

/// A pod that marks all of its packets with DSCP 10, with what its own namespace lets it do.
const OWN_MARK: &str = "table inet own {
    chain out { type filter hook output priority 0; ip dscp set 10; ip6 dscp set 10; }
}";

fn nft(pod: &Pod, text: &str) {
    pod.shell(&format!("nft '{text}'")).ok();
}

fn own(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// The DSCP of packets from one pod to the other, IPv4 and IPv6; `None`: none arrived.
fn marks(from: &Pod, to: &Pod) -> [Option<u8>; 2] {
    let ping = |family: &str, address: IpAddr| {
        to.run("nft reset counters table inet seen").ok();
        from.run(&format!("ping -n -c 1 -W 2 {address}"));
        let is_seen = |mark: &u8| {
            let counter = format!("nft list counter inet seen {family}x{mark}");
            !to.run(&counter).ok().contains("packets 0 ")
        };
        MARKS.into_iter().find(is_seen)
    };
    [ping("v4", to.v4()), ping("v6", to.v6())]
}

fn both(mark: u8) -> [Option<u8>; 2] {
    [Some(mark); 2]
}

#[test]
fn packets_of_a_group_or_network_bear_the_dscp_of_its_profile_and_changes_reach_running_pods() {
    let alone = alone();
    let host = &alone.host;
    let gold = |dscp: u8| own("NetProfile", "gold", json!({"dscp": dscp}));
    let web_has = |spec: Value| own("Group", "web", spec);
    write_policies(host, &[gold(46), web_has(json!({"profile": "gold"}))]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web;humanz.io/group=web"));
    for pod in [&db, &web] {
        note_marks(pod);
        nft(pod, OWN_MARK);
    }
    // From its first packet on, as the plugin made the guard.
    assert_eq!(marks(&web, &db), both(46));
    assert_eq!(marks(&db, &web), both(10));
    web.check().unwrap();

    let is_marked = |pod: &Pod, to: &Pod, mark: u8| {
        soon(&format!("mark {mark}"), || marks(pod, to) == both(mark));
        pod.check().unwrap();
    };
    write_policies(host, &[gold(8), web_has(json!({"profile": "gold"}))]);
    is_marked(&web, &db, 8);
    for damage in
        ["nft flush chain netdev humanz dscp-8-routed-2", "nft delete table netdev humanz"]
    {
        host.shell(damage).ok();
        is_marked(&web, &db, 8);
    }
    let pods = [attachment("db", "db"), attachment("web", "web;humanz.io/group=web")];
    Network::of(host).with_version("1.1.0").gc(host, &[&pods[0], &pods[1]]).unwrap();
    assert_eq!(marks(&web, &db), both(8));

    let bulk = own("NetProfile", "bulk", json!({"dscp": 0}));
    let network = own("Network", "default", json!({"profile": "bulk"}));
    write_policies(host, &[gold(8), web_has(json!({"profile": "gold"})), bulk, network]);
    is_marked(&db, &web, 0);
    assert_eq!(marks(&web, &db), both(8));

    write_policies(host, &[gold(8), web_has(json!({}))]);
    is_marked(&web, &db, 10);
    is_marked(&db, &web, 10);
    assert_eq!(host.read("/run/humanz/ipam/.profiles"), None);
    agent.stop();
}

#[test]
fn marks_stay_without_the_agent_and_through_its_start() {
    let alone = alone();
    let host = &alone.host;
    let objects = [
        own("NetProfile", "gold", json!({"dscp": 46})),
        own("Group", "web", json!({"profile": "gold"})),
    ];
    write_policies(host, &objects);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web;humanz.io/group=web"));
    note_marks(&db);
    agent.kill();
    let is_marked = || marks(&web, &db) == both(46) && web.check().is_ok();
    assert!(is_marked());
    // What somebody put there meanwhile has no say.
    host.write("/run/humanz/ipam/.profiles", "{\"hz0\": 7");
    let agent = serve(host, &[]);
    soon("what is wanted", || {
        let written = host.read("/run/humanz/ipam/.profiles").unwrap_or_default();
        written.contains("gold") && is_marked()
    });
    agent.stop();
    assert!(is_marked());
    web.delete();
    db.delete();
    Agent::run(host, "uninstall --purge", crate::STANDALONE).ok();
    assert_eq!(host.read("/run/humanz/ipam/.profiles"), None);
}

/// `endpoint ls` of `host`, with this part in its lines.
fn endpoint_rows(host: &Node, part: &str) -> Vec<Vec<String>> {
    let listed = Agent::run(host, "endpoint ls", FROM_ETCD).stdout;
    let rows = listed.lines().filter(|line| line.contains(part));
    rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn endpoints_are_shown_with_group_and_profile_those_of_other_hosts_by_address() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let agents = cluster.start_agents(FROM_ETCD);
    let run = |line: &str| Agent::run(h1, line, FROM_ETCD);
    for line in [
        "profile create gold --dscp 46 --egress-rate 100M",
        "group create web --profile gold",
        "policy create from-web",
        "policy rule-add from-web --direction in --action allow --peer-group web",
        "group create store --policies from-web --default deny",
    ] {
        run(line).ok();
    }
    let store = add(h1, "store", "store;humanz.io/group=store");
    let web = add(h2, "web", "web;humanz.io/group=web");
    soon("the own pod", || {
        let rows = endpoint_rows(h1, "shop/store");
        rows.len() == 1 && rows[0][2] == "h1" && rows[0][4] == "default/store" && rows[0][5] == "-"
    });
    soon("the other host's pod", || {
        let rows = endpoint_rows(h1, &web.v4().to_string());
        let wanted = ["-", "h2", "default/web", "default/gold"].map(str::to_owned);
        rows.iter().any(|row| [&row[0], &row[2], &row[4], &row[5]].into_iter().eq(&wanted))
    });
    let shown = Agent::run(h2, "endpoint show web --json", FROM_ETCD).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let of = |field: &str| shown["endpoint"][field].clone();
    assert_eq!(
        (of("pod"), of("profile"), of("dscp")),
        (json!("shop/web"), json!("default/gold"), json!(46))
    );
    assert_eq!(
        (of("host"), of("group"), of("quarantine")),
        (json!("h2"), json!("default/web"), json!(null))
    );
    let by_address = Agent::run(h2, &format!("endpoint inspect {}", web.v6()), FROM_ETCD).ok();
    for wanted in ["shop/web", "default/gold", "100 Mbit/s"] {
        assert!(by_address.contains(wanted), "{by_address}");
    }
    let none = Agent::run(h1, "endpoint show nobody", FROM_ETCD);
    assert!(none.status.code() == Some(1) && none.stderr.contains("\"nobody\""), "{}", none.stderr);

    // A value that is not understood marks as the profile did before, and is a problem.
    note_marks(&store);
    soon("marks between hosts", || marks(&web, &store) == both(46));
    cluster.etcd.put("/humanz/v1-policies/NetProfile/default/gold", "{\"spec\": ");
    for host in [h1, h2] {
        soon("the problem", || local::has_problem(&local::status(host), "policy"));
    }
    assert_eq!(marks(&web, &store), both(46));
    run("policy apply -f /dev/null --prune").ok();
    run("policy rm NetProfile gold").ok();
    agents.iter().for_each(Agent::stop);
}

/// Bits a second that arrive over TCP from one pod at the other, for two seconds.
fn rate(from: &Pod, to: &Pod, address: IpAddr) -> f64 {
    let mut found = None;
    soon("iperf3 reports", || {
        to.shell(&format!("timeout 20 iperf3 -s -1 -B {address} >/dev/null 2>&1 &")).ok();
        let report = from.shell(&format!("sleep 0.2; iperf3 --json --time 2 --client {address}"));
        let report: Value = serde_json::from_str(&report.stdout).unwrap_or(Value::Null);
        found = report["end"]["sum_received"]["bits_per_second"].as_f64();
        found.is_some()
    });
    found.unwrap()
}

/// On a busy machine a transfer may be slower; it is never faster.
fn is_limited(from: &Pod, to: &Pod, limit: f64) {
    for address in [to.v4(), to.v6()] {
        let found = rate(from, to, address);
        println!("limit {limit}: {found:.0} bits a second to {address}");
        assert!(found <= limit * 1.1 && found >= limit * 0.5, "{found} bits a second, not {limit}");
    }
}

#[test]
fn pods_send_at_the_rate_of_their_profile_and_guard_and_policies_hold_there_too() {
    let alone = alone();
    let host = &alone.host;
    let slow = |rate: &str| own("NetProfile", "slow", json!({"egressRate": rate, "dscp": 8}));
    let web_has = own("Group", "web", json!({"profile": "slow"}));
    write_policies(host, &[slow("40M"), web_has.clone()]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web;humanz.io/group=web"));
    note_marks(&db);
    soon("its mark", || marks(&web, &db) == both(8));
    web.check().unwrap();
    is_limited(&web, &db, 40e6);
    assert!(rate(&db, &web, web.v4()) > 60e6, "what a pod gets has no limit");

    write_policies(host, &[slow("10M"), web_has.clone()]);
    let classes = || host.run("tc class show dev humanz-shape").stdout;
    soon("the new rate", || classes().contains("rate 10Mbit"));
    is_limited(&web, &db, 10e6);

    // What is not the pod's own address does not arrive, limited or not.
    web.run("ip addr add 10.244.1.200/32 dev lo").ok();
    assert!(!web.run("ping -n -c 1 -W 1 -I 10.244.1.200 10.244.1.1").status.success());
    let deny = own("Group", "db", json!({"default": "deny"}));
    let other = add(host, "other", "x;humanz.io/group=db");
    write_policies(host, &[slow("10M"), web_has.clone(), deny]);
    soon("the denial", || !web.run(&format!("ping -n -c 1 -W 1 {}", other.v4())).status.success());
    assert_eq!(marks(&web, &db), both(8));

    for damage in [
        "ip link del humanz-shape",
        "ip link set humanz-shape down",
        "tc class del dev humanz-shape classid 6876:1",
        "tc qdisc del dev humanz-shape root",
    ] {
        host.shell(damage).ok();
        // What says nothing to the agent waits for the next event.
        host.run("ip addr add 203.0.113.9/32 dev lo").ok();
        host.run("ip addr del 203.0.113.9/32 dev lo").ok();
        soon(damage, || classes().contains("rate 10Mbit") && marks(&web, &db) == both(8));
        web.check().unwrap();
    }
    is_limited(&web, &db, 10e6);
    agent.kill();
    is_limited(&web, &db, 10e6);
    let agent = serve(host, &[]);

    write_policies(host, &[own("Group", "web", json!({}))]);
    soon("no limit", || classes().is_empty() && marks(&web, &db) == both(0));
    soon("no device", || !host.run("ip link show humanz-shape").status.success());
    assert!(rate(&web, &db, db.v4()) > 60e6);
    web.check().unwrap();
    agent.stop();
}

/// The host's end of a pod's veth.
fn host_end(pod: &Pod) -> String {
    let interfaces = pod.result["interfaces"].as_array().unwrap();
    let names = interfaces.iter().map(|it| it["name"].as_str().unwrap());
    names.into_iter().find(|name| name.starts_with("hz")).unwrap().to_owned()
}

#[test]
fn pods_receive_at_the_rate_of_their_profile_inside_of_their_own_limit() {
    let alone = alone();
    let host = &alone.host;
    let slow = |rate: &str| own("NetProfile", "slow", json!({"ingressRate": rate}));
    let web_has = own("Group", "web", json!({"profile": "slow"}));
    write_policies(host, &[slow("40M"), web_has.clone()]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web;humanz.io/group=web"));
    let port = host_end(&web);
    let queues = || host.run(&format!("tc qdisc show dev {port}")).stdout;
    // The plugin put it there, before the first packet.
    assert!(queues().starts_with("qdisc tbf 6877: root"), "{}", queues());
    is_limited(&db, &web, 40e6);
    assert!(rate(&web, &db, db.v4()) > 60e6, "what a pod sends has no limit");

    write_policies(host, &[slow("10M"), web_has.clone()]);
    soon("the new rate", || queues().contains("rate 10Mbit"));
    is_limited(&db, &web, 10e6);
    // What says nothing to the agent waits for the next event.
    let look = || {
        host.run("ip addr add 203.0.113.9/32 dev lo").ok();
        host.run("ip addr del 203.0.113.9/32 dev lo").ok();
    };
    host.shell(&format!("tc qdisc del dev {port} root")).ok();
    look();
    soon("the queue again", || queues().starts_with("qdisc tbf 6877: root"));

    // As the plugin does for a limit of a pod's annotations.
    host.shell(&format!(
        "tc qdisc replace dev {port} root handle 6875: tbf rate 20mbit burst 50000 limit 112500"
    ))
    .ok();
    look();
    soon("one inside of the other", || queues().contains("tbf 6877: parent 6875:1 rate 10Mbit"));
    is_limited(&db, &web, 10e6);
    write_policies(host, &[slow("80M"), web_has.clone()]);
    soon("the wider rate", || queues().contains("rate 80Mbit"));
    is_limited(&db, &web, 20e6);
    agent.kill();
    web.check().unwrap();
    host.shell(&format!("tc qdisc del dev {port} parent 6875:1 handle 6877:")).ok();
    let unlimited = web.check().unwrap_err();
    assert!(unlimited.to_string().contains("is limited to nothing, not 10000000"), "{unlimited}");
    let inner = "handle 6877: tbf burst 200000 limit 450000";
    host.shell(&format!("tc qdisc replace dev {port} parent 6875:1 {inner} rate 70mbit")).ok();
    let other = web.check().unwrap_err();
    assert!(other.to_string().contains("is limited to 8750000, not 10000000"), "{other}");
    // A profile that goes while the agent is away.
    write_policies(host, &[own("Group", "web", json!({}))]);
    let agent = serve(host, &[]);
    soon("the own limit alone", || !queues().contains("tbf 6877:"));
    assert!(queues().contains("tbf 6875: root"), "{}", queues());
    is_limited(&db, &web, 20e6);
    host.shell(&format!("tc qdisc del dev {port} root")).ok();
    write_policies(host, &[slow("30M"), web_has.clone()]);
    soon("a queue", || queues().starts_with("qdisc tbf 6877: root"));
    write_policies(host, &[own("Group", "web", json!({}))]);
    soon("none", || !queues().contains("tbf"));
    assert!(rate(&db, &web, web.v4()) > 60e6);
    agent.stop();
}

/// Bytes that pass at once after a silence, in each line of what `show` of `tc` lists.
fn bursts(host: &Node, show: &str) -> Vec<f64> {
    let bytes = |word: &str| {
        let size = word.strip_suffix('b')?;
        let units = [('K', 1024.0), ('M', 1024.0 * 1024.0)];
        let unit = units.iter().find_map(|(unit, by)| Some((size.strip_suffix(*unit)?, *by)));
        let (number, by) = unit.unwrap_or((size, 1.0));
        Some(number.parse::<f64>().ok()? * by)
    };
    let listed = host.run(&format!("tc {show}")).ok();
    let words = listed.lines().filter_map(|line| line.split_once(" burst "));
    words.map(|(_, rest)| bytes(rest.split(' ').next().unwrap()).expect(rest)).collect()
}

#[test]
fn the_kernel_has_the_bursts_of_a_profile_and_those_of_a_changed_one() {
    let alone = alone();
    let host = &alone.host;
    let gold = |more: Value| {
        let mut spec = json!({"ingressRate": "8M", "egressRate": "16M"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        own("NetProfile", "gold", spec)
    };
    let web_has = own("Group", "web", json!({"profile": "gold"}));
    // The kernel counts them in ticks of 64 ns.
    let is = |found: &[f64], bytes: f64| {
        !found.is_empty() && found.iter().all(|it| (it - bytes).abs() <= bytes / 100.0)
    };
    let classes = || bursts(host, "class show dev humanz-shape");
    let given = |bits: [&str; 2]| gold(json!({"ingressBurst": bits[0], "egressBurst": bits[1]}));
    write_policies(host, &[given(["400k", "800k"]), web_has.clone()]);
    let agent = serve(host, &[]);
    let mut pods: Vec<Pod> = Vec::new();
    for (profile, received, sent) in [
        (given(["400k", "800k"]), 50_000.0, 100_000.0),
        (given(["1600k", "3200k"]), 200_000.0, 400_000.0),
        // Less than a few packets is none, and what is not said lasts 20 ms.
        (given(["8", "8"]), 6_072.0, 6_072.0),
        (gold(json!({})), 20_000.0, 40_000.0),
    ] {
        write_policies(host, &[profile, web_has.clone()]);
        let queue = |pod: &Pod| bursts(host, &format!("qdisc show dev {}", host_end(pod)));
        let have = || pods.iter().all(|pod| is(&queue(pod), received));
        soon(&format!("{received} bytes at running pods"), || {
            have() && (pods.is_empty() || is(&classes(), sent))
        });
        let name = format!("web{}", pods.len());
        let new = add(host, &name, "web;humanz.io/group=web");
        assert!(is(&queue(&new), received), "as ADD made it: {:?}", queue(&new));
        pods.push(new);
        soon(&format!("{sent} bytes of each pod"), || {
            let found = classes();
            found.len() == pods.len() && is(&found, sent)
        });
        pods.iter().for_each(|pod| pod.check().unwrap());
    }
    agent.stop();
}
