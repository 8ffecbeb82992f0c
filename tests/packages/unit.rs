//! The unit under a real systemd: started, watched, restarted, confined.

use std::path::Path;

use crate::built::package;
use crate::machine::{LONG, Machine, STANDALONE};
use crate::support::{Pinger, Place, Pod, eventually};

/// What is not worse than this is called OK by systemd; it names 2.3 with systemd 252.
const EXPOSURE: f64 = 3.0;

/// A machine with the Debian package, configured to run without etcd.
pub fn serving(name: &str) -> Machine {
    let machine = Machine::boot(name);
    install(&machine, &package("deb"));
    configure(&machine);
    machine.ok("systemctl enable --now humanz-agent");
    machine
}

/// Installs a Debian package, whichever version it replaces.
pub fn install(machine: &Machine, package: &Path) {
    machine.ok(&format!(
        "dpkg --install --force-downgrade --force-confold {} 2>&1",
        machine.shown(package)
    ));
}

/// As the operator does it, appended to the existing file.
pub fn configure(machine: &Machine) {
    let file = "/etc/humanz/agent.env";
    let written = machine.host.read(file).unwrap();
    machine.host.write(file, &format!("{written}{STANDALONE}"));
}

#[test]
fn systemd_analyze_verifies_the_unit_and_rates_it_safe() {
    let machine = serving("unit");
    let said = machine.host.shell("systemd-analyze verify --man=no humanz-agent.service");
    assert!(said.succeeded() && said.stderr.is_empty(), "{said}");
    let table = machine.ok("systemd-analyze security --no-pager humanz-agent.service");
    let last = table.lines().find(|line| line.contains("exposure level")).unwrap_or_default();
    println!("{}", last.trim());
    let level: f64 = last.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(level < EXPOSURE, "{table}");
}

#[test]
fn a_killed_agent_is_started_again_and_pods_do_not_notice() {
    let machine = serving("killed");
    let (a, b) = (Pod::add(&machine.host, "a"), Pod::add(&machine.host, "b"));
    let pings = [Pinger::start(&a, b.v4()), Pinger::start(&a, b.v6())];
    let before = machine.shows("MainPID");
    machine.ok("systemctl kill --signal KILL humanz-agent");
    machine.serves(&before);
    let before = machine.shows("MainPID");
    machine.ok("systemctl restart humanz-agent");
    machine.serves(&before);
    pings.into_iter().for_each(|ping| ping.report().assert_nothing_lost());
    a.check().unwrap();
    a.delete();
    b.delete();
}

#[test]
fn an_agent_that_hangs_is_replaced() {
    let machine = Machine::boot("hung");
    install(&machine, &package("deb"));
    configure(&machine);
    machine.ok("mkdir -p /etc/systemd/system/humanz-agent.service.d");
    let soon = "[Service]\nWatchdogSec=5s\n";
    machine.host.write("/etc/systemd/system/humanz-agent.service.d/soon.conf", soon);
    machine.ok("systemctl daemon-reload; systemctl start humanz-agent");
    let before = machine.shows("MainPID");
    machine.ok(&format!("kill -STOP {before}"));
    machine.serves(&before);
    assert!(machine.journal().contains("Watchdog timeout"), "{}", machine.journal());
}

#[test]
fn confined_it_still_repairs_everything() {
    let machine = Machine::boot("confined");
    machine.ok("iptables-legacy -P FORWARD DROP; iptables-nft -P FORWARD DROP");
    install(&machine, &package("deb"));
    configure(&machine);
    machine.ok("systemctl enable --now humanz-agent");
    let pod = Pod::add(&machine.host, "a");
    machine.ok(
        "ip link del humanz0; nft delete table inet humanz; rm -rf /etc/cni /opt/cni;
         sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
         iptables-legacy -F FORWARD; iptables-nft -F FORWARD; systemctl reload-or-restart humanz-agent",
    );
    eventually("all is back", LONG, || {
        let there = machine.host.shell(
            "ip link show humanz0; nft list table inet humanz; test -x /opt/cni/bin/humanz
             test -e /etc/cni/net.d/05-humanz.conflist
             test $(sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding | tr -d '\\n') = 11
             iptables-legacy -S FORWARD | grep humanz0; iptables-nft -S FORWARD | grep humanz0",
        );
        if there.succeeded() { Ok(()) } else { Err(format!("{there}\n{}", machine.journal())) }
    });
    pod.run("ping -n -c 1 -W 3 10.244.1.1").ok();
    assert!(!machine.journal().contains("ERROR"), "{}", machine.journal());
    let warnings = machine.ok("journalctl -u humanz-agent -o cat -p warning..warning");
    assert!(warnings.contains("WARN"), "warnings have their priority: {}", machine.journal());
    assert!(!machine.journal().contains("<6>"), "{}", machine.journal());
    pod.delete();
}
