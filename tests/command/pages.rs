//! The examples of the pages of subcommands (packaging/humanz-agent-*.8), typed as they stand there.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::manual::PAGES;
use crate::support::cluster::{Alone, Cluster, OUTSIDE};
use crate::support::cni::{Attachment, Network};
use crate::support::echo::Echo;
use crate::support::guide::examples;
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Ended, Node, Place, Pod, Process, eventually};

/// On h1 in this order: an example, its exit code, and a word of what it prints.
const TYPED: [(&str, i32, &str); 31] = [
    // What the examples of policies take for granted has been made by `prepare`.
    ("humanz-agent tenant show blue", 0, "front"),
    (
        "humanz-agent net create blue/front --cidr 10.32.0.0/16 --pins 10.32.255.0/24",
        0,
        "+ Network blue/front",
    ),
    ("humanz-agent group create blue/web --policies front", 0, "+ Group blue/web"),
    (
        "humanz-agent profile create blue/gold --dscp 46 --egress-rate 100M",
        0,
        "+ NetProfile blue/gold",
    ),
    ("humanz-agent ns create shop --tenant blue --group web", 0, "+ NamespaceRule shop"),
    ("humanz-agent pin create shop/db-0 --network blue/front", 0, "+ Pin shop/db-0"),
    ("humanz-agent policy rule-set blue/front 2 --port 8080", 0, "~ GroupPolicy blue/front"),
    ("humanz-agent apply -f policies.yaml --dry-run", 0, "+ Group blue/db"),
    ("humanz-agent policy diff -f new.yaml", 1, "shop/db"),
    ("humanz-agent policy ls --counters", 0, "blue/front"),
    ("humanz-agent endpoint show shop/web", 0, "blue/web"),
    ("humanz-agent flows --pod shop/web --denied", 0, "shop/db"),
    ("humanz-agent export > policies.json; cat policies.json", 0, "NamespaceRule"),
    ("humanz-agent names groups", 0, "blue/web"),
    ("humanz-agent ready --wait 60", 0, ""),
    ("humanz-agent status", 0, "nothing is wrong"),
    ("humanz-agent status --json | jq .problems", 0, "[]"),
    ("humanz-agent doctor --bundle /var/log/humanz-bundle.tar", 0, "/var/log/humanz-bundle.tar"),
    ("humanz-agent pods", 0, "default/web"),
    ("humanz-agent ipam show default/web", 0, "default/web"),
    ("humanz-agent routes --wrong", 0, ""),
    ("humanz-agent config --running --changed", 0, "FLOWS"),
    ("humanz-agent top --seconds 10 --count 5", 0, "shop/db"),
    ("humanz-agent explain shop/web shop/db 5432", 0, "nothing is wrong"),
    ("humanz-agent explain default/web https://example.org/", 0, "nothing is lost"),
    ("humanz-agent probe --from-pod", 0, "h3"),
    ("humanz-agent probe --matrix", 0, "h3"),
    (
        "humanz-agent connectivity test --outside 192.0.2.1 --service 10.96.0.1:443",
        0,
        "10.96.0.1:443",
    ),
    ("humanz-agent status --all", 0, "h3"),
    ("humanz-agent doctor --all", 0, "3 hosts report no problem"),
    ("humanz-agent pods --all", 0, "on 3 of 3 hosts"),
];

/// The same on h1 when the agent of h3 has ended, and what is left behind is there.
const LATER: [(&str, i32, &str); 6] = [
    ("humanz-agent nodes ls", 0, "h3"),
    ("humanz-agent nodes show h3 --json", 0, "10.244.3.0/24"),
    ("humanz-agent nodes rm h3 --dry-run", 0, "/humanz/hosts/h3"),
    ("humanz-agent ipam import /var/lib/cni/networks/cbr0", 0, "10.244.1.77"),
    ("humanz-agent ipam gc --yes", 0, "1 freed"),
    ("humanz-agent uninstall --dry-run", 0, "humanz0"),
];

/// They do not end by themselves.
const RUNNING: [&str; 3] =
    ["humanz-agent ui", "humanz-agent watch --drops", "humanz-agent watch --json | jq -r .what"];

/// On hosts of their own.
const INIT: &str = "humanz-agent init --subnet 10.88.0.0/16,fd00:88::/64 --dry-run";
const RESERVE: &str = "humanz-agent nodes reserve --new-network h1 10.244.1.0/24";

/// What they need a test elsewhere has: a kernel with WireGuard, the Kubernetes API.
const ELSEWHERE: [(&str, &str, &str); 2] = [
    (
        "humanz-agent encryption rotate",
        "encryption rotate",
        include_str!("../encryption/rotation.rs"),
    ),
    ("humanz-agent controller", "controller", include_str!("../kubernetes/controller.rs")),
];

/// Those of the first command lines.
const DENIED: &str = "shop/web → shop/db:5432 tcp denied by NetworkPolicy shop/db (ingress)";

#[test]
fn every_example_of_the_pages_is_typed_by_a_test() {
    let first = |line: &str| line.split(';').next().unwrap().to_owned();
    let table = TYPED.iter().chain(&LATER).map(|(line, ..)| first(line));
    let others = RUNNING.iter().chain(&[INIT, RESERVE, DENIED]).map(|line| (*line).to_owned());
    let elsewhere = ELSEWHERE.iter().map(|(line, ..)| (*line).to_owned());
    let typed: BTreeSet<String> = table.chain(others).chain(elsewhere).collect();
    let shown = PAGES.iter().flat_map(|page| examples(page));
    let shown: BTreeSet<String> =
        shown.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    assert_eq!(typed, shown);
    for (line, words, test) in ELSEWHERE {
        assert!(test.contains(words), "{line}");
    }
}

