//! Every failure in ADD gives an error object and leaves nothing.

use std::time::Duration;

use serde_json::{Value, json};

use crate::everything;
use crate::support::Place;
use crate::support::facts::veths;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, STORE};
use crate::support::wait::patience;

/// A host with one living pod, which nothing may touch.
struct HostWithPod {
    host: PluginHost,
    alive: Value,
    before: std::collections::BTreeSet<String>,
}

impl HostWithPod {
    fn new() -> HostWithPod {
        let host = PluginHost::new();
        let alive = host.add(&everything("alive"), "alive");
        host.netns("c1");
        let before = host.leftovers();
        HostWithPod { host, alive, before }
    }

    /// Nothing has changed, and the next ADD and DEL work.
    fn assert_unchanged(&self, what: &str) {
        assert_eq!(self.host.leftovers(), self.before, "{what}");
        let gone = self.host.pod_ip("c1", "link show eth0");
        assert_eq!(gone, Value::Null, "{what}: in the pod");
    }

    fn assert_usable(&self) {
        Call::new("ADD", &everything("c1"), "c1").run(&self.host).ok();
        Call::new("DEL", &everything("c1"), "c1").run(&self.host).ok();
        let check =
            Call::new("CHECK", &everything("alive"), "alive").key("prevResult", self.alive.clone());
        check.run(&self.host).ok();
    }
}

#[test]
fn a_store_that_cannot_be_written() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    host.shell(&format!("mount --bind {STORE} {STORE}; mount -o remount,bind,ro {STORE}")).ok();
    let answer = Call::new("ADD", &everything("c1"), "c1").run(host);
    assert_eq!(answer.code(), 5);
    assert!(answer.error().contains(STORE), "{}", answer.error());
    host_with_pod.assert_unchanged("a read-only store");
    host.shell(&format!("umount {STORE}")).ok();
    host_with_pod.assert_usable();
}

#[test]
fn a_store_that_is_full_at_every_file() {
    let host = PluginHost::new();
    host.netns("c1");
    host.run("mkdir /run/store").ok();
    // The inodes of an empty file system are given out one by one: every file of a claim is once
    // the one that does not fit.
    let mut codes = Vec::new();
    for inodes in 2..16 {
        host.shell(&format!("mount -t tmpfs -o nr_inodes={inodes} tmpfs /run/store")).ok();
        let call = Call::new("ADD", &everything("c1"), "c1").key("dataDir", json!("/run/store"));
        let answer = call.run(&host);
        if answer.ended.succeeded() {
            let del = Call::new("DEL", &everything("c1"), "c1").key("dataDir", json!("/run/store"));
            del.run(&host).ok();
        } else {
            codes.push(answer.code());
        }
        let files = host.run("find /run/store -type f").ok();
        let of_pod = |file: &&str| file.contains("10.1.2") || file.contains("owners/");
        assert!(!files.lines().any(|file| of_pod(&file)), "{inodes} inodes: {files}");
        assert_eq!(veths(&host), Vec::<String>::new(), "{inodes} inodes");
        host.run("umount /run/store").ok();
    }
    assert!(
        codes.len() > 5 && codes.len() < 14 && codes.iter().all(|code| *code == 5),
        "{codes:?}"
    );
}

#[test]
fn a_lock_held_by_another_process() {
    let host_with_pod = HostWithPod::new();
    let holder =
        host_with_pod.host.spawn(&mut command(&format!("flock -F {STORE}/lock sleep 600")));
    let held = format!("flock -n {STORE}/lock true");
    crate::support::soon("the lock is held", || !host_with_pod.host.run(&held).succeeded());
    let answer = Call::new("ADD", &everything("c1"), "c1").run(&host_with_pod.host);
    assert_eq!(answer.code(), 11);
    assert!(answer.error().contains("locked by another process"), "{}", answer.error());
    holder.kill();
    crate::support::soon("the lock is free", || host_with_pod.host.run(&held).succeeded());
    host_with_pod.assert_unchanged("a held lock");
    host_with_pod.assert_usable();
}

