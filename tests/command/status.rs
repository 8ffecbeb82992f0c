//! The subcommand `status`.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Place, Pod, eventually};
use crate::{object, refused, run, shape};

const POOLS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("ETCD_TIMEOUT", "1s")];

#[test]
fn status_is_healthy_with_an_agent_and_shows_the_fix_without_one() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let _pod = Pod::add(host, "web");
    let output = eventually("status is healthy", Duration::from_secs(30), || {
        let ended = run(host, "status", POOLS);
        let asked = !ended.stdout.contains("not asked");
        if ended.succeeded() && asked { Ok(ended.stdout) } else { Err(ended.to_string()) }
    });
    println!("{output}");
    for words in [
        "ready, version ",
        "10.244.",
        "1 interface plugged in",
        "1 other, 1 is reached",
        "nothing is wrong",
        "252 of 253 addresses of 10.244.",
    ] {
        assert!(output.contains(words), "{words:?} is not in:\n{output}");
    }
    let with = object(&run(host, "status --json", POOLS));

    agents[0].process.signal(Signal::SIGSTOP);
    let output = run(host, "status", POOLS);
    agents[0].process.signal(Signal::SIGCONT);
    assert!(output.stdout.contains("-> systemctl restart humanz-agent"), "{output}");

    // Drift that is not repaired without an agent.
    agents[0].stop();
    // In a pod the operator has kubectl.
    let in_pod = [POOLS, &[("KUBERNETES_SERVICE_HOST", "10.96.0.1")]].concat();
    let output = run(host, "status", &in_pod);
    assert!(output.stdout.contains("-> kubectl -n kube-system describe pods"), "{output}");
    assert!(!output.stdout.contains("systemctl"), "{output}");
    // The package was removed, and with it the unit.
    let copy = host.run("/opt/cni/bin/humanz-agent status");
    assert!(copy.stdout.contains("-> systemctl cat humanz-agent #"), "{copy}");
    host.shell("ip route flush proto 104; nft delete table inet humanz").ok();
    let output = run(host, "status", POOLS);
    println!("{output}");
    assert_eq!(output.status.code(), Some(1), "{output}");
    for words in [
        "does not answer: no agent serves this host",
        "1. no agent serves this host",
        "-> systemctl enable --now humanz-agent",
        "+ route 10.244.",
        "+ nft table inet humanz",
        "firewall  not as it should be: + nft table inet humanz",
        "1 other, 0 are reached",
        "not there: route 10.244.",
        "1 interface plugged in",
    ] {
        assert!(output.stdout.contains(words), "{words:?} is not in:\n{output}");
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
    let output = run(host, "status", POOLS);
    println!("{output}");
    for words in ["(from last known good state)", "etcd does not answer", "1 other, 0 are reached"]
    {
        assert!(output.stdout.contains(words), "{words:?} is not in:\n{output}");
    }
    host.shell("rm /var/lib/humanz/state.json").ok();
    let output = run(host, "status", POOLS);
    println!("{output}");
    let unknown = ["lease     unknown", "other hosts: unknown", "firewall  unknown"];
    for words in unknown.into_iter().chain(["1 interface plugged in"]) {
        assert!(output.stdout.contains(words), "{words:?} is not in:\n{output}");
    }
}

#[test]
fn the_readme_shows_every_line_of_a_status() {
    let cluster = Cluster::new(2);
    let _agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let _pod = Pod::add(host, "web");
    let readme = include_str!("../../README.md");
    let readme = readme.split("\n# humanz-agent status\n").nth(1).unwrap();
    // The first words of the facts, and the heads of the table.
    let heads = |text: &str, indent: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.strip_prefix(indent).unwrap_or(line));
        let (facts, rest): (Vec<&str>, Vec<&str>) = {
            let mut lines = lines;
            (lines.by_ref().take_while(|line| !line.is_empty()).collect(), lines.take(1).collect())
        };
        let facts = facts.into_iter().filter(|line| !line.starts_with(' '));
        let facts = facts.filter_map(|line| line.split(' ').next());
        facts
            .chain(rest.iter().flat_map(|line| line.split_whitespace()))
            .map(str::to_owned)
            .collect()
    };
    let wanted = heads(readme, "    ");
    eventually("the status is as the README shows it", Duration::from_secs(30), || {
        let ended = run(host, "status", POOLS);
        let same = heads(&ended.stdout, "") == wanted;
        if same { Ok(()) } else { Err(format!("{wanted:?}\n{ended}")) }
    });
}

#[test]
fn status_needs_no_etcd_settings_while_an_agent_runs() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let unset = &[("ETCD_HOST", "")];
    let output = eventually("status is healthy", Duration::from_secs(30), || {
        let ended = run(host, "status", unset);
        if ended.succeeded() { Ok(ended.stdout) } else { Err(ended.to_string()) }
    });
    assert!(output.contains("(from etcd, ") && !output.contains("localhost"), "{output}");
    agents[0].stop();
    // What it served with last is known.
    let shown = run(host, "status", unset);
    assert!(
        shown.stdout.contains("no agent") || shown.stdout.contains("does not answer"),
        "{shown}"
    );
    assert!(shown.stdout.contains("1. ") && !shown.stdout.contains("ETCD_HOST"), "{shown}");
}

