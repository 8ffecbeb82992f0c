//! Hosts with a router between.

use super::{Broken, VARIABLES};
use crate::support::Pod;
use crate::support::cluster::Cluster;

#[test]
fn faults_of_a_tunnel_are_found() {
    let cluster = Cluster::routed(1, 1);
    let agents = cluster.start_agents(VARIABLES);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let (a, c) = (Pod::add(h1, "a"), Pod::add(h2, "c"));
    // Both know of the other by now, or nothing below would be broken.
    crate::support::ping::all_reach(&[&a], &[c.v4(), c.v6()]);
    agents.iter().for_each(|agent| agent.stop());
    let words = vec![
        ("$C4", c.v4().to_string()),
        ("$C6", c.v6().to_string()),
        ("$CNET", format!("{}.0/24", c.v4().to_string().rsplit_once('.').unwrap().0)),
        ("$H1", h1.v4().to_string()),
        ("$H2", h2.v4().to_string()),
    ];
    let mut broken = Broken { host: h1, words, faults: Vec::new() };
    for ends in ["a $C4", "$C4 a", "a $C6", "$C6 a", "a $H2"] {
        broken.check("true", ends, "-", "true");
    }
    let input = "nft add table inet evil
        nft 'add chain inet evil i { type filter hook input priority 5; }'
        nft add rule inet evil i udp dport 10400 drop";
    let save = "bridge fdb show dev humanz-vx4 | grep -m1 dst > /tmp/fdb";
    let fdb = "bridge fdb append $(sed 's/ self.*//' /tmp/fdb) dev humanz-vx4";
    let gone = "bridge fdb del $(sed 's/ dst.*//' /tmp/fdb) dev humanz-vx4";
    let keep = "nft list table inet humanz-tunnels > /tmp/tunnels";
    let kept = "nft delete table inet humanz-tunnels 2>/dev/null || true; nft -f /tmp/tunnels";
    let filter = "tunnel-filter";
    for (script, ends, wanted, repair) in [
        (input, "$C4 a", "tunnel-firewall", "nft delete table inet evil"),
        (&format!("{keep}; nft flush set inet humanz-tunnels hosts_4in4"), "$C4 a", filter, kept),
        (&format!("{keep}; nft flush set inet humanz-tunnels hosts_6in6"), "$C6 a", filter, kept),
        (&format!("{keep}; nft delete table inet humanz-tunnels"), "$C4 a", "-", kept),
        ("true", "$C4 a", "-", "true"),
        ("true", "a udp://$H2:10400", filter, "true"),
        ("true", "a udp://$H1:10400", filter, "true"),
        ("true", "a udp://$H2:10401", "-", "true"),
        (&format!("{save}; {gone}"), "a $C4", "tunnel", fdb),
        ("ip route del default", "a $C4", "underlay", "ip route add default via 192.0.2.1"),
        ("ip -6 route del default", "a $C6", "underlay", "ip -6 route add default via fd99::1"),
        ("ip route del $CNET", "a $C4", "route", "true"),
        ("ip neigh flush dev humanz-vx6 nud permanent", "a $C6", "tunnel", "true"),
        ("ip link set humanz-vx6 down", "a $C6", "tunnel", "true"),
    ] {
        broken.check(script, ends, wanted, repair);
    }
}
