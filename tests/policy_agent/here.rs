//! `policy test` without the objects of a cluster: by what holds on the host that is asked.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::cni::{Attachment, Network};
use crate::support::local::problem;
use crate::support::wait::SOON;
use crate::support::{self, Agent, Cluster, Ended, Node, Place, Pod, eventually, soon};
use crate::tenants::{add as add_to_network, namespace, reaches, with_two_networks};
use crate::{PORT, STANDALONE, add, alone, attachment, only_from, serve, write_policies};

/// What `policy test` says on a host, and with which exit code.
struct Asked<'a> {
    host: &'a Node,
    settings: &'a [(&'a str, &'a str)],
}

impl Asked<'_> {
    fn run(&self, from: &str, to: &str, more: &str) -> Ended {
        let words = format!("policy test --from {from} --to {to} {more}");
        Agent::run(self.host, &words, self.settings)
    }

    /// The exit code is `code`, and the answer has these lines.
    fn says(&self, [from, to, more]: [&str; 3], code: i32, lines: &[&str]) {
        let ended = self.run(from, to, more);
        assert_eq!(ended.status.code(), Some(code), "{from} {to}: {ended}");
        for wanted in lines {
            let found = ended.stdout.lines().any(|line| line.trim_end().ends_with(wanted));
            assert!(found, "{from} {to}: no \"{wanted}\": {ended}");
        }
    }
}

fn connects(from: &Pod, to: &Pod) -> bool {
    let target = SocketAddr::new(to.v4(), PORT);
    let listener = to.spot().listen(target);
    let wait = Duration::from_millis(300) * crate::support::wait::patience();
    let found = from.spot().inside(|| TcpStream::connect_timeout(&target, wait));
    drop(listener);
    found.is_ok()
}

fn at(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

#[test]
fn a_port_of_the_host_is_judged_by_the_pod_that_it_leads_to() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let ports = json!([{"hostPort": 8080, "containerPort": PORT, "protocol": "tcp"}]);
    support::pod::make_netns(host, "db");
    let attachment =
        Attachment { runtime: json!({"portMappings": ports}), ..attachment("db", "db") };
    let db = Pod::connect(host, &Network::of(host), attachment).unwrap();
    let [web, mon] = ["web", "mon"].map(|name| add(host, name, name));
    let here = Asked { host, settings: STANDALONE };
    let [rule, denied] = [
        "allowed: NetworkPolicy shop/db ingress rule 0",
        "denied: NetworkPolicy shop/db ingress default",
    ];
    for own in host.addresses() {
        let target = SocketAddr::new(own, 8080);
        let _listener =
            db.spot().listen(SocketAddr::new(if own.is_ipv4() { db.v4() } else { db.v6() }, PORT));
        let wait = Duration::from_millis(300) * support::wait::patience();
        let connects =
            |pod: &Pod| pod.spot().inside(|| TcpStream::connect_timeout(&target, wait).is_ok());
        soon("the host port", || connects(&web));
        assert!(!connects(&mon));
        let to = target.to_string();
        here.says(["shop/web", &to, ""], 0, &[rule, "allowed"]);
        here.says(["shop/mon", &to, ""], 1, &[denied, "denied"]);
        here.says(["shop/mon", &at(own, 8081), ""], 0, &["ingress  allowed: not a pod"]);
        let outside = if own.is_ipv4() { "198.51.100.10" } else { "2001:db8:51::10" };
        here.says([outside, &to, ""], 1, &[denied]);
    }
    agent.stop();
}

