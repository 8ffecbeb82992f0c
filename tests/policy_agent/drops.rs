//! `watch --drops`: what policies deny is shown with its pods and policy, whatever pods send.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use serde_json::{Value, json};

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::wait::{SOON, patience};
use crate::support::{Agent, Node, Place, Pod, Process, eventually};
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, attachment, only_from, serve, write_policies};

fn watch(host: &Node, more: &str) -> Process {
    let watch = host.spawn(&mut command(&format!("{EXECUTABLE} watch --drops {more}")));
    let groups = "/proc/self/net/netfilter/nfnetlink_log";
    eventually("it reads the group", SOON, || match host.run(&format!("cat {groups}")).stdout {
        text if text.trim_start().starts_with("104 ") => Ok(()),
        text => Err(format!("{text}{}", watch.log())),
    });
    watch
}

/// Waits until it shows a line with these words, doing `cause` again and again.
fn shows(watch: &Process, words: &str, cause: impl Fn()) -> String {
    eventually(&format!("{words:?} is shown"), SOON, || {
        cause();
        let log = watch.log();
        let line = log.lines().find(|line| line.contains(words)).map(str::to_owned);
        line.ok_or(log)
    })
}

fn connect(from: &Pod, to: IpAddr, port: u16) -> bool {
    let target = SocketAddr::new(to, port);
    from.spot().inside(|| TcpStream::connect_timeout(&target, Duration::from_millis(100)).is_ok())
}

fn deny_egress(app: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": format!("{app}-out")},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Egress"]},
    })
}

struct Scene {
    alone: Alone,
    agent: Agent,
    db: Pod,
    web: Pod,
    other: Pod,
    shut: Pod,
}

fn scene() -> Scene {
    let alone = alone();
    let host = &alone.host;
    let mut audited = only_from("db", &["mon"]);
    audited["metadata"]["name"] = json!("trial");
    audited["metadata"]["annotations"] = json!({"humanz.io/audit": "true"});
    write_policies(host, &[only_from("db", &["web"]), audited, deny_egress("shut")]);
    let agent = serve(host, &[]);
    let [db, web, other, shut] = ["db", "web", "other", "shut"].map(|name| add(host, name, name));
    Scene { alone, agent, db, web, other, shut }
}

#[test]
fn drops_are_shown_with_pods_policy_and_direction_in_both_families() {
    let Scene { alone, agent, db, web, other, shut } = scene();
    let host = &alone.host;
    let shown = watch(host, "");
    for (at, to) in [db.v4(), db.v6()].into_iter().enumerate() {
        let port = 5432 + u16::try_from(at).unwrap();
        let refused = |from: &Pod, to, port| assert!(!connect(from, to, port));
        let denied =
            format!("shop/other → shop/db:{port} tcp denied by NetworkPolicy shop/db (ingress)");
        shows(&shown, &denied, || refused(&other, to, port));
        let target = [other.v4(), other.v6()][at];
        let denied = format!(
            "shop/shut → shop/other:{port} tcp denied by NetworkPolicy shop/shut-out (egress)"
        );
        shows(&shown, &denied, || refused(&shut, target, port));
        let trial = format!(
            "shop/web → shop/db:{port} tcp would be denied by NetworkPolicy shop/trial (ingress)"
        );
        shows(&shown, &trial, || refused(&web, to, port));
    }
    let outside = "shop/shut → 192.0.2.77:443 tcp denied by NetworkPolicy shop/shut-out (egress)";
    shows(&shown, outside, || assert!(!connect(&shut, [192, 0, 2, 77].into(), 443)));
    let log = shown.log();
    assert!(!log.contains("shop/web → shop/db:5432 tcp denied"), "{log}");
    assert!(!log.contains("shop/other → shop/other"), "{log}");

    // The kernel gives a group to one reader.
    let second = Agent::run(host, "watch --drops", STANDALONE);
    assert_eq!(second.status.code(), Some(69), "{second}");
    assert!(second.stderr.contains("another program reads netlink group 104"), "{second}");
    assert!(second.stderr.contains("this agent does not read denied packets (FLOWS)"), "{second}");

    // A policy that is new since then, and a connection that runs when it is taken away.
    let mut server = Server::open(&db);
    let flood = Flood::start(&web, db.v4());
    server.wait(web.v4());
    let mut renamed = only_from("db", &["mon"]);
    renamed["metadata"]["name"] = json!("later");
    write_policies(host, &[renamed]);
    let denied = "shop/web → shop/db:5000 udp denied by NetworkPolicy shop/later (ingress)";
    shows(&shown, denied, || {});
    drop(flood);
    drop(shown);

    let shown = watch(host, "--json");
    let line = shows(&shown, "shop/other → shop/db:5432 tcp", || {
        assert!(!connect(&other, db.v6(), 5432));
    });
    let value: Value = serde_json::from_str(&line).unwrap();
    for (key, wanted) in [
        ("schema", json!(1)),
        ("source", json!(other.v6())),
        ("source_pod", json!("shop/other")),
        ("destination_pod", json!("shop/db")),
        ("port", json!(5432)),
        ("protocol", json!("tcp")),
        ("policy", json!("NetworkPolicy shop/later")),
        ("direction", json!("ingress")),
        ("audit", json!(false)),
    ] {
        assert_eq!(value[key], wanted, "{key}: {value}");
    }
    assert!(value["in"].is_string() && value["out"].is_string(), "{value}");
    agent.stop();
}

