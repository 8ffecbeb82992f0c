//! The agent's files in the CNI directories: every change is repaired at once, long before the next
//! full check.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::disk::EXECUTABLE;
use crate::support::local::{
    connect, get, has_problem, problems, status, status_when, wait_problem,
};
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, eventually, soon};
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
fn a_plugin_that_cannot_be_installed_is_reported_and_the_configuration_stays() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let configuration = host.read(CONFIGURATION).unwrap();
    host.shell("rm /opt/cni/bin/humanz; mkdir /opt/cni/bin/humanz").ok();
    let status = status_when(host, "the problem is reported", |status| {
        status["ready"] == false && has_problem(status, "change-failed")
    });
    let faults = status["faults"].as_array().unwrap();
    let fixes: Vec<_> = faults.iter().filter_map(|fault| fault["cure"].as_str()).collect();
    assert_eq!(fixes, ["a directory is in the way: remove it"], "{status:#}");
    let (code, why) = get(host, "/readyz");
    assert!(code == 503 && why.contains("a directory is in the way"), "{code} {why}");
    assert!(get(host, "/metrics").1.contains("\nhumanz_ready 0\n"));
    for spoil in ["rm", "truncate -s 0"] {
        host.shell(&format!("{spoil} {CONFIGURATION}")).ok();
        eventually(&format!("the configuration is back after {spoil}"), SOON, || {
            let found = host.read(CONFIGURATION);
            if found.as_deref() == Some(&configuration) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        });
    }
    host.shell("rmdir /opt/cni/bin/humanz").ok();
    let fine = |status: &Value| status["ready"] == true && status["faults"] == json!([]);
    status_when(host, "all is well", fine);
    assert_eq!(get(host, "/readyz").0, 200);
    agent.stop();
}

#[test]
fn a_configuration_that_cannot_be_restored_is_a_problem_and_not_ready() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    // The agent may be faster with a new one.
    host.shell(&format!("until mkdir {CONFIGURATION} 2>/dev/null; do rm -f {CONFIGURATION}; done"))
        .ok();
    let status = status_when(host, "the problem is reported", |status| {
        let kinds = ["change-failed", "cni-configuration"];
        status["ready"] == false && kinds.iter().all(|kind| has_problem(status, kind))
    });
    let first = &status["problems"][0];
    assert_eq!(first["kind"], "change-failed", "{status:#}");
    assert_eq!(first["subject"], format!("CNI configuration {CONFIGURATION}"), "{status:#}");
    assert_eq!(first["fix"], "a directory is in the way: remove it", "{status:#}");
    assert_eq!(get(host, "/readyz").0, 503);
    host.shell(&format!("rmdir {CONFIGURATION}")).ok();
    status_when(host, "all is well", |status| {
        status["ready"] == true && status["faults"] == json!([])
    });
    agent.stop();
}

#[test]
fn a_file_in_place_of_the_configurations_directory_is_a_problem_with_its_fix() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    host.shell("rm -r /etc/cni/net.d; touch /etc/cni/net.d").ok();
    let problem =
        wait_problem(host, "change-failed", &format!("CNI configuration {CONFIGURATION}"));
    assert_eq!(problem["fix"], "a file is in the way of a directory: move it away", "{problem}");
    host.shell("rm /etc/cni/net.d").ok();
    status_when(host, "all is well", |status| {
        status["ready"] == true && status["faults"] == json!([])
    });
    agent.stop();
}

#[test]
fn the_first_configuration_waits_for_the_plugin() {
    let alone = alone();
    let host = &alone.host;
    host.shell("mkdir -p /opt/cni/bin/humanz").ok();
    let agent = Agent::start(host, &standalone(&[("RESYNC_INTERVAL", "1s")]));
    eventually("it answers", 3 * SOON, || connect(host).map(drop).map_err(|e| e.to_string()));
    status_when(host, "the plugin is reported", |status| has_problem(status, "change-failed"));
    eventually("it tried again", 3 * SOON, || {
        let page = get(host, "/metrics").1;
        let tries = page.lines().find(|line| line.starts_with("humanz_reconcile_failures_total"));
        match tries.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()) {
            Some(count) if count > 2.0 => Ok(()),
            _ => Err(page),
        }
    });
    assert_eq!(host.read(CONFIGURATION), None);
    assert_eq!(status(host)["ready"], false);
    host.shell("rmdir /opt/cni/bin/humanz").ok();
    agent.wait_ready();
    assert!(host.read(CONFIGURATION).is_some());
    agent.stop();
}

#[test]
fn every_change_of_a_file_is_repaired_at_once() {
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
    let status = status_when(host, "the problems are reported", |status| {
        status["repairs"].as_array().unwrap().len() >= 11
    });
    // The look that follows the start may have found the first one.
    let repair = &status["repairs"][1];
    assert!(repair["what"].as_str().unwrap().contains(CONFIGURATION), "{status:#}");
    assert_eq!(repair["why"], "the agent's files changed");
    agent.stop();
}

#[test]
fn a_deleted_or_moved_directory_is_restored_with_its_files() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    // The agent may put a file back while its directory is emptied.
    for spoil in [
        "for try in 1 2 3 4 5; do rm -rf /etc/cni/net.d && break; done",
        "for try in 1 2 3 4 5; do rm -rf /opt/cni/bin && break; done",
        "for try in 1 2 3 4 5; do rm -rf /etc/cni /opt/cni && break; done",
        "mv /etc/cni /etc/cni.old; mkdir -p /etc/cni/net.d",
        "mv /opt/cni /opt/cni.old",
    ] {
        right.again_after(host, spoil);
    }
    right.again_after(host, "echo {} > /etc/cni/net.d/05-humanz.conflist; rm /opt/cni/bin/humanz");
    agent.stop();
}

#[test]
fn a_directory_that_could_not_be_created_is_filled_once_it_exists() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    // The agent may put the directory, or a file in it, back in between.
    let spoil = "for try in 1 2 3 4 5 6 7 8 9; do rm -rf /etc/cni/net.d && echo > /etc/cni/net.d && break; done";
    host.shell(spoil).ok();
    agent.wait_log(&["CNI configuration", "create directory /etc/cni/net.d"]);
    right.again_after(host, "rm /etc/cni/net.d; mkdir /etc/cni/net.d");
    agent.stop();
}

#[test]
fn a_program_that_keeps_rewriting_a_file_is_reported_and_not_raced() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[SELDOM]);
    let right = Right::of(host);
    let rewriting = format!("while :; do echo {{}} > {CONFIGURATION}; echo done; sleep 0.01; done");
    let other = host.spawn(command("sh -c").arg(rewriting));
    let line = agent.wait_log(&["changed by another program again and again"]);
    assert!(line.contains(CONFIGURATION), "{line}");
    // That takes more than 5 s: an agent that raced would have repaired it more than 20 times.
    soon("it was rewritten very often", || other.log().lines().count() > 500);
    let rewrites = agent.log().matches("changed CNI configuration").count();
    assert!(rewrites < 15, "{rewrites} times:\n{}", agent.log());
    let status = status(host);
    let contested = problems(&status, "file-contested").next().unwrap();
    assert!(contested["subject"].as_str().unwrap().ends_with(CONFIGURATION), "{contested}");
    assert!(contested["fix"].as_str().unwrap().contains("auditctl"), "{contested}");
    other.signal(Signal::SIGKILL);
    right.again_after(host, "true");
    agent.stop();
}

#[test]
fn an_agent_uses_one_inotify_instance() {
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
fn without_inotify_the_periodic_check_finds_changed_files() {
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
