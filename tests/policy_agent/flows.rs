//! `flows`: who connects to what is counted, by names, addresses and policies, and in bounded room.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use humanz::flows::FlowRecorder;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::drops::ticks;
use crate::support::cluster::Alone;
use crate::support::local;
use crate::support::wait::{SOON, patience};
use crate::support::{Agent, Node, Place, Pod, eventually, soon};
use crate::{STANDALONE, add, alone, only_from, serve, write_policies};

/// How long a packet may take that is allowed.
const WINDOW: Duration = Duration::from_millis(200);

const ON: &[(&str, &str)] = &[("FLOWS", "on")];

struct Scene {
    alone: Alone,
    agent: Agent,
    db: Pod,
    web: Pod,
    other: Pod,
    _listener: TcpListener,
}

/// Pods of which db may be reached from web only.
fn scene() -> Scene {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, ON);
    let [db, web, other] = ["db", "web", "other"].map(|name| add(host, name, name));
    let listener = db.spot().inside(|| TcpListener::bind(("::", 5432)).unwrap());
    Scene { alone, agent, db, web, other, _listener: listener }
}

fn flows(host: &Node, more: &str) -> Value {
    let ended = Agent::run(host, &format!("flows --json {more}"), STANDALONE);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended}"))
}

pub fn connect(from: &Pod, to: IpAddr, port: u16) -> bool {
    let target = SocketAddr::new(to, port);
    from.spot().inside(|| TcpStream::connect_timeout(&target, WINDOW * patience()).is_ok())
}

/// Waits until there is a flow with these fields, doing `cause` again and again, and until that was as it
/// must be.
fn shows(host: &Node, fields: &[(&str, Value)], cause: impl Fn() -> bool) -> Value {
    eventually(&format!("{fields:?}"), SOON, || {
        if !cause() {
            return Err("it went otherwise".to_owned());
        }
        let found = flows(host, "");
        let all = found["flows"].as_array().unwrap();
        let has = |flow: &&Value| fields.iter().all(|(name, value)| flow[name] == *value);
        all.iter().find(has).cloned().ok_or(format!("{found:#}"))
    })
}