/// A call takes several locks, and each of those may have to be waited for.
#[test]
fn with_a_lock_held_by_another_process_every_verb_ends_in_time() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    let holder = host.spawn(&mut command(&format!("flock -F {STORE}/lock sleep 600")));
    let held = format!("flock -n {STORE}/lock true");
    crate::support::soon("the lock is held", || !host.run(&held).succeeded());
    let conf = everything("alive");
    let of_pod =
        |verb| Call::new(verb, &conf, "alive").key("prevResult", host_with_pod.alive.clone());
    let of_host = |verb| {
        let call = Call::new(verb, &conf, "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
        call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", json!([]))
    };
    // Seconds, and the code of the answer.
    let calls = [
        (30, 11, Call::new("ADD", &everything("c1"), "c1")),
        (15, 0, of_pod("DEL")),
        (10, 11, of_pod("CHECK")),
        (15, 11, of_host("GC")),
        (2, 0, of_host("STATUS")),
    ];
    std::thread::scope(|scope| {
        for (seconds, code, call) in &calls {
            scope.spawn(move || {
                let answer = call.run(host);
                assert!(
                    answer.ended.took < Duration::from_secs(*seconds) * patience(),
                    "{answer:?}"
                );
                match code {
                    0 => drop(answer.ok()),
                    _ => assert_eq!(answer.code(), *code, "{answer:?}"),
                }
            });
        }
    });
    holder.kill();
    crate::support::soon("the lock is free", || host.run(&held).succeeded());
    Call::new("DEL", &conf, "alive").run(host).ok();
    host.assert_clean("after DEL again");
}

#[test]
fn an_interface_name_in_use_on_the_host() {
    let host_with_pod = HostWithPod::new();
    let result = Call::new("ADD", &everything("c1"), "c1").run(&host_with_pod.host).ok();
    let name = result["interfaces"][1]["name"].as_str().unwrap();
    Call::new("DEL", &everything("c1"), "c1").run(&host_with_pod.host).ok();
    let add = format!("ip link add {name} type bridge; ip link set {name} alias theirs");
    host_with_pod.host.shell(&add).ok();
    let answer = Call::new("ADD", &everything("c1"), "c1").run(&host_with_pod.host);
    assert!(answer.error().contains(name), "{}", answer.error());
    assert!(answer.error().contains("theirs"), "{}", answer.error());
    assert_eq!(host_with_pod.host.list(&format!("{STORE}/owners")), ["alive:eth0"]);
    Call::new("DEL", &everything("c1"), "c1").run(&host_with_pod.host).ok();
    let shown = host_with_pod.host.ip(&format!("link show {name}"));
    assert_eq!((&shown[0]["ifalias"], &shown[0]["operstate"]), (&json!("theirs"), &json!("DOWN")));
    host_with_pod.host.run(&format!("ip link del {name}")).ok();
    host_with_pod.assert_usable();
}

#[test]
fn a_pod_interface_an_address_and_routes_that_the_kernel_refuses() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    host.run("ip -n c1 link add eth0 type bridge").ok();
    assert_eq!(Call::new("ADD", &everything("c1"), "c1").run(host).code(), 102);
    host.run("ip -n c1 link del eth0").ok();
    host_with_pod.assert_unchanged("an interface in the pod");
    for route in [
        json!({ "dst": "198.51.100.0/24", "gw": "203.0.113.1" }),
        json!({ "dst": "2001:db8::/32", "gw": "2001:db9::1" }),
        json!({ "dst": "10.1.2.0/24", "gw": "10.1.2.1", "scope": 254 }),
    ] {
        let answer =
            Call::new("ADD", &everything("c1"), "c1").key("routes", json!([route])).run(host);
        assert!(answer.error().contains("route"), "{}", answer.error());
        host_with_pod.assert_unchanged(&route.to_string());
    }
    host_with_pod.assert_usable();
}

