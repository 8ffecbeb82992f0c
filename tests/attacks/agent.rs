//! Guards under the agent: repaired, put before pods that had none, and what they lead to.

use std::net::IpAddr;

use serde_json::json;

use crate::support::cluster::Alone;
use crate::support::cni::Network;
use crate::support::echo::{Echo, ask_tcp};
use crate::support::local::{get, has_problem, status_when, wait_problem};
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually, soon};

const STANDALONE: &[(&str, &str)] = &[
    ("SUBNET_SOURCE", "static"),
    ("ETCD_HOST", ""),
    ("IPV6_SUBNET", "fd10::/48"),
    // What is repaired is repaired because of an event.
    ("RESYNC_INTERVAL", "3600s"),
];

fn serve(host: &Node, more: &[(&str, &str)]) -> Agent {
    let agent = Agent::start(host, &[STANDALONE, more].concat());
    agent.wait_ready();
    agent
}

fn is_whole(pod: &Pod) {
    let check = || pod.check().map_err(|error| error.to_string());
    eventually(&format!("CHECK of {}", pod.label()), SOON, check);
}

/// Those of pods that are gone count as well.
fn chains(host: &Node) -> usize {
    host.run("nft list table netdev humanz").stdout.matches("policy drop").count()
}

fn reaches(pod: &Pod, to: &Pod) {
    for address in to.addresses() {
        pod.until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
    }
}

/// The pod speaks with another address and is received.
fn lies(pod: &Pod, to: &Pod) -> bool {
    pod.run("ip addr replace 10.244.1.99/32 dev eth0").ok();
    pod.run(&format!("ping -n -c 2 -i 0.2 -W 1 -I 10.244.1.99 {}", to.v4())).succeeded()
}

#[test]
fn guards_that_somebody_changes_are_repaired_at_once() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    is_whole(&pods[0]);
    for broken in [
        "nft flush ruleset",
        "nft delete table netdev humanz",
        "nft 'add table netdev humanz { flags dormant; }'",
        "for c in $(nft list table netdev humanz | awk '/chain/ {print $2}'); do nft insert rule netdev humanz $c accept; done",
        "nft delete chain netdev humanz $(nft list table netdev humanz | awk '/chain hz/ {print $2; exit}')",
        "for c in $(nft list table netdev humanz | awk '/chain/ {print $2}'); do nft flush chain netdev humanz $c; done",
        "nft flush chain netdev humanz routed-2; nft flush set netdev humanz own4",
        "nft add element netdev humanz own4 { $(nft list set netdev humanz own4 | grep -o '\"hz[0-9a-f]*\" . 0x[0-9a-f]* . ' | sed 's/$/0x0af40163,/') }",
        "ip link set humanz0 address 02:00:00:00:00:77",
        "ip link del humanz0",
    ] {
        host.shell(broken).ok();
        pods.iter().for_each(is_whole);
        reaches(&pods[0], &pods[1]);
        assert!(!lies(&pods[0], &pods[1]), "{broken}");
    }
}

/// Linux before 6.2 forgets them when the bridge is down; then a neighbour of the pod could answer for it.
#[test]
fn neighbours_that_the_host_forgot_with_its_bridge_are_set_again() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    let set = || {
        let set = host.run("ip neigh show dev humanz0 nud permanent").ok();
        let is_set =
            |address: IpAddr| set.lines().any(|line| line.starts_with(&format!("{address} ")));
        pods.iter().flat_map(|pod| pod.addresses()).all(is_set)
    };
    assert!(set());
    host.run("ip neigh flush dev humanz0 nud permanent").ok();
    assert!(!set());
    host.run("ip link set humanz0 down").ok();
    soon("the neighbours", set);
    reaches(&pods[0], &pods[1]);
}

/// DEL leaves them, where the kernel does: it need not wait for that.
#[test]
fn guards_that_pods_left_are_removed_at_a_full_check() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, &[("RESYNC_INTERVAL", "2s")]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    let kept = Pod::add(host, "c");
    pods.into_iter().for_each(Pod::delete);
    soon("one guard", || chains(host) == 1);
    is_whole(&kept);
    assert!(!agent.log().contains("guard hz"), "no repair: {}", agent.log());
}

