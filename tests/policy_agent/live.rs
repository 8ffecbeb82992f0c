//! `policy diff --live`: the connections that it names are those that a change cuts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::wait::patience;
use crate::support::{Agent, Node, Place, Pod, soon};
use crate::{STANDALONE, add, alone, only_from, serve, write_policies};

/// A connection over TCP, and its end in the server.
struct Session {
    /// `shop/web 4`, and the port that it comes from.
    name: (String, u16),
    client: TcpStream,
    server: TcpStream,
}

impl Session {
    fn open(from: &impl Place, who: &str, to: &Pod, port: u16, address: IpAddr) -> Session {
        let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let listener = to.spot().inside(|| TcpListener::bind((any, port)).unwrap());
        let target = SocketAddr::new(address, port);
        let client = from.spot().inside(|| TcpStream::connect(target).unwrap());
        let (server, _) = listener.accept().unwrap();
        let number = client.local_addr().unwrap().port();
        let wait = Duration::from_millis(300) * patience();
        server.set_read_timeout(Some(wait)).unwrap();
        Session { name: (who.to_owned(), number), client, server }
    }

    /// What the client sends arrives.
    fn is_alive(&mut self) -> bool {
        let mut byte = [0; 64];
        self.client.write_all(b"x").is_ok() && self.server.read(&mut byte).is_ok_and(|it| it > 0)
    }
}

fn diff(host: &Node, new: &[Value], more: &str) -> crate::support::Ended {
    host.write("/etc/new.json", &json!(new).to_string());
    Agent::run(host, &format!("policy diff --new /etc/new.json --live --json {more}"), STANDALONE)
}

fn named(live: &Value, list: &str) -> BTreeSet<(String, u16)> {
    let name = |one: &Value| {
        let pod = one["source_pod"].as_str().unwrap_or("host").to_owned();
        (pod, u16::try_from(one["source_port"].as_u64().unwrap()).unwrap())
    };
    live[list].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn the_connections_named_are_cut_by_the_change_and_no_others() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web", "mon"])]);
    let agent = serve(host, &[]);
    let [db, web, mon, free] = ["db", "web", "mon", "free"].map(|name| add(host, name, name));
    let mut sessions = Vec::new();
    for (at, address) in [db.v4(), db.v6()].into_iter().enumerate() {
        let port = 5432 + 10 * u16::try_from(at).unwrap();
        sessions.push(Session::open(&web, "shop/web", &db, port, address));
        sessions.push(Session::open(&mon, "shop/mon", &db, port + 1, address));
        sessions.push(Session::open(host, "host", &db, port + 2, address));
        let other = [free.v4(), free.v6()][at];
        sessions.push(Session::open(&mon, "shop/mon", &free, port + 3, other));
    }
    // By way of a service of the host: judged behind its translation.
    host.shell(
        "nft add table ip services
         nft add chain ip services pre '{ type nat hook prerouting priority dstnat; }'",
    )
    .ok();
    let rule = format!("ip daddr 10.96.0.1 tcp dport 80 dnat to {}:5450", db.v4());
    host.shell(&format!("nft add rule ip services pre {rule}")).ok();
    let listener = db.spot().inside(|| TcpListener::bind(("0.0.0.0", 5450)).unwrap());
    let client = mon.spot().inside(|| TcpStream::connect(("10.96.0.1", 80)).unwrap());
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300) * patience())).unwrap();
    let name = ("shop/mon".to_owned(), client.local_addr().unwrap().port());
    sessions.push(Session { name, client, server });
    assert!(sessions.iter_mut().all(Session::is_alive), "before the change");

    // Nothing changes: nothing is cut.
    let same = diff(host, &[only_from("db", &["web", "mon"])], "");
    assert!(same.succeeded(), "{same}");
    let new = [only_from("db", &["web"])];
    let shown = diff(host, &new, "");
    assert_eq!(shown.status.code(), Some(1), "{shown}");
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    let cut = named(&shown["live"], "cut");
    assert_eq!(shown["live"]["notKnown"], json!([]));
    assert_eq!(cut.len(), 3, "{shown:#}");
    let first = &shown["live"]["cut"][0];
    assert_eq!(
        (&first["rule"], &first["destination_pod"]),
        (&json!("NetworkPolicy shop/db ingress default"), &json!("shop/db"))
    );

    write_policies(host, &new);
    let mut dead = BTreeSet::new();
    soon("the change holds", || {
        for session in &mut sessions {
            if !session.is_alive() {
                dead.insert(session.name.clone());
            }
        }
        dead.len() >= cut.len()
    });
    let dead: BTreeSet<_> = {
        let gone = sessions.iter_mut().filter_map(|it| (!it.is_alive()).then(|| it.name.clone()));
        gone.collect()
    };
    assert_eq!(dead, cut);
    // What is cut already is not named again.
    let after = diff(host, &[only_from("db", &["web"])], "");
    let after: Value = serde_json::from_str(&after.stdout).unwrap();
    assert_eq!(after["live"]["cut"], json!([]), "{after:#}");
    agent.stop();
}

/// A peer that no rule had: what it finds on other hosts is known by the files, or not at all.
#[test]
fn what_depends_on_pods_of_other_hosts_is_said_to_be_unknown_unless_files_have_them() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    let agent = serve(host, &[]);
    let db = add(host, "db", "db");
    // Another host's pod, as this host meets it.
    let far: IpAddr = [10, 250, 0, 7].into();
    host.shell("ip netns add far; ip link add far0 type veth peer name eth0 netns far").ok();
    host.shell(
        "ip link set far0 up; ip addr add 10.250.0.1/24 dev far0
         ip -n far addr add 10.250.0.7/24 dev eth0; ip -n far link set eth0 up
         ip -n far route add default via 10.250.0.1",
    )
    .ok();
    let listener = db.spot().inside(|| TcpListener::bind(("0.0.0.0", 5432)).unwrap());
    let client = host.inside(|| {
        crate::support::namespace::enter_network("/run/netns/far");
        TcpStream::connect((db.v4(), 5432)).unwrap()
    });
    let (_server, _) = listener.accept().unwrap();
    let number = client.local_addr().unwrap().port();
    let pod = |app: &str| {
        json!([{"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "far", "labels": {"app": app}},
        "spec": {"nodeName": "elsewhere"}, "status": {"podIPs": [{"ip": far}]}}])
    };
    let new = [only_from("db", &["web"])];
    let live = |more: &str| -> Value {
        let shown = diff(host, &new, more);
        let shown: Value =
            serde_json::from_str(&shown.stdout).unwrap_or_else(|_| panic!("{shown}"));
        shown["live"].clone()
    };
    let it = BTreeSet::from([("host".to_owned(), number)]);
    let unknown = live("");
    assert_eq!((named(&unknown, "cut").len(), named(&unknown, "notKnown")), (0, it.clone()));
    assert_eq!(unknown["elsewhere"], 1);
    for (app, cut) in [("web", false), ("other", true)] {
        host.write("/etc/pods.json", &pod(app).to_string());
        let known = live("-f /etc/pods.json");
        assert_eq!(named(&known, "cut") == it, cut, "{app}: {known:#}");
        assert_eq!(known["notKnown"], json!([]), "{app}");
    }
    // Pods that change are not what it judges, and another user is refused.
    let refused = diff(host, pod("web").as_array().unwrap(), "");
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("take objects of kind Pod out"), "{refused}");
    agent.stop();
}
