//! Policies beside tables of other programs: what is denied does not arrive whatever they accept, what is
//! allowed arrives as it did without policies, and services are judged by the pods behind them.

use std::time::Instant;

use crate::support::node::command;
use crate::support::{Agent, Node, Place, Pod, soon};
use crate::traffic::{Flood, Server};
use crate::{FILE, add, alone, only_from, write_policies};

const SETTINGS: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("IPV6_SUBNET", "fd10::/48")];

/// A service's address.
const SERVICE: [u8; 4] = [10, 96, 0, 1];

fn load(host: &Node, program: &str, file: &str) {
    let path = format!("{}/tests/firewall/fixtures/{file}", env!("CARGO_MANIFEST_DIR"));
    host.run_command(&mut command(program), &std::fs::read_to_string(path).unwrap()).ok();
}

/// A service that leads to `pod`.
fn serve_by_address(host: &Node, pod: &Pod) {
    let [a, b, c, d] = SERVICE;
    host.shell(&format!(
        "nft add table ip services
         nft add chain ip services pre '{{ type nat hook prerouting priority dstnat; }}'
         nft add rule ip services pre ip daddr {a}.{b}.{c}.{d} dnat to {}",
        pod.v4()
    ))
    .ok();
}

fn configure(host: &Node, text: &str) {
    host.write("/etc/humanz/agent.env", text);
}

#[test]
fn policies_hold_beside_the_tables_of_kube_proxy_docker_and_firewalld() {
    // firewalld drops all packets between pods until it is configured as `status` says.
    let trusted = "nft insert rule inet firewalld filter_FORWARD ip saddr 10.244.0.0/16 accept";
    for (program, file) in [
        ("nft -f -", "kube-proxy.nft"),
        ("iptables-nft-restore", "kube-proxy.rules"),
        ("nft -f -", "docker.nft"),
        ("iptables-nft-restore", "docker.rules"),
        ("nft -f -", "firewalld.nft"),
    ] {
        let alone = alone();
        let host = &alone.host;
        write_policies(host, &[only_from("db", &["web", "mon"])]);
        configure(host, "");
        load(host, program, file);
        if file == "firewalld.nft" {
            host.shell(trusted).ok();
        }
        let agent = Agent::start(host, SETTINGS);
        agent.wait_ready();
        let names = ["db", "web", "mon", "other", "spy"];
        let [db, web, mon, other, spy]: [Pod; 5] = names.map(|name| add(host, name, name));
        serve_by_address(host, &db);
        let mut server = Server::open(&db);
        let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
        let by_service = [&mon, &spy].map(|pod| Flood::start(pod, SERVICE.into()));
        for pod in [&web, &mon, &other, &spy] {
            soon(&format!("{file}: {} without policies", pod.label()), || {
                server.received(pod.v4()) > 3
            });
        }
        configure(host, &format!("POLICY=on\nPOLICY_FILE={FILE}\n"));
        agent.reload();
        for denied in [&other, &spy] {
            server.wait_silence(denied.v4(), Instant::now());
        }
        let before = [&other, &spy].map(|pod| server.received(pod.v4()));
        let new = [Flood::start(&other, db.v4()), Flood::start(&spy, SERVICE.into())];
        new.iter().chain(&floods).chain(&by_service).for_each(Flood::go_on);
        server.wait(web.v4());
        server.wait(mon.v4());
        let after = [&other, &spy].map(|pod| server.received(pod.v4()));
        assert_eq!(before, after, "{file}");
        agent.stop();
    }
}
