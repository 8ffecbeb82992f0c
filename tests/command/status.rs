//! `status`.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Cluster, Place, Pod, eventually};
use crate::{object, refused, run, shape};

const POOLS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("ETCD_TIMEOUT", "1s")];

#[test]
fn with_an_agent_all_is_well_and_without_one_it_is_said_what_to_do() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let _pod = Pod::add(host, "web");
    let told = eventually("all is well", Duration::from_secs(30), || {
        let ended = run(host, "status", POOLS);
        if ended.succeeded() { Ok(ended.stdout) } else { Err(ended.to_string()) }
    });
    println!("{told}");
    for words in [
        "ready, version ",
        "10.244.",
        "1 plugged in",
        "1 other, 1 is reached",
        "nothing is wrong",
        "252 of 253 addresses of 10.244.",
    ] {
        assert!(told.contains(words), "{words:?} is not in:\n{told}");
    }
    let with = object(&run(host, "status --json", POOLS));

    agents[0].process.signal(Signal::SIGSTOP);
    let told = run(host, "status", POOLS);
    agents[0].process.signal(Signal::SIGCONT);
    assert!(told.stdout.contains("-> systemctl restart humanz-agent"), "{told}");

    // Drift that nobody repairs, for there is no agent.
    agents[0].stop();
    host.shell("ip route flush proto 104; nft delete table inet humanz").ok();
    let told = run(host, "status", POOLS);
    println!("{told}");
    assert_eq!(told.status.code(), Some(1), "{told}");
    for words in [
        "does not answer: no agent serves this host",
        "1. no agent serves this host",
        "-> systemctl enable --now humanz-agent",
        "+ route 10.244.",
        "+ nft table inet humanz",
        "firewall  not as it should be: + nft table inet humanz",
        "1 other, 0 are reached",
        "not there: route 10.244.",
        "1 plugged in",
    ] {
        assert!(told.stdout.contains(words), "{words:?} is not in:\n{told}");
    }
    let without = object(&run(host, "status --json", POOLS));
    for value in [&with, &without] {
        let shape = shape(value);
        for line in WITH_AND_WITHOUT {
            assert!(shape.lines().any(|found| found == *line), "{line} is not in:\n{shape}");
        }
    }
    assert_eq!(with["lease"]["subnets"], without["lease"]["subnets"]);
    for key in ["name", "addresses", "subnets", "via", "alive"] {
        assert_eq!(with["peers"][0][key], without["peers"][0][key], "{key}");
    }
    assert_eq!(without["agent"]["answers"], false);

    cluster.etcd.kill();
    let told = run(host, "status", POOLS);
    println!("{told}");
    for words in ["(from last known good state)", "etcd does not answer", "1 other, 0 are reached"]
    {
        assert!(told.stdout.contains(words), "{words:?} is not in:\n{told}");
    }
    host.shell("rm /var/lib/humanz/state.json").ok();
    let told = run(host, "status", POOLS);
    println!("{told}");
    let unknown = ["lease     unknown", "other hosts: unknown", "firewall  unknown"];
    for words in unknown.into_iter().chain(["1 plugged in"]) {
        assert!(told.stdout.contains(words), "{words:?} is not in:\n{told}");
    }
}

#[test]
fn an_agent_answers_somebody_who_does_not_know_its_etcd() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let unset = &[("ETCD_HOST", "")];
    let told = eventually("all is well", Duration::from_secs(30), || {
        let ended = run(host, "status", unset);
        if ended.succeeded() { Ok(ended.stdout) } else { Err(ended.to_string()) }
    });
    assert!(told.contains("(from etcd, ") && !told.contains("localhost"), "{told}");
    agents[0].stop();
    let refused = run(host, "status", unset);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("ETCD_HOST is not set"), "{refused}");
}

const WITH_AND_WITHOUT: &[&str] = &[
    "agent.answers: bool",
    "backend: string",
    "etcd.connected: string",
    "etcd.endpoints[]: string",
    "etcd.revision: number",
    "faults: list",
    "firewall.ok: bool",
    "lease.source: string",
    "lease.subnets[]: string",
    "node.addresses[]: string",
    "node.machine_id: string",
    "node.name: string",
    "peers[].addresses[]: string",
    "peers[].alive: bool",
    "peers[].name: string",
    "peers[].reachable: bool",
    "peers[].subnets[]: string",
    "peers[].via[]: string",
    "pods.attached: number",
    "pods.limited: number",
    "pods.networks[].attachments: number",
    "pods.networks[].free[].family: string",
    "pods.networks[].free[].subnet: string",
    "pods.networks[].free[].usable: number",
    "pods.networks[].host_ports: number",
    "pods.networks[].name: string",
    "schema: number",
];

#[test]
fn a_repair_and_an_unreachable_host_are_shown() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, POOLS);
    agent.wait_ready();
    let told = |words: &[&str]| {
        eventually(&format!("{words:?} are told"), Duration::from_secs(30), || {
            let ended = run(host, "status", POOLS);
            let all = words.iter().all(|words| ended.stdout.contains(words));
            if all { Ok(()) } else { Err(ended.to_string()) }
        });
    };
    cluster.etcd.put("/humanz/hosts/nowhere", "10.244.200.0/24");
    told(&["nowhere  unreachable", "pods of host nowhere", "-> add it to DNS"]);
    // What changes together with something of etcd's may be taken for a part of that.
    host.run("nft delete table inet humanz").ok();
    told(&["latest repairs", "added nft table inet humanz"]);
    // etcd is away because of it.
    host.run("ip link set eth0 down").ok();
    told(&["1. interface eth0, ", "-> ip link set eth0 up", "2. etcd does not answer"]);
}

/// Root without its privileges, before a socket that is somebody else's, is like any other user.
#[test]
fn who_may_not_ask_the_agent_is_told_so_and_not_to_start_it() {
    let alone = Alone::new();
    let settings = [("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];
    let agent = Agent::start(&alone.host, &settings);
    agent.wait_ready();
    let ask = |what: &str| {
        let mut shell = command("sh -c");
        shell.arg(format!(
            "chmod 0 /run/humanz/agent.sock
             exec setpriv --bounding-set=-dac_override,-dac_read_search {EXECUTABLE} {what}"
        ));
        alone.host.run_command(shell.envs(settings), "")
    };
    refused(&ask("status"), 69, &["only root may ask the agent", "try sudo"]);
    refused(&ask("status --json"), 69, &["only root may ask the agent"]);
    let looked = ask("doctor");
    assert!(looked.stdout.contains("agent-silent: run this as root"), "{looked}");
    assert!(!looked.stdout.contains("systemctl"), "{looked}");
    run(&alone.host, "status", &settings).ok();
}

#[test]
fn a_host_that_serves_itself_has_a_status() {
    let alone = Alone::new();
    let settings = [("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];
    let agent = Agent::start(&alone.host, &settings);
    agent.wait_ready();
    let told = run(&alone.host, "status", &settings).ok();
    assert!(told.contains("etcd      none: this host serves itself"), "{told}");
    let other = run(&alone.host, "status", &[settings[0], settings[1], ("SOCKET", "none")]);
    assert!(other.stdout.contains("the agent has no socket (SOCKET=none)"), "{other}");
}
