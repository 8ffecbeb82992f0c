//! A pod that starts under a flood: nothing arrives before its policies are in force, with an agent or
//! without one, and an address keeps nothing of its former pod.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::cni::Network;
use crate::support::{Agent, Node, Place, Pod, pod, soon};
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, attachment, only_from, serve, write_policies};

/// Connects a pod that has the address `address`.
pub fn connect(host: &Node, name: &str, app: &str, address: &str) -> Result<Pod, u64> {
    let mut to = attachment(name, app);
    to.runtime = json!({"ips": [address]});
    Pod::connect(host, &Network::of(host), to).map_err(|error| error.code)
}

#[test]
fn no_denied_packet_reaches_a_pod_that_starts() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (web, other) = (add(host, "web", "web"), add(host, "other", "other"));
    let address = "10.244.1.77";
    let to = address.parse().unwrap();
    let (_web, _other) = (Flood::start(&web, to), Flood::start(&other, to));
    for number in 0..20 {
        let name = format!("db{number}");
        pod::make_netns(host, &name);
        let mut server = Server::open(&InNetns(host, format!("/run/netns/{name}")));
        let db = connect(host, &name, "db", address).unwrap();
        server.wait(web.v4());
        assert_eq!(server.received(other.v4()), 0, "start {number}");
        // No ARP answer of another pod takes its packets.
        let neighbour = host.run(&format!("ip neigh show {address}")).ok();
        assert!(neighbour.contains("PERMANENT"), "{neighbour}");
        db.delete();
    }
    agent.kill();
    for number in 20..40 {
        let name = format!("db{number}");
        pod::make_netns(host, &name);
        let mut server = Server::open(&InNetns(host, format!("/run/netns/{name}")));
        let db = connect(host, &name, "db", address).unwrap();
        // Its own node reaches it.
        let own = Flood::start(host, to);
        soon("answers to the host", || {
            server.received(to);
            own.answered() > 3
        });
        let log = || host.shell("tail -6 /var/log/humanz.log").stdout;
        assert_eq!(server.received(other.v4()), 0, "start {number}\n{}", log());
        assert_eq!(server.received(web.v4()), 0, "start {number}\n{}", log());
        if number == 39 {
            let agent = Agent::start(host, STANDALONE);
            server.wait(web.v4());
            assert_eq!(server.received(other.v4()), 0);
            agent.stop();
        }
        drop(own);
        db.delete();
    }
}

/// A namespace that is not connected yet.
pub struct InNetns<'a>(pub &'a Node, pub String);

impl Place for InNetns<'_> {
    fn node(&self) -> &Node {
        self.0
    }

    fn netns(&self) -> Option<&str> {
        Some(&self.1)
    }

    fn label(&self) -> String {
        self.1.clone()
    }

    fn addresses(&self) -> Vec<std::net::IpAddr> {
        Vec::new()
    }
}

#[test]
fn an_address_that_was_freed_carries_nothing_of_its_former_pod() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let other = add(host, "other", "other");
    let address = "10.244.1.77";
    let to = address.parse().unwrap();
    for (round, with_agent) in [(0, true), (1, false)] {
        let _flood = Flood::start(&other, to);
        let name = format!("open{round}");
        pod::make_netns(host, &name);
        let open = connect(host, &name, "anything", address).unwrap();
        let mut server = Server::open(&open);
        server.wait(other.v4());
        drop(server);
        if !with_agent {
            agent.kill();
        }
        open.delete();
        let name = format!("db{round}");
        pod::make_netns(host, &name);
        let mut server = Server::open(&InNetns(host, format!("/run/netns/{name}")));
        let db = connect(host, &name, "db", address).unwrap();
        _flood.go_on();
        let log = || host.shell("tail -6 /var/log/humanz.log").stdout;
        assert_eq!(server.received(other.v4()), 0, "with agent: {with_agent}\n{}", log());
        drop(server);
        db.delete();
    }
}

#[test]
fn without_an_agent_a_pod_starts_as_the_settings_say() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    for (setting, code, arrives) in [("fail", Some(11), false), ("open", None, true)] {
        let agent = serve(host, &[("POLICY_ON_AGENT_DOWN", setting)]);
        let other = add(host, &format!("other-{setting}"), "other");
        agent.kill();
        let name = format!("db-{setting}");
        pod::make_netns(host, &name);
        let added = connect(host, &name, "db", "10.244.1.78");
        assert_eq!(added.as_ref().err().copied(), code, "{setting}");
        if let Ok(db) = added {
            let mut server = Server::open(&db);
            let _flood = Flood::start(&other, db.v4());
            if arrives {
                server.wait(other.v4());
            }
            db.delete();
        }
        other.delete();
    }
    // Where nothing would keep a pod in quarantine, none starts.
    let agent = serve(host, &[]);
    agent.kill();
    host.run("nft delete table inet humanz-policy").ok();
    pod::make_netns(host, "late");
    assert_eq!(connect(host, "late", "db", "10.244.1.79").err(), Some(11));
}

#[test]
fn after_a_reboot_policies_are_in_force_before_a_pod_can_start() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    agent.stop();
    // As after a reboot: the kernel has nothing, and the file cannot be read.
    host.run("nft delete table inet humanz-policy").ok();
    host.run("ip link del humanz0").ok();
    host.write(crate::FILE, "{");
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    denied.go_on();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.received(other.v4()), 0);
    agent.stop();
}

/// Each end of a pod whose removal the kernel reported first counted as a repair, and pushed real ones out of `status`.
#[test]
fn pods_that_come_and_go_at_once_are_no_repair() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let page = "curl -s --unix-socket /run/humanz/agent.sock http://localhost/metrics";
    let repairs = || -> Vec<String> {
        let metrics = host.run(page).ok();
        let repairs = metrics.lines().filter(|line| line.starts_with("humanz_drift_repaired"));
        repairs.map(str::to_owned).collect()
    };
    let before = repairs();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..15 {
                    add(host, &format!("p{thread}-{number}"), "db").delete();
                }
            });
        }
    });
    soon("the last pod is withdrawn", || !is_known(host));
    assert_eq!(repairs(), before);
    agent.stop();
}

/// The table of policies has a pod.
fn is_known(host: &Node) -> bool {
    host.run("nft list set inet humanz-policy self4").stdout.contains("10.244.")
}

/// They are not judged, and `doctor` said that there was time.
#[test]
fn pods_whose_entries_are_lost_are_in_quarantine_and_doctor_says_so() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let mut server = Server::open(&db);
    let _flood = Flood::sparse(&web, db.v4());
    server.wait(web.v4());
    host.run("rm -r /run/humanz/ipam").ok();
    let said = Agent::run(host, "doctor", STANDALONE).stdout;
    assert!(said.contains("policies keep them in quarantine"), "{said}");
    server.wait_silence(web.v4(), Instant::now());
    agent.stop();
}
