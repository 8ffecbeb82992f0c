//! The unit under a real systemd: started, watched, restarted, confined.

use std::path::Path;

use serde_json::Value;

use crate::built::package;
use crate::machine::{LONG, Machine, STANDALONE};
use crate::support::{Pinger, Place, Pod, eventually};

/// What is not worse than this is called OK by systemd; it names 2.3 with systemd 252.
const EXPOSURE: f64 = 3.0;

/// A machine with the Debian package, configured to run without etcd.
pub fn serving(name: &str) -> Machine {
    served(Machine::boot(name))
}

fn served(machine: Machine) -> Machine {
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
    is_safe(&serving("unit"));
}

#[test]
fn a_killed_agent_is_started_again_and_pods_do_not_notice() {
    survives_a_kill(&serving("killed"));
}

/// systemd 257 instead of 252.
#[test]
fn debian_13_verifies_the_unit_and_starts_a_killed_agent_again() {
    let machine = served(Machine::boot_debian_13("debian13"));
    assert!(machine.ok("systemctl --version").starts_with("systemd 257 "));
    is_safe(&machine);
    survives_a_kill(&machine);
}

fn is_safe(machine: &Machine) {
    let said = machine.host.shell("systemd-analyze verify --man=no humanz-agent.service");
    assert!(said.succeeded() && said.stderr.is_empty(), "{said}");
    let table = machine.ok("systemd-analyze security --no-pager humanz-agent.service");
    let last = table.lines().find(|line| line.contains("exposure level")).unwrap_or_default();
    println!("{}", last.trim());
    let level: f64 = last.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(level < EXPOSURE, "{table}");
}

fn survives_a_kill(machine: &Machine) {
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
    let containerd =
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/other\"\n";
    machine.ok("mkdir -p /etc/containerd");
    machine.host.write("/etc/containerd/config.toml", containerd);
    machine.ok("mkdir -p /var/lib/humanz && echo '{' >/var/lib/humanz/history.json");
    machine.ok("systemctl daemon-reload; systemctl start humanz-agent");
    let warnings = machine.ok("journalctl -u humanz-agent -o cat -p warning..warning");
    let known = "the history of this host begins anew";
    assert!(warnings.contains(known) && !warnings.contains("<4>"), "{}", machine.journal());
    let errors = machine.ok("journalctl -u humanz-agent -o cat -p err..err");
    assert!(errors.contains("containerd looks for plugins in /usr/other"), "{}", machine.journal());
    let before = machine.shows("MainPID");
    machine.ok(&format!("kill -STOP {before}"));
    machine.serves(&before);
    assert!(machine.journal().contains("Watchdog timeout"), "{}", machine.journal());
}

