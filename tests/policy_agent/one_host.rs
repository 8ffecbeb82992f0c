//! Policies of a file on one host: denied packets are dropped, allowed ones and replies pass, and what a
//! policy takes away reaches connections that run.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::flows::connect as open;
use crate::mute_agent::answering;
use crate::start::connect;
use crate::support::wait::patience;
use crate::support::{Agent, Node, Place, Pod, local, pod, soon};
use crate::tenants;
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, counters, only_from, serve, write_policies};

fn addresses(pod: &Pod) -> [IpAddr; 2] {
    [pod.v4(), pod.v6()]
}

#[test]
fn a_policy_of_the_file_drops_what_it_denies_and_reaches_running_connections() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web", "mon"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let (mon, other) = (add(host, "mon", "mon"), add(host, "other", "other"));
    let mut server = Server::open(&db);
    for at in 0..2 {
        let to = addresses(&db)[at];
        let [from_web, from_mon, from_other] = [&web, &mon, &other].map(|pod| addresses(pod)[at]);
        let (web, mon, other) =
            (Flood::start(&web, to), Flood::start(&mon, to), Flood::start(&other, to));
        server.wait(from_web);
        server.wait(from_mon);
        soon("replies", || {
            server.received(from_mon);
            web.answered() > 3 && mon.answered() > 3
        });
        other.go_on();
        assert_eq!(server.received(from_other), 0);
        let begun = Instant::now();
        write_policies(host, &[only_from("db", &["mon"])]);
        let revoked = server.wait_silence(from_web, begun);
        println!("{to}: the last packet came {revoked:?} after the change");
        server.wait(from_mon);
        assert_eq!(server.received(from_other), 0);
        write_policies(host, &[only_from("db", &["web", "mon"])]);
        server.wait(from_web);
        // A host is never cut off from its own pods.
        let own = Flood::start(host, to);
        soon("answers to the host", || {
            server.received(from_web);
            own.answered() > 3
        });
    }
    assert!(counters(host).contains("np/shop/db/in/deny"), "{}", counters(host));
    agent.stop();
}

/// What somebody does to the table.
const DAMAGES: [&str; 5] = [
    "nft delete table inet humanz-policy",
    "nft flush chain inet humanz-policy forward",
    "nft flush map inet humanz-policy in4",
    "nft add element inet humanz-policy epoch '{ 0x00010000 }'",
    "nft insert rule inet humanz-policy judged accept",
];

/// While the agent runs the kernel keeps the table from everybody else (Linux 6.9).
pub fn is_closed(host: &Node) -> bool {
    let tried = host.shell("nft add chain inet humanz-policy probe");
    assert!(tried.succeeded() || tried.stderr.contains("not permitted"), "{tried}");
    !tried.succeeded()
}

#[test]
fn a_table_that_somebody_deletes_or_empties_is_back_at_once() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let mut agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    let closed = is_closed(host);
    for damage in DAMAGES {
        // Where the agent prevents it while it runs, it may happen before it starts.
        if closed {
            agent.kill();
        }
        let begun = Instant::now();
        host.shell(damage).ok();
        if closed {
            agent = Agent::start(host, STANDALONE);
        }
        let last = server.wait_silence(other.v4(), begun);
        println!("{damage}: the last packet came {last:?} after it");
        let before = server.received(other.v4());
        server.wait(web.v4());
        denied.go_on();
        assert_eq!(server.received(other.v4()), before);
        assert!(last < Duration::from_secs(5) * patience(), "{last:?}");
        if closed {
            agent.wait_ready();
        }
    }
    assert!(allowed.sent() > 0);
    agent.stop();
}

