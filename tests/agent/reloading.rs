//! SIGHUP: the settings file is read again; running pods are not disturbed.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cni::Network;
use crate::support::local::{problem, problems, status};
use crate::support::{Agent, Node, Pinger, Place, Pod, facts, soon};
use crate::{CONFIGURATION, alone, assert_unchanged, state};

/// The settings of a host that serves itself.
const BEFORE: &str = "SUBNET_SOURCE=static\nIPV6_SUBNET=fd10::/48\n";

/// Puts this into the settings file.
fn configure(host: &Node, more: &str) {
    host.shell("mkdir -p /etc/humanz").ok();
    host.write("/etc/humanz/agent.env", &format!("# Ours.\n{BEFORE}{more}"));
}

/// Starts an agent that knows its settings from the file alone.
fn serve(host: &Node, more: &str) -> Agent {
    configure(host, more);
    let agent = Agent::start(host, &[("ETCD_HOST", "")]);
    agent.wait_ready();
    agent
}

fn mtu(place: &dyn Place, link: &str) -> String {
    let shown = place.run(&format!("ip -o link show dev {link}")).ok();
    let (_, mtu) = shown.split_once(" mtu ").unwrap();
    mtu.split(' ').next().unwrap().to_owned()
}

#[test]
fn a_reload_previews_and_applies_changes_without_disturbing_pods() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    let old = Pod::add(host, "old");
    let pinger = Pinger::start(host, old.v4());
    configure(
        host,
        "MTU=1400\nNON_MASQ_CIDRS=203.0.113.0/24\nPLUGIN_LOG_FILE='/var/log/other.log'\n",
    );
    let said = agent.reload();
    assert!(said[0].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{said:?}");
    assert!(said[1].contains("STATUS=serving 10.244.1.0/24"), "{said:?}");
    for words in [
        "reload: MTU: auto → 1400",
        "reload: NON_MASQ_CIDRS: (not set) → 203.0.113.0/24",
        "reload: ~ CNI configuration",
    ] {
        agent.wait_log(&[words]);
    }
    assert_eq!(mtu(host, "humanz0"), "1400");
    assert!(host.run("nft list table inet humanz").ok().contains("203.0.113.0/24"));
    assert!(host.read(CONFIGURATION).unwrap().contains("/var/log/other.log"));
    assert_eq!(mtu(&old, "eth0"), "1500", "a running pod stays as it is");
    let new = Pod::add(host, "new");
    assert_eq!(mtu(&new, "eth0"), "1400");
    new.run(&format!("ping -n -c 1 -W 3 {}", old.v4())).ok();
    pinger.report().assert_nothing_lost();

    let before = state(host);
    agent.reload();
    agent.wait_log(&["reload: no setting changes"]);
    assert_unchanged(host, &before);
    configure(host, "IP_MASQ=false\nMANAGE_FORWARD=false\n");
    agent.reload();
    assert!(!host.run("nft list table inet humanz").succeeded(), "nothing is wanted in it");
    old.delete();
    new.delete();
    agent.stop();
}

