//! Many concurrent pods.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::facts::veths;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// Runs `task` for 0 to `count` on sixteen threads.
fn in_parallel(count: usize, task: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    task(number);
                }
            });
        }
    });
}

/// A host port of its own, and limits.
fn requested_settings(number: usize) -> Value {
    let port = json!({ "hostPort": 8000 + number, "containerPort": 80, "protocol": "tcp" });
    let limits = json!({ "ingressRate": 8_000_000, "egressRate": 8_000_000 });
    json!({ "portMappings": [port], "bandwidth": limits })
}

#[test]
fn two_hundred_adds_sixteen_at_once_and_two_hundred_dels() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let names: String = (0..200).map(|number| format!("netns add c{number}\n")).collect();
    host.run_command(&mut crate::support::node::command("ip -batch -"), &names).ok();
    let given = Mutex::new(BTreeSet::new());
    let started = Instant::now();
    // The bridge is made by the first; they race for it.
    in_parallel(200, |number| {
        let name = format!("c{number}");
        let call = Call::new("ADD", &conf, &name).key("runtimeConfig", requested_settings(number));
        let result = call.run(&host).ok();
        let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
        assert!(given.lock().unwrap().insert(address.clone()), "{address} was given twice");
    });
    println!("200 ADDs, 16 at once: {:?}", started.elapsed());
    assert_eq!(veths(&host).len(), 200);
    let started = Instant::now();
    in_parallel(200, |number| {
        Call::new("DEL", &conf, &format!("c{number}")).run(&host).ok();
    });
    println!("200 DELs, 16 at once: {:?}", started.elapsed());
    host.assert_clean("after all DELs");
}

#[test]
fn a_full_bridge_is_reported_and_nothing_is_left_of_the_refused_pod() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.0.0/16" }));
    host.add(&conf, "c1");
    let ports: String = (0..1022)
        .map(|number| format!("link add d{number} master hz0 type veth peer name e{number}\n"))
        .collect();
    host.run_command(&mut crate::support::node::command("ip -batch -"), &ports).ok();
    let before = host.leftovers();
    host.netns("late");
    let answer = Call::new("ADD", &conf, "late").run(&host);
    assert_eq!(answer.code(), 105);
    assert!(answer.error().contains("bridge hz0 is full"), "{}", answer.error());
    assert_eq!(host.leftovers(), before);
    let ask = crate::support::plugin_host::conf("1.1.0", json!({ "subnet": "10.1.0.0/16" }));
    let status = || Call::new("STATUS", &ask, "").run(&host);
    assert_eq!(status().code(), 50);
    assert!(status().error().contains("1,023 ports"), "{}", status().error());
    host.run("ip link del d0").ok();
    assert!(status().ended.succeeded());
    Call::new("ADD", &conf, "late").run(&host).ok();
}
