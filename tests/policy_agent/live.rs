//! `policy diff --live`: the connections that it names are those that a change cuts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply, own, pings, pod};
use crate::support::wait::patience;
use crate::support::{Agent, Cluster, Node, Place, Pod, soon};
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
        let listener = to.spot().listen((any, port));
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
    let listener = db.spot().listen(([0, 0, 0, 0], 5450));
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
    let listener = db.spot().listen(([0, 0, 0, 0], 5432));
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
    assert!(refused.stderr.contains("take \"Pod\" \"far\" of \"v1\" out"), "{refused}");
    agent.stop();
}

fn text(host: &Node, new: &[Value], settings: &[(&str, &str)]) -> crate::support::Ended {
    host.write("/etc/new.json", &json!(new).to_string());
    Agent::run(host, "policy diff -f /etc/new.json", settings)
}

fn lines<'a>(shown: &'a crate::support::Ended, sign: &str) -> Vec<&'a str> {
    shown.stdout.lines().filter(|line| line.starts_with(sign)).collect()
}

#[test]
fn changed_objects_alone_are_compared_with_what_holds_on_the_host() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let none = text(host, &[only_from("db", &["web"])], STANDALONE);
    assert!(none.stderr.contains("has no pods that policies know"), "{none}");
    let [db, web, mon] = ["db", "web", "mon"].map(|name| add(host, name, name));
    let mut session = Session::open(&web, "shop/web", &db, 5432, db.v4());
    assert!(session.is_alive());

    let same = text(host, &[only_from("db", &["web"])], STANDALONE);
    assert!(same.succeeded() && same.stdout.starts_with("no connection from or to"), "{same}");
    let shown = text(host, &[only_from("db", &["mon"])], STANDALONE);
    assert_eq!(shown.status.code(), Some(1), "{shown}");
    let all = "icmp type 8, tcp on other ports, udp on other ports";
    let rule = "NetworkPolicy shop/db ingress default";
    assert_eq!(
        lines(&shown, "-"),
        [format!("- denied, was allowed: shop/web -> shop/db {all}: {rule}")],
        "{shown}"
    );
    assert_eq!(
        lines(&shown, "+"),
        [format!("+ allowed, was denied: shop/mon -> shop/db {all}: {rule}")],
        "{shown}"
    );
    assert!(lines(&shown, "?").iter().all(|line| line.contains("ingress rule 0 matches")));
    let cut = format!("  shop/web {}:{} -> shop/db", web.v4(), session.name.1);
    assert!(shown.stdout.contains(&cut), "{shown}");
    // The same by --new, and as the kernel judges it then.
    let by_new = Agent::run(host, "policy diff --new /etc/new.json", STANDALONE);
    assert_eq!(by_new.stdout, shown.stdout);
    write_policies(host, &[only_from("db", &["mon"])]);
    soon("the change holds", || !session.is_alive());
    assert!(Session::open(&mon, "shop/mon", &db, 5433, db.v4()).is_alive());

    // What is no policy, or cannot be understood.
    for (object, why) in [
        (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}), "take \"Pod\""),
        (json!({"apiVersion": "x/v1", "kind": "Moon"}), "take \"Moon\""),
        (json!({"hello": 7}), "take \"\""),
    ] {
        let refused = text(host, &[object], STANDALONE);
        assert_eq!(refused.status.code(), Some(2), "{refused}");
        assert!(refused.stderr.contains(why), "{refused}");
    }
    let empty = text(host, &[], STANDALONE);
    assert!(empty.status.code() == Some(2) && empty.stderr.contains("no objects in it"), "{empty}");
    let mut bad = only_from("db", &["mon"]);
    bad["spec"]["ingress"][0]["from"] = json!(7);
    let closes = text(host, &[bad], STANDALONE);
    assert_eq!(closes.status.code(), Some(1), "{closes}");
    assert!(lines(&closes, "!")[0].contains("NetworkPolicy shop/db: spec.ingress"), "{closes}");
    assert!(lines(&closes, "-")[0].contains("shop/mon -> shop/db"), "{closes}");
    agent.stop();
    // Without an agent, what held last; without policies, what to give instead.
    let last = text(host, &[only_from("db", &["web"])], STANDALONE);
    assert_eq!(last.status.code(), Some(1), "{last}");
    assert!(last.stderr.contains("this is what held last"), "{last}");
    let off = text(host, &[], &[STANDALONE, &[("POLICY", "off")]].concat());
    assert_eq!(off.status.code(), Some(2), "{off}");
    host.write("/etc/new.json", &json!([only_from("db", &["web"])]).to_string());
    let off = [STANDALONE, &[("POLICY", "off")]].concat();
    let off = Agent::run(host, "policy diff -f /etc/new.json", &off);
    assert!(off.stderr.contains("policies are off") && off.stderr.contains("--new FILE"), "{off}");
}

#[test]
fn changed_groups_of_etcd_are_compared_without_the_others() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let deny = |protocol: &str| {
        let rule = json!({"direction": "in", "action": "deny", "protocol": protocol});
        own("GroupPolicy", "no-ping", json!({"rules": [rule]}))
    };
    let group = |policies: &[&str]| own("Group", "web", json!({"policies": policies}));
    apply(host, &[deny("icmp"), group(&["no-ping"]), own("Group", "free", json!({}))]);
    let agents = cluster.start_agents(FROM_ETCD);
    let [web, free] = ["web", "free"].map(|name| pod(host, name, Some(name)));
    soon("the rule", || !pings(&free, web.v4()) && pings(&web, free.v4()));

    let shown = text(host, &[deny("tcp")], FROM_ETCD);
    assert_eq!(shown.status.code(), Some(1), "{shown}");
    let from_pod = |line: &&str| line.contains("shop/free -> shop/web ");
    let of_pod = |sign: &str| lines(&shown, sign).into_iter().filter(from_pod).collect::<Vec<_>>();
    let rule = "policy default/no-ping ingress rule 0";
    assert_eq!(
        (of_pod("+"), of_pod("-")),
        (
            vec![&*format!(
                "+ allowed, was denied: shop/free -> shop/web icmp of other types, icmp type 8, \
                 icmpv6 of other types: {rule}"
            )],
            vec![&*format!(
                "- denied, was allowed: shop/free -> shop/web tcp on other ports: {rule}"
            )],
        ),
        "{shown}"
    );
    // A group with the policy that it has, one without, one more, and one that nobody knows.
    assert!(text(host, &[group(&["no-ping"])], FROM_ETCD).succeeded());
    let without = text(host, &[group(&[])], FROM_ETCD);
    assert!(
        lines(&without, "+").iter().any(|it| it.contains("shop/free -> shop/web icmp")),
        "{without}"
    );
    let more = text(host, &[own("Group", "free", json!({"policies": ["no-ping"]}))], FROM_ETCD);
    assert!(lines(&more, "-").iter().any(|it| it.contains("shop/web -> shop/free icmp")), "{more}");
    let late = text(host, &[own("GroupPolicy", "late", json!({"rules": []}))], FROM_ETCD);
    assert_eq!(late.status.code(), Some(1), "{late}");
    assert!(lines(&late, "?")[0].contains("GroupPolicy default/late"), "{late}");
    let unknown = text(host, &[group(&["late"])], FROM_ETCD);
    assert_eq!(unknown.status.code(), Some(2), "{unknown}");
    assert!(unknown.stderr.contains("policy export prints those in etcd"), "{unknown}");
    // As it was said, so it is.
    apply(host, &[deny("tcp")]);
    soon("the change holds", || pings(&free, web.v4()));
    agents.iter().for_each(Agent::stop);
}