#[test]
fn all_errors_are_reported_and_nothing_is_changed() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    let before = state(host);
    configure(host, "MTU=9\nNODE_IP=127.0.0.1\nNON_MASQ_CIDRS=203.0.113.0/24\n");
    let said = agent.reload();
    assert!(said[1].contains("the last reload was refused"), "{said:?}");
    agent.wait_log(&["MTU=9", "1280"]);
    agent.wait_log(&["NODE_IP=127.0.0.1"]);
    // A foreign address: nothing could be sent from it.
    configure(host, "NODE_IP=192.0.2.250\nMTU=1450\n");
    let said = agent.reload();
    assert!(said[1].contains("the last reload was refused"), "{said:?}");
    agent.wait_log(&["NODE_IP=192.0.2.250: no interface of this host has"]);
    agent.wait_log(&["nothing is changed"]);
    configure(host, "MTU=1400\nexport X=1\nNON_MASQ_CIDRS='oops\n");
    agent.reload();
    agent.wait_log(&["/etc/humanz/agent.env line 5: export"]);
    agent.wait_log(&["/etc/humanz/agent.env line 6: a quote has no end"]);
    configure(host, "MTU=1400\nRUST_LOG=bogus\n");
    agent.reload();
    agent.wait_log(&["RUST_LOG=bogus", "must be a level"]);
    host.run("rm /etc/humanz/agent.env").ok();
    agent.reload();
    agent.wait_log(&["read /etc/humanz/agent.env: No such file"]);
    assert_unchanged(host, &before);
    assert_eq!(invalid(host), [FILE]);
    configure(host, "MTU=1400\n");
    agent.reload();
    assert_eq!(status(host)["problems"], serde_json::json!([]));
    assert_eq!(mtu(host, "humanz0"), "1400", "{}", agent.log());
    agent.stop();
}

#[test]
fn settings_that_need_a_restart_stay_and_the_others_are_applied() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    for (number, (line, value)) in [
        ("NODE_NAME=other", "h1"),
        ("BRIDGE_NAME=br1", "humanz0"),
        ("CNI_NAME=other", "humanz"),
        ("IPAM_DIR=/run/other", "/run/humanz/ipam"),
        ("STATE_DIR=/var/lib/other", "/var/lib/humanz"),
        ("SUBNET=10.244.9.0/24", "10.244.1.0/24"),
        ("IP_SUBNET=10.240.0.0/12", "10.244.0.0/16"),
        ("IPV6_SUBNET_MARGIN=8", "16"),
    ]
    .into_iter()
    .enumerate()
    {
        let mtu_now = (1400 + number).to_string();
        configure(host, &format!("{line}\nMTU={mtu_now}\n"));
        agent.reload();
        let (name, _) = line.split_once('=').unwrap();
        agent.wait_log(&["reload:", name, "stays"]);
        assert_eq!(mtu(host, "humanz0"), mtu_now, "{line}");
        let text = host.read(CONFIGURATION).unwrap();
        assert!(!text.contains("other") && !text.contains("br1"), "{line} ({value}): {text}");
        assert!(text.contains("10.244.1.0/24") && text.contains("10.244.0.0/16"), "{text}");
    }
    assert!(!host.run("test -e /run/other -o -e /var/lib/other").succeeded());
    agent.stop();
}

#[test]
fn a_moved_configuration_exists_once() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    configure(
        host,
        "CNI_CONFIG_LOCATION=/etc/cni/net.d/10-other.conf\nCNI_VERSION=0.4.0\nMTU=1400\n",
    );
    agent.reload();
    agent.wait_log(&["reload: - CNI configuration /etc/cni/net.d/05-humanz.conflist"]);
    soon("it has moved", || host.list("/etc/cni/net.d") == ["10-other.conf"]);
    let text = host.read("/etc/cni/net.d/10-other.conf").unwrap();
    assert!(text.contains("\"cniVersion\": \"0.4.0\""), "{text}");
    // A file that was written over belongs to its writer. While it runs, the agent could repair it before it reloads.
    agent.stop();
    host.write("/etc/cni/net.d/10-other.conf", "{}");
    let agent = serve(host, "CNI_TYPE=third\n");
    assert_eq!(host.list("/etc/cni/net.d"), ["05-humanz.conflist", "10-other.conf"]);
    assert_eq!(host.read("/etc/cni/net.d/10-other.conf").as_deref(), Some("{}"));
    assert!(host.run("/opt/cni/bin/third").succeeded(), "the plugin has the new name");
    assert!(host.run("/opt/cni/bin/humanz").succeeded(), "DELs still come under the old one");
    agent.stop();
}