#[test]
fn connections_are_shown_with_pods_verdict_and_policy_in_both_families() {
    let Scene { alone, agent, db, web, other, _listener } = scene();
    let host = &alone.host;
    for to in [db.v4(), db.v6()] {
        let tcp = |from: &str, verdict: &str| {
            vec![
                ("source_pod", json!(from)),
                ("destination_pod", json!("shop/db")),
                ("destination", json!(to)),
                ("protocol", json!("tcp")),
                ("port", json!(5432)),
                ("verdict", json!(verdict)),
            ]
        };
        let allowed = shows(host, &tcp("shop/web", "allowed"), || connect(&web, to, 5432));
        assert_eq!(allowed["ingress_policy"], "NetworkPolicy shop/db", "{allowed}");
        assert_eq!(allowed["egress"], "allowed: no rule matches", "{allowed}");
        let denied = shows(host, &tcp("shop/other", "denied"), || !connect(&other, to, 5432));
        assert_eq!(denied["ingress_policy"], "NetworkPolicy shop/db", "{denied}");
        let udp =
            [("source_pod", json!("shop/web")), ("protocol", json!("udp")), ("port", json!(53))];
        shows(host, &[&udp[..], &[("destination", json!(to))]].concat(), || {
            let socket = web.spot().inside(|| UdpSocket::bind(("::", 0)).unwrap());
            let mapped = match to {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            socket.send_to(b"x", (mapped, 53)).is_ok()
        });
        let kind = if to.is_ipv4() { "icmp type 8" } else { "icmp type 128" };
        let ping = [("source_pod", json!("shop/web")), ("protocol", json!(kind))];
        shows(host, &ping, || web.run(&format!("ping -c1 -W1 {to}")).status.success());
    }
    // Outside, and by the address of a service.
    let outside = [("source_pod", json!("shop/web")), ("destination", json!("192.0.2.77"))];
    host.run("ip route add 192.0.2.77 dev lo").ok();
    shows(host, &outside, || {
        let _reached = connect(&web, [192, 0, 2, 77].into(), 443);
        true
    });
    host.shell(&format!(
        "nft add table ip services
         nft add chain ip services pre '{{ type nat hook prerouting priority dstnat; }}'
         nft add rule ip services pre ip daddr 10.96.0.1 tcp dport 80 dnat to {}:5432",
        db.v4()
    ))
    .ok();
    let service = json!({"address": "10.96.0.1", "port": 80});
    let by_service = [("service", service), ("destination_pod", json!("shop/db"))];
    shows(host, &by_service, || connect(&web, [10, 96, 0, 1].into(), 80));

    // Options.
    let denied = flows(host, "--denied");
    let verdicts = denied["flows"].as_array().unwrap().iter().map(|flow| flow["verdict"].clone());
    let verdicts: Vec<Value> = verdicts.collect();
    assert!(!verdicts.is_empty() && verdicts.iter().all(|it| it == "denied"), "{denied}");
    let of_other = flows(host, "--pod shop/other");
    for flow in of_other["flows"].as_array().unwrap() {
        let ends = [&flow["source_pod"], &flow["destination_pod"]];
        assert!(ends.contains(&&json!("shop/other")), "{flow}");
    }
    let none = Agent::run(host, "flows --pod other", STANDALONE);
    assert!(none.stdout.starts_with("no flows of pod \"other\", as namespace/name"), "{none}");
    let text = Agent::run(host, "flows", STANDALONE);
    assert!(text.stdout.contains("shop/web") && text.stdout.contains("denied"), "{text}");

    // The agent reads the group, and `watch --drops` from the agent.
    let watch = format!("{} watch --drops", crate::support::disk::EXECUTABLE);
    let watch = host.spawn(&mut crate::support::node::command(&watch));
    eventually("a drop is shown", SOON, || {
        if connect(&other, db.v4(), 5432) {
            return Err("it connects".to_owned());
        }
        let log = watch.log();
        let line = "shop/other → shop/db:5432 tcp denied by NetworkPolicy shop/db (ingress)";
        if log.contains(line) { Ok(()) } else { Err(log) }
    });
    // A client that the agent refuses gets the reason.
    let followers: Vec<UnixStream> =
        std::iter::repeat_with(|| follow_drops(host)).take(15).collect();
    let refused = Agent::run(host, "watch --drops", STANDALONE);
    assert_eq!(refused.status.code(), Some(69), "{refused}");
    let words = ["FLOWS=on", "503", "too many clients follow changes or drops already"];
    assert!(words.iter().all(|words| refused.stderr.contains(words)), "{refused}");
    drop(followers);
    agent.stop();
}

/// A client that learns of denied packets.
fn follow_drops(host: &Node) -> UnixStream {
    let mut stream = local::connect(host).unwrap();
    stream.write_all(b"GET /v1/drops HTTP/1.0\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert!(head.ends_with(b" 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

#[test]
fn counting_that_is_switched_off_and_on_at_once_takes_the_sockets_over() {
    let alone = alone();
    let (store, views) = (Arc::default(), || None);
    let start = || {
        let start = || FlowRecorder::start(&store, Arc::new(views)).unwrap();
        alone.host.with_namespace(|namespace| namespace.on_its_network(start))
    };
    let group = || alone.host.run("cat /proc/self/net/netfilter/nfnetlink_log").stdout;
    let mut recorder = start();
    soon("the group is read", || group().trim_start().starts_with("104 "));
    for _ in 0..3 {
        drop(recorder);
        recorder = start();
        let until = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < until {
            assert_eq!(store.reply().faults, Vec::<String>::new());
            std::thread::sleep(Duration::from_millis(10));
        }
        soon("the group is read", || group().trim_start().starts_with("104 "));
    }
    drop(recorder);
    soon("nobody reads the group", || group().is_empty());
}

#[test]
fn what_is_counted_begins_anew_with_the_agent_and_names_stay_those_of_then() {
    let Scene { alone, agent, db, web, other: _other, _listener } = scene();
    let host = &alone.host;
    let from_web = [("source_pod", json!("shop/web")), ("port", json!(5432))];
    let session = web.spot().inside(|| TcpStream::connect((db.v4(), 5432)).unwrap());
    shows(host, &from_web, || true);
    agent.stop();
    let agent = serve(host, ON);
    // The connection runs on, and is found.
    shows(host, &from_web, || true);
    drop(session);
    // Its address gets a new owner: the flow is still that of web.
    let address = web.v4();
    web.delete();
    let ends = json!("not known: a pod has gone since then");
    let gone = shows(host, &[&from_web[..], &[("ingress", ends)]].concat(), || true);
    assert_eq!(gone["source"], json!(address));
    agent.stop();
}

#[test]
fn a_pod_that_connects_everywhere_pushes_out_no_other_pod() {
    let Scene { alone, agent, db, web, other, _listener } = scene();
    let host = &alone.host;
    let from_web = [("source_pod", json!("shop/web")), ("port", json!(5432))];
    shows(host, &from_web, || connect(&web, db.v4(), 5432));
    let resident = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", agent.process.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    let flood = || {
        other.spot().inside(|| {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
            for port in 1..=u16::MAX {
                socket.send_to(b"x", (web.v4(), port)).ok();
            }
        });
    };
    let (begun, used) = (Instant::now(), ticks(&agent.process));
    flood();
    let took = begun.elapsed();
    soon("the flood is counted", || flows(host, "")["notes"].to_string().contains("shop/other: "));
    let used = ticks(&agent.process) - used;
    println!("65,535 connections in {took:?}: {used} ticks of 10 ms of the agent");
    // Events are lost meanwhile.
    agent.process.signal(Signal::SIGSTOP);
    flood();
    agent.process.signal(Signal::SIGCONT);
    eventually("the flood is counted", 2 * SOON, || {
        let found = flows(host, "");
        let notes = found["notes"].to_string();
        let is_said = notes.contains("shop/other: ") && notes.contains("came too fast");
        if is_said { Ok(()) } else { Err(notes) }
    });
    let found = flows(host, "--pod shop/other");
    assert_eq!(found["flows"].as_array().unwrap().len(), 256);
    shows(host, &from_web, || true);
    let grown = resident().saturating_sub(before);
    println!("65,535 flows of one pod: {grown} KiB more");
    assert!(grown < 12 * 1024, "{grown} KiB");
    agent.stop();
}

#[test]
fn a_reload_switches_it_on_and_off_and_off_there_is_no_socket() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let set = |flows: &str| host.write("/etc/humanz/agent.env", &format!("FLOWS={flows}\n"));
    set("off");
    let agent = serve(host, &[]);
    let group = || host.run("cat /proc/self/net/netfilter/nfnetlink_log").stdout;
    let netlink = || host.run("cat /proc/self/net/netlink").stdout;
    // Protocol 12 is netfilter's; then the port, and groups 1 to 32 as bits.
    let events = |text: &str| {
        let sockets = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("12"));
        sockets
            .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(3)?, 16).ok())
            .filter(|groups| groups & 1 != 0)
            .count()
    };
    let is_off = || group().trim().is_empty() && events(&netlink()) == 0;
    let is_on = || group().trim_start().starts_with("104 ") && events(&netlink()) == 1;
    for _ in 0..2 {
        assert!(is_off(), "{}{}", group(), netlink());
        let refused = Agent::run(host, "flows", STANDALONE);
        assert_eq!(refused.status.code(), Some(69), "{refused}");
        assert!(refused.stderr.contains("FLOWS=on"), "{refused}");
        set("on");
        agent.reload();
        soon("it listens", is_on);
        let found = flows(host, "");
        assert_eq!(found["notes"], json!([]), "{found}");
        // The host itself may report its groups of multicast.
        let of_pods = |flow: &Value| flow["protocol"] != "protocol 2";
        assert!(!found["flows"].as_array().unwrap().iter().any(of_pods), "{found}");
        set("off");
        agent.reload();
        soon("it listens no more", is_off);
    }
    agent.stop();
}