#[test]
fn what_a_change_of_policies_leaves_without_use_goes_a_moment_later() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let _db = add(host, "db", "db");
    agent.stop();
    // Which does not look for pods that went.
    let agent = serve(host, &[]);
    let parts = || {
        let table = host.shell("nft list table inet humanz-policy").ok();
        let is_of_rules = |line: &&str| {
            ["chain in_", "set pods", "counter np/"].iter().any(|part| line.contains(part))
        };
        let lines = table.lines().map(str::trim).filter(is_of_rules);
        lines.filter(|line| line.ends_with('{')).map(str::to_owned).collect::<Vec<_>>()
    };
    soon("the first policy alone", || parts().len() == 5);
    let before = parts();
    write_policies(host, &[only_from("db", &["mon"])]);
    soon("the second policy alone", || {
        let now = parts();
        let gone = |part: &String| part.starts_with("counter") || !now.contains(part);
        now.len() == 5 && before.iter().all(gone)
    });
    let is_removal = |change: &&Value| {
        let what = change["what"].as_str().unwrap();
        let why = change["why"].as_str().unwrap();
        what.contains("not ours") && why.contains("policies changed") && change["repair"] == false
    };
    // Once each, when they went, not when they were left. If an address of the host changes meanwhile, they go with what
    // that asks for, and are no repair.
    local::status_when(host, "three removals", |status| {
        status["changes"].as_array().unwrap().iter().filter(is_removal).count() == 3
    });
    agent.stop();
}

#[test]
fn no_other_program_changes_the_table_while_the_agent_runs() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    if !is_closed(host) {
        // An older kernel: the table is repaired, as above.
        return agent.stop();
    }
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (_allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    for damage in DAMAGES {
        let refused = host.shell(damage);
        assert!(refused.stderr.contains("not permitted"), "{refused}");
    }
    // What firewalls do when they are loaded anew. It takes the other tables, which come back.
    for _ in 0..20 {
        host.shell("nft flush ruleset").ok();
        denied.go_on();
        assert_eq!(server.received(other.v4()), 0);
    }
    server.wait(web.v4());
    soon("the other tables", || host.run("nft list tables").stdout.contains("table inet humanz\n"));
    // The agent itself changes it, removes it and makes it again.
    write_policies(host, &[only_from("db", &["other"])]);
    server.wait(other.v4());
    server.wait_silence(web.v4(), Instant::now());
    agent.stop();
    let off = Agent::start(host, &[STANDALONE, &[("POLICY", "off")]].concat());
    off.wait_ready();
    soon("no table", || !host.run("nft list tables").stdout.contains("humanz-policy"));
    off.stop();
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    assert!(is_closed(host));
    server.wait_silence(other.v4(), Instant::now());
    agent.stop();
}

/// It has the table for itself, so that the plugin cannot do without it what the settings say.
#[test]
fn while_the_agent_hangs_new_pods_are_in_quarantine() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[("POLICY_ON_AGENT_DOWN", "open")]);
    let other = add(host, "other", "other");
    pod::make_netns(host, "former");
    let former = connect(host, "former", "any", "10.244.1.77").unwrap();
    if !is_closed(host) {
        return agent.stop();
    }
    soon("the former pod's policies", || {
        host.run("nft list map inet humanz-policy in4").stdout.contains("10.244.1.77")
    });
    agent.process.signal(Signal::SIGSTOP);
    let new = add(host, "new", "any");
    let mut server = Server::open(&new);
    let flood = Flood::start(&other, new.v4());
    flood.go_on();
    assert_eq!(server.received(other.v4()), 0);
    // What a former pod could do the plugin cannot take away.
    former.delete();
    pod::make_netns(host, "late");
    assert_eq!(connect(host, "late", "db", "10.244.1.77").err(), Some(11));
    agent.process.signal(Signal::SIGCONT);
    server.wait(other.v4());
    pod::make_netns(host, "again");
    let again = connect(host, "again", "db", "10.244.1.77").unwrap();
    let mut server = Server::open(&again);
    let flood = Flood::start(&other, again.v4());
    flood.go_on();
    assert_eq!(server.received(other.v4()), 0);
    agent.stop();
}

/// An agent may have put a pod's policies in force and have no time to say so: on a host with much to do it took
/// more than the 200 ms, and the plugin refused the pod for what the table had of it.
#[test]
fn what_the_table_has_of_a_new_pod_makes_the_plugin_wait_for_a_late_answer() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    pod::make_netns(host, "former");
    let former = connect(host, "former", "db", "10.244.1.77").unwrap();
    agent.process.signal(Signal::SIGSTOP);
    former.delete();
    let socket = "/run/humanz/ipam/.policy.sock";
    host.shell(&format!("mv {socket} {socket}.agent")).ok();
    let late = json!({"in_force": true, "judged": true, "why": ""});
    let answers = answering(host, "0.7", &[&format!("{late}\n")]);
    pod::make_netns(host, "new");
    connect(host, "new", "db", "10.244.1.77").unwrap();
    drop(answers);
    host.shell(&format!("mv {socket}.agent {socket}")).ok();
    agent.process.signal(Signal::SIGCONT);
    agent.stop();
}