#[test]
fn a_host_answers_for_its_own_pods_and_says_what_it_cannot_know() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let [db, web, mon]: [Pod; 3] = ["db", "web", "mon"].map(|name| add(h1, name, name));
    let far = add(h2, "far", "web");
    soon("the other host's member", || connects(&far, &db));
    let here = Asked { host: h1, settings: FROM_ETCD };
    let there = Asked { host: h2, settings: FROM_ETCD };

    let rule = "ingress  allowed: NetworkPolicy shop/db ingress rule 0";
    let none = "egress   allowed: no rule matches";
    here.says(["shop/web", "shop/db:5000", ""], 0, &[none, rule, "allowed"]);
    assert!(connects(&web, &db));
    let denied = "ingress  denied: NetworkPolicy shop/db ingress default";
    here.says(["shop/mon", "shop/db:5000", ""], 1, &[none, denied, "denied"]);
    assert!(!connects(&mon, &db));
    // By address of both families, and an echo request.
    for to in [db.v4(), db.v6()] {
        here.says(["shop/mon", &at(to, PORT), ""], 1, &[denied]);
        here.says(["shop/web", &to.to_string(), ""], 0, &[rule]);
    }
    here.says([&db.gateways()[0].to_string(), "shop/db:80", ""], 0, &["from the pod's own node"]);

    // One end is elsewhere: the own end is judged, the other one is not. Where pods of others are it knows from
    // the state file, which a slow disk delays.
    let from = far.v4().to_string();
    soon("both to know of each other on disk", || {
        let of = |asked: &Asked<'_>, from: &str, to: &str, host: &str| {
            asked.run(from, to, "").stdout.contains(&format!("ask on host {host}"))
        };
        of(&here, &from, "shop/db:5000", "h2") && of(&there, "shop/far", &at(db.v4(), PORT), "h1")
    });
    let unknown = "egress   not known here: ask on host h2";
    here.says([&from, "shop/db:5000", ""], 1, &[unknown, rule, "not known here"]);
    let answer = here.run(&from, "shop/db:5000", "--json");
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    let connection = &answer["connections"][0];
    assert_eq!(
        (&answer["allowed"], &connection["egress"]["allowed"]),
        (&json!(null), &json!(null))
    );
    assert_eq!(connection["ingress"]["rule"], "NetworkPolicy shop/db ingress rule 0");
    let unknown = "ingress  not known here: ask on host h1";
    there.says(["shop/far", &at(db.v4(), PORT), ""], 1, &[none, unknown, "not known here"]);
    // A denial at one end suffices.
    let other = add(h2, "other", "other").v4().to_string();
    here.says([&other, "shop/db:5000", ""], 1, &[denied, "denied"]);
    let refused = here.run("shop/far", "shop/db:5000", "");
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("give the address"), "{refused}");

    // No pods.
    here.says(["192.0.2.7", "shop/db:5000", ""], 1, &["egress   allowed: not a pod", denied]);
    here.says(["shop/db", "192.0.2.7:80", ""], 0, &["ingress  allowed: not a pod"]);
    let mut free = db.v4();
    if let IpAddr::V4(address) = &mut free {
        *address = (u32::from(*address) | 0xc0).into();
    }
    let nobody = "ingress  denied: no pod of this host has that address";
    here.says(["shop/web", &at(free, 80), ""], 1, &[nobody]);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn policies_of_files_are_tried_in_place_of_those_that_hold() {
    let alone = alone();
    let host = &alone.host;
    let open = |name: &str| {
        let mut all = only_from(name, &[]);
        all["spec"]["ingress"] = json!([{}]);
        all
    };
    write_policies(host, &[only_from("db", &["web"]), open("mon")]);
    let agent = serve(host, &[]);
    let [db, web, mon]: [Pod; 3] = ["db", "web", "mon"].map(|name| add(host, name, name));
    let asked = Asked { host, settings: STANDALONE };
    // The agent answers a plugin before it publishes what it knows of the pod.
    soon("the agent to know all pods by name", || {
        asked.run("shop/mon", "shop/db:5000", "").status.code() == Some(1)
    });
    host.write("/etc/new.json", &json!([only_from("db", &["mon"])]).to_string());
    let new = "--live -f /etc/new.json";
    asked.says(["shop/mon", "shop/db:5000", new], 0, &["allowed"]);
    asked.says(["shop/web", "shop/db:5000", new], 1, &["denied"]);
    // What the file does not have stays as it is, and nothing has changed.
    asked.says(["shop/web", "shop/mon:5000", new], 0, &["NetworkPolicy shop/mon ingress rule 0"]);
    asked.says(["shop/web", "shop/db:5000", ""], 0, &["allowed"]);
    assert!(connects(&web, &db) && !connects(&mon, &db));
    // This host did not ask which pods of other hosts a new selector finds.
    host.write("/etc/new.json", &json!([only_from("db", &["new"])]).to_string());
    let depends = "it depends on whether NetworkPolicy shop/db ingress rule 0 matches";
    asked.says(["10.244.200.9", "shop/db:5000", new], 1, &[depends, "not known here"]);
    // Pods are as they are.
    let pod = json!([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}]);
    host.write("/etc/new.json", &pod.to_string());
    let refused = asked.run("shop/web", "shop/db:5000", new);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("-f: take \"Pod\" \"x\" of \"v1\" out"), "{refused}");
    agent.stop();
    let off = [STANDALONE, &[("POLICY", "off")]].concat();
    let off = Asked { host, settings: &off }.run("shop/web", "shop/db:5000", "");
    assert_eq!(off.status.code(), Some(2), "{off}");
    assert!(off.stderr.contains("policies are off"), "{off}");
}