/// The answers on a host that never had an agent.
#[test]
fn a_host_with_the_plugin_alone_is_looked_at_without_etcd() {
    let alone = Alone::new();
    let host = &alone.host;
    host.shell(&format!("mkdir -p /opt/cni/bin && ln -s {EXECUTABLE} /opt/cni/bin/humanz")).ok();
    let unset = &[("ETCD_HOST", "")];
    let conf = r#"{ "cniVersion": "1.0.0", "name": "pods", "type": "humanz", "bridge": "humanz0",
        "subnet": "10.244.1.0/24", "ipMasq": true }"#;
    let network = Network::parse(conf);
    let pods = ["one", "two"].map(|name| {
        make_netns(host, name);
        Pod::connect(host, &network, Attachment::new(name)).unwrap_or_else(|e| panic!("{e}"))
    });
    let status = run(host, "status", unset);
    println!("{status}");
    assert_eq!(status.status.code(), Some(1), "{status}");
    for words in [
        "lease     unknown",
        "etcd      no answer: ETCD_HOST is not set",
        "2 interfaces plugged in",
        "2 interfaces in network pods",
        "hosts     other hosts: unknown",
        "what only etcd knows is unknown",
    ] {
        assert!(status.stdout.contains(words), "{words:?} is not in:\n{status}");
    }
    let problems = object(&run(host, "status --json", unset))["problems"].clone();
    let kinds: Vec<&str> =
        problems.as_array().unwrap().iter().map(|of| of["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["agent-down"], "{problems:#}");
    let problem = &problems[0];
    // Nobody says since when.
    assert!(problem["since"].is_null() && problem["fix"].is_string(), "{problems:#}");
    assert!(!status.stdout.contains("(since "), "{status}");
    let doctor = run(host, "doctor", unset);
    println!("{doctor}");
    assert!(doctor.stdout.contains("ETCD_HOST is not set"), "{doctor}");
    assert!(!doctor.stdout.contains("is a member of ETCD_HOST up"), "{doctor}");
    let explained = run(host, "explain one two", unset);
    assert!(explained.succeeded(), "{explained}");
    let listed = run(host, "ipam list", unset);
    assert!(listed.succeeded(), "{listed}");
    assert!(listed.stdout.contains(&pods[1].v4().to_string()), "{listed}");
    // All of these are about other hosts.
    for line in ["status --all", "nodes list", "routes", "probe"] {
        let ended = run(host, line, unset);
        assert!(!ended.succeeded() && ended.stderr.contains("ETCD_HOST is not set"), "{ended}");
    }
    // A fault in what is set is a fault.
    refused(&run(host, "status", &[("ETCD_HOST", ""), ("MTU", "many")]), 2, &["MTU=many"]);
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
    "peers[].paths[]: string",
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
    "pods.taken_over: number",
    "schema: number",
];

#[test]
fn a_repair_and_an_unreachable_host_are_shown() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, POOLS);
    agent.wait_ready();
    let shows = |words: &[&str]| {
        eventually(&format!("{words:?} are shown"), Duration::from_secs(30), || {
            let ended = run(host, "status", POOLS);
            let all = words.iter().all(|words| ended.stdout.contains(words));
            if all { Ok(()) } else { Err(ended.to_string()) }
        });
    };
    cluster.etcd.put("/humanz/hosts/nowhere", "10.244.200.0/24");
    shows(&["nowhere  unreachable", "pods of host nowhere", "# add it to DNS"]);
    // What changes together with something of etcd's may be taken for a part of that.
    host.run("nft delete table inet humanz").ok();
    shows(&["latest repairs", "added nft table inet humanz"]);
    // etcd is away because of it.
    host.run("ip link set eth0 down").ok();
    shows(&["1. interface eth0, ", "-> ip link set eth0 up", "2. etcd does not answer"]);
}

/// Root without capabilities, at a socket of another user, is like any other user.
#[test]
fn a_user_without_access_to_the_socket_gets_a_permission_error() {
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
    refused(&ask("status"), 69, &["only root may use the agent's socket", "try sudo"]);
    refused(&ask("status --json"), 69, &["only root may use the agent's socket"]);
    let looked = ask("doctor");
    assert!(looked.stdout.contains("agent-silent: cat /proc/self/status # root lacks"), "{looked}");
    assert!(!looked.stdout.contains("systemctl"), "{looked}");
    run(&alone.host, "status", &settings).ok();
}

#[test]
fn a_host_without_etcd_has_a_status() {
    let alone = Alone::new();
    let settings = [("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];
    let agent = Agent::start(&alone.host, &settings);
    agent.wait_ready();
    let output = run(&alone.host, "status", &settings).ok();
    assert!(output.contains("etcd      none: this host serves itself"), "{output}");
    let other = run(&alone.host, "status", &[settings[0], settings[1], ("SOCKET", "none")]);
    assert!(other.stdout.contains("the agent has no socket (SOCKET=none)"), "{other}");
}
