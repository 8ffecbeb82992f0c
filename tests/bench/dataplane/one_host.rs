//! Pods of one host, connected in each way that there is for that, in one run.

use serde_json::{Value, json};

use super::{FIGURES, Figure, Path, SAME, SHORT};
use crate::support::cni::{Attachment, Network, PLUGINS};
use crate::support::node::{Node, Place};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Pod};
use crate::table::{Row, Table};
use crate::traffic::Servers;

/// Where Debian's package puts the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

/// What kube-proxy and most firewalls need.
const TRACKING: &str = "iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";

const WITHOUT: &str = "sysctl -q -w net.bridge.bridge-nf-call-iptables=0";

/// A host with two pods.
struct Subject {
    what: &'static str,
    /// Against which humanz is to lose nothing.
    is_target: bool,
    /// Which subject it is compared with: a humanz whose host has br_netfilter on, or off, as its own has.
    /// Where it is on, each packet takes a way through it, also one that the host routes.
    with: usize,
    from: Pod,
    to: Pod,
    _agent: Option<Agent>,
}

pub fn measure(table: &mut Table) {
    let cluster = Cluster::new(6);
    let [a, b, c, d, e, f] = &cluster.hosts[..] else { unreachable!("six hosts") };
    f.shell(WITHOUT).ok();
    let subjects = [
        humanz("humanz", a, &[]),
        humanz("humanz without br_netfilter", f, &[]),
        Subject { with: 1, ..by_hand("bridge", b, "bridge", WITHOUT) },
        by_hand(
            "bridge with br_netfilter",
            c,
            "bridge",
            &format!("sysctl -q -w net.bridge.bridge-nf-call-iptables=1; {TRACKING}"),
        ),
        by_hand("routed veths", d, "ptp", TRACKING),
        humanz("humanz with FLOWTABLE", e, &[("FLOWTABLE", "true")]),
    ];
    let _servers: Vec<_> =
        subjects.iter().map(|subject| Servers::start(&subject.to, subject.to.v4())).collect();
    let paths: Vec<Path<'_>> =
        subjects.iter().map(|subject| Path::new(&subject.from, subject.to.v4(), 0)).collect();
    for figure in &FIGURES {
        let mut taken = vec![Vec::new(); paths.len()];
        for turn in 0..SHORT.count {
            let mut order: Vec<_> = paths.iter().zip(&mut taken).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            order
                .into_iter()
                .for_each(|(path, values)| values.push((figure.take)(path, SHORT.each)));
        }
        for (other, values) in subjects.iter().zip(&taken).skip(1) {
            let own = (&subjects[other.with], &taken[other.with][..]);
            table.push(row(figure, other, own, values));
        }
    }
}

fn row(figure: &Figure, other: &Subject, (humanz, own): (&Subject, &[f64]), values: &[f64]) -> Row {
    let times = figure.times(own, values);
    let target = if other.is_target { "not slower (≥ 0.95 ×)" } else { "" };
    Row {
        what: format!("one host, {} beside {}: {}", humanz.what, other.what, figure.what),
        reference: figure.format(values),
        humanz: figure.format(own),
        target: target.to_owned(),
        reached: format!("{times:.2} ×"),
        met: other.is_target.then_some(times >= SAME),
        ..Row::default()
    }
}

fn humanz(what: &'static str, host: &Node, variables: &[(&str, &str)]) -> Subject {
    let agent = Agent::start(host, variables);
    agent.wait_ready();
    subject(what, host, &Network::of(host), Some(agent))
}

fn by_hand(what: &'static str, host: &Node, plugin: &str, script: &str) -> Subject {
    host.shell(&format!(
        "mkdir -p {PLUGINS}
         ln -s {REFERENCE}/{plugin} {REFERENCE}/host-local {PLUGINS}
         echo 1 >/proc/sys/net/ipv4/ip_forward
         {script}"
    ))
    .ok();
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.88.1.0/24" }]] });
    let mut conf = json!({ "type": plugin, "ipam": ipam });
    if plugin == "bridge" {
        conf["bridge"] = json!("bench0");
        conf["isDefaultGateway"] = json!(true);
    }
    let list: Value = json!({ "cniVersion": "1.0.0", "name": "bench", "plugins": [conf] });
    subject(what, host, &Network::parse(&list.to_string()), None)
}

fn subject(what: &'static str, host: &Node, network: &Network, agent: Option<Agent>) -> Subject {
    let pod = |name| {
        make_netns(host, name);
        let pod = Pod::connect(host, network, Attachment::new(name));
        pod.unwrap_or_else(|error| panic!("{what}: {name}: {error}"))
    };
    let (from, to) = (pod("from"), pod("to"));
    from.until_ok(&format!("ping -n -c 1 -W 1 {}", to.v4()), SOON);
    let is_target = what == "bridge with br_netfilter";
    Subject { what, is_target, with: 0, from, to, _agent: agent }
}
