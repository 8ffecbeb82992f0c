//! The agent's files among those of the CNI: whatever is done to them is put right at once, long
//! before the next full check.

use nix::sys::signal::Signal;

use crate::support::disk::EXECUTABLE;
use crate::support::local::{status, status_when};
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Node, Place, eventually, soon};
use crate::{CONFIGURATION, alone, serve, standalone};

/// Nothing is found by the full check.
const SELDOM: (&str, &str) = ("RESYNC_INTERVAL", "3600s");

/// All is as the agent made it.
struct Right {
    configuration: String,
}

impl Right {
    fn of(host: &Node) -> Right {
        Right { configuration: host.read(CONFIGURATION).unwrap() }
    }

    /// Spoils something, and waits until all is as it was.
    fn again_after(&self, host: &Node, spoil: &str) {
        host.shell(spoil).ok();
        eventually(&format!("all is right after {spoil}"), SOON, || {
            self.differs(host).map_or(Ok(()), Err)
        });
    }

    fn differs(&self, host: &Node) -> Option<String> {
        if host.read(CONFIGURATION).as_deref() != Some(&self.configuration) {
            return Some("the configuration differs".to_owned());
        }
        for link in ["humanz", "loopback"] {
            let link = host.run(&format!("readlink /opt/cni/bin/{link}"));
            if link.stdout.trim() != "humanz-agent" {
                return Some(link.to_string());
            }
        }
        let run = host.shell(&format!("cmp {EXECUTABLE} /opt/cni/bin/humanz; /opt/cni/bin/humanz"));
        (!run.succeeded()).then(|| run.to_string())
    }
}

#[test]
fn whatever_happens_to_a_file_is_put_right_at_once() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    for spoil in [
        "rm /etc/cni/net.d/05-humanz.conflist",
        "echo {} > /etc/cni/net.d/05-humanz.conflist",
        "truncate -s 0 /etc/cni/net.d/05-humanz.conflist",
        "echo {} > /etc/cni/net.d/x; mv /etc/cni/net.d/x /etc/cni/net.d/05-humanz.conflist",
        "rm /opt/cni/bin/humanz",
        "ln -sf loopback /opt/cni/bin/humanz",
        "rm /opt/cni/bin/loopback",
        "rm /opt/cni/bin/humanz-agent",
        "truncate -s 100 /opt/cni/bin/humanz-agent",
        "cp /bin/true /opt/cni/bin/x; mv /opt/cni/bin/x /opt/cni/bin/humanz-agent",
        "chmod 0644 /opt/cni/bin/humanz-agent",
    ] {
        right.again_after(host, spoil);
    }
    let status = status_when(host, "they are told", |status| {
        status["repairs"].as_array().unwrap().len() >= 11
    });
    let repair = &status["repairs"][0];
    assert!(repair["what"].as_str().unwrap().contains(CONFIGURATION), "{status:#}");
    assert_eq!(repair["why"], "the agent's files changed");
    agent.stop();
}

#[test]
fn a_folder_that_is_deleted_or_moved_away_comes_back_with_all_that_was_in_it() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    for spoil in [
        "rm -r /etc/cni/net.d",
        "rm -r /opt/cni/bin",
        "rm -r /etc/cni /opt/cni",
        "mv /etc/cni /etc/cni.old; mkdir -p /etc/cni/net.d",
        "mv /opt/cni /opt/cni.old",
    ] {
        right.again_after(host, spoil);
    }
    right.again_after(host, "echo {} > /etc/cni/net.d/05-humanz.conflist; rm /opt/cni/bin/humanz");
    agent.stop();
}

#[test]
fn a_folder_that_could_not_be_made_is_filled_when_it_is_there() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    host.shell("rm -r /etc/cni/net.d; echo > /etc/cni/net.d").ok();
    agent.wait_log(&["CNI configuration", "create directory /etc/cni/net.d"]);
    right.again_after(host, "rm /etc/cni/net.d; mkdir /etc/cni/net.d");
    agent.stop();
}

#[test]
fn whoever_rewrites_a_file_for_ever_is_named_and_not_raced() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    let rewriting = format!("while :; do echo {{}} > {CONFIGURATION}; echo done; sleep 0.01; done");
    let other = host.spawn(command("sh -c").arg(rewriting));
    let line = agent.wait_log(&["changed by somebody again and again"]);
    assert!(line.contains(CONFIGURATION), "{line}");
    // That takes more than 5 s: an agent that raced would have mended it more than 20 times.
    soon("it was rewritten very often", || other.log().lines().count() > 500);
    let mended = agent.log().matches("changed CNI configuration").count();
    assert!(mended < 15, "{mended} times:\n{}", agent.log());
    let told = status(host)["faults"].to_string();
    assert!(told.contains(CONFIGURATION) && told.contains("auditctl"), "{told}");
    other.signal(Signal::SIGKILL);
    right.again_after(host, "true");
    agent.stop();
}

#[test]
fn an_agent_takes_one_inotify_of_the_few_that_a_user_has() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let pid = agent.process.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = open.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    let inotify = links.filter(|link| link.to_string_lossy().contains("inotify"));
    assert_eq!(inotify.count(), 1);
    agent.stop();
}

#[test]
fn where_inotify_is_refused_the_full_check_finds_what_was_changed() {
    let alone = alone();
    let host = &alone.host;
    // A user namespace has a limit of its own.
    let script = format!(
        "echo 0 > /proc/sys/user/max_inotify_instances
         ip link add eth0 type veth peer name cable; ip link set cable up; ip link set eth0 up
         ip address add 192.0.2.77/24 dev eth0; ip route add default via 192.0.2.1
         exec {EXECUTABLE}"
    );
    let mut command = command("unshare --user --map-root-user --net sh -ec");
    command.arg(script).envs(standalone(&[("RESYNC_INTERVAL", "1s"), ("MANAGE_SYSCTL", "false")]));
    let agent = host.spawn(&mut command);
    eventually("it serves", SOON, || match agent.log() {
        log if log.contains("ready: serving") => Ok(()),
        log => Err(log),
    });
    let right = Right::of(host);
    right.again_after(host, "rm /etc/cni/net.d/05-humanz.conflist");
    let log = agent.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("inotify")).collect();
    assert_eq!(lines.len(), 1, "one line:\n{log}");
    assert!(lines[0].contains("WARN") && lines[0].contains("RESYNC_INTERVAL"), "{log}");
}
