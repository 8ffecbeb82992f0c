//! What the agent shows of policies: lists, counters, the rule that decides, and what holds without it.

use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::flows::connect;
use crate::support::cluster::Alone;
use crate::support::{Agent, Ended, Node, Place, Pod, soon};
use crate::traffic::{Flood, Server};
use crate::{PORT, STANDALONE, add, alone, only_from, serve, write_policies};

fn run(alone: &Alone, words: &str) -> Ended {
    Agent::run(&alone.host, words, STANDALONE)
}

fn object(alone: &Alone, words: &str) -> (Value, bool) {
    let ended = run(alone, &format!("{words} --json"));
    let value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{words}: {ended}"));
    (value, ended.succeeded())
}

fn hop<'a>(value: &'a Value, name: &str) -> &'a Value {
    let mut hops = value["hops"].as_array().unwrap().iter();
    hops.find(|hop| hop["hop"] == name).unwrap_or_else(|| panic!("no {name}: {value:#}"))
}

#[test]
fn lists_counters_and_the_rule_that_decides_are_those_of_the_kernel_with_and_without_an_agent() {
    let alone = alone();
    let host = &alone.host;
    let mut audited = only_from("db", &["mon"]);
    audited["metadata"]["name"] = json!("trial");
    audited["metadata"]["annotations"] = json!({"humanz.io/audit": "true"});
    write_policies(host, &[only_from("db", &["web"]), audited]);
    let agent = serve(host, &[]);
    let [db, web, other]: [Pod; 3] = ["db", "web", "other"].map(|name| add(host, name, name));
    let mut server = Server::open(&db);
    let (allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    denied.go_on();
    soon("replies", || {
        server.received(web.v4());
        allowed.answered() > 0
    });

    let listed = run(&alone, "policy ls --counters");
    assert!(listed.succeeded(), "{listed}");
    assert!(listed.stdout.lines().all(|line| line.chars().count() <= 80), "{listed}");
    assert!(listed.stdout.contains("shop/trial (audit)"), "{listed}");
    let (listed, _) = object(&alone, "policy ls --counters");
    let policy = &listed["policies"][0];
    assert_eq!((&policy["name"], &policy["pods"]), (&json!("db"), &json!(["shop/db"])));
    assert_eq!((&policy["source"], &policy["directions"]), (&json!("file"), &json!(["ingress"])));
    assert!(policy["packets"]["allowed"].as_u64() > Some(0), "{policy}");
    assert!(policy["packets"]["denied"].as_u64() > Some(20), "{policy}");

    let trial = &listed["policies"][1];
    assert_eq!((&trial["name"], &trial["audit"]), (&json!("trial"), &json!(true)));
    assert!(trial["packets"]["denied"].as_u64() > Some(20), "{trial}");

    let (shown, _) = object(&alone, "policy show shop/db --counters");
    let [rule, default] = &shown["policies"][0]["rules"].as_array().unwrap()[..] else {
        panic!("{shown:#}")
    };
    assert_eq!(rule["words"], "allow everything from pods app=web of namespace shop");
    assert!(rule["packets"].as_u64() > Some(0) && default["packets"].as_u64() > Some(20));
    let peers = &shown["policies"][0]["peers"][0]["addresses"];
    assert_eq!(peers, &json!([web.v4(), web.v6()]));
    assert!(!run(&alone, "policy show none").succeeded());

    let page = "curl -s --unix-socket /run/humanz/agent.sock http://localhost/metrics";
    let metrics = host.run(page).ok();
    let denied = "policy=\"NetworkPolicy shop/db\",direction=\"ingress\",verdict=\"deny\"";
    for line in [
        "humanz_policy_quarantined_pods{reason=\"not known\"} 0",
        "humanz_policy_source_healthy{source=\"file\"} 1",
        &format!("humanz_policy_packets_total{{{denied}}} "),
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(line)), "{line}: {metrics}");
    }

    let explain =
        |from: &str| object(&alone, &format!("explain --quiet {from} shop/db udp/{PORT}"));
    let check = || {
        let (value, fine) = explain("shop/other");
        assert!(!fine && value["lost"] == "policy-ingress", "{value:#}");
        let seen = hop(&value, "policy-ingress")["seen"].as_str().unwrap();
        assert!(
            seen.contains("denied: NetworkPolicy shop/db ingress default (np/shop/db"),
            "{seen}"
        );
        let seen = hop(&value, "policy-egress")["seen"].as_str().unwrap();
        assert!(seen.contains("allowed: no rule matches"), "{seen}");
        let (value, _) = explain("shop/web");
        let ingress = hop(&value, "policy-ingress");
        assert_eq!(ingress["verdict"], "ok", "{value:#}");
        let seen = ingress["seen"].as_str().unwrap();
        assert!(seen.contains("allowed: NetworkPolicy shop/db ingress rule 0"), "{seen}");
        assert!(seen.contains("audited: deny by NetworkPolicy shop/trial"), "{seen}");
        let live = hop(&value, "policy-live")["seen"].as_str().unwrap();
        assert!(live.contains("1 allowed by the present rules"), "{live}");
    };
    check();

    agent.stop();
    let (listed, fine) = object(&alone, "policy ls");
    assert!(!fine && listed["note"].as_str().unwrap().contains("what held last"), "{listed:#}");
    assert_eq!(listed["policies"][0]["pods"], json!(["shop/db"]));
    check();
    // What the kernel has counts, not what should be there.
    host.shell(&format!("nft delete element inet humanz-policy in4 '{{ {} }}'", db.v4())).ok();
    let (value, _) = explain("shop/web");
    assert_eq!(value["lost"], "policy-ingress", "{value:#}");
    let seen = hop(&value, "policy-ingress")["seen"].as_str().unwrap();
    assert!(seen.contains("in quarantine"), "{seen}");
}

