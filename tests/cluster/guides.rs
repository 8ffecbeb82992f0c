//! README.md and packaging/operations.md do what they say.

use crate::support::cni::{Attachment, Network};
use crate::support::echo::Echo;
use crate::support::guide::Guide;
use crate::support::pod::{CONTAINER_PORT, make_netns};
use crate::support::{Agent, Cluster, Node, Place, Pod, ping};

/// What the API server and the kubelet do with the commands of the guide: the container of the DaemonSet has
/// the node's network, and its PATH leads to the executable.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
[ "$1 $2" = "-n kube-system" ]
shift 2
case "$1" in
get) [ "$*" = "get pods -l app=humanz --field-selector spec.nodeName=h1 -o name" ]; echo pod/humanz-x2x7q ;;
exec) [ "$2 $3" = "humanz-x2x7q --" ]; shift 3; exec "$@" ;;
logs) [ "$2" = humanz-x2x7q ]; cat /root/log ;;
*) exit 1 ;;
esac
"#;

#[test]
fn the_guide_of_operation_does_what_it_shows() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    let mut guide = Guide::read("operations.md");
    roles(&mut guide, &cluster);
    let agents = [start(h1, "humanz"), start(h2, "h2")];
    for agent in &agents {
        agent.wait_ready();
    }

    let manifest = include_str!("../../packaging/daemonset-kubernetes.yaml");
    assert!(manifest.contains("app: humanz") && manifest.contains("namespace: kube-system"));
    let pods = ["web", "db"].map(|name| Pod::add(h1, name));
    let _server = Echo::serve(&pods[1], CONTAINER_PORT);
    h1.write("/opt/humanz/kubectl", KUBECTL);
    h1.run("chmod +x /opt/humanz/kubectl").ok();
    h1.write("/root/log", &agents[0].log());
    guide.follow("On Kubernetes: look, reload, remove", h1, |_| false);
    // Its content is that of a test of metrics.
    guide.follow("Monitoring", h1, |_| false);
    agents.iter().for_each(Agent::stop);

    let alone = Cluster::new(1);
    without_agent(&alone.hosts[0], &mut guide);
    let encryption = [
        "Introduce encryption",
        "Require encryption",
        "Make a secret",
        "Use the secret",
        "A new key",
    ];
    guide.leave_to("tests/encryption/guide.rs", &encryption);
    guide.leave_to("tests/kubernetes/chart.rs", &["With Helm"]);
    let elsewhere = ["Scrapes from another machine", "The Prometheus of that machine"];
    guide.leave_to("tests/agent/scraped.rs", &elsewhere);
    guide.leave_to("tests/packages/life.rs", &["Upgrade with apt"]);
    guide.leave_to("tests/packages/rpm.rs", &["Upgrade with rpm", "Upgrade with dnf"]);
    guide.finish();
}

/// As in the demo: three hosts with two pods each.
#[test]
fn the_readme_does_what_it_shows() {
    let cluster = Cluster::new(3);
    let [h1, h2, h3] = &cluster.hosts[..] else { panic!("three hosts") };
    let mut guide = Guide::read("../README.md");
    let mut agents = Vec::new();
    guide.follow_on("Install", &[h1, h2, h3], |step, host| {
        installs(&step.command, host, &mut agents)
    });
    let names = [(h1, "web"), (h1, "db"), (h2, "web"), (h2, "db")];
    let pods = names.map(|(host, name)| Pod::add(host, name));
    assert_eq!(pods[2].v4().to_string(), "10.244.2.2");
    guide.follow("Ask it", h1, |step| {
        if step.command.starts_with("humanz-agent explain") {
            let drops = "nft add table inet mine; \
                 nft add chain inet mine forward '{ type filter hook forward priority 0; }'; \
                 nft add rule inet mine forward ip daddr 10.244.2.2 drop";
            h1.shell(drops).ok();
        }
        false
    });
    guide.finish();
}

/// What make, apt and systemd do with the commands of the README: tests/packages/readme.rs runs them.
fn installs(line: &str, host: &Node, agents: &mut Vec<Agent>) -> bool {
    let (line, _) = line.split_once("  #").unwrap_or((line, ""));
    match line.trim() {
        "make packages" => {}
        "apt install ./dist/humanz_*.deb" => {
            host.run("mkdir -p /etc/humanz").ok();
            let settings = include_str!("../../packaging/agent.env");
            host.write("/etc/humanz/agent.env", &format!("{settings}IPV6_SUBNET=fd10:244::/48\n"));
        }
        "systemctl enable --now humanz-agent" => {
            let agent = Agent::start(host, &[("ETCD_HOST", "")]);
            agent.wait_ready();
            agents.push(agent);
        }
        _ => return false,
    }
    true
}

/// Authentication, a role for both hosts, and one for each.
fn roles(guide: &mut Guide, cluster: &Cluster) {
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    let member = &cluster.etcd.node;
    guide.follow("etcd: members and roles", member, |_| false);
    guide.follow("One role for all hosts", member, |_| false);
    let give = |from: &Node, path: &str, to: &Node, as_path: &str| {
        to.run("mkdir -p /etc/humanz").ok();
        to.write(as_path, &from.read(path).unwrap_or_else(|| panic!("no {path}")));
        to.run(&format!("chmod 0600 {as_path}")).ok();
    };
    give(member, "/root/humanz", h1, "/etc/humanz/password");
    give(member, "/root/etcd", h1, "/root/etcd");
    h1.write("/etc/humanz/agent.env", "ETCD_HOST=192.0.2.2\n");
    guide.follow("A role for each host", h1, |_| false);
    give(h1, "/root/hosts/h2", h2, "/etc/humanz/password");
}

fn start(host: &Node, user: &str) -> Agent {
    Agent::start(host, &[("ETCD_USER", user), ("ETCD_PASSWORD_FILE", "/etc/humanz/password")])
}

/// The guide's configuration for a host that has no agent.
fn without_agent(host: &Node, guide: &mut Guide) {
    guide.follow("Install", host, |_| false);
    host.shell("mkdir -p /opt/cni/bin && cp /opt/humanz/humanz-agent /opt/cni/bin/humanz").ok();
    let network = Network::parse(&host.read("/etc/cni/net.d/10-pods.conf").unwrap());
    let pods = ["one", "two"].map(|name| {
        make_netns(host, name);
        Pod::connect(host, &network, Attachment::new(name)).unwrap_or_else(|e| panic!("{e}"))
    });
    ping::all_reach(&[&pods[0], &pods[1]], &pods.each_ref().map(Pod::v4));
}
