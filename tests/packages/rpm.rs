//! The RPM package: by rpm's own database in an empty root, and with its scripts on a machine.

use std::process::Command;

use crate::built::{package, package_in};
use crate::life::{follow_upgrade, next_version};
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

/// Debian's rpm refuses to install what is not in its own database, where nothing is.
const RPM: &str = "#!/bin/sh
case $1 in
-U) exec /usr/bin/rpm --nodeps --force-debian \"$@\" ;;
*) exec /usr/bin/rpm \"$@\" ;;
esac
";

/// A machine with an agent of 0.1.0, which `install` has made of the package in /root; that of 0.2.0 lies beside it.
fn serving(name: &str, install: &str) -> Machine {
    let (_source, dist) = next_version("rpm");
    let machine = Machine::boot(name);
    machine.host.write("/usr/local/bin/rpm", RPM);
    machine.ok("chmod 755 /usr/local/bin/rpm");
    for (version, package) in [("0.2.0", package_in(&dist, "rpm")), ("0.1.0", package("rpm"))] {
        let shown = machine.shown(&package);
        machine.ok(&format!("mv {shown} /root/humanz-{version}-1.x86_64.rpm"));
    }
    machine.ok(&format!("cd /root; {install}"));
    configure(&machine);
    machine.ok("systemctl enable --now humanz-agent");
    machine.serves("");
    machine
}

/// What is installed.
fn version(machine: &Machine) -> String {
    machine.ok("rpm -q --queryformat '%{VERSION}' humanz")
}

#[test]
fn an_rpm_is_upgraded_and_downgraded_as_the_guide_shows() {
    let machine = serving("rpm-upgrade", "rpm -U ./humanz-0.1.0-1.x86_64.rpm");
    let pod = Pod::add(&machine.host, "a");
    follow_upgrade(&machine, "Upgrade with rpm", version);
    pod.check().unwrap();
    pod.delete();
    // Older than what is there: refused without the option.
    machine.ok("cd /root && rpm -U ./humanz-0.2.0-1.x86_64.rpm");
    let refused = machine.host.shell("cd /root && rpm -U ./humanz-0.1.0-1.x86_64.rpm");
    assert!(refused.stderr.contains("is already installed"), "{refused}");
}

/// A package with the shell that scripts need: dnf installs none without.
const SHELL: &str = "Name: shell
Version: 1
Release: 1
Summary: The shell of this machine
License: none
BuildArch: noarch
Provides: /bin/sh
%description
The shell of this machine.
%files
";

#[test]
fn dnf_upgrades_and_downgrades_as_the_guide_shows() {
    let install = format!(
        "cat >/run/shell.spec <<'END'\n{SHELL}END
         rpmbuild --quiet -bb --define '_topdir /run/top' --define '_rpmdir /run/made' /run/shell.spec
         rpm -U /run/made/noarch/shell-1-1.noarch.rpm
         dnf install --assumeyes ./humanz-0.1.0-1.x86_64.rpm"
    );
    let machine = serving("dnf-upgrade", &install);
    let pod = Pod::add(&machine.host, "a");
    follow_upgrade(&machine, "Upgrade with dnf", version);
    pod.check().unwrap();
    pod.delete();
}
