//! `connectivity`, `probe --from-pod` and `top`: pods that the program attaches, and those that are there.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cluster::{Cluster, OUTSIDE};
use crate::support::disk::EXECUTABLE;
use crate::support::echo::Echo;
use crate::support::node::command;
use crate::support::{Node, Place, Pod, Process, eventually, facts, soon};
use crate::{object, refused, run};

const DUAL: (&str, &str) = ("IPV6_SUBNET", "fd10:244::/48");
const STORE: &str = "/run/humanz/ipam/humanz";

/// The paths of a test, and whether all are open.
fn tested(host: &Node, options: &str) -> (Vec<Value>, bool) {
    let ended = run(host, &format!("connectivity test --json {options}"), &[DUAL]);
    println!("{ended}");
    let paths = object(&ended)["paths"].as_array().unwrap().clone();
    (paths, ended.succeeded())
}

fn lost(paths: &[Value]) -> Vec<&str> {
    let lost = paths.iter().filter(|path| path["ok"] == false);
    lost.map(|path| path["path"].as_str().unwrap()).collect()
}

/// No interface, address or port of a pod is left.
fn nothing_is_left(host: &Node) {
    assert!(facts::veths(host).is_empty(), "{:?}", facts::veths(host));
    let listed = object(&run(host, "ipam ls --json", &[DUAL]));
    assert_eq!(listed["addresses"].as_array().unwrap().len(), 0, "{listed:#}");
    let rules = host.run("nft list table inet humanz").ok();
    assert!(!rules.contains("8471"), "{rules}");
}

/// `connectivity serve` on `host`, and the options that its line has.
fn serve(host: &Node) -> (Process, String) {
    let mut serve = command(&format!("{EXECUTABLE} connectivity serve"));
    let process = host.spawn(serve.env("ETCD_HOST", "192.0.2.2").env(DUAL.0, DUAL.1));
    let options = soon_log(&process, "connectivity test");
    (process, options)
}

fn soon_log(process: &Process, words: &str) -> String {
    eventually("it serves", Duration::from_secs(20), || {
        let log = process.log();
        let found = log.lines().find_map(|line| line.split_once(words));
        found.map(|(_, rest)| rest.to_owned()).ok_or(log)
    })
}

#[test]
fn every_path_is_tried_and_nothing_is_left() {
    let cluster = Cluster::new(2);
    let _agents = cluster.start_agents(&[DUAL]);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    soon("h1 has saved what it knows of h2", || {
        run(h1, "probe --json", &[DUAL]).stdout.matches("\"address\"").count() == 2
    });
    let (server, pods) = serve(h2);
    assert_eq!(pods.matches("--to ").count(), 4, "{pods}");
    let _outside = Echo::serve(&cluster.outside, 80);
    let options = format!("{pods} --outside {} --service {}:80", OUTSIDE[0], OUTSIDE[0]);
    let (paths, fine) = tested(h1, &options);
    assert!(fine, "{:?}", lost(&paths));
    // Of both families: 8 here, 2 to the other host, 3 to each of its pods; and two outside.
    assert_eq!(paths.len(), 2 * (8 + 2) + 3 * 4 + 2, "{paths:#?}");
    let shown = run(h1, &format!("connectivity test {pods}"), &[DUAL]).ok();
    println!("{shown}");
    assert!(shown.contains("all 32 paths are open"), "{shown}");
    let not_tried = |shown: &str| {
        let last = shown.trim_end().lines().last().unwrap();
        last.strip_prefix("not tried: ").unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    let back = "what pods of other hosts begin (to try: humanz-agent connectivity serve here, the test there)";
    let rest = "services (--service ADDRESS:PORT); the outside (--outside ADDRESS)";
    assert_eq!(not_tried(&shown), format!("{back}; {rest}"));
    let alone = run(h1, "connectivity test", &[DUAL]).ok();
    assert!(alone.contains("pod -> pod 2 of h2, TCP"), "{alone}");
    assert_eq!(not_tried(&alone), format!("{back}; {rest}"));
    let api = OUTSIDE[0].to_string();
    let in_pod = [DUAL, ("KUBERNETES_SERVICE_HOST", &*api), ("KUBERNETES_SERVICE_PORT", "80")];
    let in_pod = run(h1, "connectivity test", &in_pod).ok();
    assert!(in_pod.contains(&format!("pod -> service {}:80", OUTSIDE[0])), "{in_pod}");
    nothing_is_left(h1);

    // What the host itself sends does not pass the forward hook.
    h1.shell(
        "nft add table inet mine
         nft add chain inet mine forward '{ type filter hook forward priority 0; }'
         nft add rule inet mine forward ip daddr 10.244.0.0/16 ip saddr 10.244.0.0/16 oifname eth0 drop",
    )
    .ok();
    let by_host = run(h1, "probe", &[DUAL]).ok();
    assert!(
        by_host.contains("(asked by this host, not by its pods: --from-pod does that)"),
        "{by_host}"
    );
    let ended = run(h1, "probe --from-pod", &[DUAL]);
    println!("{ended}");
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    let by_pod = "1 of 2 have faults (asked by a pod of this host)";
    assert!(ended.stdout.contains(by_pod), "IPv4 alone: {ended}");
    for (options, from) in [("", "host"), ("--from-pod ", "pod")] {
        let answer = object(&run(h1, &format!("probe {options}--json"), &[DUAL]));
        assert_eq!(answer["from"], from, "{answer:#}");
    }
    let (paths, fine) = tested(h1, &pods);
    assert!(!fine);
    let lost = lost(&paths);
    assert_eq!(lost[..2], ["pod -> gateway of h2", "pod -> gateway of h2, full size"]);
    assert!(lost[2..].iter().all(|path| path.starts_with("pod -> 10.244.")), "{lost:?}");
    h1.run("nft delete table inet mine").ok();
    run(h1, "probe --from-pod", &[DUAL]).ok();
    nothing_is_left(h1);

    server.signal(Signal::SIGINT);
    assert!(server.wait(Duration::from_secs(20)).success(), "{}", server.log());
    soon("the pods that the agent of h2 attached are gone", || facts::veths(h2).is_empty());
    nothing_is_left(h2);
}

#[test]
fn what_a_killed_test_leaves_is_removed_by_the_next() {
    let cluster = Cluster::new(1);
    let _agents = cluster.start_agents(&[DUAL]);
    let host = &cluster.hosts[0];
    let before = host.list(STORE);
    let (server, _) = serve(host);
    server.kill();
    assert_ne!(host.list(STORE), before, "the addresses are taken");
    // A pod of somebody else stays, whatever its container is called.
    let pod = Pod::add(host, "humanz-connectivity-1-1");
    soon("the next test removes it", || {
        let (paths, fine) = tested(host, "");
        assert!(fine, "{:?}", lost(&paths));
        let listed = object(&run(host, "ipam ls --json", &[DUAL]));
        listed["addresses"].as_array().unwrap().len() == 1
    });
    pod.check().unwrap();
    pod.delete();
    nothing_is_left(host);
}

#[test]
fn a_host_that_cannot_start_a_pod_says_why() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let words = ["read the CNI configuration /etc/cni/net.d/05-humanz.conflist", "agent"];
    refused(&run(host, "connectivity test", &[]), 69, &words);
    let agents = cluster.start_agents(&[]);
    agents[0].stop();
    host.run("ip link del humanz0").ok();
    host.write(
        "/etc/cni/net.d/05-humanz.conflist",
        r#"{ "name": "x", "cniVersion": "1.0.0", "type": "none" }"#,
    );
    refused(&run(host, "connectivity test", &[]), 1, &["ADD by /opt/cni/bin/none", "No such file"]);
    host.write("/etc/cni/net.d/05-humanz.conflist", "[]");
    refused(&run(host, "probe --from-pod", &[]), 1, &["05-humanz.conflist: name is missing"]);
}

