//! What connection tracking takes for something else: a packet in the midst of a connection that it has forgotten, and
//! who asks where the former pod of an address had asked. Both turned a connection round, past the rules of a pod.

use std::io::Write;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::cni::{Attachment, Network};
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, Process, eventually};
use crate::traffic::{Flood, Server};
use crate::{add, alone, attachment, only_from, serve, write_policies};

const PROGRAM: &str = "/tmp/mistaken.py";

/// The table without its rules for what is mistaken.
fn forget_rules(agent: &Agent, host: &Node) {
    agent.kill();
    for chain in ["mistaken", "output"] {
        host.run(&format!("nft flush chain inet humanz-policy {chain}")).ok();
    }
}

fn prints(pod: &Pod, arguments: &str) -> String {
    pod.run(&format!("python3 {PROGRAM} {arguments}")).ok()
}

/// A server that says `words` every 100 ms to whoever connects, or once.
fn speak(place: &dyn Place, port: u16, words: &'static [u8], is_endless: bool) {
    let listener = place.spot().listen(([0, 0, 0, 0], port));
    thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                while connection.write_all(words).is_ok() && is_endless {
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
}

/// A pod ends the entry of its connection after that was cut; the next packet of the other end begins another one, the
/// other way round. So does one of the node, for a connection to that.
#[test]
fn a_connection_that_was_cut_does_not_come_back_the_other_way_round() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    host.write(PROGRAM, include_str!("mistaken.py"));
    host.run("sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close=1").ok();
    let [db, other] = ["db", "other"].map(|name| add(host, name, name));
    let places: [&dyn Place; 2] = [&db, host];
    places.iter().for_each(|place| speak(*place, 5432, b"tick", true));
    let no_egress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "other"},
        "spec": {"podSelector": {"matchLabels": {"app": "other"}}, "policyTypes": ["Egress"]},
    });
    let cuts = [only_from("db", &["web"]), no_egress];
    let connected = |to: &dyn Place| {
        let to = to.addresses()[0];
        let process = other.spawn(&mut command(&format!("python3 {PROGRAM} hold {to}")));
        thread::sleep(Duration::from_millis(700));
        if process.log().contains("connected") { Ok(process) } else { Err(process.log()) }
    };
    let says = |process: &Process, word: &str| {
        eventually(word, Duration::from_secs(60), || {
            let log = process.log();
            if log.contains(word) { Ok(()) } else { Err(log) }
        });
    };
    let hold = || {
        write_policies(host, &[]);
        let held = places.map(|place| eventually("it connects", SOON, || connected(place)));
        write_policies(host, &cuts);
        held.iter().for_each(|process| says(process, "cut"));
        held
    };
    hold().iter().for_each(|process| says(process, "silent"));
    let held = hold();
    forget_rules(&agent, host);
    held.iter().for_each(|process| says(process, "again"));
}

/// The new pod of an address has a connection that its predecessor began.
#[test]
fn no_connection_of_a_former_pod_leads_to_the_next_one_of_its_address() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    host.write(PROGRAM, include_str!("mistaken.py"));
    let [old, bad] = ["old", "bad"].map(|name| add(host, name, name));
    // What its kernel says of connections that it does not know.
    bad.shell("nft 'table ip x { chain o { type filter hook output priority 0; tcp flags & rst == rst drop; }; }'").ok();
    let (address, attacker) = (old.v4(), bad.v4());
    for (port, to) in [(5432, 4444), (5433, 4445)] {
        prints(&old, &format!("seed {address} {port} {attacker} {to}"));
    }
    old.delete();
    make_netns(host, "db");
    let runtime = json!({"ips": [address.to_string()]});
    let wanted = Attachment { runtime, ..attachment("db", "db") };
    let db = Pod::connect(host, &Network::of(host), wanted).unwrap();
    assert_eq!(db.v4(), address);
    [5432, 5433].into_iter().for_each(|port| speak(&db, port, b"secret", false));
    assert_eq!(prints(&bad, &format!("turn {attacker} 4444 {address} 5432")), "refused\n");
    forget_rules(&agent, host);
    assert_eq!(
        prints(&bad, &format!("turn {attacker} 4445 {address} 5433")),
        "secret\n",
        "without the rules"
    );
}

/// Who may send to the former pod of an address goes on while that ends: the kernel keeps a connection that was
/// allowed, and the next pod's plugin does not look for it.
#[test]
fn what_a_former_pod_was_sent_does_not_reach_the_next_one_of_its_address() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"]), only_from("shut", &["friend"])]);
    let mut agent = serve(host, &[]);
    let [web, friend] = ["web", "friend"].map(|name| add(host, name, name));
    let address: IpAddr = [10, 244, 1, 77].into();
    let start = |name: &str, app: &str| {
        make_netns(host, name);
        let runtime = json!({"ips": [address.to_string()]});
        let wanted = Attachment { runtime, ..attachment(name, app) };
        let pod = Pod::connect(host, &Network::of(host), wanted).unwrap();
        let server = Server::open(&pod);
        (pod, server)
    };
    let flood = Flood::start(&web, address);
    for round in 0..12 {
        let (db, mut server) = start(&format!("db{round}"), "db");
        server.wait(web.v4());
        let is_away = round % 4 == 3;
        if is_away {
            agent.kill();
        }
        db.delete();
        let (shut, mut server) = start(&format!("shut{round}"), "shut");
        flood.go_on();
        if is_away {
            assert_eq!(server.total(), 0, "round {round}, without an agent");
            agent = serve(host, &[]);
        }
        let allowed = Flood::sparse(&friend, address);
        server.wait(friend.v4());
        drop(allowed);
        flood.go_on();
        assert_eq!(server.received(web.v4()), 0, "round {round}");
        shut.delete();
    }
    agent.stop();
}

/// As it was before the mark of the epoch was a constant of a rule.
fn as_an_earlier_version(host: &Node) {
    for chain in ["forward", "node4", "node6"] {
        let place = format!("inet humanz-policy {chain}");
        let listed = host.run(&format!("nft -a list chain {place}")).ok();
        let jump = listed.lines().find(|line| line.contains("jump judged")).unwrap();
        let handle = jump.rsplit(' ').next().unwrap();
        let rule = "ct mark and 0xffff0000 @epoch accept";
        host.run(&format!("nft replace rule {place} handle {handle} {rule}")).ok();
    }
    host.shell(
        "nft 'flush chain inet humanz-policy judged; delete chain inet humanz-policy judged'",
    )
    .ok();
}

/// Connections of the former pod would pass to the next one of its address, in quarantine as that is.
#[test]
fn a_pod_that_starts_without_an_agent_ends_the_epoch_in_the_table_of_an_earlier_version_too() {
    for is_earlier in [false, true] {
        let alone = alone();
        let host = &alone.host;
        write_policies(host, &[only_from("db", &["web"])]);
        let agent = serve(host, &[]);
        let db = add(host, "db", "db");
        let address = db.v4();
        agent.kill();
        if is_earlier {
            as_an_earlier_version(host);
        }
        let epoch = || host.run("nft list set inet humanz-policy epoch").ok();
        assert!(epoch().contains("elements"), "{}", epoch());
        db.delete();
        make_netns(host, "next");
        let runtime = json!({"ips": [address.to_string()]});
        let wanted = Attachment { runtime, ..attachment("next", "db") };
        Pod::connect(host, &Network::of(host), wanted).unwrap();
        assert!(!epoch().contains("elements"), "{}", epoch());
        let judged = host.run("nft list chain inet humanz-policy judged").ok();
        assert!(!judged.contains("accept"), "{judged}");
    }
}
