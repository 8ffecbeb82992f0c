//! The RPM package: by rpm's own database in an empty root, and with its scripts on a machine.

use std::process::Command;

use crate::built::package;
use crate::machine::Machine;
use crate::support::{Place, Pod};
use crate::unit::configure;

#[test]
fn an_empty_root_can_install_and_remove_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let rpm = |arguments: &[&str]| {
        let output = Command::new("rpm").arg("--root").arg(folder.path()).args(arguments).output();
        let output = output.expect("run rpm (package rpm)");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    rpm(&["--initdb"]);
    rpm(&["-i", "--nodeps", "--noscripts", package("rpm").to_str().unwrap()]);
    assert!(folder.path().join("usr/sbin/humanz-agent").is_file());
    assert_eq!(rpm(&["-V", "--nodeps", "humanz"]), "");
    assert_eq!(rpm(&["-qc", "humanz"]), "/etc/humanz/agent.env\n/etc/logrotate.d/humanz\n");
    rpm(&["-e", "--noscripts", "humanz"]);
    assert!(!folder.path().join("usr/sbin/humanz-agent").exists());
}

#[test]
fn the_scripts_start_nothing_restart_a_running_agent_and_stop_it_on_removal() {
    let machine = Machine::boot("rpm");
    let rpm = format!("rpm --nodeps --force-debian --force -U {}", machine.shown(&package("rpm")));
    machine.ok(&rpm);
    assert_eq!(machine.shows("ActiveState"), "inactive");
    configure(&machine);
    machine.ok("systemctl enable --now humanz-agent");
    let pod = Pod::add(&machine.host, "a");
    let before = machine.serves("");
    machine.ok(&rpm);
    machine.serves(&before);
    assert!(machine.host.read("/etc/humanz/agent.env").unwrap().contains("SUBNET_SOURCE=static\n"));
    machine.ok("rpm --nodeps --force-debian -e humanz 2>&1");
    assert_eq!(machine.host.run("systemctl is-active humanz-agent").stdout, "inactive\n");
    pod.run("ping -n -c 1 -W 3 10.244.1.1").ok();
    pod.delete();
}
