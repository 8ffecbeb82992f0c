//! Encryption between hosts, beside a WireGuard network made by hand: what passes, and 1,000 peers.

use std::fmt::Write;
use std::time::Instant;

use humanz::net::PrivateKey;

use crate::dataplane;
use crate::records::{address, end, join_encrypted, subnet};
use crate::series::{middle, milliseconds};
use crate::support::node::{Node, Place};
use crate::support::watch::Watch;
use crate::support::{Agent, Cluster, kernel};
use crate::table::{Row, Table};
use crate::usage;
use crate::workspace::Workspace;

const PEERS: u32 = 1_000;
const SAMPLES: usize = 5;
/// The target beside the kernel's own time.
const TIMES: f64 = 1.3;

pub fn measure(_: &mut Workspace, table: &mut Table) {
    if !kernel::has_wireguard() {
        println!("  this kernel has no WireGuard; another one: SUITES=bench tests/kernels");
        return;
    }
    dataplane::encrypted(table);
    peers(table);
}

/// Device, peers and routes made anew: by an agent whose device somebody deleted, and by hand.
fn peers(table: &mut Table) {
    let cluster = Cluster::new(2);
    let [host, by_hand] = &cluster.hosts[..] else { unreachable!("two hosts") };
    for host in [host, by_hand] {
        host.run("ip address add 10.99.255.254/16 dev eth0").ok();
    }
    join_encrypted(&cluster.etcd, 1..PEERS + 1);
    let variables =
        [("IP_SUBNET", "11.0.0.0/8"), ("IP_SUBNET_MARGIN", "16"), ("ENCRYPTION", "wireguard")];
    let agent = Agent::start(host, &variables);
    agent.wait_ready();
    assert_whole(host, "humanz-wg", &agent.log());
    write_down(by_hand);
    let (mut ratios, mut owns, mut floors, mut cpus) = (vec![], vec![], vec![], vec![]);
    for _ in 0..SAMPLES {
        let floor = make(by_hand);
        let before = usage::cpu(host);
        let own = again(host);
        cpus.push(milliseconds(&(usage::cpu(host) - before)));
        assert_whole(host, "humanz-wg", &agent.log());
        ratios.push(own / floor);
        owns.push(own);
        floors.push(floor);
    }
    let times = middle(ratios);
    table.push(Row {
        what: format!("{PEERS} encrypted peers: device, peers and routes made anew"),
        floor: format!("{:.0} ms by wg and ip", middle(floors)),
        humanz: format!("{:.0} ms (CPU {:.0})", middle(owns), middle(cpus)),
        target: format!("≤ {TIMES} × by hand"),
        reached: format!("{times:.2} ×"),
        met: Some(times <= TIMES),
        ..Row::default()
    });
}

/// From the kernel's word that the device went to its word that the last route is back, in milliseconds.
fn again(host: &Node) -> f64 {
    let watch = Watch::start(host, "link route");
    let asked = Instant::now();
    host.run("ip link del humanz-wg").ok();
    let gone = watch.after(asked, &["Deleted", "humanz-wg"]);
    let last = subnet(PEERS).to_string();
    milliseconds(&watch.after(asked + gone, &[&last, "dev humanz-wg"]))
}

/// The same by `wg` and `ip`, in milliseconds.
fn make(host: &Node) -> f64 {
    host.shell("ip link del wg0 2>/dev/null || true").ok();
    let start = Instant::now();
    host.shell(
        "ip link add wg0 mtu 1440 type wireguard &&
         wg setconf wg0 /etc/wg0.conf &&
         ip link set wg0 up &&
         ip -batch /etc/routes",
    )
    .ok();
    let time = milliseconds(&start.elapsed());
    assert_whole(host, "wg0", "");
    time
}

/// What `wg` and `ip` read.
fn write_down(host: &Node) {
    let secret = PrivateKey::of_random([7; 32]).secret_text();
    let mut settings = format!("[Interface]\nPrivateKey = {secret}\nListenPort = 10401\n");
    let mut routes = String::new();
    for number in 1..=PEERS {
        let (key, port) = (end(number).public_key, end(number).port);
        let (address, subnet) = (address(number), subnet(number));
        writeln!(
            settings,
            "[Peer]\nPublicKey = {key}\nEndpoint = {address}:{port}\nAllowedIPs = {subnet}\nPersistentKeepalive = {}",
            humanz::netlink::wireguard::KEEPALIVE_SECS
        )
        .unwrap();
        writeln!(routes, "route add {subnet} dev wg0").unwrap();
    }
    host.write("/etc/wg0.conf", &settings);
    host.write("/etc/routes", &routes);
}

fn assert_whole(host: &Node, device: &str, log: &str) {
    let count = |line: &str| host.shell(line).ok().lines().count();
    let peers = count(&format!("wg show {device} peers"));
    let routes = count(&format!("ip -4 route show dev {device}"));
    assert_eq!((peers, routes), (PEERS as usize, PEERS as usize), "{log}");
}
