//! The README's way to install: its commands, as they stand there, on a machine with systemd.

use serde_json::Value;

use crate::built::package;
use crate::machine::Machine;
use crate::support::guide::Guide;
use crate::support::{Place, Pod};

/// The members of etcd that the README has, all on the machine itself.
const MEMBERS: &str = "cluster=one=http://192.0.2.1:2380,two=http://192.0.2.2:2380,three=http://192.0.2.3:2380
set -- one two three
for address in 192.0.2.1 192.0.2.2 192.0.2.3; do
    ip address add $address/32 dev lo
    systemd-run --unit etcd-$1 etcd --name $1 --data-dir /tmp/$1 --initial-cluster $cluster \\
        --initial-advertise-peer-urls http://$address:2380 --listen-peer-urls http://$address:2380 \\
        --advertise-client-urls http://$address:2379 --listen-client-urls http://$address:2379
    shift
done";

#[test]
fn a_host_is_installed_with_the_commands_of_the_readme() {
    let machine = Machine::boot("readme");
    machine.ok(MEMBERS);
    let shown = machine.shown(&package("deb"));
    machine.ok(&format!("mkdir /root/dist && mv {shown} /root/dist"));
    let mut guide = Guide::read("../README.md");
    guide.follow("Install", &machine.host, |step| {
        let command = step.command.split("  #").next().unwrap_or_default().trim();
        match command {
            // Made the package that lies in dist.
            "make packages" => true,
            // The README leaves out what these print.
            "apt install ./dist/humanz_*.deb" => {
                machine.ok(&format!("cd /root && {command}"));
                assert_eq!(machine.shows("ActiveState"), "inactive");
                true
            }
            "systemctl enable --now humanz-agent" => {
                machine.ok(command);
                true
            }
            _ => false,
        }
    });
    machine.serves("");
    machine.ok("humanz-agent ready --wait 30");
    // This machine has Debian's containerd, which looks for plugins elsewhere: what the status advises helps.
    let status: Value =
        serde_json::from_str(&machine.host.run("humanz-agent status --json").stdout).unwrap();
    assert_eq!(status["problems"].as_array().unwrap().len(), 1, "{status:#}");
    machine.ok(status["problems"][0]["fix"].as_str().unwrap());
    machine.ok("humanz-agent ready --wait 30 && humanz-agent status");
    let pod = Pod::add(&machine.host, "a");
    pod.run("ping -n -c 1 -W 3 10.244.1.1").ok();
    pod.delete();
}