#[test]
fn the_busiest_pod_is_the_first() {
    let cluster = Cluster::new(1);
    let _agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let pods = ["idle", "busy"].map(|name| Pod::add(host, name));
    let _flood = pods[1].spawn(&mut command("ping -n -q -i 0.01 -s 1000 10.244.1.1"));
    let found = eventually("the busy pod sends", Duration::from_secs(20), || {
        let found = object(&run(host, "top --json", &[]));
        let sends = &found["pods"][0]["sends"]["bytes_per_second"];
        if sends.as_u64() > Some(10_000) { Ok(found) } else { Err(format!("{found:#}")) }
    });
    assert_eq!(found["pods"][0]["pod"], "default/busy", "{found:#}");
    assert_eq!(found["pods"][1]["pod"], "default/idle", "{found:#}");
    assert_eq!(found["pods"][0]["addresses"][0], pods[1].v4().to_string(), "{found:#}");
    let shown = run(host, "top --count 1", &[]).ok();
    assert!(shown.contains("default/busy") && !shown.contains("default/idle"), "{shown}");
    refused(&run(host, "top --seconds 0", &[]), 2, &["--seconds"]);
}

/// The counters come with the answers of `pods --all`; a host of an earlier version does not have them.
#[test]
fn the_busiest_pod_of_all_hosts_is_the_first_on_any_host() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[]);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let [idle, busy] = [(h1, "idle"), (h2, "busy")].map(|(host, name)| Pod::add(host, name));
    let _flood = busy.spawn(&mut command("ping -n -q -i 0.01 -s 1000 10.244.2.1"));
    for (host, own) in [(h1, "h1*"), (h2, "h2*")] {
        let ended = run(host, "top --all --json", &[]);
        let found = object(&ended);
        assert!(ended.succeeded(), "{found:#}");
        let pods = found["pods"].as_array().unwrap();
        assert_eq!(pods.len(), 2, "{found:#}");
        assert_eq!((&pods[0]["host"], &pods[0]["pod"]), (&"h2".into(), &"default/busy".into()));
        assert_eq!(pods[0]["addresses"][0], busy.v4().to_string());
        let rate = |at: usize| pods[at]["sends"]["bytes_per_second"].as_u64().unwrap();
        assert!(rate(0) > 10_000 && rate(1) < 1_000, "{found:#}");
        assert!(pods[0]["sent_bytes"].as_u64().unwrap() >= 3 * rate(0) / 2, "{found:#}");
        let shown = run(host, "top --all --count 1", &[]).ok();
        assert!(shown.contains("default/busy") && shown.contains(own) == (own == "h2*"), "{shown}");
        assert!(shown.ends_with("\n1 of 2 pods, of 2 of 2 hosts\n"), "{shown}");
    }
    drop(idle);
    agents[1].stop();
    let some = run(h1, "top --all", &[]);
    assert_eq!(some.status.code(), Some(1), "{some}");
    assert!(some.stdout.contains("! h2: its agent does not run"), "{some}");
}