/// TCP and UDP, with a rule for the one end and for both; the port that the answers go to is the client's own.
#[test]
fn denied_answers_are_those_of_the_connection_that_was_opened() {
    let Scene { alone, agent, db, web, other: _other, _listener: listener } = scene();
    let host = &alone.host;
    let client = web.spot().inside(|| TcpStream::connect((db.v4(), 5432)).unwrap());
    let (server, _) = listener.accept().unwrap();
    let asks = web.spot().inside(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
    let answers = db.spot().inside(|| UdpSocket::bind(("0.0.0.0", 53)).unwrap());
    asks.send_to(b"x", (db.v4(), 53)).unwrap();
    let (_, from) = answers.recv_from(&mut [0; 8]).unwrap();
    answers.send_to(b"x", from).unwrap();
    asks.recv_from(&mut [0; 8]).unwrap();
    let own = client.local_addr().unwrap().port();
    let shut = |pods: Value| {
        write_policies(
            host,
            &[json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": "shop", "name": "shut"},
                "spec": {"podSelector": pods, "policyTypes": ["Ingress", "Egress"]},
            })],
        );
    };
    for pods in [json!({"matchLabels": {"app": "db"}}), json!({})] {
        shut(pods);
        for port in [5432, 53] {
            let denied = [
                ("source_pod", json!("shop/web")),
                ("destination_pod", json!("shop/db")),
                ("port", json!(port)),
                ("verdict", json!("denied")),
            ];
            shows(host, &denied, || {
                (&server).write_all(b"x").unwrap();
                answers.send_to(b"x", from).is_ok()
            });
        }
    }
    let found = flows(host, "");
    // The host itself joins multicast groups.
    let of_pods =
        |flow: &&Value| !flow["source_pod"].is_null() || !flow["destination_pod"].is_null();
    for flow in found["flows"].as_array().unwrap().iter().filter(of_pods) {
        assert_eq!(flow["source_pod"], "shop/web", "{flow}");
        assert!(![json!(own), json!(from.port())].contains(&flow["port"]), "{flow}");
    }
    agent.stop();
}

#[test]
fn a_host_without_events_lists_connections_instead() {
    let Scene { alone, agent, db, web, other: _other, _listener } = scene();
    let host = &alone.host;
    host.shell("echo 0 >/proc/sys/net/netfilter/nf_conntrack_events").ok();
    soon("that is reported", || {
        flows(host, "")["notes"].to_string().contains("nf_conntrack_events=0")
    });
    let _session = web.spot().inside(|| TcpStream::connect((db.v4(), 5432)).unwrap());
    let from_web = [("source_pod", json!("shop/web")), ("port", json!(5432))];
    shows(host, &from_web, || true);
    agent.stop();
}
