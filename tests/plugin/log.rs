//! The log file: its content; errors of it fail no call.

use serde_json::json;

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, conf};

#[test]
fn the_log_file_has_verb_container_pod_address_and_error() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    host.netns("c1");
    let kubernetes = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let call = Call::new("ADD", &conf, "c1").with("CNI_ARGS", kubernetes);
    call.run(&host).ok();
    assert_eq!(call.run(&host).code(), 102);
    Call::new("DEL", &conf, "c1").run(&host).ok();
    let log = host.read("/var/log/humanz.log").unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" net container=c1")).collect();
    let [added, again, deleted] = lines[..] else { panic!("{log}") };
    for (line, words) in [
        (added, ["Z ADD net", "pod=shop/web-0", "ips=10.1.2.2", " ok"]),
        (again, ["Z ADD net", "pod=shop/web-0", "error: code 102", "duplicate"]),
        (deleted, ["Z DEL net", "ifname=eth0", "ips=10.1.2.2", " ok"]),
    ] {
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert_eq!(host.run("stat -c %a /var/log/humanz.log").ok().trim(), "640");
    let elsewhere = Call::new("ADD", &conf, "c1").key("logFile", json!("/run/other.log"));
    assert_eq!(elsewhere.with("CNI_NETNS", "/nowhere").run(&host).code(), 8);
    assert_eq!(host.read("/run/other.log").unwrap().lines().count(), 1);
}

#[test]
fn a_call_succeeds_with_any_log_filter_on_stderr() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    for (name, filter) in [("c1", "bogus"), ("c2", "a=b=c"), ("c3", "/"), ("c4", "trace")] {
        host.netns(name);
        let answer = Call::new("ADD", &conf, name).with("RUST_LOG", filter).run(&host);
        assert!(answer.ended.succeeded() && answer.value["ips"].is_array(), "{}", answer.ended);
    }
}

#[test]
fn a_log_file_that_cannot_be_written_fails_no_call() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "logFile": "/proc/nowhere/log" }));
    host.add(&conf, "c1");
    Call::new("DEL", &conf, "c1").run(&host).ok();
}

/// Whoever may write into the log's directory stops no pod, and has root write nowhere else.
#[test]
fn a_log_that_is_no_regular_file_is_neither_written_to_nor_waited_for() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    for (name, trap) in [
        ("c1", "echo kept > /run/other; ln -s /run/other /var/log/humanz.log"),
        ("c2", "ln -s /run/made /var/log/humanz.log"),
        ("c3", "mkfifo /var/log/humanz.log"),
        (
            "c4",
            "mkfifo /var/log/humanz.log; sleep 60 < /var/log/humanz.log > /dev/null 2>&1 & sleep 60 <> /var/log/humanz.log > /dev/null 2>&1 &",
        ),
        ("c5", "mkdir /var/log/humanz.log"),
    ] {
        host.shell(&format!("rm -rf /var/log/humanz.log; {trap}")).ok();
        host.netns(name);
        Call::new("ADD", &conf, name).under("timeout 10").run(&host).ok();
        Call::new("DEL", &conf, name).under("timeout 10").run(&host).ok();
    }
    assert_eq!(host.read("/run/other").unwrap(), "kept\n");
    assert_eq!(host.read("/run/made"), None);
    host.shell("rm -rf /var/log/humanz.log").ok();
    host.add(&conf, "c6");
    assert!(host.read("/var/log/humanz.log").unwrap().contains("container=c6"));
}

/// Whoever may read a lock may hold it, and with it every pod of the host.
#[test]
fn locks_are_readable_by_root_alone() {
    let host = PluginHost::new();
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let keys = json!({ "subnet": "10.1.2.0/24", "runtimeConfig": { "portMappings": ports } });
    let conf = conf("1.0.0", keys);
    let modes = || {
        let modes = host.shell("find /run/humanz -name lock | xargs stat -c %a").ok();
        modes.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    host.add(&conf, "c1");
    assert_eq!(modes(), ["600", "600"]);
    // As an older release left them.
    host.shell("find /run/humanz -name lock | xargs chmod 644").ok();
    Call::new("DEL", &conf, "c1").run(&host).ok();
    assert_eq!(modes(), ["600", "600"]);
}
