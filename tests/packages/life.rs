//! A package on a host: installed, upgraded, downgraded, removed, purged.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::built::{package, package_in, root, source};
use crate::machine::{Machine, STANDALONE};
use crate::support::cni::{Attachment, Network};
use crate::support::guide::Guide;
use crate::support::pod::make_netns;
use crate::support::{Pinger, Place, Pod};
use crate::unit::{configure, install, serving};

/// CNI SPEC §3: try again later.
const TRY_AGAIN: u64 = 11;

/// The package of version 0.2.0 with this ending: of the same executable, but longer and younger.
pub fn next_version(ending: &str) -> (tempfile::TempDir, PathBuf) {
    let source = source();
    let dist = source.path().join("dist");
    let mut executable = std::fs::read(root().join("dist/humanz-agent")).unwrap();
    executable.extend(b"0.2.0");
    std::fs::write(dist.join("humanz-agent"), executable).unwrap();
    let script = format!("chmod 755 dist/humanz-agent && packaging/package 0.2.0 {ending}");
    let made = Command::new("sh").args(["-ec", &script]).current_dir(source.path()).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (source, dist)
}

fn version(machine: &Machine) -> String {
    machine.ok("dpkg-query -W -f '${Version}' humanz")
}

/// The installed agent and the plugin that runtimes call are the same.
fn plugin_is_current(machine: &Machine) -> bool {
    machine.host.run("cmp /usr/sbin/humanz-agent /opt/cni/bin/humanz").succeeded()
}

#[test]
fn an_installation_starts_nothing_and_keeps_what_the_operator_wrote() {
    let machine = Machine::boot("fresh");
    install(&machine, &package("deb"));
    assert_eq!(machine.host.run("systemctl is-enabled humanz-agent").stdout, "disabled\n");
    assert_eq!(machine.shows("ActiveState"), "inactive");
    assert_eq!(machine.ok("dpkg --verify humanz"), "");
    // Where podman 5 looks for it.
    assert!(machine.ok("/usr/libexec/netavark/humanz info").contains("api_version"));
    machine.ok("logrotate --debug /etc/logrotate.d/humanz");
    configure(&machine);
    let mine = machine.host.read("/etc/humanz/agent.env");
    machine.ok("systemctl enable --now humanz-agent");
    install(&machine, &package("deb"));
    machine.serves("");
    assert_eq!(machine.host.read("/etc/humanz/agent.env"), mine);
}

#[test]
fn an_upgrade_and_a_downgrade_disturb_no_pod_and_fail_no_add() {
    let (_source, dist) = next_version("deb");
    let machine = serving("upgrade");
    for (version, package) in [("0.2.0", package_in(&dist, "deb")), ("0.1.0", package("deb"))] {
        let shown = machine.shown(&package);
        machine.ok(&format!("mv {shown} /root/humanz_{version}_amd64.deb"));
    }
    let (a, b) = (Pod::add(&machine.host, "a"), Pod::add(&machine.host, "b"));
    let pings = [Pinger::start(&a, b.v4()), Pinger::start(&b, a.v6())];
    let busy = AtomicBool::new(true);
    let added = std::thread::scope(|scope| {
        let churn = scope.spawn(|| churn(&machine, &busy));
        let over = Over(&busy);
        follow_upgrade(&machine, "Upgrade with apt", version);
        drop(over);
        churn.join().unwrap()
    });
    println!("{added} pods came and went meanwhile");
    pings.into_iter().for_each(|ping| ping.report().assert_nothing_lost());
    a.check().unwrap();
    a.delete();
    b.delete();
}

/// What the guide says of upgrades and downgrades below `heading`; after each its version is installed, and another agent
/// serves. `version` gives what is installed.
pub fn follow_upgrade(machine: &Machine, heading: &str, version: impl Fn(&Machine) -> String) {
    let mut guide = Guide::read("operations.md");
    let mut wanted = ["0.2.0", "0.1.0"].into_iter();
    let mut before = machine.shows("MainPID");
    guide.follow(heading, &machine.host, |step| {
        if ["install", "downgrade", "rpm -U"].iter().any(|word| step.command.contains(word)) {
            before = machine.shows("MainPID");
        } else {
            machine.serves(&before);
            let wanted = wanted.next().expect("two versions are installed");
            assert_eq!(version(machine), wanted);
            assert!(plugin_is_current(machine), "{wanted}");
        }
        false
    });
    assert_eq!(wanted.next(), None, "{heading}: it has an upgrade and a downgrade");
}