#[test]
fn a_file_with_faults_changes_nothing_and_is_a_problem() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    let is_problem = || local::has_problem(&local::status(host), "policy");
    for bad in ["{\"apiVersion\":", "[{\"apiVersion\": \"v1\", \"kind\": \"Secret\"}]"] {
        host.write(crate::FILE, bad);
        soon("the problem", is_problem);
        denied.go_on();
        server.wait(web.v4());
        assert_eq!(server.received(other.v4()), 0);
    }
    write_policies(host, &[only_from("db", &["other"])]);
    server.wait(other.v4());
    soon("the end of the problem", || !is_problem());
    agent.stop();
}

#[test]
fn a_group_is_asked_for_by_label_or_annotation() {
    let alone = alone();
    let host = &alone.host;
    let own = |kind: &str, name: &str, spec: serde_json::Value| {
        let metadata = json!({"tenant": "default", "name": name});
        json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    write_policies(
        host,
        &[own("Group", "db", json!({"default": "deny"})), own("Group", "web", json!({}))],
    );
    let agent = serve(host, &[]);
    let db = add(host, "db", "x;humanz.io/group=db");
    let web = add(host, "web", "web;humanz.io/group=web");
    let mut server = Server::open(&db);
    let flood = Flood::start(&web, db.v4());
    flood.go_on();
    assert_eq!(server.received(web.v4()), 0);
    write_policies(host, &[own("Group", "db", json!({})), own("Group", "web", json!({}))]);
    server.wait(web.v4());
    agent.stop();
}

/// As when its name is mistyped: no policy of a group holds for the pod.
#[test]
fn a_group_that_does_not_exist_is_a_problem_of_its_pods() {
    let alone = alone();
    let host = &alone.host;
    let group = |name: &str| {
        let metadata = json!({"name": name});
        json!({"apiVersion": "humanz.io/v1", "kind": "Group", "metadata": metadata, "spec": {}})
    };
    write_policies(host, &[group("web")]);
    let agent = serve(host, &[]);
    let _fine = add(host, "fine", "x;humanz.io/group=web");
    let _db = add(host, "db", "x;io.contiv.net-group=wbe");
    let status = local::status_when(host, "it", |it| local::has_problem(it, "policy"));
    let problems: Vec<_> = local::problems(&status, "policy").collect();
    let subject = problems[0]["subject"].as_str().unwrap();
    assert!(problems.len() == 1 && subject.ends_with("/db"), "{problems:?}");
    write_policies(host, &[group("web"), group("wbe")]);
    soon("its end", || !local::has_problem(&local::status(host), "policy"));
    agent.stop();
}

/// Typed by a user as it could be: it has no effect, and that is said where people look.
#[test]
fn an_annotation_that_is_not_known_is_a_problem_and_no_reason_to_refuse_the_pod() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let fine = tenants::try_add(host, "shop/fine", json!({"io.contiv.net-group": "web"})).unwrap();
    let mut annotations = json!({"humanz.io/labels": "app=db", "humanz.io/gruop": "db"});
    for at in 0..1000 {
        annotations[format!("humanz.io/x{at}")] = json!("x");
    }
    let db = tenants::try_add(host, "shop/db", annotations).unwrap();
    let log = host.shell("grep 'has no effect' /var/log/humanz.log").stdout;
    assert!(log.contains("humanz.io/gruop") && log.contains("did you mean humanz.io/group?"));
    assert_eq!(log.lines().count(), 3, "{log}");
    let kind = "unknown-pod-key";
    let status = local::status_when(host, "the problem", |it| local::has_problem(it, kind));
    let problems: Vec<_> = local::problems(&status, kind).collect();
    assert!(problems.len() == 1 && problems[0]["pod"] == "shop/db", "{problems:#?}");
    let doctor = Agent::run(host, "doctor", STANDALONE).stdout;
    assert!(doctor.contains("humanz.io/gruop"), "{doctor}");
    let shown = Agent::run(host, "endpoint show shop/db", STANDALONE).stdout;
    assert!(shown.contains("did you mean humanz.io/group?"), "{shown}");
    assert!(shown.contains("source     groups are those of file"), "{shown}");
    let explained = Agent::run(host, "explain shop/fine shop/db", STANDALONE).stdout;
    let odd = explained.lines().find(|line| line.starts_with("odd  pod-keys")).unwrap_or_default();
    assert!(odd.contains("humanz.io/gruop"), "{explained}");
    assert!(explained.contains("pod-keys: did you mean humanz.io/group?"), "{explained}");
    db.delete();
    soon("the end of the problem", || !local::has_problem(&local::status(host), kind));
    fine.delete();
    agent.stop();
}