#[test]
fn guards_that_many_pods_left_do_not_wait_for_a_full_check() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    let kept = Pod::add(host, "kept");
    host.shell(
        "for i in $(seq 300); do echo link add hzleft$i group 77 type bridge; done | ip -batch -
         { echo 'table netdev humanz {'
           for i in $(seq 300); do echo \"chain hzleft$i { type filter hook ingress device hzleft$i priority 0; policy drop; }\"; done
           echo '}'; } | nft -f -",
    )
    .ok();
    assert_eq!(chains(host), 301);
    host.run("ip link del group 77").ok();
    soon("fewer guards", || chains(host) < 100);
    is_whole(&kept);
    reaches(&kept, &Pod::add(host, "new"));
}

/// Each ADD changes nftables; beside hundreds of pods that would keep it busy.
#[test]
fn the_agent_sleeps_through_adds() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    // The first one makes what all guards share.
    let first = Pod::add(host, "first");
    let reconciles = || {
        let page = get(host, "/metrics").1;
        let lines = page.lines().filter(|line| line.contains("_reconcile_duration_seconds_count{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    // Events come in their order: whatever came before has been learned of.
    let after_others = || {
        let before = reconciles();
        // To add what is there is not an event on every kernel.
        let rule = "add table inet others; add chain inet others c; add rule inet others c counter";
        host.shell(&format!("nft '{rule}'")).ok();
        soon("a reconcile", || reconciles() > before);
        reconciles()
    };
    after_others();
    let before = after_others();
    let network = Network::of(host);
    let add = |number: usize| Pod::try_add(host, &format!("p{number}"), &network).unwrap();
    // Without host ports, which are in another table.
    let pods: Vec<Pod> = (0..8).map(add).collect();
    let more = after_others() - before;
    assert!(more <= 3.0, "{more} reconciles for 8 pods");
    let before = reconciles();
    host.run("nft add element netdev humanz dropped-mac { 99999 }").ok();
    soon("a reconcile for others", || reconciles() > before);
    pods.iter().chain([&first]).for_each(is_whole);
}

/// The guards of a release before were rules of each pod: they are replaced without a moment in which a
/// foreign source passes.
#[test]
fn guards_of_an_older_release_are_converted_in_place() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    agent.stop();
    host.shell(
        "ports=$(nft list table netdev humanz | awk '/chain hz/ {print $2}')
         { echo 'delete table netdev humanz'; echo 'table netdev humanz {'
           for port in $ports; do
             echo \"chain $port { type filter hook ingress device $port priority 0; policy drop;\"
             echo '@ll,96,16 0x800 @nh,96,32 & 0xfffffffc == 0x0af40100 accept; @ll,96,16 0x806 accept; counter drop; }'
           done; echo '}'; } | nft -f -",
    )
    .ok();
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), SOON);
    pods[1]
        .shell(
            "nft add table inet seen
             nft add chain inet seen in '{ type filter hook input priority 0; }'
             nft add rule inet seen in ip saddr 10.244.1.99 counter",
        )
        .ok();
    pods[0].run("ip addr replace 10.244.1.99/32 dev eth0").ok();
    let flood = format!("ping -n -q -i 0.002 -I 10.244.1.99 {}", pods[1].v4());
    let flood = pods[0].spawn(&mut command(&flood));
    let _agent = serve(host, &[]);
    pods.iter().for_each(is_whole);
    drop(flood);
    let counted = pods[1].run("nft list chain inet seen in").ok();
    assert!(counted.contains("packets 0 "), "{counted}");
    reaches(&pods[0], &pods[1]);
    let rules = host.run("nft list table netdev humanz").ok();
    assert_eq!(rules.matches("goto routed-2").count(), 2, "{rules}");
}

/// An agent starts beside pods of a release that knew no guards, and the other way round.
#[test]
fn running_pods_are_guarded_in_place() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, &[("POD_GUARD", "off")]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    assert_eq!(chains(host), 0);
    reaches(&pods[0], &pods[1]);
    assert!(lies(&pods[0], &pods[1]));
    agent.stop();
    let agent = serve(host, &[]);
    assert_eq!(chains(host), 2);
    assert!(!lies(&pods[0], &pods[1]));
    reaches(&pods[0], &pods[1]);
    let network = Network::of(host);
    for pod in &pods {
        network.check(host, &pod.attachment, &pod.result).unwrap();
    }
    agent.stop();
    let _agent = serve(host, &[("POD_GUARD", "off")]);
    assert_eq!(chains(host), 0);
    assert!(lies(&pods[0], &pods[1]));
}