#[test]
fn rules_in_foreign_chains_are_removed_with_their_setting() {
    let alone = alone();
    let host = &alone.host;
    host.shell("iptables -P FORWARD DROP").ok();
    let agent = serve(host, "");
    soon("the rules are there", || host.run("iptables -S FORWARD").ok().contains("humanz0"));
    configure(host, "MANAGE_FORWARD=false\n");
    agent.reload();
    soon("the rules are gone", || !host.run("iptables -S FORWARD").ok().contains("humanz0"));
    agent.stop();
}

#[test]
fn resync_interval_and_log_filter_can_be_reloaded() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    assert!(!agent.log().contains("looked at"), "{}", agent.log());
    configure(host, "RESYNC_INTERVAL=1s\nRUST_LOG=debug\n");
    agent.reload();
    // No event is sent for this: the periodic check finds it.
    host.write("/etc/cni/net.d/00-other.conflist", "{}");
    agent.wait_log(&["00-other.conflist comes before"]);
    agent.wait_log(&["looked at"]);
    agent.stop();
}

#[test]
fn an_agent_waiting_for_etcd_reports_a_reload_without_etcd_host() {
    let alone = alone();
    let host = &alone.host;
    host.shell("mkdir -p /etc/humanz").ok();
    host.write("/etc/humanz/agent.env", "ETCD_HOST=192.0.2.2\n");
    let agent = Agent::start(host, &[("ETCD_HOST", "")]);
    agent.wait_log(&["etcd does not answer"]);
    configure(host, "MTU=1400\n");
    for _ in 0..16 {
        agent.process.signal(Signal::SIGHUP);
    }
    agent.wait_log(&["SUBNET_SOURCE stays etcd", "restart needed"]);
    agent.wait_log(&["ETCD_HOST is not set"]);
    configure(host, "ETCD_HOST=192.0.2.3\nMTU=1400\n");
    agent.process.signal(Signal::SIGHUP);
    agent.wait_log(&["reload: MTU: auto → 1400"]);
    agent.wait_log(&["etcd does not answer", "192.0.2.3"]);
    agent.stop();
}

/// As by an editor and a service manager that reloads often.
#[test]
fn reloads_while_the_file_is_written_end_with_its_last_content() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    let pod = Pod::add(host, "a");
    let pinger = Pinger::start(host, pod.v4());
    for round in 0..=25 {
        let cidr = format!("203.0.113.0/{}", 24 + round % 8);
        configure(host, &format!("MTU={}\nNON_MASQ_CIDRS={cidr}\n", 1400 + round));
        agent.process.signal(Signal::SIGHUP);
    }
    agent.kill();
    let agent = Agent::start(host, &[("ETCD_HOST", "")]);
    agent.wait_ready();
    assert_eq!(mtu(host, "humanz0"), "1425");
    assert!(host.run("nft list table inet humanz").ok().contains("203.0.113.0/25"));
    assert!(host.read(CONFIGURATION).unwrap().contains("\"mtu\": 1425"));
    pinger.report().assert_nothing_lost();
    pod.delete();
    agent.stop();
}

#[test]
fn options_and_variables_that_hide_the_file_are_reported() {
    let alone = alone();
    let host = &alone.host;
    configure(host, "MTU=1400\nBRIDGE_NAMES=br1\nIP_MASQ=true\n");
    let environment = [("ETCD_HOST", ""), ("MTU", "1300"), ("IP_MASQ", "true")];
    let agent = Agent::start_with(host, "--cni-name net", &environment);
    agent.wait_ready();
    agent.wait_log(&["agent.env line 4: MTU is ignored", "\"1300\"", "EnvironmentFile="]);
    agent.wait_log(&["agent.env line 5: BRIDGE_NAMES is not a setting"]);
    assert!(!agent.log().contains("IP_MASQ is ignored"), "they agree: {}", agent.log());
    assert_eq!(mtu(host, "humanz0"), "1300");
    configure(host, "CNI_NAME=other\n");
    agent.reload();
    agent.wait_log(&["CNI_NAME is ignored: it is given as an option"]);
    agent.stop();
}

