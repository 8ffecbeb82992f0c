//! packaging/operations.md introduces encryption as it says.

use std::cell::RefCell;

use crate::refused::shows_the_reason;
use crate::support::guide::{Guide, Step};
use crate::support::node::Place;
use crate::support::ping::{addresses, all_reach};
use crate::support::wait::{SOON, eventually};
use crate::support::{Agent, Cluster, Node, Pod, kernel, local};

const KEY: &str = "/humanz/v1/wireguard/h1";

#[test]
fn the_guides_way_to_encryption_and_to_a_new_key_is_walked() {
    if !kernel::has_wireguard() {
        return shows_the_reason();
    }
    let cluster = Cluster::new(2);
    let hosts: Vec<&Node> = cluster.hosts.iter().collect();
    let start = |host: &Node| Agent::start(host, &[("ETCD_HOST", "")]);
    for host in &hosts {
        host.run("mkdir -p /etc/humanz").ok();
        host.write("/etc/humanz/agent.env", "ETCD_HOST=192.0.2.2\nRESYNC_INTERVAL=2s\n");
    }
    let agents = RefCell::new(hosts.iter().map(|host| start(host)).collect::<Vec<_>>());
    for agent in agents.borrow().iter() {
        agent.wait_ready();
    }
    let pods: Vec<Pod> = hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    let manager = |step: &Step, host: &Node| {
        let number = hosts.iter().position(|it| it.name() == host.name()).unwrap();
        match step.command.as_str() {
            "systemctl reload humanz-agent" => drop(agents.borrow()[number].reload()),
            "systemctl stop humanz-agent" => agents.borrow()[number].stop(),
            "systemctl start humanz-agent" => {
                agents.borrow_mut()[number] = start(host);
                agents.borrow()[number].wait_ready();
            }
            _ => return false,
        }
        true
    };

    let mut guide = Guide::read("operations.md");
    guide.follow_on("Introduce encryption", &hosts[..1], manager);
    local::status_when(hosts[0], "the other host is listed", |status| {
        local::has_problem(status, "clear-text")
    });
    let mut again = Guide::read("operations.md");
    again.follow_on("Introduce encryption", &hosts[1..], manager);
    guide.follow_on("Require encryption", &hosts, manager);
    all_reach(&places, &addresses(&places));

    guide.follow_on("Make a secret", &hosts[..1], manager);
    let secret = hosts[0].read("/etc/humanz/psk").unwrap();
    hosts[1].write("/etc/humanz/psk", &secret);
    hosts[1].run("chmod 0600 /etc/humanz/psk").ok();
    guide.follow_on("Use the secret", &hosts, manager);
    eventually("both have the key of the pair", SOON, || {
        let shown = |host: &Node| host.run("wg show humanz-wg preshared-keys").ok();
        let of_pair = [shown(hosts[0]), shown(hosts[1])];
        let key = |text: &String| text.trim().split('\t').nth(1).map(str::to_owned);
        match [key(&of_pair[0]), key(&of_pair[1])] {
            [Some(one), Some(other)] if one == other && one != "(none)" => Ok(()),
            found => Err(format!("{found:?}")),
        }
    });
    all_reach(&places, &addresses(&places));

    let before = cluster.etcd.get(KEY);
    guide.follow_on("A new key", &hosts[..1], manager);
    eventually("the new key is claimed", SOON, || match cluster.etcd.get(KEY) {
        now if now.is_some() && now != before => Ok(()),
        now => Err(format!("{now:?}")),
    });
    for to in addresses(&places[1..]) {
        places[0].until_ok(&format!("ping -n -c 1 -W 1 {to}"), SOON);
    }
}
