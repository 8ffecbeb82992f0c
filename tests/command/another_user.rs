//! Commands of an unprivileged user report missing permissions, and nothing about what only root
//! can read.

use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::node::{Node, command};
use crate::support::{Agent, Cluster, Ended, Place, Pod};
use crate::{object, refused, run};

const SETTINGS: &[(&str, &str)] = &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];

/// Root without capabilities is refused like any other user.
pub fn ask(host: &Node, what: &str, variables: &[(&str, &str)]) -> Ended {
    let mut shell = command("sh -c");
    shell.arg(format!(
        "exec setpriv --bounding-set=-dac_override,-dac_read_search {EXECUTABLE} {what}"
    ));
    host.run_command(shell.envs(variables.iter().copied()), "")
}

#[test]
fn what_another_user_may_not_read_is_not_reported_as_absent() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = Agent::start(host, SETTINGS);
    agent.wait_ready();
    let pod = Pod::add(host, "web");
    host.shell("chmod 0 /run/humanz/ipam/humanz").ok();
    let store = [
        "only root may read",
        "/run/humanz/ipam/humanz",
        "; cat /proc/self/status # root lacks cap_dac_override",
    ];
    for what in [
        "ipam ls",
        "ipam ls --json",
        "ipam gc",
        "ipam gc --yes",
        &format!("ipam show {}", pod.v4()),
        &format!("ipam free {}", pod.v4()),
        "explain default/web 192.0.2.1",
        &format!("explain {} 192.0.2.1", pod.v4()),
    ] {
        refused(&ask(host, what, SETTINGS), 69, &store);
    }
    host.shell("chmod 0 /etc/cni/net.d/05-humanz.conflist").ok();
    refused(&ask(host, "--dry-run", SETTINGS), 69, &["only root may read", "05-humanz.conflist"]);
    host.shell("chmod 0 /var/lib/humanz").ok();
    for what in ["uninstall --force", "uninstall --force --dry-run"] {
        let ended = ask(host, what, SETTINGS);
        refused(&ended, 69, &["only root may take /var/lib/humanz/lock: try sudo"]);
        assert!(!ended.stderr.contains("systemctl"), "{ended}");
    }
    let looked = object(&ask(host, "doctor --json", SETTINGS));
    let named =
        |name: &str| looked["findings"].as_array().unwrap().iter().find(|f| f["name"] == name);
    for (name, fix) in [("stores-unread", "root lacks"), ("cni-configuration-unread", "root lacks")]
    {
        let finding = named(name).unwrap_or_else(|| panic!("no {name} in {looked:#}"));
        assert_eq!(finding["severity"], "warning", "{finding:#}");
        assert!(finding["cure"].as_str().unwrap().contains(fix), "{finding:#}");
    }
    for name in ["stray-links", "change-pending"] {
        assert_eq!(named(name), None, "{looked:#}");
    }
    host.shell(
        "chmod 700 /run/humanz/ipam/humanz /var/lib/humanz
         chmod 600 /etc/cni/net.d/05-humanz.conflist",
    )
    .ok();
    let listed = run(host, "ipam ls", SETTINGS).ok();
    assert!(listed.contains(&pod.v4().to_string()), "nothing was freed: {listed}");
}

#[test]
fn another_user_who_may_not_read_the_settings_is_asked_to_be_root() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    for (user, words) in [("65534", "run this as root"), ("0", "list its members there")] {
        let call = format!("setpriv --reuid {user} --clear-groups {EXECUTABLE} routes");
        let ended = host.run_command(command(&call).env_remove("ETCD_HOST"), "");
        refused(&ended, 2, &["ETCD_HOST is not set", words]);
    }
}

#[test]
fn other_hosts_are_shown_as_unknown_to_another_user() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    host.shell("chmod 0 /var/lib/humanz").ok();
    let words = ["only root may read /var/lib/humanz/state.json: try sudo"];
    refused(&ask(host, "probe", &[("ETCD_HOST", "192.0.2.2")]), 69, &words);
}