#[test]
fn what_a_guard_drops_is_explained_and_counted_by_pod_and_reason() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    let counted = |pod: &str, reason: &str| {
        let page = get(host, "/metrics").1;
        let ours = |line: &&str| {
            line.starts_with("humanz_guard_dropped_frames_total{")
                && line.contains(&format!("{pod}\""))
                && line.contains(&format!("reason=\"{reason}\""))
        };
        page.lines()
            .find(ours)
            .map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    let explained = || Agent::run(host, "explain --json a b", STANDALONE).stdout;
    assert_eq!(["source", "mac"].map(|reason| counted("a", reason)), [0.0, 0.0]);
    // Else ARP for the gateway is what is dropped.
    reaches(&pods[0], &pods[1]);
    assert!(!explained().contains("source "));
    assert!(!lies(&pods[0], &pods[1]));
    assert!(counted("a", "source") > 0.0);
    let text = explained();
    assert!(text.contains("pod-guard") && text.contains("source "), "{text}");
    assert_eq!(counted("a", "mac"), 0.0);
    pods[0].run("ip link set eth0 address 02:00:00:00:00:01").ok();
    assert!(!pods[0].run(&format!("ping -n -c 1 -W 1 {}", pods[1].v4())).succeeded());
    assert!(counted("a", "mac") > 0.0);
    let text = explained();
    assert!(text.contains("(its guard) for the pod's MAC 02:00:00:00:00:01"), "{text}");
    assert_eq!(["source", "mac"].map(|reason| counted("b", reason)), [0.0, 0.0], "b is not a");
}

#[test]
fn allowed_addresses_reach_running_pods() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    assert!(!lies(&pods[0], &pods[1]));
    agent.stop();
    let agent = serve(host, &[("ALLOWED_ADDRESSES", "10.244.1.99/32")]);
    // Who is asked must find the way back: the host routes to the pod by ARP, which a slow machine does not end in a second.
    soon("the further address", || lies(&pods[0], &pods[1]));
    let network = Network::of(host);
    assert_eq!(network.plugins[0]["allowedAddresses"], json!(["10.244.1.99/32"]));
    // Rules of former settings do not stay.
    let shared =
        || host.run("nft list table netdev humanz").ok().matches("chain routed-2-").count();
    assert_eq!(shared(), 1);
    agent.stop();
    let _agent = serve(host, &[]);
    soon("the rules are gone", || shared() == 0);
    assert!(!lies(&pods[0], &pods[1]));
}

/// What kube-proxy does for a service, and what policies need, without br_netfilter.
#[test]
fn packets_between_pods_of_a_host_are_routed() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("sysctl -q -w net.bridge.bridge-nf-call-iptables=0").succeeded();
    host.run("sysctl -q -w net.bridge.bridge-nf-call-ip6tables=0").succeeded();
    for (routing, is_routed) in [("host", true), ("bridge", false)] {
        let agent = serve(host, &[("POD_ROUTING", routing)]);
        let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
        host.shell(&format!(
            "nft delete table inet service 2>/dev/null || true
             nft -f - <<RULES
             table inet service {{
               chain forward {{ type filter hook forward priority 0; ip saddr {0} ip daddr {1} counter comment \"seen\"; }}
               chain lead {{ type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 dnat ip to {1}; }}
             }}
RULES",
            pods[0].v4(),
            pods[1].v4()
        ))
        .ok();
        reaches(&pods[0], &pods[1]);
        let counted = host.run("nft list chain inet service forward").ok();
        assert_eq!(!counted.contains("packets 0 "), is_routed, "{routing}: {counted}");
        let _echo = Echo::serve(&pods[1], 7777);
        let served = ask_tcp(&pods[0], "10.96.0.10:7777".parse().unwrap()).is_ok();
        assert_eq!(served, is_routed, "{routing}: a service that leads to a pod of the same host");
        pods.into_iter().for_each(Pod::delete);
        agent.stop();
    }
}

/// Nothing is looked at without an event here.
#[test]
fn a_pods_link_that_somebody_sets_down_is_set_up() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    reaches(&pods[0], &pods[1]);
    let ports = host.shell("ls /sys/class/net | grep '^hz' | head -2").ok();
    for link in ports.lines().chain(["humanz0"]) {
        host.run(&format!("ip link set {link} down")).ok();
        reaches(&pods[0], &pods[1]);
        reaches(&pods[1], &pods[0]);
    }
    // Linux before 6.2 renames no link that is up, and the agent sets it up at once.
    let rename = "for try in $(seq 100); do
        ip link set humanz0 name other && exit
        ip link set humanz0 down && ip link set humanz0 name other && exit
    done; exit 1";
    host.shell(rename).ok();
    reaches(&pods[0], &pods[1]);
    soon("its name is back", || !host.run("ip link show other").succeeded());
    let late = Pod::add(host, "late");
    reaches(&late, &pods[0]);
    host.run("ip link set humanz0 down").ok();
    reaches(&pods[0], &pods[1]);
    reaches(&pods[1], &late);
}

