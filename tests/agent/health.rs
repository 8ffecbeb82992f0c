//! Health reflects the state of the running loops.

use std::time::Duration;

use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::support::local::{get, problem, status};
use crate::support::node::Place;
use crate::support::wait::SOON;
use crate::support::{Cluster, eventually};

/// The loops that hang after half a minute without a beat, by the names of their threads.
const LOOPS: [(&str, &str); 3] =
    [("rtnetlink", "rtnetlink"), ("nftables", "nftables"), ("files", "files")];

/// Longer than the longest limit that is waited for here.
const LONG: Duration = Duration::from_secs(150);

#[test]
fn a_hung_loop_is_reported_and_an_etcd_outage_is_healthy() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let pid = agents[0].process.pid();
    cluster.etcd.freeze();
    // A thread that is traced and stopped turns no more; all others do. Tracing is by thread: the
    // tests' own must stay until the end.
    let stopped: Vec<Pid> = LOOPS.map(|(_, thread)| thread_of(pid, thread)).into();
    for thread in &stopped {
        ptrace::seize(*thread, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(*thread).unwrap();
    }
    let sick = eventually("all three are named", LONG, || {
        let (code, text) = get(host, "/healthz");
        let named = |name: &str| text.contains(&format!("{name} HANGS"));
        if LOOPS.iter().all(|(name, _)| named(name)) { Ok((code, text)) } else { Err(text) }
    });
    assert_eq!(sick.0, 503);
    for well in ["etcd ok", "reconcile ok", "names ok"] {
        assert!(sick.1.contains(well), "{}", sick.1);
    }
    let status = status(host);
    assert_eq!(status["etcd"]["connected"], serde_json::Value::Null, "{status:#}");
    assert!(problem(&status, "etcd", "etcd").is_some(), "{status:#}");
    let stuck = problem(&status, "agent-stuck", "loop nftables").unwrap();
    assert!(stuck["fix"].as_str().unwrap().contains("systemctl restart"), "{stuck}");
    assert_eq!(get(host, "/readyz").0, 200, "pods can start all the while");
    for thread in &stopped {
        ptrace::detach(*thread, None).unwrap();
    }
    eventually("all are well again, without etcd", 3 * SOON, || match get(host, "/healthz") {
        (200, _) => Ok(()),
        (_, text) => Err(text),
    });
    cluster.etcd.thaw();
}

#[test]
fn a_hung_main_loop_is_reported_by_the_http_server() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let pid = agents[0].process.pid();
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    eventually("the main loop is reported", LONG, || match get(host, "/healthz") {
        (503, text) if text.contains("reconcile HANGS") => Ok(()),
        (_, text) => Err(text),
    });
    assert!(get(host, "/metrics").1.contains("humanz_loop_beat_age_seconds{loop=\"reconcile\"}"));
    ptrace::detach(pid, None).unwrap();
    eventually("it is healthy again", 3 * SOON, || match get(host, "/healthz") {
        (200, _) => Ok(()),
        (_, text) => Err(text),
    });
    host.run("ip link delete humanz0").ok();
    host.until_ok("ip link show humanz0", 3 * SOON);
}

/// The thread of that name.
fn thread_of(process: Pid, name: &str) -> Pid {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_name = tasks.map(|task| task.unwrap()).find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let thread = of_name.unwrap_or_else(|| panic!("no thread {name}"));
    Pid::from_raw(thread.file_name().to_str().unwrap().parse().unwrap())
}
