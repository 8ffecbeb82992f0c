//! State that the agent finds on a host: taken over, repaired, or left alone.

use crate::support::local::{has_problem, problems, status_when};
use crate::support::{Agent, Node, Place, facts, soon};
use crate::{CONFIGURATION, alone, serve, standalone};

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

/// The agent, which goes on with the former name, would make a bridge that is removed under it again.
#[test]
fn another_name_of_the_bridge_is_refused_with_what_to_do_before_and_at_the_start() {
    let alone = alone();
    let host = &alone.host;
    serve(host, &[]).stop();
    let renamed = standalone(&[("BRIDGE_NAME", "pods0")]);
    for command in ["--dry-run", "check-config"] {
        let refused = Agent::run(host, command, &renamed);
        assert_eq!(refused.status.code(), Some(2), "{command}: {refused}");
        let said = &refused.stderr;
        assert!(said.contains("BRIDGE_NAME=pods0: this host's bridge is humanz0"), "{said}");
        assert!(said.contains("stop the agent, ip link delete humanz0, start the agent"), "{said}");
    }
    host.run("ip link delete humanz0").ok();
    let agent = serve(host, &[("BRIDGE_NAME", "pods0")]);
    assert!(facts::addresses(host, "pods0").contains(&"10.244.1.1/24".to_owned()));
    agent.stop();
}

/// An agent writes the configuration to `place` and stops.
fn serve_at(host: &Node, place: &str) -> Agent {
    let agent = serve(host, &[("CNI_CONFIG_LOCATION", place)]);
    agent.stop();
    agent
}

#[test]
fn a_configuration_moved_between_two_starts_exists_once() {
    let alone = alone();
    let host = &alone.host;
    let there = || host.list("/etc/cni/net.d");
    host.shell("mkdir -p /etc/cni/net.d; echo '{}' > /etc/cni/net.d/99-theirs.conf").ok();
    serve_at(host, CONFIGURATION);
    serve_at(host, "/etc/cni/net.d/10-moved.conf");
    assert_eq!(there(), ["10-moved.conf", "99-theirs.conf"]);
    // The same file by another name is no former one.
    host.run("ln -s net.d /etc/cni/again").ok();
    let agent = serve_at(host, "/etc/cni/again/10-moved.conf");
    assert_eq!(there(), ["10-moved.conf", "99-theirs.conf"]);
    assert!(!agent.log().contains("removed CNI configuration"), "{}", agent.log());
    serve_at(host, CONFIGURATION);
    let text = host.read(CONFIGURATION).unwrap();
    assert_eq!(there(), ["05-humanz.conflist", "99-theirs.conf"]);
    serve_at(host, "/etc/cni/other.d/05-humanz.conflist");
    assert_eq!(there(), ["99-theirs.conf"]);
    host.write(CONFIGURATION, &text.replace("humanz-agent", "me"));
    serve_at(host, "/etc/cni/other.d/05-humanz.conflist");
    assert_eq!(
        there(),
        ["05-humanz.conflist", "99-theirs.conf"],
        "a copy that somebody keeps as their own stays"
    );
}

#[test]
fn a_former_configuration_without_the_agents_key_stays() {
    let alone = alone();
    let host = &alone.host;
    serve_at(host, CONFIGURATION);
    host.shell(&format!("sed -i '/managedBy/d' {CONFIGURATION}")).ok();
    serve_at(host, "/etc/cni/net.d/10-moved.conflist");
    assert_eq!(host.list("/etc/cni/net.d"), ["05-humanz.conflist", "10-moved.conflist"]);
}

#[test]
fn an_uninstallation_takes_the_configuration_from_where_it_was_written() {
    let alone = alone();
    let host = &alone.host;
    serve_at(host, "/etc/cni/net.d/10-moved.conflist");
    let place = [("CNI_CONFIG_LOCATION", CONFIGURATION)];
    let removed = Agent::run(host, "uninstall", &standalone(&place));
    assert!(
        removed.stderr.contains("CNI configuration /etc/cni/net.d/10-moved.conflist"),
        "{removed}"
    );
    assert_eq!(host.list("/etc/cni/net.d"), [""; 0], "{removed}");
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
fn what_the_operator_manages_is_left_alone() {
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
fn an_own_route_without_a_host_is_removed() {
    let alone = alone();
    let host = &alone.host;
    host.run("ip route add 10.244.77.0/24 via 192.0.2.1 proto 104").ok();
    let agent = serve(host, &[]);
    soon("the route is gone", || host.run("ip route show proto 104").ok().is_empty());
    agent.stop();
}

#[test]
fn a_drop_in_a_foreign_table_is_reported_with_the_fix() {
    let alone = alone();
    let host = &alone.host;
    host.shell("nft 'add table inet wall; add chain inet wall f { type filter hook forward priority 0; policy drop; }'")
        .ok();
    let agent = serve(host, &[]);
    let line = agent.wait_log(&["wall", "drops pod traffic"]);
    assert!(line.contains("nft 'insert rule inet wall f iifname"), "{line}");
    let status =
        status_when(host, "the problem is reported", |it| has_problem(it, "forward-blocked"));
    // The reported fix works as it is.
    let problem = problems(&status, "forward-blocked").next().unwrap();
    host.shell(problem["fix"].as_str().unwrap()).ok();
    agent.wait_log(&["no longer", "wall"]);
    agent.stop();
}

#[test]
fn a_host_with_two_addresses_and_no_default_route_needs_node_ip() {
    let alone = alone();
    let host = &alone.host;
    host.shell("ip route del default; ip address add 203.0.113.7/24 dev eth0").ok();
    let ended = Agent::run(host, "", &[("ETCD_HOST", "192.0.2.2")]);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.contains("set NODE_IP"), "{ended}");
}
