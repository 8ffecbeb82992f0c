//! DEL while another process holds a lock of the store: it succeeds, and who takes the lock next releases.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::everything;
use crate::killed::killed_at;
use crate::support::echo::{Echo, ask_udp};
use crate::support::facts::veths;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};
use crate::support::process::Process;
use crate::support::wait::patience;
use crate::support::{Place, soon};

/// Room for one pod.
fn small() -> Value {
    conf("1.1.0", json!({ "subnet": "10.1.2.0/30" }))
}

/// Holds a lock until it is killed.
fn hold(host: &PluginHost, lock: &str) -> Process {
    let holder = host.spawn(&mut command(&format!("flock -F {lock} sleep 600")));
    soon("the lock is held", || !host.run(&format!("flock -n {lock} true")).succeeded());
    holder
}

fn let_go(host: &PluginHost, holder: &Process, lock: &str) {
    holder.kill();
    soon("the lock is free", || host.run(&format!("flock -n {lock} true")).succeeded());
}

/// DEL succeeds in its time.
fn del_in_time(host: &PluginHost, conf: &Value, name: &str) {
    let answer = Call::new("DEL", conf, name).run(host);
    assert!(answer.ended.took < Duration::from_secs(15) * patience(), "{answer:?}");
    answer.ok();
}

fn notes(host: &PluginHost) -> Vec<String> {
    host.list(&format!("{STORE}/ended"))
}

/// As a DEL leaves it that could not get the lock.
fn end_by_hand(host: &PluginHost, result: &Value, name: &str) {
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    let address = address(result).split('/').next().unwrap();
    let gone = format!("ip link del {link}; ip neigh del {address} dev hz0");
    host.shell(&format!("cd {STORE}; mkdir -p ended; ln owners/{name}:eth0 ended/; {gone}")).ok();
}

fn address(result: &Value) -> &str {
    result["ips"][0]["address"].as_str().unwrap()
}

#[test]
fn an_address_is_free_once_the_lock_is_and_not_before() {
    let host = PluginHost::new();
    let lock = format!("{STORE}/lock");
    let first = host.add(&small(), "a");
    host.netns("b");
    let holder = hold(&host, &lock);
    del_in_time(&host, &small(), "a");
    assert_eq!(veths(&host), Vec::<String>::new());
    assert_eq!(notes(&host), ["a:eth0"]);
    let log = host.read("/var/log/humanz.log").unwrap();
    assert!(log.contains("warn") && log.contains("who takes it next releases"), "{log}");
    assert_eq!(Call::new("ADD", &small(), "b").run(&host).code(), 11);
    del_in_time(&host, &small(), "a");
    assert_eq!(host.list(&format!("{STORE}/owners")), ["a:eth0"]);
    let_go(&host, &holder, &lock);
    let status = Call::new("STATUS", &small(), "").with("CNI_CONTAINERID", "");
    status.with("CNI_NETNS", "").with("CNI_IFNAME", "").run(&host).ok();
    assert_eq!(notes(&host), ["a:eth0"], "STATUS changes nothing");
    let second = Call::new("ADD", &small(), "b").run(&host).ok();
    assert_eq!(address(&second), address(&first));
    assert_eq!(host.list(&format!("{STORE}/owners")), ["b:eth0"]);
    assert_eq!(notes(&host), Vec::<String>::new());
    Call::new("DEL", &small(), "b").run(&host).ok();
    host.assert_clean("after DEL");
}

#[test]
fn sixteen_dels_at_once_of_a_locked_store_succeed() {
    let host = PluginHost::new();
    let lock = format!("{STORE}/lock");
    let names: Vec<String> = (0..16).map(|number| format!("c{number}")).collect();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    for name in &names {
        host.add(&conf, name);
    }
    let holder = hold(&host, &lock);
    thread::scope(|scope| {
        for name in &names {
            // A runtime that lost patience sends the same twice.
            scope.spawn(|| del_in_time(&host, &conf, name));
            scope.spawn(|| del_in_time(&host, &conf, name));
        }
    });
    assert_eq!(notes(&host).len(), 16);
    let_go(&host, &holder, &lock);
    Call::new("DEL", &conf, "nobody").run(&host).ok();
    host.assert_clean("after the next call");
    assert_eq!(notes(&host), Vec::<String>::new());
}

