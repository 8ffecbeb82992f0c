//! What the agent finds on a host: it takes over, repairs, or leaves alone.

use crate::support::local::status_when;
use crate::support::{Agent, Node, Place, facts, soon};
use crate::{CONFIGURATION, alone, serve};

#[test]
fn the_bridge_of_the_python_agent_is_taken_over() {
    let alone = alone();
    let host = &alone.host;
    host.shell(
        "ip link add cni0 type bridge stp_state 1
         ip address add 10.244.1.0/24 dev cni0
         ip address add 198.51.100.77/32 dev cni0",
    )
    .ok();
    let agent = serve(host, &[("BRIDGE_NAME", "cni0")]);
    let addresses = facts::addresses(host, "cni0");
    assert!(addresses.contains(&"10.244.1.1/24".to_owned()), "{addresses:?}");
    assert!(!addresses.contains(&"10.244.1.0/24".to_owned()), "{addresses:?}");
    assert!(
        addresses.contains(&"198.51.100.77/32".to_owned()),
        "not ours to remove: {addresses:?}"
    );
    let link = host.run("ip -d -o link show dev cni0").ok();
    assert!(link.contains("UP") && link.contains("stp_state 0"), "{link}");
    agent.stop();
}

#[test]
fn the_bridge_keeps_its_mac_over_a_reboot() {
    let alone = alone();
    let host = &alone.host;
    let mac = |host: &Node| host.run("cat /sys/class/net/humanz0/address").ok();
    serve(host, &[]).stop();
    let before = mac(host);
    host.run("ip link del humanz0").ok();
    serve(host, &[]).stop();
    assert_eq!(mac(host), before);
}

#[test]
fn files_that_are_changed_by_hand_are_back_after_a_hangup() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let right = host.read(CONFIGURATION).unwrap();
    host.write(CONFIGURATION, "{}");
    host.shell("rm /opt/cni/bin/humanz; echo broken > /opt/cni/bin/humanz-agent").ok();
    agent.process.signal(nix::sys::signal::Signal::SIGHUP);
    soon("all files are right", || {
        host.read(CONFIGURATION).as_deref() == Some(&right)
            && host.run("/opt/cni/bin/humanz").succeeded()
    });
    agent.stop();
}

#[test]
fn a_loopback_plugin_that_is_there_stays() {
    let alone = alone();
    let host = &alone.host;
    host.shell("mkdir -p /opt/cni/bin; echo theirs > /opt/cni/bin/loopback").ok();
    serve(host, &[]).stop();
    assert_eq!(host.read("/opt/cni/bin/loopback").as_deref(), Some("theirs\n"));
}

#[test]
fn what_the_operator_keeps_for_himself_is_left_alone() {
    let alone = alone();
    let host = &alone.host;
    let before = host.run("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding").ok();
    host.shell("nft 'add table ip theirs'; ip route add 203.0.113.0/24 via 192.0.2.1 proto 99")
        .ok();
    let agent = serve(
        host,
        &[("MANAGE_SYSCTL", "false"), ("MANAGE_FORWARD", "false"), ("IP_MASQ", "false")],
    );
    let after = host.run("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding").ok();
    assert_eq!(after, before);
    let tables = host.run("nft list tables").ok();
    assert_eq!(tables.trim(), "table ip theirs", "nothing is wanted, so there is no table");
    host.run("ip route show 203.0.113.0/24").ok();
    agent.stop();
    assert!(host.run("ip route show 203.0.113.0/24").ok().contains("192.0.2.1"));
}

#[test]
fn a_route_of_ours_to_nobody_is_swept() {
    let alone = alone();
    let host = &alone.host;
    host.run("ip route add 10.244.77.0/24 via 192.0.2.1 proto 104").ok();
    let agent = serve(host, &[]);
    soon("the route is gone", || host.run("ip route show proto 104").ok().is_empty());
    agent.stop();
}

#[test]
fn a_drop_in_somebody_elses_table_is_named_with_its_cure() {
    let alone = alone();
    let host = &alone.host;
    host.shell("nft 'add table inet wall; add chain inet wall f { type filter hook forward priority 0; policy drop; }'")
        .ok();
    let agent = serve(host, &[]);
    let line = agent.wait_log(&["wall", "drops pod traffic"]);
    assert!(line.contains("nft 'insert rule inet wall f iifname"), "{line}");
    let status = status_when(host, "it is told", |status| status["faults"][0].is_object());
    // Done as it is told, it helps.
    let cure = status["faults"][0]["cure"].as_str().unwrap().strip_prefix("accept it: ").unwrap();
    let (commands, _) = cure.rsplit_once(", and likewise").unwrap();
    host.shell(commands).ok();
    agent.wait_log(&["no longer", "wall"]);
    agent.stop();
}

#[test]
fn a_host_with_two_addresses_and_no_default_route_must_say_which() {
    let alone = alone();
    let host = &alone.host;
    host.shell("ip route del default; ip address add 203.0.113.7/24 dev eth0").ok();
    let ended = Agent::run(host, "", &[("ETCD_HOST", "192.0.2.2")]);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.contains("set NODE_IP"), "{ended}");
}