/// Clock ticks of processor time that a process has used.
pub fn ticks(process: &Process) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Sends these bytes as an IPv4 packet.
fn send_raw(from: &Pod, packet: &[u8]) {
    from.spot().inside(|| {
        let (kind, flags) = (SockType::Raw, SockFlag::empty());
        let raw = socket(AddressFamily::Inet, kind, flags, SockProtocol::Raw).unwrap();
        let target = <[u8; 4]>::try_from(&packet[16..20]).unwrap();
        let [a, b, c, d] = target;
        let target = SockaddrIn::new(a, b, c, d, 0);
        // The kernel may refuse to send what is too broken.
        let _refused = sendto(raw.as_raw_fd(), packet, &target, MsgFlags::empty());
    });
}

#[test]
fn a_flood_of_drops_and_garbage_have_bounded_output() {
    let Scene { alone, agent, db, web: _, other, shut } = scene();
    let host = &alone.host;
    let shown = watch(host, "");
    // Rules of others may report to the group without a limit, and what no connection is.
    host.shell(
        "nft -f - <<E
table inet hostile {
 chain loud {
  type filter hook prerouting priority -500
  log prefix \"any \" group 104
 }
}
E",
    )
    .ok();
    let floods: Vec<Flood> =
        (0..4).map(|at| Flood::start(if at % 2 == 0 { &other } else { &shut }, db.v4())).collect();
    shows(&shown, "packets came too fast to be shown", || {});
    let (before, lines) = (ticks(&shown), shown.lines().len());
    let sent: u64 = floods.iter().map(Flood::sent).sum();
    std::thread::sleep(Duration::from_secs(4));
    let lines = shown.lines().len() - lines;
    let sent = floods.iter().map(Flood::sent).sum::<u64>() - sent;
    let used = ticks(&shown) - before;
    println!("{sent} packets in 4 s: {lines} lines, {used} ticks of 10 ms");
    assert!(sent > 1000, "{sent} packets are no flood");
    assert!(lines <= 5 * 51, "{lines} lines in 4 s");
    assert!(used < 200 * u64::from(patience()), "{used} ticks in 4 s");
    drop(floods);

    let IpAddr::V4(target) = db.v4() else { panic!("IPv4") };
    let mut garbage: u64 = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..300 {
        let mut packet: Vec<u8> = (0..20 + garbage as usize % 60)
            .map(|_| {
                garbage ^= garbage << 13;
                garbage ^= garbage >> 7;
                garbage ^= garbage << 17;
                garbage as u8
            })
            .collect();
        packet[0] = 0x45 + packet[0] % 11;
        packet[16..20].copy_from_slice(&target.octets());
        send_raw(&other, &packet);
    }
    host.run("nft delete table inet hostile").ok();
    let denied = "shop/other → shop/db:5433 tcp denied by NetworkPolicy shop/db (ingress)";
    shows(&shown, denied, || assert!(!connect(&other, db.v4(), 5433)));
    assert!(shown.ended().is_none(), "{}", shown.log());
    let harmful = |char: char| char.is_control() && char != '\n';
    assert!(!shown.log().contains(harmful), "{}", shown.log());
    agent.stop();
}

#[test]
fn packets_of_no_connection_are_shown() {
    let Scene { alone, agent, db, web: _, other, shut: _ } = scene();
    let shown = watch(&alone.host, "");
    let (IpAddr::V4(source), IpAddr::V4(target)) = (other.v4(), db.v4()) else { panic!("IPv4") };
    // A reset of a connection that there never was, with a wrong checksum.
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend(source.octets().into_iter().chain(target.octets()));
    packet.extend([0x9c, 0x40, 0x15, 0x38, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 4, 0, 0, 0, 0, 0, 0]);
    let line = "shop/other → shop/db:5432 tcp denied because it belongs to no connection";
    shows(&shown, line, || send_raw(&other, &packet));
    agent.stop();
}

/// What the command read before has an earlier pod there, or none.
#[test]
fn an_address_that_another_pod_has_got_is_shown_with_the_name_of_that_pod() {
    let Scene { alone, agent, db, web: _, other: _, shut: _ } = scene();
    let host = &alone.host;
    let start = |name: &str| {
        crate::support::pod::make_netns(host, name);
        let attachment = attachment(name, "other");
        let args = format!("{};IP=10.244.1.77", attachment.args);
        Pod::connect(host, &Network::of(host), Attachment { args, ..attachment }).unwrap()
    };
    let shown = watch(host, "");
    for (port, name) in (5432..).zip(["first", "second", "third"]) {
        let pod = start(name);
        let denied = format!("→ shop/db:{port} tcp denied");
        let line = shows(&shown, &denied, || assert!(!connect(&pod, db.v4(), port)));
        assert!(line.contains(&format!("shop/{name} {denied}")), "{}", shown.log());
        pod.delete();
    }
    agent.stop();
}
