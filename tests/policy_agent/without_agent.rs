//! While there is no agent: pods of namespaces that no policy concerns start as ever, and nothing that was
//! taken away comes back.

use serde_json::json;

use crate::support::cni::Network;
use crate::support::node::command;
use crate::support::{Agent, Node, Place, Pod, eventually, local, pod, soon, wait};
use crate::traffic::{Flood, Server};
use crate::{FILE, STANDALONE, add, alone, attachment, only_from, serve, write_policies};

const INDEX: &str = "/run/humanz/ipam/.policy.index";

fn connect(host: &Node, name: &str, namespace: &str) -> Pod {
    pod::make_netns(host, name);
    let mut attachment = attachment(name, "any");
    attachment.args = attachment.args.replace("=shop", &format!("={namespace}"));
    Pod::connect(host, &Network::of(host), attachment).unwrap()
}

fn index(host: &Node) -> String {
    host.read(INDEX).unwrap_or_default()
}

fn arrives(server: &mut Server, from: &Pod, to: &Pod) -> bool {
    let before = server.received(from.v4());
    let flood = Flood::start(from, to.v4());
    flood.go_on();
    server.received(from.v4()) > before
}

#[test]
fn a_pod_of_a_namespace_without_policies_needs_no_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (first, shop) = (connect(host, "first", "free"), add(host, "web", "web"));
    soon("the index", || index(host).contains("free"));
    assert!(!index(host).contains("shop"), "{}", index(host));
    agent.kill();
    for (name, namespace, reached) in
        [("second", "free", true), ("third", "shop", false), ("fourth", "unknown", false)]
    {
        let new = connect(host, name, namespace);
        let mut server = Server::open(&new);
        assert_eq!(arrives(&mut server, &first, &new), reached, "{name}");
        let last = host.shell("tail -1 /var/log/humanz.log").stdout;
        assert_eq!(last.contains("no policy concerns its namespace"), reached, "{last}");
        new.delete();
    }
    // Without the index nothing is opened.
    host.run(&format!("rm {INDEX}")).ok();
    let new = connect(host, "fifth", "free");
    let mut server = Server::open(&new);
    assert!(!arrives(&mut server, &first, &new));
    drop(server);

    // What quarantined it is known to the agent that comes back.
    let agent = serve(host, &[]);
    let mut server = Server::open(&new);
    soon("release", || arrives(&mut server, &first, &new));
    // Its namespace is concerned as soon as a policy denies its pods to somebody.
    let deny = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}},
            "ingress": [{"action": "Deny", "from": [{"namespaces":
                {"matchLabels": {"kubernetes.io/metadata.name": "free"}}}]}]},
    });
    write_policies(host, &[deny]);
    soon("the index", || !index(host).contains("free"));
    agent.kill();
    let late = connect(host, "sixth", "free");
    let mut server = Server::open(&shop);
    assert!(!arrives(&mut server, &late, &shop));
}

#[test]
fn what_was_revoked_before_a_crash_does_not_come_back_with_what_is_on_disk() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let mut server = Server::open(&db);
    assert!(arrives(&mut server, &web, &db));
    let kept = || host.read("/var/lib/humanz/policy.json");
    eventually("the policies are kept", wait::SOON, || {
        kept().map(drop).ok_or("not yet".to_owned())
    });
    // The disk refuses what is newer.
    host.shell("mkdir /var/lib/humanz/.policy.json.humanz-new").ok();
    write_policies(host, &[only_from("db", &["nobody"])]);
    server.wait_silence(web.v4(), std::time::Instant::now());
    soon("revocation", || !arrives(&mut server, &web, &db));
    assert_eq!(kept(), None, "what is on disk is marked as outdated");
    agent.kill();
    host.write(FILE, "{");
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    assert!(!arrives(&mut server, &web, &db));
    agent.kill();
    // With a file that is not marked it would be as it was.
    host.run("mv /var/lib/humanz/policy.json.outdated /var/lib/humanz/policy.json").ok();
    let agent = serve(host, &[]);
    soon("the control", || arrives(&mut server, &web, &db));
    agent.stop();
}