#[test]
fn an_empty_pool_of_one_host_grows() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "");
    let pod = Pod::try_add(host, "a", &Network::of(host)).unwrap_or_else(|e| panic!("{e}"));
    let pinger = Pinger::start(host, pod.v4());
    configure(host, "IP_SUBNET=10.244.0.0/15\nIP_SUBNET_MARGIN=9\n");
    agent.reload();
    let text = host.read(CONFIGURATION).unwrap();
    assert!(text.contains("10.244.0.0/15") && text.contains("10.244.1.0/24"), "{text}");
    assert!(host.run("nft list table inet humanz").ok().contains("10.244.0.0/15"));
    pinger.report().assert_nothing_lost();
    assert_eq!(facts::addresses(host, "humanz0").len(), 2);
    pod.delete();
    agent.stop();
}

const FILE: &str = "settings file /etc/humanz/agent.env";

/// The subject of every problem with a setting.
fn invalid(host: &Node) -> Vec<String> {
    let status = status(host);
    let subjects = problems(&status, "invalid-setting").map(|problem| &problem["subject"]);
    subjects.map(|subject| subject.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_start_with_invalid_settings_serves_the_last_valid_ones_until_they_are_right() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, "MTU=1400\n");
    let pod = Pod::add(host, "a");
    agent.stop();
    for (broken, subject) in [
        ("MTU=9\n", "MTU=9"),
        ("MTU=1300\nNON_MASQ_CIDRS='oops\n", FILE),
        ("MTU=1300\nBRIDGE_NAME=br1\n", "BRIDGE_NAME=br1"),
        ("RUST_LOG=bogus\n", "RUST_LOG=bogus"),
    ] {
        configure(host, broken);
        let agent = Agent::start(host, &[("ETCD_HOST", "")]);
        agent.wait_ready();
        soon("it is reported", || !invalid(host).is_empty());
        assert_eq!(invalid(host), [subject], "{broken}");
        let shown = Agent::run(host, "status --json", &[("ETCD_HOST", "")]);
        let value: Value = serde_json::from_str(&shown.stdout).unwrap();
        assert!(problem(&value, "invalid-setting", subject).is_some(), "{shown}");
        assert_eq!(shown.status.code(), Some(1), "{shown}");
        assert_eq!(mtu(host, "humanz0"), "1400");
        let new = Pod::add(host, "b");
        new.run(&format!("ping -n -c 1 -W 3 {}", pod.v4())).ok();
        new.delete();
        configure(host, "MTU=1450\n");
        soon("the right ones are taken over", || mtu(host, "humanz0") == "1450");
        soon("and the problem is gone", || invalid(host).is_empty());
        configure(host, "MTU=1400\n");
        // The end of the reload before may be reported after the beginning of this one.
        agent.reload();
        soon("these are served", || mtu(host, "humanz0") == "1400");
        agent.stop();
    }
    // A clone of this disk has settings of its own, or none.
    host.shell("sed -i 's/\"machine_id\": \"/&0/' /var/lib/humanz/settings.json").ok();
    configure(host, "MTU=9\n");
    let refused = Agent::run(host, "", &[("ETCD_HOST", "")]);
    assert!(refused.status.code() == Some(2) && refused.to_string().contains("MTU=9"), "{refused}");
}

#[test]
fn an_error_in_the_settings_file_is_a_problem_before_anybody_reloads_or_restarts() {
    let alone = alone();
    let host = &alone.host;
    let _agent = serve(host, "MTU=1400\n");
    configure(host, "MTU=9\n");
    soon("it is reported", || invalid(host) == ["MTU=9"]);
    configure(host, "MTU=1300\n");
    soon("it is gone", || invalid(host).is_empty());
    assert_eq!(mtu(host, "humanz0"), "1400", "nobody asked for a reload");
}
