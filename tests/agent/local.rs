//! The agent's API on the local host.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::support::local::{Changes, SOCKET, connect, get, problem, send, status, status_when};
use crate::support::node::command;
use crate::support::{Agent, Node, Place, Pod, eventually, soon};
use crate::{CONFIGURATION, STANDALONE, alone, serve, standalone};

#[test]
fn the_status_has_node_lease_loops_and_changes() {
    let alone = alone();
    let agent = serve(&alone.host, &[]);
    let status = status_when(&alone.host, "ready", |status| status["ready"] == true);
    assert_eq!(status["schema"], 1);
    assert_eq!(status["node"]["name"], "h1");
    assert_eq!(status["node"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["node"]["addresses"][0], alone.host.v4().to_string());
    assert_eq!(status["lease"]["source"], "static");
    assert_eq!(status["lease"]["subnets"][0], "10.244.1.0/24");
    assert_eq!(status["etcd"], serde_json::Value::Null);
    assert_eq!(status["peers"], serde_json::json!([]));
    assert_eq!(status["firewall"]["ok"], true);
    assert_eq!(status["repairs"], serde_json::json!([]));
    let loops: Vec<&str> =
        status["loops"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!(loops, ["rtnetlink", "nftables", "files", "names", "probe", "reconcile"]);
    let changes = status["changes"].as_array().unwrap();
    let made = |what: &str| changes.iter().find(|c| c["what"].as_str().unwrap().contains(what));
    assert_eq!(made("added bridge humanz0").unwrap()["why"], "the agent started");
    assert!(made("CNI configuration").is_some(), "{status:#}");
    agent.stop();
    assert!(alone.host.run(&format!("test -e {SOCKET}")).status.code() == Some(1), "it is gone");
}

#[test]
fn a_repair_is_streamed_and_listed() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let (mut first, mut second) = (Changes::follow(host), Changes::follow(host));
    host.run("nft flush table inet humanz").ok();
    for follower in [&mut first, &mut second] {
        let change = follower.wait("nft table inet humanz");
        assert_eq!(
            (&change["why"], &change["repair"]),
            (&"the kernel changed".into(), &true.into())
        );
    }
    let status = status(host);
    assert!(status["repairs"][0]["what"].as_str().unwrap().contains("nft table"), "{status:#}");
    drop(second);
    host.run("ip link delete humanz0").ok();
    first.wait("added bridge humanz0");
    agent.stop();
    while first.next_change().is_some() {}
}

#[test]
fn what_the_operator_changes_is_no_repair() {
    let alone = alone();
    let host = &alone.host;
    host.write("/tmp/agent.env", "MTU=1400\n");
    let agent = Agent::start_with(host, "--env-file /tmp/agent.env", &standalone(&[]));
    agent.wait_ready();
    host.write("/tmp/agent.env", "MTU=1300\n");
    agent.reload();
    let status = status_when(host, "the new MTU", |status| {
        status["changes"].to_string().contains("bridge humanz0: mtu 1300")
    });
    assert_eq!(status["repairs"], serde_json::json!([]));
    let changes = status["changes"].as_array().unwrap();
    let mtu = changes.iter().find(|c| c["what"].as_str().unwrap().contains("mtu 1300")).unwrap();
    assert!(mtu["why"].as_str().unwrap().contains("the settings were read again"), "{mtu}");
}

#[test]
fn readiness_begins_with_the_configuration_and_ends_with_it() {
    let alone = alone();
    let host = &alone.host;
    // The folder of the configuration cannot be made.
    host.shell("mkdir -p /etc/cni && touch /etc/cni/net.d").ok();
    let _agent = Agent::start(host, STANDALONE);
    let answer = |path: &str| connect(host).ok().map(|_| get(host, path));
    eventually("not ready, and why", local_deadline(), || match answer("/readyz") {
        Some((503, why)) if why.contains("/etc/cni/net.d") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(get(host, "/healthz").0, 200, "it does what it can");
    host.shell("rm /etc/cni/net.d").ok();
    eventually("ready", local_deadline(), || match get(host, "/readyz") {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(host.read(CONFIGURATION).is_some());
}

fn local_deadline() -> std::time::Duration {
    3 * crate::support::wait::SOON
}

#[test]
fn no_client_does_harm() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let code = |bytes: &[u8]| send(host, bytes).split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(code(b"POST /v1/status HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(code(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(code(b"GET /../v1/status HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(code(b"\x16\x03\x01\x00\xff\xff\n\n"), "400");
    assert_eq!(code(&[b"GET /".as_slice(), &[b'a'; 100_000]].concat()), "431");
    // Connections are limited, and idle ones are closed.
    let silent: Vec<UnixStream> = (0..20).map(|_| connect(host).unwrap()).collect();
    for mut half in (0..10).map(|_| connect(host).unwrap()) {
        half.write_all(b"GET /healthz HTT").unwrap();
    }
    eventually("an answer in spite of them", local_deadline(), || match get(host, "/healthz") {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    drop(silent);
    host.run("ip link delete humanz0").ok();
    host.until_ok("ip link show humanz0", local_deadline());
    assert!(!agent.log().contains("panicked"), "{}", agent.log());
}

#[test]
fn the_socket_is_restored_when_its_file_is_removed_or_replaced() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    assert_eq!(host.run(&format!("stat -c %a:%U:%F {SOCKET}")).ok(), "660:root:socket\n");
    agent.kill();
    drop(agent);
    host.run(&format!("test -S {SOCKET}")).ok();
    let agent = serve(host, &[]);
    soon("the socket of the dead agent is replaced", || connect(host).is_ok());
    host.run(&format!("rm {SOCKET}")).ok();
    soon("a removed one comes back", || connect(host).is_ok());
    agent.stop();
    host.write(SOCKET, "foreign");
    let agent = serve(host, &[]);
    agent.wait_log(&["listen on", SOCKET, "the file is no socket"]);
    assert_eq!(host.read(SOCKET).as_deref(), Some("foreign"));
    host.run(&format!("rm {SOCKET}")).ok();
    soon("it comes once there is room", || connect(host).is_ok());
}

#[test]
fn metrics_and_health_move_with_the_settings() {
    let alone = alone();
    let host = &alone.host;
    host.write("/tmp/agent.env", "METRICS_ADDR=127.0.0.1:9104\n");
    let agent = Agent::start_with(host, "--env-file /tmp/agent.env", &standalone(&[]));
    agent.wait_ready();
    let curl = |url: &str| fetch(host, url);
    eventually("health over TCP", local_deadline(), || {
        match curl("http://127.0.0.1:9104/healthz") {
            (0, text) if text.contains("reconcile ok") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // The root-only data is not public.
    assert_eq!(curl("http://127.0.0.1:9104/v1/status").0, 22);
    host.write("/tmp/agent.env", "METRICS_ADDR=[::1]:9105\nSOCKET=none\n");
    agent.reload();
    soon("it moved", || curl("http://[::1]:9105/readyz").0 == 0);
    assert_eq!(curl("http://127.0.0.1:9104/healthz").0, 7, "the former port is closed");
    soon("the socket is gone", || host.run(&format!("test -e {SOCKET}")).status.code() == Some(1));
}

/// curl's exit code and the response.
fn fetch(host: &Node, url: &str) -> (i32, String) {
    let mut curl = command("curl -sS -g -f -m 10 --noproxy *");
    let ended = host.run_command(curl.arg(url), "");
    (ended.status.code().unwrap(), ended.stdout)
}

#[test]
fn a_host_without_a_free_address_reports_it() {
    let alone = alone();
    let host = &alone.host;
    let settings = [("SUBNET", "10.244.1.0/29"), ("IPV6_SUBNET", ""), ("RESYNC_INTERVAL", "1s")];
    let agent = serve(host, &settings);
    let mut pods: Vec<Pod> = (0..5).map(|number| Pod::add(host, &format!("p{number}"))).collect();
    let said = status(host);
    let found = problem(&said, "pool-full", "subnet 10.244.1.0/29").unwrap();
    assert_eq!(said["problems"].as_array().unwrap().len(), 1, "{said:#}");
    let fix = found["fix"].as_str().unwrap();
    assert!(fix.starts_with("humanz-agent ipam gc # shows what can be freed"), "{fix}");
    let what = found["what"].as_str().unwrap();
    agent.wait_log(&["ERROR", what]);
    let metrics = get(host, "/metrics").1;
    assert!(metrics.contains("humanz_faults{kind=\"addresses\"} 1"), "{metrics}");
    let labelled = "humanz_problems{kind=\"pool-full\",severity=\"error\"} 1";
    assert!(metrics.contains(labelled), "{metrics}");
    let seen = Agent::run(host, "status", &standalone(&settings));
    assert_eq!(seen.status.code(), Some(1), "{seen}");
    assert_eq!(seen.stdout.matches("10.244.1.0/29: the next pod").count(), 1, "{seen}");
    assert!(!seen.stdout.contains("2. "), "reported once: {seen}");
    pods.pop().unwrap().delete();
    assert_eq!(status(host)["faults"], serde_json::json!([]));
    agent.wait_log(&["no longer", what]);
}