/// nerdctl starts a container again under its id.
#[test]
fn a_note_of_a_former_attachment_never_frees_the_address_of_the_present_one() {
    let host = PluginHost::new();
    let lock = format!("{STORE}/lock");
    host.add(&small(), "a");
    let holder = hold(&host, &lock);
    del_in_time(&host, &small(), "a");
    host.shell(&format!("ln {STORE}/ended/a:eth0 /run/humanz/ipam/kept")).ok();
    let_go(&host, &holder, &lock);
    let result = Call::new("ADD", &small(), "a").run(&host).ok();
    assert_eq!(notes(&host), Vec::<String>::new());
    // As if the DEL had been held still until now: it had the same address.
    host.shell(&format!("mv /run/humanz/ipam/kept {STORE}/ended/a:eth0")).ok();
    let check = Call::new("CHECK", &small(), "a").key("prevResult", result.clone());
    check.run(&host).ok();
    assert_eq!(notes(&host), Vec::<String>::new());
    host.netns("b");
    assert_eq!(Call::new("ADD", &small(), "b").run(&host).code(), 100);
    check.run(&host).ok();
    // With the note of the former one in the place of its own.
    end_by_hand(&host, &result, "a");
    host.shell(&format!("echo '{{}}' > {STORE}/ended/other; ip netns del a")).ok();
    Call::new("ADD", &small(), "b").run(&host).ok();
    assert_eq!(host.list(&format!("{STORE}/quarantine")), ["other"]);
}

#[test]
fn a_del_killed_anywhere_before_its_note_is_finished_by_the_next() {
    let host = PluginHost::new();
    let lock = format!("{STORE}/lock");
    let calls = "?link,linkat,?mkdir,mkdirat,sendto,write,writev,socket,setns";
    let dels: Vec<(usize, String)> = (1..24).map(|when| (when, format!("c{when}"))).collect();
    for (_, name) in &dels {
        host.add(&everything(name), name);
    }
    let holder = hold(&host, &lock);
    let is_killed = |when: usize, name: &str| {
        let kill = format!("inject={calls}:signal=KILL:when={when}");
        let strace = format!("strace -f -qq -o /run/trace-{when} -e trace={calls} -e {kill}");
        !Call::new("DEL", &everything(name), name).under(&strace).run(&host).ended.succeeded()
    };
    let killed = thread::scope(|scope| {
        let spawn = |(when, name): &(usize, String)| {
            let (is_killed, when, name) = (&is_killed, *when, name.clone());
            scope.spawn(move || is_killed(when, &name))
        };
        let all: Vec<_> = dels.iter().map(spawn).collect();
        all.into_iter().map(|one| usize::from(one.join().unwrap())).sum::<usize>()
    });
    println!("{killed} of {} DELs were killed, {} left a note", dels.len(), notes(&host).len());
    assert!(killed > 5 && killed < dels.len(), "{killed}");
    let_go(&host, &holder, &lock);
    for (_, name) in &dels {
        Call::new("DEL", &everything(name), name).run(&host).ok();
    }
    host.assert_clean("after DEL again");
    assert_eq!(notes(&host), Vec::<String>::new());
}

#[test]
fn a_call_killed_anywhere_while_it_releases_what_has_ended_is_finished_by_the_next() {
    let host = PluginHost::new();
    host.add(&everything("alive"), "alive");
    let before = host.leftovers();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    let mut kills = 0;
    for when in 1.. {
        let result = host.add(&conf, "ended");
        end_by_hand(&host, &result, "ended");
        let killed = killed_at(&host, "DEL", &conf, when);
        Call::new("DEL", &conf, "c1").run(&host).ok();
        assert_eq!(host.leftovers(), before, "killed at call {when}");
        assert_eq!(notes(&host), Vec::<String>::new(), "killed at call {when}");
        host.run("ip netns del ended").ok();
        if !killed {
            break;
        }
        kills += 1;
    }
    println!("killed {kills} times");
    assert!(kills > 9, "{kills}");
}

#[test]
fn invalid_notes_block_no_other_pod() {
    let host = PluginHost::new();
    let alive = host.add(&everything("alive"), "alive");
    let ended = format!("{STORE}/ended");
    let torn = format!("head -c 40 {STORE}/owners/alive:eth0 > {ended}/torn");
    let of_another_boot =
        format!("sed 's/\"bootId\":\"[^\"]*/&x/' {STORE}/owners/alive:eth0 > {ended}/old");
    let others = format!(
        "mkdir {ended}/folder; : > {ended}/empty; head -c 4000 /dev/urandom > {ended}/noise"
    );
    host.shell(&format!("mkdir {ended}; {torn}; {of_another_boot}; {others}")).ok();
    host.add(&everything("c1"), "c1");
    assert_eq!(notes(&host), ["folder"]);
    let mut quarantined = host.list(&format!("{STORE}/quarantine"));
    quarantined.sort();
    assert_eq!(quarantined, ["empty", "noise", "torn"]);
    Call::new("CHECK", &everything("alive"), "alive").key("prevResult", alive).run(&host).ok();
}