#[test]
fn explain_claims_no_match_of_an_ip_block_with_an_address_that_may_be_a_service() {
    let alone = alone();
    let host = &alone.host;
    let service = "10.96.0.1";
    let policy = |to: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
                "egress": [{"to": [to]}]}})
    };
    write_policies(host, &[policy(json!({"ipBlock": {"cidr": "10.96.0.0/16"}}))]);
    let agent = serve(host, &[]);
    let [db, web, free]: [Pod; 3] = ["db", "web", "free"].map(|name| add(host, name, name));
    let _listener = db.spot().inside(|| TcpListener::bind("[::]:5432").unwrap());
    host.run(&format!("ip route add {service} dev lo")).ok();
    let egress = |from: &str, to: &str| {
        let (value, _) = object(&alone, &format!("explain --quiet {from} {to}"));
        hop(&value, "policy-egress").clone()
    };
    write_policies(host, &[policy(json!({"ipBlock": {"cidr": "10.97.0.0/16"}}))]);
    soon("the policy is in force", || {
        let (shown, _) = object(&alone, "policy show shop/web");
        shown.to_string().contains("10.97.0.0/16")
    });
    let lost = egress("shop/web", &format!("{service} 80"));
    assert_eq!(lost["verdict"], "lost", "nothing translates addresses here: {lost}");
    assert!(lost["seen"].as_str().unwrap().contains("NetworkPolicy shop/web egress"), "{lost}");
    write_policies(host, &[policy(json!({"ipBlock": {"cidr": "10.96.0.0/16"}}))]);
    soon("the address is allowed", || {
        egress("shop/web", &format!("{service} 80"))["verdict"] == "ok"
    });
    translate(host, (service, 80), &db);
    let odd = egress("shop/web", &format!("{service} 80"));
    assert_eq!(odd["verdict"], "odd", "{odd}");
    assert!(odd["seen"].as_str().unwrap().contains("no ipBlock matches the service"), "{odd}");
    assert!(odd["fix"].as_str().unwrap().contains("ask for a pod that serves it"), "{odd}");
    assert!(!connect(&web, service.parse().unwrap(), 80), "the pod behind it is judged");
    assert_eq!(egress("shop/web", "shop/db 5432")["verdict"], "lost");
    assert_eq!(egress("shop/free", &format!("{service} 80"))["verdict"], "ok", "it has no rules");
    assert!(connect(&free, service.parse().unwrap(), 80));

    // Once a connection shows where it leads.
    write_policies(host, &[policy(json!({"podSelector": {"matchLabels": {"app": "db"}}}))]);
    soon("a connection", || connect(&web, service.parse().unwrap(), 80));
    let _connection = web.spot().inside(|| TcpStream::connect((service, 80)).unwrap());
    let fine = egress("shop/web", &format!("{service} 80"));
    assert_eq!(fine["verdict"], "ok", "{fine}");
    agent.stop();
}