/// Stops the background process, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Connects and disconnects one pod after another for as long as `busy`; gives how many.
///
/// # Panics
/// If an ADD fails with anything but "try again".
fn churn(machine: &Machine, busy: &AtomicBool) -> u32 {
    let host = &machine.host;
    let network = Network::of(host);
    make_netns(host, "churn");
    let mut count = 0;
    while busy.load(Ordering::Relaxed) {
        let attachment = Attachment::new("churn");
        match Pod::connect(host, &network, attachment.clone()) {
            Ok(pod) => network.del(host, &attachment, &pod.result).map_err(|e| e.to_string()),
            Err(failure) if failure.code == TRY_AGAIN => Ok(()),
            Err(failure) => Err(failure.to_string()),
        }
        .unwrap();
        count += 1;
    }
    count
}

#[test]
fn a_removal_leaves_pods_connected_and_their_plugin_in_place() {
    let machine = serving("removed");
    let (a, b) = (Pod::add(&machine.host, "a"), Pod::add(&machine.host, "b"));
    let ping = Pinger::start(&a, b.v4());
    machine.ok("dpkg --remove humanz");
    assert_eq!(machine.host.run("systemctl is-active humanz-agent").stdout, "inactive\n");
    ping.report().assert_nothing_lost();
    a.delete();
    b.delete();
    assert!(machine.host.read("/etc/humanz/agent.env").is_some());
    install(&machine, &package("deb"));
    machine.ok("systemctl enable --now humanz-agent");
    machine.serves("");
}

/// Files that humanz may leave on a disk.
const PLACES: &str = "/opt/cni/bin /etc/cni/net.d /var/lib/humanz /etc/humanz /run/humanz \
     /var/log/humanz.log /etc/systemd/system/multi-user.target.wants /etc/logrotate.d/humanz";

#[test]
fn a_purge_takes_everything_but_not_from_under_pods() {
    is_purged(&Machine::boot("purged"));
}

#[test]
fn a_purge_from_debian_13_takes_everything_but_not_from_under_pods() {
    is_purged(&Machine::boot_debian_13("purged13"));
}

fn is_purged(machine: &Machine) {
    install(machine, &package("deb"));
    let settings = "/etc/humanz/agent.env";
    let mine = format!("{STANDALONE}BRIDGE_NAME=pods0\n");
    machine.host.write(settings, &mine);
    machine.ok("systemctl enable --now humanz-agent");
    let (a, b) = (Pod::add(&machine.host, "a"), Pod::add(&machine.host, "b"));
    let purged = machine.host.run("dpkg --purge humanz");
    assert!(purged.succeeded() && purged.stderr.contains("2 pods are attached"), "{purged}");
    assert!(purged.stderr.contains("agent.env uninstall --purge"), "{purged}");
    a.run(&format!("ping -n -c 1 -W 3 {}", b.v4())).ok();
    a.delete();
    b.delete();
    install(machine, &package("deb"));
    machine.host.write(settings, &mine);
    machine.ok("dpkg --purge humanz");
    leaves_nothing(machine, "pods0");
}

fn leaves_nothing(machine: &Machine, bridge: &str) {
    let left = machine.host.shell(&format!("find {PLACES} ! -type d 2>/dev/null || true")).ok();
    assert_eq!(left, "");
    let left = machine.host.shell("ip -o link; nft list tables; ls -d /var/lib/humanz /run/humanz");
    assert!(!left.stdout.contains(bridge) && !left.stdout.contains("humanz"), "{left}");
}

/// It has no agent, and so no folder of its state.
#[test]
fn a_purge_takes_the_network_of_init_too_but_not_from_under_pods() {
    let machine = Machine::boot("purgedinit");
    install(&machine, &package("deb"));
    // Where the plugins of its runtime are is another matter.
    machine.host.run("humanz-agent init");
    let pod = Pod::add(&machine.host, "a");
    let purged = machine.host.run("dpkg --purge humanz");
    assert!(purged.succeeded() && purged.stderr.contains("1 pod is attached"), "{purged}");
    assert!(purged.stderr.contains("agent.env uninstall --purge"), "{purged}");
    pod.check().unwrap();
    pod.delete();
    install(&machine, &package("deb"));
    machine.ok("dpkg --purge humanz");
    leaves_nothing(&machine, "humanz0");
}

#[test]
fn a_purge_takes_the_settings_that_were_kept_for_it_wherever_the_state_is() {
    let machine = Machine::boot("purgedstate");
    install(&machine, &package("deb"));
    let mine = format!("{STANDALONE}STATE_DIR=/var/lib/humanz/agent\n");
    machine.host.write("/etc/humanz/agent.env", &mine);
    machine.ok("systemctl enable --now humanz-agent");
    machine.serves("");
    machine.ok("dpkg --remove humanz");
    machine.ok("dpkg --purge humanz");
    leaves_nothing(&machine, "humanz0");
}