/// Its packets would go to the next pod that gets the address.
#[test]
fn an_address_stays_reserved_while_its_host_port_cannot_be_closed() {
    let host = PluginHost::new();
    let lock = "/run/humanz/ipam/.hostports/lock";
    let mapping = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" });
    let of_pod = conf(
        "1.1.0",
        json!({ "subnet": "10.1.2.0/30", "runtimeConfig": { "portMappings": [mapping] } }),
    );
    host.add(&of_pod, "a");
    host.netns("b");
    let holder = hold(&host, lock);
    del_in_time(&host, &of_pod, "a");
    assert_eq!(veths(&host), Vec::<String>::new());
    assert_eq!(Call::new("ADD", &small(), "b").run(&host).code(), 100);
    assert!(
        host.leftovers().iter().any(|left| left.starts_with("port ")),
        "{:?}",
        host.leftovers()
    );
    let_go(&host, &holder, lock);
    Call::new("ADD", &small(), "b").run(&host).ok();
    assert!(
        !host.leftovers().iter().any(|left| left.starts_with("port ")),
        "{:?}",
        host.leftovers()
    );
    Call::new("DEL", &small(), "b").run(&host).ok();
    host.assert_clean("after DEL");
}

/// They would lead to the next pod with the address.
#[test]
fn flows_over_udp_end_with_the_port_that_a_held_lock_kept_open() {
    let host = PluginHost::new();
    let lock = "/run/humanz/ipam/.hostports/lock";
    let to = "192.0.2.11:8080".parse().unwrap();
    let mapping = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "udp" });
    let keys = json!({ "subnet": "10.1.2.0/30", "runtimeConfig": { "portMappings": [mapping] } });
    let of_pod = conf("1.1.0", keys);
    let flows = || host.run("conntrack -L -p udp --orig-port-dst 8080").stdout;
    host.add(&of_pod, "a");
    let holder = hold(&host, lock);
    del_in_time(&host, &of_pod, "a");
    assert!(ask_udp(&*host, 5000, to).is_err());
    assert!(flows().contains("sport=5000"), "{}", flows());
    let_go(&host, &holder, lock);
    host.add(&small(), "b");
    assert!(!flows().contains("sport=5000"), "{}", flows());
    // A container that comes again without a DEL between.
    Call::new("DEL", &small(), "b").run(&host).ok();
    host.add(&of_pod, "again");
    let echo = Echo::serve(&host.container("again"), 80);
    ask_udp(&*host, 5001, to).unwrap();
    drop(echo);
    host.run("ip netns del again").ok();
    soon("its link is deleted too", || veths(&host).is_empty());
    assert!(flows().contains("sport=5001"), "{}", flows());
    host.add(&small(), "again");
    assert!(!flows().contains("sport=5001"), "{}", flows());
}

/// There is nothing to leave a note of.
#[test]
fn ports_without_an_entry_whose_lock_is_held_are_a_reason_to_try_again() {
    let host = PluginHost::new();
    let folder = "/run/humanz/ipam/.hostports";
    let lock = format!("{folder}/lock");
    let mapping = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" });
    let keys = json!({ "subnet": "10.1.2.0/30", "runtimeConfig": { "portMappings": [mapping] } });
    let conf = conf("1.1.0", keys);
    let result = host.add(&conf, "a");
    host.run(&format!("rm -r {STORE}")).ok();
    let holder = hold(&host, &lock);
    let del = Call::new("DEL", &conf, "a").key("prevResult", result);
    let answer = del.run(&host);
    assert_eq!(answer.code(), 11, "{answer:?}");
    assert_eq!(veths(&host), Vec::<String>::new());
    let_go(&host, &holder, &lock);
    del.run(&host).ok();
    host.assert_clean("after DEL");
    // Nothing is open: nothing waits for the lock.
    let holder = hold(&host, &lock);
    del_in_time(&host, &conf, "a");
    let_go(&host, &holder, &lock);
}

#[test]
fn without_room_for_a_note_the_answer_is_to_try_again() {
    let host = PluginHost::new();
    host.run("mkdir /run/store").ok();
    host.shell("mount -t tmpfs -o nr_inodes=40 tmpfs /run/store").ok();
    let conf = Call::new("ADD", &small(), "").key("dataDir", json!("/run/store")).conf;
    host.add(&conf, "a");
    let lock = "/run/store/net/lock";
    let holder = hold(&host, lock);
    host.shell("seq -f /run/store/full%g 40 | xargs touch 2>&1 | grep 'No space'").ok();
    let answer = Call::new("DEL", &conf, "a").run(&host);
    assert_eq!(answer.code(), 11, "{}", answer.error());
    assert!(answer.error().contains("no note can be left"), "{}", answer.error());
    assert_eq!(veths(&host), Vec::<String>::new());
    let_go(&host, &holder, lock);
    Call::new("DEL", &conf, "a").run(&host).ok();
    assert_eq!(host.list("/run/store/net/owners"), Vec::<String>::new());
}
