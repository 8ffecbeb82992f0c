//! The order of a start, and the messages to the service manager.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Node, Place, soon};
use crate::{CONFIGURATION, STANDALONE, alone, serve, standalone};

/// A configuration that is there must be whole, and everything that it needs must be there too.
fn usable(host: &Node) -> bool {
    let Some(text) = host.read(CONFIGURATION) else { return false };
    let parsed: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("half a configuration: {e}: {text}"));
    assert_eq!(parsed["plugins"][0]["type"], "humanz");
    host.run("test -x /opt/cni/bin/humanz -a -x /opt/cni/bin/loopback").ok();
    host.run("ip -o address show dev humanz0").ok();
    host.run("nft list table inet humanz").ok();
    true
}

#[test]
fn the_configuration_is_written_last_and_atomically() {
    let alone = alone();
    let agent = Agent::start(&alone.host, STANDALONE);
    soon("the configuration is there", || usable(&alone.host));
    agent.wait_ready();
    assert!(usable(&alone.host));
}

#[test]
fn a_configuration_is_replaced_atomically() {
    let alone = alone();
    serve(&alone.host, &[]).stop();
    for mtu in ["1400", "1300", "1500"] {
        let agent = Agent::start(&alone.host, &standalone(&[("MTU", mtu)]));
        let wanted = format!("\"mtu\": {mtu},");
        soon("the new MTU is in the configuration", || {
            assert!(usable(&alone.host));
            alone.host.read(CONFIGURATION).is_some_and(|text| text.contains(&wanted))
        });
        agent.stop();
    }
}

#[test]
fn the_single_plugin_form_has_the_keys_of_the_python_agent() {
    let alone = alone();
    let path = "/etc/cni/net.d/05-humanz.conf";
    serve(&alone.host, &[("CNI_CONFIG_LOCATION", path), ("CNI_VERSION", "0.3.1")]).stop();
    let conf: serde_json::Value = serde_json::from_str(&alone.host.read(path).unwrap()).unwrap();
    assert_eq!(conf["cniVersion"], "0.3.1");
    assert_eq!((&conf["name"], &conf["type"]), (&"humanz".into(), &"humanz".into()));
    assert_eq!(conf["network"], "10.244.0.0/16");
    assert_eq!(conf["subnet"], "10.244.1.0/24");
    assert_eq!(conf["plugins"], serde_json::Value::Null);
}

#[test]
fn the_service_manager_receives_ready_watchdog_and_stopping() {
    let alone = alone();
    let socket = alone.host.inside(|| UnixDatagram::bind("/run/manager").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut agent = command(EXECUTABLE);
    agent.envs(standalone(&[("NOTIFY_SOCKET", "/run/manager"), ("WATCHDOG_USEC", "200000")]));
    let agent = alone.host.spawn(&mut agent);
    let receive = |wanted: &str| {
        let mut message = [0; 4096];
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let length = socket.recv(&mut message).expect("a message of the agent");
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return text;
            }
        }
        panic!("{wanted} never came:\n{}", agent.log());
    };
    let ready = receive("READY=1");
    assert!(ready.contains("STATUS=serving 10.244.1.0/24"), "{ready}");
    for _ in 0..5 {
        receive("WATCHDOG=1");
    }
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    receive("STOPPING=1");
}

/// Whatever hangs: here every thread that has something to say.
#[test]
fn an_agent_with_a_log_that_no_process_reads_ends_within_its_time() {
    let alone = alone();
    alone.host.run("mkfifo /run/log").ok();
    let mut both = File::options();
    both.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK);
    let mut log = alone.host.inside(|| both.open("/run/log").unwrap());
    let mut agent = command("sh -c");
    agent.arg(format!("exec {EXECUTABLE} 2>/run/log")).envs(standalone(&[]));
    let agent = alone.host.spawn(&mut agent);
    soon("the configuration is there", || usable(&alone.host));
    for bytes in [&[b'x'; 4096][..], b"x"] {
        let full = (0..).find_map(|_| log.write(bytes).err());
        assert_eq!(full.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    }
    let begun = Instant::now();
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    let status = agent.wait(Duration::from_secs(15));
    println!("{status} after {:?}", begun.elapsed());
    assert_eq!(status.code(), Some(1), "its main thread still waits for room in the log");
}
