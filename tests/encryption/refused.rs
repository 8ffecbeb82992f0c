//! A kernel without WireGuard.

use crate::support::node::Place;
use crate::support::{Agent, Cluster, Node, kernel, local};

const ON: &[(&str, &str)] = &[("ENCRYPTION", "wireguard")];
const WHY: &str = "ENCRYPTION=wireguard: this kernel has no WireGuard";

/// What every test of encryption shows where the kernel has none.
pub fn shows_the_reason() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let ended = Agent::run(host, "--once", ON);
    assert_eq!(ended.status.code(), Some(2), "{ended}");
    assert!(ended.stderr.contains(WHY), "{ended}");
    nothing_was_made(host);
}

fn nothing_was_made(host: &Node) {
    assert!(!host.run("nft list table inet humanz-encryption").succeeded());
    assert!(!host.run("ip link show humanz-wg").succeeded());
    assert!(host.inside(|| !std::path::Path::new("/var/lib/humanz/wireguard.key").exists()));
}

#[test]
fn a_start_is_refused_with_the_reason() {
    if !kernel::has_wireguard() {
        shows_the_reason();
    }
}

/// On every kernel.
#[test]
fn a_secret_that_others_can_read_is_refused_at_the_start_and_never_shown() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let secret = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
    host.run("mkdir -p /etc/humanz").ok();
    let set = [ON, &[("ENCRYPTION_PSK_FILE", "/etc/humanz/psk")]].concat();
    for (content, mode, why) in [
        (secret, "0644", "others than root can read or change it (mode 0644)"),
        (secret, "0660", "others than root can read or change it (mode 0660)"),
        ("hunter2", "0600", "its content is not a secret"),
    ] {
        host.write("/etc/humanz/psk", content);
        host.run(&format!("chmod {mode} /etc/humanz/psk")).ok();
        for arguments in ["--once", "--dry-run", "check-config"] {
            let ended = Agent::run(host, arguments, &set);
            assert_eq!(ended.status.code(), Some(2), "{ended}");
            let why = format!("ENCRYPTION_PSK_FILE=/etc/humanz/psk: {why}");
            assert!(ended.stderr.contains(&why), "{arguments}: {ended}");
            assert!(!format!("{ended}").contains(content), "{ended}");
        }
    }
    nothing_was_made(host);
    host.run("rm /etc/humanz/psk").ok();
    let missing = Agent::run(host, "--once", &set);
    assert!(
        missing.stderr.contains("ENCRYPTION_PSK_FILE=/etc/humanz/psk: cannot be read"),
        "{missing}"
    );
    let off = Agent::run(host, "check-config", &set[1..]);
    assert_eq!(off.status.code(), Some(0), "encryption is off: {off}");
}

/// As with any setting that does not fit the host.
#[test]
fn a_host_that_was_served_in_clear_text_is_served_on_and_says_so() {
    if kernel::has_wireguard() {
        return;
    }
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    agent.stop();
    let again = Agent::start(host, ON);
    again.wait_ready();
    local::wait_problem(host, "invalid-setting", "ENCRYPTION=wireguard");
    host.run("ip link show humanz0").ok();
    nothing_was_made(host);
}
