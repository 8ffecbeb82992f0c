//! What somebody replaces in place or sets down, until it is as it was.

use std::time::{Duration, Instant};

use crate::peers::within;
use crate::support::wait::SOON;
use crate::support::watch::Watch;
use crate::support::{Cluster, Node, Place, Pod};
use crate::table::Table;
use crate::workspace::Workspace;

const SAMPLES: usize = 15;
/// Milliseconds.
const LIMIT: f64 = 100.0;

pub fn measure(_: &mut Workspace, table: &mut Table) {
    direct(table);
    tunnelled(table);
}

/// A route to the other host, and a pod's end on this one.
fn direct(table: &mut Table) {
    let cluster = Cluster::new(2);
    let _agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let _pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let route = words(host, "ip route show proto 104");
    let (to, via) = (&*route[0], &*route[2]);
    let links = Watch::links(host);
    let mut repaired = |what, damage: &str, words: &[&str]| {
        within(what, times(host, &links, damage, words), LIMIT, table);
    };
    repaired(
        "a route replaced in place → back",
        &format!("ip route replace {to} dev lo"),
        &[to, via],
    );
    let port = host.shell("ls /sys/class/net | grep ^hz").ok();
    let port = port.trim();
    repaired("a pod's end set down → up", &format!("ip link set {port} down"), &[port, ",UP"]);
    repaired("the bridge set down → up", "ip link set humanz0 down", &["humanz0", ",UP"]);
}

/// What leads through a tunnel.
fn tunnelled(table: &mut Table) {
    let cluster = Cluster::routed(1, 1);
    let _agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), SOON);
    let neighbour = words(host, "ip neigh show dev humanz-vx4 nud permanent");
    let (address, mac) = (&*neighbour[0], &*neighbour[2]);
    let entry = host.shell(&format!("bridge fdb show dev humanz-vx4 | grep {mac}")).ok();
    let outer = entry.split_whitespace().skip_while(|word| *word != "dst").nth(1).unwrap();
    let (links, neighbours) = (Watch::links(host), Watch::start(host, "neigh"));
    let fdb = Watch::fdb(host);
    let route = words(host, "ip route show proto 104");
    let (to, via) = (&*route[0], &*route[2]);
    for (what, watch, damage, words) in [
        (
            "a tunnel's route replaced in place → back",
            &links,
            format!("ip route replace {to} dev lo"),
            vec![to, via],
        ),
        (
            "a tunnel's neighbour replaced → back",
            &neighbours,
            format!(
                "ip neigh replace {address} lladdr 02:00:00:00:00:01 dev humanz-vx4 nud permanent"
            ),
            vec![address, mac],
        ),
        (
            "a tunnel's FDB entry replaced → back",
            &fdb,
            format!("bridge fdb replace {mac} dev humanz-vx4 dst 192.0.2.99"),
            vec![mac, outer],
        ),
        (
            "a tunnel's device set down → up",
            &links,
            "ip link set humanz-vx4 down".to_owned(),
            vec!["humanz-vx4", ",UP"],
        ),
        (
            "a tunnel's device renamed → back",
            &links,
            // Before Linux 6.2 it must be down; else the repair of that would be measured.
            "ip link set humanz-vx4 name other 2>/dev/null || { ip link set humanz-vx4 down; \
             ip link set humanz-vx4 name other; }"
                .to_owned(),
            vec!["humanz-vx4", ",UP"],
        ),
    ] {
        within(what, times(host, watch, &damage, &words), LIMIT, table);
        pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), SOON);
    }
}

/// From the end of the damage to a line with these words.
fn times(host: &Node, watch: &Watch, damage: &str, words: &[&str]) -> Vec<Duration> {
    let once = |_| {
        // Its repair may come before the command ends.
        let before = Instant::now();
        host.shell(damage).ok();
        let took = watch.after(before, words);
        std::thread::sleep(Duration::from_millis(200));
        took
    };
    (0..SAMPLES).map(once).collect()
}

fn words(host: &Node, line: &str) -> Vec<String> {
    let shown = host.run(line).ok();
    shown.split_whitespace().map(str::to_owned).collect()
}