fn sheet(line: &str) -> String {
    format!("cd /root; export PATH=/opt/humanz:$PATH; {line}")
}

fn typed(host: &Node, line: &str) -> Ended {
    host.shell(&sheet(line))
}

/// Why an example does not do what it should. What others do about a change takes its time.
fn fault(host: &Node, (line, code, word): (&str, i32, &str)) -> Option<String> {
    let until = Instant::now() + SOON;
    loop {
        let ended = typed(host, line);
        if ended.status.code() == Some(code) && ended.stdout.contains(word) {
            return None;
        }
        if Instant::now() > until {
            return Some(format!("{line}: code {code} and {word:?} are missing: {ended}"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn started(host: &Node, line: &str) -> Process {
    // A pipe is no terminal: jq would keep its lines back.
    let mut shell = command("stdbuf -oL sh -c");
    host.spawn(shell.arg(sheet(line)))
}

fn waits(process: &Process, word: &str, cause: impl Fn()) {
    eventually(&format!("{word:?} is printed"), 2 * SOON, || {
        cause();
        std::thread::sleep(Duration::from_millis(200));
        let log = process.log();
        if log.contains(word) { Ok(()) } else { Err(log) }
    });
}

fn add(host: &Node, namespace: &str, name: &str) -> Pod {
    let container = format!("{namespace}-{name}");
    make_netns(host, &container);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    let attachment = Attachment { args, ..Attachment::new(&container) };
    Pod::connect(host, &Network::of(host), attachment).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn group_policy(port: u16) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": "GroupPolicy", "metadata": {"name": "front", "tenant": "blue"},
        "spec": {"rules": [{"direction": "in", "action": "deny", "protocol": "tcp", "ports": [port]}]}})
}

/// Files, and a policy whose second rule can be changed.
fn prepare(host: &Node) {
    for line in [
        "policy create blue/front",
        "policy rule-add blue/front --direction out --action allow",
        "policy rule-add blue/front --direction in --action deny --protocol tcp --port 81",
    ] {
        typed(host, &format!("humanz-agent {line}")).ok();
    }
    host.write("/root/new.yaml", &group_policy(5432).to_string());
    let group =
        "apiVersion: humanz.io/v1\nkind: Group\nmetadata: {tenant: blue, name: db}\nspec: {}\n";
    host.write("/root/policies.yaml", group);
    let hosts = host.read("/etc/hosts").unwrap();
    host.write("/etc/hosts", &format!("{hosts}{} example.org\n", OUTSIDE[0]));
    // As kube-proxy has it.
    host.shell(&format!(
        "nft add table ip service
         nft add chain ip service prerouting '{{ type nat hook prerouting priority dstnat; }}'
         nft add rule ip service prerouting ip daddr 10.96.0.1 tcp dport 443 dnat to {}:443",
        OUTSIDE[0]
    ))
    .ok();
}

#[test]
fn the_examples_of_the_pages_do_what_they_show() {
    let cluster = Cluster::new(3);
    let h1 = &cluster.hosts[0];
    for host in &cluster.hosts {
        host.run("mkdir -p /etc/humanz").ok();
        host.write("/etc/humanz/agent.env", "ETCD_HOST=192.0.2.2\nPOLICY=on\nFLOWS=on\n");
    }
    // One after the other: the second subnet is the second host's.
    let started_agent = |host: &Node| {
        let agent = Agent::start(host, &[("ETCD_HOST", "")]);
        agent.wait_ready();
        agent
    };
    let agents: Vec<Agent> = cluster.hosts.iter().map(started_agent).collect();
    prepare(h1);
    let [web, db] = ["web", "db"].map(|name| add(h1, "shop", name));
    let _web = add(h1, "default", "web");
    let _listeners = [Echo::serve(&db, 5432), Echo::serve(&cluster.outside, 443)];
    let [ui, drops, changes] = RUNNING.map(|line| started(h1, line));
    let denied = || {
        let target = SocketAddr::new(db.v4(), 8080);
        let connect = || TcpStream::connect_timeout(&target, Duration::from_millis(100)).is_ok();
        web.spot().inside(connect);
    };
    let mut faults = Vec::new();
    for example in TYPED {
        faults.extend(fault(h1, example));
        if example.0.contains("rule-set") {
            waits(&drops, "shop/db", denied);
        }
    }
    waits(&ui, "http://127.0.0.1:8104/", || {});
    let page = h1.run("curl -sS --compressed --noproxy * -m 10 http://127.0.0.1:8104/").ok();
    assert!(page.contains("<title>humanz</title>"), "{page}");
    waits(&changes, "added route 10.244.2.0/24", || {
        h1.run("ip route del 10.244.2.0/24");
    });

    agents[2].stop();
    let gone = add(h1, "default", "gone");
    h1.run(&format!("ip netns del {}", gone.attachment.container)).ok();
    h1.run("mkdir -p /var/lib/cni/networks/cbr0").ok();
    h1.write("/var/lib/cni/networks/cbr0/10.244.1.77", "older\r\neth0");
    faults.extend(LATER.into_iter().filter_map(|example| fault(h1, example)));
    assert!(faults.is_empty(), "{} fail:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_examples_of_setting_up_do_what_they_show() {
    let machine = Alone::new();
    assert_eq!(fault(&machine.host, (INIT, 0, "10.88.0.0/16")), None);
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    host.run("mkdir -p /etc/humanz").ok();
    host.write("/etc/humanz/agent.env", "ETCD_HOST=192.0.2.2\n");
    let kept = typed(host, RESERVE).ok();
    assert!(kept.contains("10.244.1.0/24 is kept for host h1"), "{kept}");
}