/// The port of the address `service` leads to port 5432 of `pod`.
fn translate(host: &Node, (service, port): (&str, u16), pod: &Pod) {
    host.shell(&format!(
        "nft add table ip services
         nft add chain ip services pre '{{ type nat hook prerouting priority dstnat; }}'
         nft add rule ip services pre ip daddr {service} tcp dport {port} dnat to {}:5432",
        pod.v4()
    ))
    .ok();
}

#[test]
fn explain_does_not_call_a_node_port_open_that_leads_to_a_pod_which_is_closed() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["mon"])]);
    let agent = serve(host, &[]);
    let [db, web]: [Pod; 2] = ["db", "web"].map(|name| add(host, name, name));
    let _listener = db.spot().inside(|| TcpListener::bind("[::]:5432").unwrap());
    let node = host.v4().to_string();
    let explain = |port: u16| {
        let (value, _) = object(&alone, &format!("explain --quiet shop/web {node} {port}"));
        value["hops"].as_array().unwrap().iter().find(|it| it["hop"] == "policy-ingress").cloned()
    };
    assert_eq!(explain(30080), None, "nothing translates addresses here");
    translate(host, (&node, 30080), &db);
    assert!(!connect(&web, host.v4().into(), 30080), "the pod behind it denies it");
    let hop = explain(30080).unwrap();
    let seen = hop["seen"].as_str().unwrap();
    assert!(hop["verdict"] == "odd" && seen.contains("policies judge the pod behind it"), "{hop}");
    let _own = host.inside(|| TcpListener::bind((node.as_str(), 6443)).unwrap());
    assert_eq!(explain(6443), None, "a process of the host listens there");
    agent.stop();
}

#[test]
fn explain_says_that_it_does_not_know_which_pod_behind_a_service_is_judged() {
    let alone = alone();
    let host = &alone.host;
    let service = "10.96.0.1";
    write_policies(host, &[only_from("db", &["mon"])]);
    let agent = serve(host, &[]);
    let [db, web, mon]: [Pod; 3] = ["db", "web", "mon"].map(|name| add(host, name, name));
    let _listener = db.spot().inside(|| TcpListener::bind("[::]:5432").unwrap());
    host.run(&format!("ip route add {service} dev lo")).ok();
    let explain = |from: &str| {
        let (value, _) = object(&alone, &format!("explain --quiet {from} {service} 80"));
        value["hops"].as_array().unwrap().iter().find(|it| it["hop"] == "policy-ingress").cloned()
    };
    assert_eq!(explain("shop/web"), None, "nothing translates addresses here");
    translate(host, (service, 80), &db);
    assert!(!connect(&web, service.parse().unwrap(), 80), "the pod behind it denies it");
    let odd = |from: &str, wanted: &str| {
        let hop = explain(from).unwrap();
        let [seen, fix] = ["seen", "fix"].map(|key| hop[key].as_str().unwrap());
        assert!(hop["verdict"] == "odd" && seen.contains(wanted), "{hop}");
        assert!(fix.contains("ask for a pod that serves it"), "{hop}");
    };
    let not_known =
        "this is no pod's address: if it is a service's, policies judge the pod behind it";
    odd("shop/web", not_known);
    odd("shop/mon", not_known);
    let connection = mon.spot().inside(|| TcpStream::connect((service, 80)).unwrap());
    odd("shop/mon", &format!("a connection leads to {}", db.v4()));
    drop(connection);
    // Where no rule is about what pods receive, whichever pod is behind it takes the connection.
    write_policies(host, &[]);
    soon("the service is reached", || connect(&web, service.parse().unwrap(), 80));
    assert_eq!(explain("shop/web"), None);
    agent.stop();
}
