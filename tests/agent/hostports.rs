//! Host ports are forwarded to pods as long as the plugin's reservations exist, whatever happens to
//! the table.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::cni::{Attachment, Network};
use crate::support::echo::{Echo, ask_tcp, ask_udp};
use crate::support::local::{has_problem, problem, problems, status_when};
use crate::support::node::command;
use crate::support::pod::{host_port, make_netns};
use crate::support::{Node, Place, Pod, Process, soon};
use crate::{alone, serve};

const TABLE: &str = "inet humanz-hostports";

fn mappings() -> Value {
    json!([
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.11" },
    ])
}

fn pod(host: &Node, name: &str) -> Pod {
    make_netns(host, name);
    let mut attachment = Attachment::new(name);
    attachment.runtime = json!({ "portMappings": mappings() });
    Pod::connect(host, &Network::of(host), attachment).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The table, without counters.
fn table(host: &Node) -> String {
    let listed = host.run(&format!("nft -s list table {TABLE}")).stdout;
    // The kernel lists chains and elements as it likes.
    let mut lines: Vec<&str> = listed.lines().map(str::trim).collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn answers(from: &dyn Place) -> bool {
    let to: SocketAddr = "192.0.2.11:8080".parse().unwrap();
    ask_tcp(from, to).is_ok() && ask_udp(from, 0, to).is_ok()
}

#[test]
fn every_change_of_the_table_is_repaired() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = pod(host, "web");
    let _echo = Echo::serve(&pod, 80);
    assert!(answers(host));
    let before = table(host);
    assert!(before.contains("elements = { \"humanz0\" }"), "{before}");
    // A listing is saved for the next boot.
    host.shell("nft list ruleset | nft -c -f -").ok();
    for damage in [
        "nft flush ruleset",
        &format!("nft delete table {TABLE}"),
        &format!("nft delete element {TABLE} at4 {{ 192.0.2.11 . udp . 8080 }}"),
        &format!("nft flush map {TABLE} any4"),
        &format!("nft flush set {TABLE} bridges"),
        &format!("nft flush chain {TABLE} output"),
        &format!("nft insert rule {TABLE} prerouting drop"),
    ] {
        host.run(damage).ok();
        soon(damage, || table(host) == before);
    }
    assert!(answers(host));
    // Elements without a reservation are removed soon; manual rules stay.
    let theirs = format!("nft add element {TABLE} any4 {{ tcp . 9999 : 10.244.1.2 . 80 }}");
    host.run(&theirs).ok();
    host.run(&format!("nft flush chain {TABLE} output")).ok();
    soon("the chain is back", || table(host).matches("map @any4").count() == 2);
    assert!(table(host).contains("9999"));
    pod.delete();
    let left = table(host);
    assert!(!left.contains("8080") && left.contains("9999"), "{left}");
    agent.stop();
}

/// On a quiet host no call of the plugin comes for a long time.
#[test]
fn ports_of_a_pod_that_ended_under_a_held_lock_are_closed_by_the_agent() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[("RESYNC_INTERVAL", "1s")]);
    let alive = Pod::add(host, "alive");
    let (store, of_ports) = ("/run/humanz/ipam/humanz", "/run/humanz/ipam/.hostports/lock");
    let of_store = format!("{store}/lock");
    let port_of_alive = format!("tcp-{}", host_port("alive"));
    let before = table(host);
    for locks in [&[of_ports][..], &[of_ports, &of_store]] {
        let name = format!("web{}", locks.len());
        let pod = pod(host, &name);
        let holders: Vec<Process> = locks.iter().map(|lock| hold(host, lock)).collect();
        pod.delete();
        let asked = ask_udp(host, 5000, "192.0.2.11:8080".parse().unwrap());
        assert!(asked.is_err() && flows(host).contains("sport=5000"), "{}", flows(host));
        assert_eq!(host.list(&format!("{store}/ended")), [format!("{name}:eth0")]);
        assert!(table(host).contains("8080"), "the port was closed without the lock");
        holders.iter().for_each(Process::kill);
        soon("the agent closes the ports", || table(host) == before);
        soon("the agent frees the address", || host.list(&format!("{store}/ended")).is_empty());
        assert!(!flows(host).contains("sport=5000"), "{}", flows(host));
        assert_eq!(host.list(&format!("{store}/owners")), ["alive:eth0"]);
        assert_eq!(host.list("/run/humanz/ipam/.hostports"), ["lock", &port_of_alive]);
    }
    alive.check().unwrap();
    agent.stop();
}

/// No DEL comes, and the agent's store has never learned of the attachment, or has forgotten it.
#[test]
fn ports_of_a_pod_that_does_not_run_and_that_the_store_does_not_know_are_closed_by_the_agent() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[("RESYNC_INTERVAL", "1s")]);
    let attach = |name: &str, network: &Network, port: u16| {
        make_netns(host, name);
        let mut attachment = Attachment::new(name);
        if network.name != "others" {
            attachment.args.push_str(&format!(";IP=10.244.1.{}", port % 100 + 100));
        }
        let mapping = json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp" });
        attachment.runtime = json!({ "portMappings": [mapping] });
        Pod::connect(host, network, attachment).unwrap();
    };
    let own = Network::of(host);
    let mut former = own.clone();
    former.plugins[0]["dataDir"] = json!("/run/former");
    // As an administrator may have it: of pods with other addresses the agent knows nothing.
    let mut others = former.clone();
    others.name = "others".to_owned();
    others.plugins[0].as_object_mut().unwrap().remove("subnet");
    others.plugins[0]["ranges"] = json!([[{ "subnet": "10.9.9.0/24" }]]);
    others.plugins[0]["bridge"] = json!("hz9");
    others.plugins[0]["createBridge"] = json!(true);
    for (name, network, port) in [
        ("ends-there", &former, 8081),
        ("runs-there", &former, 8082),
        ("of-others", &others, 8083),
        ("ends-here", &own, 8084),
        ("runs-here", &own, 8085),
    ] {
        attach(name, network, port);
    }
    let is_open = |port: u16| table(host).contains(&format!("tcp . {port} "));
    assert!((8081..=8085).all(is_open), "{}", table(host));
    host.run("rm -r /run/humanz/ipam").ok();
    host.run("ip netns del of-others").ok();
    host.run("ip netns del ends-there").ok();
    host.run("ip netns del ends-here").ok();
    soon("ports of pods that ended are closed", || !is_open(8081) && !is_open(8084));
    agent.stop();
    assert!([8082, 8083, 8085].into_iter().all(is_open), "{}", table(host));
}

