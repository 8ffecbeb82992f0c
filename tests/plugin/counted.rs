//! Counters of plugin calls, with and without an agent.

use std::path::Path;
use std::thread;

use humanz::ipam::calls::{self, Calls, Series};
use serde_json::json;

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// The counters of the host.
fn counted(host: &PluginHost) -> Calls {
    host.inside(|| calls::read(Path::new("/run/humanz/ipam"))).unwrap()
}

fn count(calls: &Calls, verb: &'static str, code: u32) -> u64 {
    calls.get(&(verb, code)).map_or(0, Series::count)
}

#[test]
fn each_call_is_counted_by_verb_and_outcome() {
    let host = PluginHost::new();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/29" }));
    let added = host.add(&conf, "a");
    Call::new("CHECK", &conf, "a").key("prevResult", added).run(&host).ok();
    // The namespace is missing.
    let refused = Call::new("ADD", &conf, "nobody").run(&host);
    Call::new("DEL", &conf, "a").run(&host).ok();
    Call::new("DEL", &conf, "a").run(&host).ok();
    host.run("env CNI_COMMAND=VERSION /opt/cni/bin/humanz");
    let calls = counted(&host);
    assert_eq!(count(&calls, "ADD", 0), 1, "{calls:?}");
    assert_eq!(count(&calls, "ADD", u32::try_from(refused.code()).unwrap()), 1, "{calls:?}");
    assert_eq!((count(&calls, "CHECK", 0), count(&calls, "DEL", 0)), (1, 2), "{calls:?}");
    assert_eq!(calls.len(), 4, "{calls:?}");
    let took = calls[&("ADD", 0)].micros;
    assert!((1..60_000_000).contains(&took), "{took} µs");
}

#[test]
fn calls_at_once_are_all_counted() {
    let host = PluginHost::new();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    host.add(&conf, "first");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    Call::new("DEL", &conf, "none").run(&host).ok();
                }
            });
        }
    });
    assert_eq!(count(&counted(&host), "DEL", 0), 100);
}

#[test]
fn a_call_that_cannot_be_counted_works_all_the_same() {
    let host = PluginHost::new();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    host.shell("mkdir -p /run/humanz/ipam; echo mine > /run/humanz/ipam/.calls").ok();
    host.add(&conf, "a");
    Call::new("DEL", &conf, "a").run(&host).ok();
    assert_eq!(host.read("/run/humanz/ipam/.calls").as_deref(), Some("mine\n"));
}