#[test]
fn many_changes_are_few_writes() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    // A file keeps its time when it is renamed.
    let time = || host.shell("stat -c %y /var/lib/humanz/policy.json* | sort | tail -1").stdout;
    let begun = std::time::Instant::now();
    let (mut writes, mut last, mut changes) = (0, time(), 0);
    while begun.elapsed() < std::time::Duration::from_secs(4) || changes <= 20 {
        changes += 1;
        write_policies(host, &[only_from(&format!("app{changes}"), &["web"])]);
        let now = time();
        if now != last && !now.is_empty() {
            (writes, last) = (writes + 1, now);
        }
    }
    let took = begun.elapsed();
    println!("{changes} changes, {writes} writes in {took:?}");
    // One a second.
    assert!((1..=took.as_secs() + 2).contains(&writes), "{changes} changes, {writes} writes");
    // The last one gets there.
    let name = format!("app{changes}");
    let text = || host.read("/var/lib/humanz/policy.json").unwrap_or_default();
    soon("the last change", || text().contains(&name));
    agent.stop();
}

#[test]
fn a_dry_run_shows_what_becomes_of_the_table() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let lines = || Agent::run(host, "--dry-run", STANDALONE).ok();
    assert!(lines().contains("+ nft table inet humanz-policy"), "{}", lines());
    let agent = serve(host, &[]);
    let _db = add(host, "db", "db");
    assert!(!lines().contains("humanz-policy"), "{}", lines());
    agent.stop();
    write_policies(host, &[]);
    let text = lines();
    assert!(
        text.lines().any(|line| line.contains("humanz-policy") && line.starts_with(['~', '-'])),
        "{text}"
    );
    let off = Agent::run(host, "--dry-run", &[STANDALONE, &[("POLICY", "off")]].concat()).ok();
    assert!(off.contains("- nft table inet humanz-policy"), "{off}");
    assert!(host.run("nft list table inet humanz-policy").ok().contains("np/shop/db"));
}

#[test]
fn nothing_changes_while_the_index_cannot_be_removed() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (other, db) = (add(host, "other", "other"), add(host, "db", "db"));
    let mut server = Server::open(&db);
    host.shell(&format!("rm -f {INDEX}; mkdir -p {INDEX}/full")).ok();
    write_policies(host, &[]);
    local::status_when(host, "a problem", |status| local::has_problem(status, "inspect-failed"));
    assert!(!arrives(&mut server, &other, &db));
    host.run(&format!("rm -r {INDEX}")).ok();
    soon("the policies", || arrives(&mut server, &other, &db));
    agent.stop();
}

/// Of a hundred starts two failed with code 999, and the advice to load modules of the kernel.
#[test]
fn what_goes_from_the_table_while_a_pod_starts_fails_no_start() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    serve(host, &[("POLICY_ON_AGENT_DOWN", "open")]).kill();
    let network = Network::of(host);
    let element = "element inet humanz-policy self4 { 10.244.1.3 . 10.244.1.3 }\n";
    host.write("/run/add", &format!("add {element}"));
    host.write("/run/delete", &format!("delete {element}"));
    host.write("/run/both", "while :; do nft -f /run/add; nft -f /run/delete; done 2>/run/errors");
    let other = host.spawn(&mut command("sh /run/both"));
    for number in 0..100 {
        let name = format!("p{number}");
        pod::make_netns(host, &name);
        let mut attachment = attachment(&name, "db");
        attachment.args += ";IP=10.244.1.3";
        let pod = Pod::connect(host, &network, attachment);
        pod.unwrap_or_else(|error| panic!("{name}: ADD: {error}")).delete();
    }
    other.kill();
}
