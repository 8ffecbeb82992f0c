//! A host's own firewall drops the packets of some other hosts' pods.

use crate::support::local::{get, has_problem, problems, status_when};
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Place, Pod};

const KIND: &str = "forward-blocked";

/// The one drop that is reported, once there is one.
fn reported_drop(cluster: &Cluster) -> (String, String) {
    let status = status_when(&cluster.hosts[0], "the drop", |status| has_problem(status, KIND));
    let [problem] = problems(&status, KIND).collect::<Vec<_>>()[..] else {
        panic!("one drop: {status:#}")
    };
    let text = |key: &str| problem[key].as_str().unwrap().to_owned();
    (text("what"), text("fix"))
}

/// A fix is a command, and after ` # ` what it does.
fn command_of(fix: &str) -> &str {
    fix.split(" # ").next().unwrap()
}

#[test]
fn a_drop_for_the_pods_of_one_host_is_reported_with_that_host() {
    let cluster = Cluster::new(3);
    let agents = cluster.start_agents(&[]);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let host = &cluster.hosts[0];
    let ping = |to: usize| format!("ping -c 1 -W 1 {}", pods[to].v4());
    let subnet = |pod: &Pod| pod.v4().to_string().rsplit_once('.').unwrap().0.to_owned() + ".0/24";
    let theirs = subnet(&pods[1]);

    host.run(&format!("iptables-nft -A FORWARD -d {theirs} -j DROP")).ok();
    assert!(!pods[0].run(&ping(1)).succeeded(), "it is dropped");
    pods[0].until_ok(&ping(2), SOON);
    let wanted = format!("iptables chain FORWARD: a rule drops what pods send to pods of {theirs}");
    let (what, fix) = reported_drop(&cluster);
    assert_eq!(what, format!("{wanted} (host h2)"));
    assert!(agents[0].wait_log(&["ERROR", &wanted]).contains("(host h2)"));
    assert!(get(host, "/metrics").1.contains("humanz_faults{kind=\"firewall\"} 1"));
    let seen = Agent::run(host, "status", &[]);
    assert_eq!(seen.status.code(), Some(1), "{seen}");
    assert!(seen.stdout.contains(&format!("{theirs} (host h2)")), "{seen}");

    // The reported fix works.
    let list = command_of(&fix).replace("iptables", "iptables-nft");
    let rules = host.run(&list).ok();
    let rule = rules.lines().find(|line| line.contains(&theirs)).unwrap();
    host.run(&format!("iptables-nft {}", rule.replace("-A", "-D"))).ok();
    pods[0].until_ok(&ping(1), SOON);
    status_when(host, "the problem is gone", |status| !has_problem(status, KIND));

    // Another table, the other direction, and two hosts.
    let sources = format!("{{ {theirs}, {} }}", subnet(&pods[2]));
    host.shell(&format!(
        "nft 'table inet wall {{ chain f {{ type filter hook forward priority 0; ip saddr {sources} drop; }}; }}'"
    ))
    .ok();
    let (what, fix) = reported_drop(&cluster);
    assert!(what.starts_with("nft table inet wall, chain f: a rule drops what pods of "), "{what}");
    assert!(what.ends_with(" send to pods"), "{what}");
    assert!(what.contains("(host h2)") && what.contains("(host h3)"), "{what}");
    assert!(host.run(command_of(&fix)).ok().contains("drop # handle"), "{fix}");
}
