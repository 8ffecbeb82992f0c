//! `encryption rotate` asks; `tests/encryption` shows what comes of it.

use crate::support::{Agent, Cluster, Node, Place};
use crate::{object, refused, run};

const ON: (&str, &str) = ("ENCRYPTION", "wireguard");
const REQUEST: &str = "/var/lib/humanz/wireguard.rotate";

fn is_asked(host: &Node) -> bool {
    host.read(REQUEST).is_some()
}

#[test]
fn another_key_is_asked_for_on_hosts_that_encrypt_alone() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let off = run(host, "encryption rotate", &[]);
    refused(&off, 2, &["ENCRYPTION=off: this host has no WireGuard key"]);
    let nowhere = run(host, "encryption rotate", &[ON, ("STATE_DIR", "/proc/none")]);
    refused(&nowhere, 1, &["/proc/none"]);
    assert!(!is_asked(host));

    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let json = object(&run(host, "encryption rotate --json", &[ON]));
    assert_eq!((&json["asked"], &json["agent_answers"]), (&true.into(), &true.into()), "{json}");
    assert!(is_asked(host));
    agent.stop();
    host.run(&format!("rm {REQUEST}")).ok();

    let asked = run(host, "encryption rotate", &[ON]).ok();
    assert!(asked.starts_with("asked: the agent begins when it runs"), "{asked}");
    assert!(asked.contains(&format!("rm {REQUEST}")), "{asked}");
    let mode = host.run(&format!("stat -c %a {REQUEST}")).ok();
    assert_eq!(mode.trim(), "600");
}
