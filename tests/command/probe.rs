//! The subcommand `probe`, and the agent's own probes.

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::disk::EXECUTABLE;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually, soon};
use crate::{object, run};

const DUAL: (&str, &str) = ("IPV6_SUBNET", "fd10:244::/48");

fn hosts(host: &Node, options: &str) -> (Vec<Value>, bool) {
    let ended = run(host, &format!("probe --json {options}"), &[DUAL]);
    let hosts = object(&ended)["hosts"].as_array().unwrap().clone();
    (hosts, ended.succeeded())
}

/// Every host knows `count` addresses of others to ask.
fn wait_for(host: &Node, count: usize) {
    soon(&format!("{count} gateways are known"), || {
        run(host, "probe --json", &[DUAL]).stdout.matches("\"address\"").count() == count
    });
}

#[test]
fn the_gateway_of_every_other_host_is_probed() {
    let cluster = Cluster::routed(2, 1);
    let agents = cluster.start_agents(&[DUAL]);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    wait_for(h1, 4);
    let (found, fine) = hosts(h1, "");
    assert!(fine, "{found:#?}");
    let names: Vec<&str> = found.iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(names, ["h2", "h2", "h3", "h3"]);
    let mtu: Vec<u64> = found.iter().map(|host| host["mtu"].as_u64().unwrap()).collect();
    assert_eq!(mtu, [1500, 1500, 1450, 1430], "direct, and through a tunnel");
    assert!(found.iter().all(|host| host["seconds"].as_f64().unwrap() < 1.0));
    let said = run(h1, "probe h3", &[DUAL]).ok();
    assert!(said.contains("all 2 answer") && !said.contains("h2"), "{said}");

    agents.iter().for_each(Agent::stop);
    // One with a smaller MTU than announced, without ICMP errors.
    h2.shell(
        "nft add table inet evil
         nft 'add chain inet evil i { type filter hook input priority -300; }'
         nft add rule inet evil i meta length 1000-65535 drop",
    )
    .ok();
    let (found, fine) = hosts(h1, "h2");
    assert!(!fine && found[0]["reachable"] == true && found[0]["mtu"].is_null(), "{found:#?}");
    let fault = found[0]["fault"].as_str().unwrap();
    assert!(fault.contains("1500 bytes are lost"), "{fault}");
    h3.shell("ip link set eth0 down").ok();
    let (found, fine) = hosts(h1, "h3");
    assert!(!fine && found.iter().all(|host| host["reachable"] == false), "{found:#?}");
    let ended = run(h1, "probe h9", &[DUAL]);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.contains("no other host is called \"h9\" (of 2)"), "{ended}");
}

/// The agent's status of the host `name`.
fn peer(host: &Node, name: &str) -> Value {
    let status = host.run("curl -sS --unix-socket /run/humanz/agent.sock http://x/v1/status").ok();
    let status: Value = serde_json::from_str(&status).unwrap_or(Value::Null);
    let peers = status["peers"].as_array().cloned().unwrap_or_default();
    peers.into_iter().find(|peer| peer["name"] == name).unwrap_or(Value::Null)
}

#[test]
fn the_agent_probes_and_reports_unanswered_probes() {
    let cluster = Cluster::new(2);
    let often = [DUAL, ("PROBE_INTERVAL", "1s")];
    let _agents = cluster.start_agents(&often);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let _pod = Pod::add(h1, "a");
    let wait = |what: &str, is: &dyn Fn(&Value) -> bool| {
        eventually(what, std::time::Duration::from_secs(40), || {
            let peer = peer(h1, "h2");
            if is(&peer) { Ok(()) } else { Err(format!("{peer:#}")) }
        });
    };
    wait("h2 answers, also to large packets", &|peer| {
        peer["reachable"] == true
            && peer["probe"]["seconds"].is_f64()
            && peer["probe"]["mtu"] == 1500
    });
    h2.shell(
        "nft add table inet evil
         nft 'add chain inet evil i { type filter hook input priority -300; }'
         nft add rule inet evil i icmp type echo-request drop
         nft add rule inet evil i icmpv6 type echo-request drop",
    )
    .ok();
    wait("h2 does not answer", &|peer| {
        let fault = peer["fault"].as_str().unwrap_or_default();
        let is_of_v4 = fault.contains("10.244.");
        peer["reachable"] == false && is_of_v4 && fault.contains("does not answer echoes")
    });
    let said = run(h1, "status", &often);
    assert_eq!(said.status.code(), Some(1), "{said}");
    for words in ["0 are reached", "host h2: 10.244.", "-> humanz-agent explain 10.244."] {
        assert!(said.stdout.contains(words), "{words:?} is not in: {said}");
    }
    h2.shell("nft delete table inet evil").ok();
    wait("h2 answers again", &|peer| peer["reachable"] == true && peer["fault"].is_null());
    soon("nothing is wrong", || run(h1, "status", &often).status.code() == Some(0));
    // The kernel refuses what a rule of this host's own drops: EPERM.
    h1.shell(
        "nft add table inet evil
         nft 'add chain inet evil o { type filter hook output priority 0; }'
         nft add rule inet evil o icmp type echo-request drop
         nft add rule inet evil o icmpv6 type echo-request drop",
    )
    .ok();
    wait("h2 is not asked", &|peer| peer["reachable"] == false);
    h1.shell("nft delete table inet evil").ok();
    wait("h2 is asked again", &|peer| peer["reachable"] == true && peer["fault"].is_null());
}

