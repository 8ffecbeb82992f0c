//! `init`: one machine without an agent.

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Agent, Node, Place, Pod, facts, ping};
use crate::{object, refused, run};

const UNSET: &[(&str, &str)] = &[("ETCD_HOST", "")];
const CONF: &str = "/etc/cni/net.d/05-humanz.conflist";

fn pod(host: &Node, name: &str) -> Pod {
    make_netns(host, name);
    Pod::connect(host, &Network::of(host), Attachment::new(name)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn one_machine_gets_a_network_without_an_agent_and_loses_it_again() {
    let alone = Alone::new();
    let host = &alone.host;
    let dry = run(host, "init --dry-run", UNSET).ok();
    assert!(dry.contains(&format!("+ CNI configuration {CONF}")), "{dry}");
    assert_eq!((host.list("/opt/cni/bin"), host.list("/etc/cni/net.d")), (vec![], vec![]));

    let options = "init --subnet 10.4.0.0/24,fd04::/64";
    let said = run(host, options, UNSET).ok();
    println!("{said}");
    assert!(said.contains("+ plugin /opt/cni/bin/humanz-agent"), "{said}");
    assert!(said.contains("again: humanz-agent uninstall"), "{said}");
    let again = run(host, options, UNSET).ok();
    assert!(again.starts_with("everything is in place\n"), "{again}");

    let pods = ["one", "two"].map(|name| pod(host, name));
    ping::all_reach(&[&pods[0], &pods[1], host], &[pods[0].v4(), pods[1].v4(), pods[0].v6()]);
    pods[0].check().unwrap();
    assert!(pods[0].v4().to_string().starts_with("10.4.0."), "{}", pods[0].result);
    // The outside sees the host's address.
    let rules = host.run("nft list ruleset").ok();
    assert!(rules.contains("masquerade"), "{rules}");
    pods.into_iter().for_each(Pod::delete);
    let tested = run(host, "connectivity test", UNSET).ok();
    println!("{tested}");
    assert!(
        tested.contains("pod -> host port") && tested.contains("all 13 paths are open"),
        "{tested}"
    );

    run(host, "uninstall --purge", UNSET).ok();
    assert_eq!((host.list("/opt/cni/bin"), host.list("/etc/cni/net.d")), (vec![], vec![]));
    let links = host.run("ip -o link").ok();
    assert!(!links.contains("humanz0"), "{links}");
    assert!(!host.run("nft list ruleset").ok().contains("humanz"));
}

#[test]
fn what_is_somebody_elses_is_left_alone() {
    let alone = Alone::new();
    let host = &alone.host;
    // An address of this host inside the pool.
    refused(&run(host, "init --subnet 192.0.2.0/24", UNSET), 2, &["192.0.2.0/24", "eth0"]);
    host.run("mkdir -p /etc/cni/net.d /etc/containerd").ok();
    let mine = r#"{ "name": "mine", "cniVersion": "1.0.0", "type": "bridge" }"#;
    host.write(CONF, mine);
    refused(&run(host, "init", UNSET), 1, &[CONF, "is not humanz's", "nothing was changed"]);
    assert_eq!(host.read(CONF).as_deref(), Some(mine));
    assert!(host.list("/opt/cni/bin").is_empty());
    // One that runtimes read first, and a runtime that looks for plugins elsewhere.
    host.run(&format!("mv {CONF} /etc/cni/net.d/00-mine.conf")).ok();
    host.write(
        "/etc/containerd/config.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/opt/other\"\n",
    );
    let ended = run(host, "init --subnet 10.9.0.0/24 --json", UNSET);
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    let found = object(&ended);
    let problems = found["problems"].as_array().unwrap();
    let kinds: Vec<&str> = problems.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["cni-plugin", "cni-configuration-order"], "{found:#}");
    assert_eq!(problems[1]["fix"], "mv /etc/cni/net.d/00-mine.conf /root");
    // What helps is typed as it stands there, and what it says last takes all of it away.
    let fix = problems[0]["fix"].as_str().unwrap();
    let (uninstall, init) = fix.split_once(" && ").unwrap();
    host.run(problems[1]["fix"].as_str().unwrap()).ok();
    run(host, uninstall.strip_prefix("humanz-agent ").unwrap(), UNSET).ok();
    let said = run(host, init.strip_prefix("humanz-agent ").unwrap(), UNSET).ok();
    assert!(host.list("/opt/cni/bin").is_empty(), "{said}");
    assert!(host.read(CONF).unwrap().contains("\"10.9.0.0/24\""), "{said}");
    let last = said.lines().last().unwrap().split_once("again: humanz-agent ").unwrap().1;
    run(host, last, UNSET).ok();
    assert_eq!((host.list("/opt/other"), host.list("/etc/cni/net.d")), (vec![], vec![]), "{said}");

    let agent = Agent::start(host, &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]);
    agent.wait_ready();
    let written = host.read(CONF);
    refused(&run(host, "init", UNSET), 1, &["an agent serves this host"]);
    assert_eq!(host.read(CONF), written);
    let etcd = &[("ETCD_HOST", "192.0.2.2"), ("SUBNET_SOURCE", "etcd")];
    refused(&run(host, "init", etcd), 1, &["SUBNET_SOURCE is set"]);
    assert!(facts::veths(host).is_empty());
}