/// The plugin sets it up once its guard is there; who is in the pod may have set the other end up before.
#[test]
fn a_port_that_the_plugin_is_just_making_is_not_set_up_before_its_guard() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, &[("RESYNC_INTERVAL", "1s")]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    let port = host.shell("ls /sys/class/net | grep '^hz' | head -1").ok();
    let port = port.trim();
    host.shell(
        "ip netns add new; ip link add hznew type veth peer name eth0 netns new
         ip link set hznew alias 'humanz humanz new eth0 default/new'; ip link set hznew master humanz0
         ip -n new link set eth0 up",
    )
    .ok();
    // The last digit has IFF_UP.
    let flags = |link: &str| host.read(&format!("/sys/class/net/{link}/flags")).unwrap();
    let is_up = |link: &str| flags(link).trim().ends_with('3');
    // A full reconcile has been since: it found the other one.
    host.run(&format!("ip link set {port} down")).ok();
    soon("the other is set up", || is_up(port));
    assert!(!is_up("hznew"));
    reaches(&pods[0], &pods[1]);
    // A running pod whose guard went while nobody looked.
    agent.stop();
    let aged = "cd /run/humanz/ipam/humanz; sed -i 's/\"time\":[0-9]*/\"time\":1700000000/' owners/* 10.* fd*";
    host.shell(&format!("nft flush ruleset; ip link set {port} down; {aged}")).ok();
    let _agent = serve(host, &[]);
    soon("it is set up", || is_up(port));
    assert!(!is_up("hznew"));
    reaches(&pods[0], &pods[1]);
    assert_eq!(chains(host), 2);
}

/// A copy of the bridge, which a tool that saves and restores links may leave.
#[test]
fn of_two_bridges_with_the_same_mark_the_one_with_the_pods_is_kept_and_the_other_reported() {
    let alone = Alone::new();
    let host = &alone.host;
    // Made first, so that it is first in the kernel's list.
    host.run("ip link add twin type bridge").ok();
    let agent = serve(host, &[]);
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    reaches(&pods[0], &pods[1]);
    let mac = host.read("/sys/class/net/humanz0/address").unwrap();
    host.shell(&format!(
        "ip link set twin address {}; ip link set twin alias 'humanz bridge'
         for try in $(seq 100); do
             ip link set humanz0 down && ip link set humanz0 name other && exit
         done; exit 1",
        mac.trim()
    ))
    .ok();
    reaches(&pods[0], &pods[1]);
    soon("its name is back", || !host.run("ip link show other").succeeded());
    host.run("ip link show twin").ok();
    let problem = wait_problem(host, "foreign-link", "bridge twin");
    assert!(problem["fix"].as_str().unwrap().contains("ip link del twin"), "{problem:#}");
    is_whole(&pods[0]);
    // It keeps no agent from starting.
    agent.stop();
    let again = serve(host, &[]);
    again.wait_ready();
    host.run("ip link show twin").ok();
    host.run("ip link del twin").ok();
    status_when(host, "it is gone", |status| !has_problem(status, "foreign-link"));
}