/// One lost packet is no fault of the MTU, and the fault ends with what is repaired.
#[test]
fn large_packets_are_a_fault_only_while_each_is_lost() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let drop = |which: &str| {
        let rule = format!("icmp type echo-request meta length 1000-65535 {which} counter drop");
        h2.shell(&format!(
            "nft add table inet evil
             nft 'add chain inet evil i {{ type filter hook input priority -300; }}'
             nft 'flush chain inet evil i; add rule inet evil i {rule}'"
        ))
        .ok();
    };
    drop("limit rate 1/hour burst 1 packets");
    let _agents = cluster.start_agents(&[("PROBE_INTERVAL", "1s")]);
    // At no moment is there a fault with the words `never`.
    let wait = |what: &str, never: &str, is: &dyn Fn(&Value) -> bool| {
        let seen = eventually(what, SOON, || {
            let peer = peer(h1, "h2");
            let is_wrong = peer["fault"].as_str().is_some_and(|fault| fault.contains(never));
            if is_wrong || is(&peer) { Ok((is_wrong, peer)) } else { Err(format!("{peer:#}")) }
        });
        assert!(!seen.0, "{what}: {:#}", seen.1);
    };
    wait("a large packet is answered", "smaller ones", &|peer| peer["probe"]["mtu"] == 1500);
    assert!(h2.run("nft list table inet evil").stdout.contains("counter packets 1 "));
    drop("");
    wait("it is seen that each is lost", "does not answer", &|peer| {
        peer["fault"].as_str().is_some_and(|fault| fault.contains("1500 bytes"))
    });
    h2.shell("nft delete table inet evil").ok();
    soon("the fault ends", || peer(h1, "h2")["fault"].is_null());
}

#[test]
fn no_host_is_probed_when_probes_are_disabled() {
    let cluster = Cluster::new(2);
    let off = [DUAL, ("PROBE_INTERVAL", "0")];
    let agents = cluster.start_agents(&off);
    let h1 = &cluster.hosts[0];
    soon("h2 is known", || peer(h1, "h2")["reachable"] == true);
    let before = h1.run("cat /proc/net/snmp").ok();
    std::thread::sleep(std::time::Duration::from_secs(5));
    let after = h1.run("cat /proc/net/snmp").ok();
    let sent = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Icmp:")).collect();
        let at = lines[0].split(' ').position(|name| name == "OutEchos").unwrap();
        lines[1].split(' ').nth(at).unwrap().to_owned()
    };
    assert_eq!(sent(&before), sent(&after));
    assert!(peer(h1, "h2")["probe"].is_null());
    agents.iter().for_each(Agent::stop);
}

/// Nothing of other hosts is said that is no longer looked for.
#[test]
fn an_agent_that_may_not_probe_says_so() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let _peer = Agent::start(h2, &[DUAL]);
    const CONFINED: &str = "/opt/confined";
    h1.write(
        CONFINED,
        &format!("#!/bin/sh\nexec setpriv --bounding-set=-net_raw {EXECUTABLE} \"$@\"\n"),
    );
    // An agent is called by this name.
    h1.shell(&format!(
        "chmod 755 {CONFINED}; mkdir /opt/later; ln -s {CONFINED} /opt/later/humanz-agent"
    ))
    .ok();
    let agent = Agent::start_release(h1, "/opt/later/humanz-agent", &[DUAL]);
    agent.wait_ready();
    soon("h2 is known", || peer(h1, "h2")["reachable"] == true);
    let said = run(h1, "status", &[DUAL]);
    assert_eq!(said.status.code(), Some(1), "{said}");
    for words in [
        "0 are reached, 1 not asked",
        "not probed",
        "-> systemctl cat humanz-agent # give it CAP_NET_RAW",
    ] {
        assert!(said.stdout.contains(words), "{words:?} is not in: {said}");
    }
    assert!(peer(h1, "h2")["probe"].is_null());
}