fn flows(host: &Node) -> String {
    host.run("conntrack -L -p udp --orig-port-dst 8080").stdout
}

fn hold(host: &Node, lock: &str) -> Process {
    let holder = host.spawn(&mut command(&format!("flock -F {lock} sleep 600")));
    soon("the lock is held", || !host.run(&format!("flock -n {lock} true")).succeeded());
    holder
}

#[test]
fn the_agents_own_table_and_this_one_are_independent() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = pod(host, "web");
    let before = table(host);
    host.run("nft delete table inet humanz").ok();
    soon("the agent's table is back", || host.run("nft list table inet humanz").succeeded());
    assert_eq!(table(host), before);
    agent.stop();
    assert_eq!(table(host), before, "pods keep their network");
    // The next agent restores what was lost without one.
    host.run("nft flush ruleset").ok();
    let agent = serve(host, &[]);
    soon("the next agent puts it back", || table(host) == before);
    drop(pod);
    agent.stop();
}

#[test]
fn a_recreated_bridge_accepts_connections_from_127_0_0_1_again() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = pod(host, "web");
    let _echo = Echo::serve(&pod, 80);
    let local: SocketAddr = "127.0.0.1:8080".parse().unwrap();
    assert!(ask_tcp(host, local).is_ok());
    host.run("ip link del humanz0").ok();
    soon("the port is forwarded again", || {
        let key = host.read("/proc/sys/net/ipv4/conf/humanz0/route_localnet");
        key.is_some_and(|value| value.trim() == "1")
    });
    soon("127.0.0.1 answers", || ask_tcp(host, local).is_ok());
    agent.stop();
}

/// A network of its own on the agent's bridge, as an administrator may write it.
#[test]
fn a_port_of_another_store_answers_on_127_0_0_1_beside_an_agent() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let mut network = Network::of(host);
    network.plugins[0]["dataDir"] = json!("/run/elsewhere");
    make_netns(host, "web");
    let mut attachment = Attachment::new("web");
    attachment.runtime = json!({ "portMappings": mappings() });
    let pod = Pod::connect(host, &network, attachment).unwrap();
    let _echo = Echo::serve(&pod, 80);
    let local: SocketAddr = "127.0.0.1:8080".parse().unwrap();
    assert!(ask_tcp(host, local).is_ok());
    // The store of the agent has no port any more then.
    make_netns(host, "own");
    let mut attachment = Attachment::new("own");
    let mapping = json!({ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" });
    attachment.runtime = json!({ "portMappings": [mapping] });
    Pod::connect(host, &Network::of(host), attachment).unwrap().delete();
    agent.stop();
    let agent = serve(host, &[]);
    assert!(ask_tcp(host, local).is_ok());
    agent.stop();
}

/// Of one address and of every address, the first gets the packets of both.
#[test]
fn a_port_that_another_element_has_is_a_problem_until_that_is_gone() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = pod(host, "web");
    let before = table(host);
    agent.stop();
    host.run(&format!("nft delete element {TABLE} any4 {{ tcp . 8080 }}")).ok();
    let other = format!("element {TABLE} at4 {{ 192.0.2.11 . tcp . 8080");
    host.run(&format!("nft add {other} : 10.244.9.9 . 80 }}")).ok();
    let agent = serve(host, &[]);
    let status = status_when(host, "the port", |status| has_problem(status, "host-port"));
    let of_pod = format!("host port 8080/tcp on every IPv4 address to {}:80", pod.v4());
    assert!(problem(&status, "host-port", &of_pod).is_some(), "{status:#}");
    assert_eq!(problems(&status, "host-port").count(), 1, "{status:#}");
    host.run(&format!("nft delete {other} }}")).ok();
    soon("the port is back", || table(host) == before);
    status_when(host, "no problem", |status| !has_problem(status, "host-port"));
    pod.delete();
    agent.stop();
}

#[test]
fn a_pod_is_reached_although_the_hosts_own_rules_drop_what_is_forwarded() {
    let alone = alone();
    let host = &alone.host;
    host.shell(
        "ip netns add outside; ip link set eth0-cable netns outside
         ip -n outside link set eth0-cable up; ip -n outside addr add 192.0.2.99/24 dev eth0-cable
         iptables -P FORWARD DROP",
    )
    .ok();
    let agent = serve(host, &[]);
    let pod = pod(host, "web");
    let _echo = Echo::serve(&pod, 80);
    let asked = host.run("ip netns exec outside curl -sS -m 5 --http0.9 http://192.0.2.11:8080/");
    assert_eq!(asked.stdout, "192.0.2.99", "{asked}");
    agent.stop();
}

#[test]
fn cleaning_up_takes_the_ports_along() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[("CLEANUP_ON_STOP", "true")]);
    let _pod = pod(host, "web");
    agent.stop();
    assert_eq!(table(host), "");
}