#[test]
fn a_result_that_cannot_be_written() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    let call = Call::new("ADD", &everything("c1"), "c1");
    let plugin = "/opt/cni/bin/humanz";
    for (what, shell) in [
        ("a full disk", format!("{plugin} > /dev/full")),
        ("a closed pipe", format!("{plugin} | true; exit ${{PIPESTATUS[0]}}")),
    ] {
        let mut bash = command("bash -c");
        bash.arg(&shell).envs(call.variables.iter().map(|(name, value)| (*name, value)));
        // With a pipe the plugin races with the end of its reader.
        for round in 0..20 {
            let ended = host.run_command(&mut bash, &call.conf.to_string());
            if ended.succeeded() && what == "a closed pipe" {
                Call::new("DEL", &everything("c1"), "c1").run(host).ok();
                continue;
            }
            assert_eq!(ended.status.code(), Some(1), "{what}: {ended}");
            host_with_pod.assert_unchanged(what);
            if round == 0 && what == "a full disk" {
                let log = host.read("/var/log/humanz.log").unwrap();
                assert!(log.contains("write the result to stdout"), "{log}");
            }
        }
    }
    host_with_pod.assert_usable();
}

#[test]
fn an_error_of_every_system_call_that_add_makes() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    let mut refused = 0;
    for (calls, error) in [
        ("?open,openat", "EMFILE"),
        ("?open,openat", "EACCES"),
        ("sendto", "ENOBUFS"),
        ("recvfrom", "ENOBUFS"),
        ("socket", "EMFILE"),
        ("setns", "EPERM"),
        ("flock", "EIO"),
        ("?link,linkat", "ENOSPC"),
        ("?rename,renameat,renameat2", "ENOSPC"),
        ("write,writev", "ENOSPC"),
        ("?unlink,unlinkat", "EIO"),
        ("read,readv", "EIO"),
    ] {
        for when in 1..40 {
            let trace = format!(
                "strace -f -qq -o /run/trace -e trace={calls} -e inject={calls}:error={error}:when={when}"
            );
            let answer = Call::new("ADD", &everything("c1"), "c1").under(&trace).run(host);
            let seen = host.read("/run/trace").expect("strace is needed: apt-get install strace");
            if !seen.contains("INJECTED") {
                Call::new("DEL", &everything("c1"), "c1").run(host).ok();
                break;
            }
            let what = format!("{error} of {calls} number {when}");
            // Some calls do not matter: the log file, the count of flows.
            refused += usize::from(!answer.ended.succeeded());
            // Changes that could not be undone are removed by the DEL that runtimes send.
            Call::new("DEL", &everything("c1"), "c1").run(host).ok();
            host_with_pod.assert_unchanged(&what);
        }
    }
    println!("{refused} injected errors failed ADD");
    assert!(refused > 40, "{refused}");
    host_with_pod.assert_usable();
}

/// As of another link that had the index, or of an agent that saw the port before it had its MAC.
#[test]
fn what_the_guards_table_has_of_a_ports_index_already_is_replaced() {
    let host_with_pod = HostWithPod::new();
    let host = &host_with_pod.host;
    let listed = host.ip("link");
    let last = listed.as_array().unwrap().iter().filter_map(|link| link["ifindex"].as_u64()).max();
    let others: Vec<String> =
        (1..=8).map(|more| format!("{} : 0xa000000000{more}", last.unwrap() + more)).collect();
    host.shell(&format!("nft 'add element netdev humanz port {{ {} }}'", others.join(", "))).ok();
    let result = Call::new("ADD", &everything("c1"), "c1").run(host).ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let link = host.ip(&format!("link show {port}"));
    let (index, mac) = (&link[0]["ifindex"], link[0]["address"].as_str().unwrap());
    assert!(index.as_u64() > last && index.as_u64() <= last.map(|it| it + 8), "{index} {last:?}");
    let found = host.run("nft list map netdev humanz port").ok();
    let mac = u64::from_str_radix(&mac.replace(':', ""), 16).unwrap();
    assert!(found.contains(&format!("{mac:#x}")), "{mac:#x} in {found}");
    let check = Call::new("CHECK", &everything("c1"), "c1").key("prevResult", result);
    check.run(host).ok();
}