/// What kube-proxy does for a service whose endpoint is the pod that asks: it also translates the source, after
/// the policies.
fn services(host: &Node, db: &Pod) {
    let both =
        [("ip", SERVICES[0], db.v4().to_string()), ("ip6", SERVICES[1], format!("[{}]", db.v6()))];
    for (family, service, to) in both {
        let own = to.trim_matches(['[', ']']);
        host.shell(&format!(
            "nft add table {family} services
             nft 'add chain {family} services pre {{ type nat hook prerouting priority -100; }}'
             nft 'add chain {family} services post {{ type nat hook postrouting priority 100; }}'
             nft add rule {family} services pre {family} daddr {service} tcp dport 80 dnat to {to}:5432
             nft add rule {family} services post {family} saddr {own} {family} daddr {own} masquerade"
        ))
        .ok();
        host.run(&format!("ip route replace {service} dev lo")).ok();
    }
}

/// A service's address of each family.
const SERVICES: [&str; 2] = ["198.51.100.9", "2001:db8:51::9"];

#[test]
fn a_pod_reaches_itself_by_a_service_unless_the_tier_admin_denies_it() {
    let alone = alone();
    let host = &alone.host;
    let isolated = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "nothing"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}});
    let itself = |tier: &str| {
        let db = || json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}});
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "itself"}, "spec": {"tier": tier, "priority": 1, "subject": db(),
                "ingress": [{"action": "Deny", "from": [db()]}]}})
    };
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let _listener = db.spot().inside(|| TcpListener::bind("[::]:5432").unwrap());
    services(host, &db);
    let connects = |pod: &Pod| SERVICES.map(|to| open(pod, to.parse().unwrap(), 80));
    soon("the service answers", || connects(&web) == [true; 2] && connects(&db) == [true; 2]);

    write_policies(host, std::slice::from_ref(&isolated));
    soon("isolation", || connects(&web) == [false; 2]);
    assert_eq!(connects(&db), [true; 2], "it is isolated, and reaches itself");
    write_policies(host, &[itself("Admin"), isolated.clone()]);
    soon("Admin denies it to itself", || connects(&db) == [false; 2]);
    assert!(counters(host).contains("cnp/itself/in/0"), "{}", counters(host));
    write_policies(host, &[itself("Baseline"), isolated]);
    soon("no other tier does", || connects(&db) == [true; 2]);
    agent.stop();
}

#[test]
fn an_icmp_error_of_an_allowed_connection_reaches_a_pod_that_nothing_else_reaches() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("web", &["nobody"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    for at in 0..2 {
        let [to, own] = [&db, &web].map(|pod| addresses(pod)[at]);
        assert!(!db.run(&format!("ping -c1 -W1 {own}")).status.success(), "nothing reaches it");
        let socket = web.spot().inside(|| UdpSocket::bind((own, 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(1) * patience())).unwrap();
        socket.connect((to, 5999)).unwrap();
        soon("an error that the port is closed", || {
            let sent = socket.send(b"x");
            let refused = [sent.map(drop), socket.recv(&mut [0; 1]).map(drop)];
            refused
                .iter()
                .any(|it| it.as_ref().is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused))
        });
    }
    agent.stop();
}