/// Without an agent nobody but the kernel knows which pods nothing reaches.
#[test]
fn a_pod_in_quarantine_is_shown_so_without_an_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let web = add(host, "web", "web");
    soon("what is kept", || host.read("/var/lib/humanz/policy.json").is_some());
    agent.kill();
    let db = add(host, "db", "db");
    let asked = Asked { host, settings: STANDALONE };
    let why = "denied: the pod is in quarantine: the table does not have its address yet";
    let egress = format!("egress   {why}");
    let ingress = format!("ingress  {why}");
    asked.says(["shop/web", "shop/db:5000", ""], 1, &[&ingress, "denied"]);
    asked.says(["shop/db", "shop/web:5000", ""], 1, &[&egress, "denied"]);
    assert!(!connects(&web, &db) && !connects(&db, &web));
    // But by its own node, and for names.
    let node = db.gateways()[0];
    asked.says([&node.to_string(), "shop/db:80", ""], 0, &["allowed"]);
    asked.says(["shop/db", &at(node, 53), "--protocol udp"], 0, &["allowed"]);
    let status = Agent::run(host, "status --json", STANDALONE).stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    let quarantine = status["policies"]["quarantine"].as_array().unwrap();
    assert_eq!(quarantine.len(), 1, "{status:#}");
    assert_eq!(quarantine[0]["pod"], "shop/db");
    assert!(problem(&status, "policy", "pod shop/db").is_some(), "{status:#}");

    let agent = serve(host, &[]);
    soon("release", || connects(&web, &db));
    asked.says(["shop/web", "shop/db:5000", ""], 0, &["allowed"]);
    agent.stop();
    // What is in force is in force without an agent.
    asked.says(["shop/web", "shop/db:5000", ""], 0, &["allowed"]);
}

/// The agent of before asked for members of networks only where a rule of its pods had them as a peer.
#[test]
fn the_address_of_another_hosts_pod_says_in_which_network_it_is() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let [web, near, far] = [(h1, "blue/web"), (h2, "blue/near"), (h2, "red/far")]
        .map(|(host, pod)| add_to_network(host, pod));
    soon("the pods of a tenant", || reaches(&web, &near));
    // Where pods of others are it knows from the state file.
    for (to, wanted) in [
        (&near, "tcp/80 allowed: no rule matches; by what this host knows: h2 decides"),
        (&far, "tcp/80 denied: network blue/front egress default"),
    ] {
        let line = format!("explain --quiet blue/web {} 80", to.v4());
        eventually(&line, SOON, || {
            let said = Agent::run(h1, &line, FROM_ETCD);
            if said.stdout.contains(wanted) { Ok(()) } else { Err(said.to_string()) }
        });
    }
    // A rule that names a network of which nobody is asked what members it has.
    let rule = json!({"direction": "in", "action": "deny", "peer": {"network": "back"}});
    let other = json!({"direction": "in", "action": "deny", "protocol": "tcp", "ports": [9999]});
    let group = |kind: &str, spec: Value| {
        json!({"apiVersion": "humanz.io/v1", "kind": kind,
            "metadata": {"tenant": "blue", "name": "all"}, "spec": spec})
    };
    apply(
        h1,
        &[
            group("GroupPolicy", json!({"rules": [other]})),
            group("Group", json!({"policies": ["all"]})),
            namespace("blue", json!({"tenant": "blue", "network": "front", "group": "all"})),
        ],
    );
    h1.write(
        "/etc/new.json",
        &json!([group("GroupPolicy", json!({"rules": [other, rule]}))]).to_string(),
    );
    let here = Asked { host: h1, settings: FROM_ETCD };
    let new = "--live -f /etc/new.json";
    soon("the group", || {
        let said = here.run("10.34.200.9", "blue/web:80", new).stdout;
        said.contains("ingress  denied: policy blue/all ingress rule 1")
    });
    let allowed = "ingress  allowed: no rule matches";
    here.says([&near.v4().to_string(), "blue/web:80", new], 1, &[allowed]);
    agents.iter().for_each(Agent::stop);
}