#[test]
fn confined_it_still_repairs_everything() {
    let machine = Machine::boot("confined");
    machine.ok(
        "iptables-legacy -P FORWARD DROP; iptables-nft -P FORWARD DROP; rm -rf /etc/containerd",
    );
    install(&machine, &package("deb"));
    configure(&machine);
    machine.ok("systemctl enable --now humanz-agent");
    let pod = Pod::add(&machine.host, "a");
    machine.ok("ip link del humanz0; nft delete table inet humanz
         for try in 1 2 3 4 5; do rm -rf /etc/cni /opt/cni && break; done
         sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
         iptables-legacy -F FORWARD; iptables-nft -F FORWARD");
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
    // What it met while files were still being removed is no fault; what its confinement refuses is, except a
    // folder that was replaced within its view, for which it leaves.
    let journal = machine.ok("journalctl -u humanz-agent --no-pager -o cat");
    let left = journal.rfind("it was replaced while the agent ran").unwrap_or_default();
    let replaced = ["create directory /etc/cni", "create directory /opt/cni"];
    let is_replaced = |line: &str| {
        line.contains("Read-only file system") && replaced.iter().any(|it| line.contains(it))
    };
    let before = journal[..left].lines().filter(|line| !is_replaced(line));
    let refusals = ["Operation not permitted", "Permission denied", "Read-only file system"];
    let refused = before
        .chain(journal[left..].lines())
        .filter(|line| refusals.iter().any(|it| line.contains(it)));
    assert_eq!(refused.collect::<Vec<_>>(), Vec::<&str>::new());
    eventually("it has no errors", LONG, || {
        let status: Value =
            serde_json::from_str(&machine.ok("humanz-agent status --json")).unwrap();
        let problems = status["problems"].as_array().unwrap();
        let errors: Vec<_> = problems.iter().filter(|it| it["severity"] == "error").collect();
        if errors.is_empty() { Ok(()) } else { Err(format!("{errors:?}\n{}", machine.journal())) }
    });
    assert!(!machine.journal().contains("<6>"), "{}", machine.journal());
    pod.delete();
}

/// In its unit the agent may make no network namespace; the service manager starts the program that may.
#[test]
fn confined_it_has_pods_for_a_test_of_another_host() {
    let machine = Machine::boot("asked");
    install(&machine, &package("deb"));
    machine.ok("systemd-run --unit store-of-hosts etcd --data-dir /tmp/store
         echo ETCD_HOST=127.0.0.1 >>/etc/humanz/agent.env
         systemctl enable --now humanz-agent; humanz-agent ready --wait 30");
    let verified =
        "systemd-analyze verify --man=no humanz-connectivity.socket humanz-connectivity@.service";
    let said = machine.host.shell(verified);
    assert!(said.succeeded() && said.stderr.is_empty(), "{said}");
    let etcdctl = |line: &str| machine.ok(&format!("ETCDCTL_API=3 etcdctl {line}"));
    let addresses = || {
        let listed = machine.ok("humanz-agent ipam ls --json");
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["addresses"].as_array().unwrap().len()
    };
    // A test that ends, an agent that is killed while it has the pods, and a test after its next start.
    let ends = "ETCDCTL_API=3 etcdctl del /humanz/v1/connectivity/other/asked";
    let killed = format!("systemctl kill --signal KILL humanz-agent; {ends}");
    for end in [ends, &killed, ends] {
        machine.ok("humanz-agent ready --wait 30");
        etcdctl("put /humanz/v1/connectivity/other/asked ''");
        eventually("it answers with pods", LONG, || {
            let answer = etcdctl("get --print-value-only /humanz/v1-connectivity/asked/other");
            match answer.contains(r#"{"pods":[["10."#) && addresses() == 2 {
                true => Ok(()),
                false => Err(format!("{answer}: {}", machine.journal())),
            }
        });
        let units = machine.ok("systemctl list-units --no-legend 'humanz-connectivity@*'");
        assert_eq!(units.lines().count(), 1, "{units}");
        machine.ok(end);
        eventually("the pods are gone", LONG, || {
            let units =
                machine.ok("systemctl list-units --all --no-legend 'humanz-connectivity@*'");
            let left = addresses();
            if left == 0 && units.is_empty() { Ok(()) } else { Err(format!("{left} {units}")) }
        });
        machine.ok("ETCDCTL_API=3 etcdctl del --prefix /humanz/v1-connectivity/");
        machine.ok("systemctl is-active humanz-connectivity.socket");
    }
    assert!(!machine.journal().contains("no pods for the test"), "{}", machine.journal());
    machine.ok("systemctl stop humanz-agent");
    assert!(!machine.host.run("systemctl is-active humanz-connectivity.socket").succeeded());
}

/// It tells everybody settings with a configuration and plugins in its state directory.
#[test]
fn a_stolen_agent_does_not_choose_what_attaches_pods_for_a_test() {
    let machine = Machine::boot("chosen");
    install(&machine, &package("deb"));
    machine.ok("mkdir -p /etc/systemd/system/humanz-agent.service.d
         echo '[Service]
         Environment=CNI_PLUGIN_LOCATION=/var/lib/humanz/bin/humanz
         Environment=CNI_CONFIG_LOCATION=/var/lib/humanz/net.d/10-humanz.conflist' >/etc/systemd/system/humanz-agent.service.d/way.conf
         systemd-run --unit store-of-hosts etcd --data-dir /tmp/store
         echo ETCD_HOST=127.0.0.1 >>/etc/humanz/agent.env
         systemctl daemon-reload; systemctl enable --now humanz-agent; humanz-agent ready --wait 30
         test -e /var/lib/humanz/net.d/10-humanz.conflist");
    let etcdctl = |line: &str| machine.ok(&format!("ETCDCTL_API=3 etcdctl {line}"));
    etcdctl("put /humanz/v1/connectivity/other/chosen ''");
    eventually("it has no pods by those", LONG, || {
        let answer = etcdctl("get --print-value-only /humanz/v1-connectivity/chosen/other");
        match answer.contains(r#""state":"failed""#) {
            true => Ok(()),
            false => Err(format!("{answer}: {}", machine.journal())),
        }
    });
}

/// Ways to become root outside of the sandbox by writing to a file or connecting to a socket: each line a
/// name, and what succeeds where the way is open.
const WAYS: &str = r#"
cron : >>/etc/cron.d/humanz-way
crontab : >>/var/spool/cron/crontabs/root
passwd : >>/etc/passwd
shadow : >>/etc/shadow
preload : >>/etc/ld.so.preload
profile : >>/etc/profile.d/way.sh
sudoers mkdir -p /etc/sudoers.d && : >>/etc/sudoers.d/way
unit : >>/etc/systemd/system/way.service
own-unit : >>/usr/lib/systemd/system/humanz-agent.service
own-settings : >>/etc/humanz/agent.env
run-unit mkdir -p /run/systemd/system && : >>/run/systemd/system/way.service
udev mkdir -p /run/udev/rules.d && : >>/run/udev/rules.d/way.rules
ssh mkdir -p /root/.ssh && : >>/root/.ssh/authorized_keys
program : >>/usr/sbin/way
library : >>/usr/lib/way.so
opt : >>/opt/way
var : >>/var/lib/way
init-root : >>/proc/1/root/etc/way
setuid : >>/opt/cni/bin/way && chmod 4755 /opt/cni/bin/way && test -u /opt/cni/bin/way
systemd curl -s -m 2 --unix-socket /run/systemd/private http://x/ ; test $? != 7
dbus curl -s -m 2 --unix-socket /run/dbus/system_bus_socket http://x/ ; test $? != 7
containerd curl -s -m 2 --unix-socket /run/containerd/containerd.sock http://x/ ; test $? != 7
namespace unshare --mount true
mount mount -t tmpfs way /mnt
enter nsenter --target 1 --mount true
device mknod /opt/cni/bin/device b 8 0 && test -b /opt/cni/bin/device
"#;

/// The ways that are open.
fn open(table: &str) -> Vec<&str> {
    table.lines().filter_map(|line| line.strip_prefix("open ")).collect()
}

#[test]
fn a_stolen_agent_does_not_become_root_by_a_file_or_a_socket() {
    let machine = serving("stolen");
    // A bus and a container runtime that came after the agent.
    machine.host.write(
        "/etc/systemd/system/stand-in.socket",
        "[Socket]\nListenStream=/run/dbus/system_bus_socket\nListenStream=/run/containerd/containerd.sock\n",
    );
    let service = "[Service]\nExecStart=/bin/sleep 600\n";
    machine.host.write("/etc/systemd/system/stand-in.service", service);
    let tries: String = WAYS
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(way, script)| {
            format!(
                "if ( {script} ) >/dev/null 2>&1; then echo open {way}; else echo shut {way}; fi\n"
            )
        })
        .collect();
    machine.host.write("/usr/local/bin/ways", &format!("{tries}true\n"));
    // The unit, but for the program that it starts.
    let unit = machine.host.read("/usr/lib/systemd/system/humanz-agent.service").unwrap();
    let other = |line: &str| match line.split_once('=') {
        Some(("ExecStart", _)) => {
            "ExecStart=/bin/sh -c '/bin/sh /usr/local/bin/ways >/etc/cni/ways'".to_owned()
        }
        Some(("Type", _)) => "Type=oneshot".to_owned(),
        Some(("Restart" | "WatchdogSec" | "Wants" | "After", _)) => String::new(),
        _ => line.to_owned(),
    };
    let unit: Vec<String> = unit.lines().map(other).collect();
    machine.host.write("/etc/systemd/system/stolen.service", &unit.join("\n"));
    machine.ok("systemctl daemon-reload; systemctl start stand-in.socket");
    machine.ok("systemctl start stolen.service");
    let confined = machine.host.read("/etc/cni/ways").unwrap();
    println!("{confined}");
    let free = machine.ok("/bin/sh /usr/local/bin/ways");
    assert_eq!(confined.lines().count(), free.lines().count(), "{confined}\n{free}");
    assert_eq!(open(&confined), [] as [&str; 0], "{confined}");
    // On this machine nothing but devices and what the container forbids is shut to root.
    let open = open(&free);
    for way in ["cron", "passwd", "unit", "program", "systemd", "dbus", "containerd", "setuid"] {
        assert!(
            open.contains(&way),
            "{way} is shut to everybody, so this test shows nothing: {free}"
        );
    }
}

#[test]
fn a_reload_with_an_invalid_file_fails_and_the_fault_stays_in_the_status() {
    let machine = serving("reload");
    let before = machine.shows("MainPID");
    machine.host.shell("echo MTU=9 >>/etc/humanz/agent.env").ok();
    let refused = machine.host.shell("systemctl reload humanz-agent");
    assert!(!refused.succeeded(), "{refused}");
    assert!(!machine.journal().contains("reading the settings again"), "{}", machine.journal());
    eventually("the status has it", LONG, || {
        let shown = machine.host.shell("humanz-agent status").to_string();
        if shown.contains("MTU=9") { Ok(()) } else { Err(shown) }
    });
    machine.ok("systemctl restart humanz-agent");
    let pid = machine.serves(&before);
    machine.host.shell("sed -i s/^MTU=9/MTU=1400/ /etc/humanz/agent.env").ok();
    eventually("the right settings are taken over", LONG, || {
        let shown = machine.host.run("ip -o link show humanz0").stdout;
        if shown.contains("mtu 1400") { Ok(()) } else { Err(shown) }
    });
    assert_eq!(machine.shows("MainPID"), pid, "{}", machine.journal());
}

#[test]
fn a_first_start_with_invalid_settings_succeeds_once_they_are_right() {
    let machine = Machine::boot("first");
    install(&machine, &package("deb"));
    configure(&machine);
    machine.host.shell("echo MTU=9 >>/etc/humanz/agent.env").ok();
    let refused = machine.host.shell("systemctl enable --now humanz-agent");
    assert!(!refused.succeeded(), "{refused}");
    eventually("the journal has the reason", LONG, || {
        let journal = machine.journal();
        if journal.contains("MTU=9") { Ok(()) } else { Err(journal) }
    });
    machine.host.shell("sed -i s/^MTU=9/MTU=1400/ /etc/humanz/agent.env").ok();
    machine.serves("0");
}

/// A control plane: the kubelet waits for the agent, and starts etcd, which the agent waits for.
#[test]
fn a_start_without_etcd_holds_up_neither_the_kubelet_nor_the_operator() {
    let machine = Machine::boot("control");
    install(&machine, &package("deb"));
    machine.host.shell("echo ETCD_HOST=192.0.2.99 >>/etc/humanz/agent.env").ok();
    let kubelet = "[Service]\nExecStart=/bin/sleep 600\n";
    machine.host.write("/etc/systemd/system/kubelet.service", kubelet);
    machine.ok("systemctl daemon-reload; timeout 40 systemctl enable --now humanz-agent");
    machine.ok("timeout 40 systemctl start kubelet");
    let shown = machine.shows("StatusText");
    assert!(shown.contains("not ready: waiting for etcd"), "{shown}\n{}", machine.journal());
    let refused = machine.host.shell("humanz-agent ready");
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    // What waits is not to be killed by a probe.
    machine.ok("humanz-agent ready --alive");
    assert!(machine.host.read("/etc/cni/net.d/05-humanz.conflist").is_none(), "no pod can start");
    // Both at one boot.
    machine.ok("systemctl stop kubelet humanz-agent");
    machine.ok("timeout 40 systemctl start kubelet humanz-agent");
    // What it waited for is there.
    let before = machine.shows("MainPID");
    machine.host.shell(&format!("printf '{STANDALONE}' >>/etc/humanz/agent.env")).ok();
    machine.ok("systemctl restart humanz-agent");
    machine.serves(&before);
    eventually("it is ready", LONG, || {
        let text = machine.shows("StatusText");
        if text.contains("serving 10.244.1.0/24") { Ok(()) } else { Err(text) }
    });
    machine.ok("humanz-agent ready --wait 20");
}
