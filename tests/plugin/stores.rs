//! A store that was lost, and several that give out one subnet: no address has two owners.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::facts::veths;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// Both families.
fn dual() -> Value {
    conf("1.1.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/28" }], [{ "subnet": "fd00::/64" }]] }))
}

/// As after an edited CNI_NAME.
fn renamed() -> Value {
    Call::new("ADD", &dual(), "").key("name", json!("renamed")).conf
}

/// As after an edited IPAM_DIR.
fn moved() -> Value {
    Call::new("ADD", &dual(), "").key("dataDir", json!("/run/moved")).conf
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

/// The host reaches every address of these pods, each at the pod that has it.
fn assert_reached(host: &PluginHost, results: &[Value]) {
    let mut seen: Vec<String> = results.iter().flat_map(addresses).collect();
    for address in &seen {
        host.run(&format!("ping -n -c 1 -W 5 {address}")).ok();
    }
    seen.sort();
    let all = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), all, "an address has two owners: {seen:?}");
    let macs = |result: &Value| result["interfaces"][2]["mac"].as_str().unwrap().to_owned();
    for result in results {
        let pinned = host.ip("-d neigh show dev hz0 nud permanent");
        let (mac, pinned) = (macs(result), pinned.to_string());
        assert_eq!(pinned.matches(&format!("\"lladdr\":\"{mac}\"")).count(), 2, "{pinned}");
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        let entries = host.run(&format!("bridge fdb show brport {port}")).ok();
        assert!(entries.contains(&mac), "{mac} at {port}: {entries}");
    }
}

#[test]
fn addresses_of_running_pods_of_another_store_are_not_given_out() {
    for other in [renamed(), moved()] {
        let host = PluginHost::new();
        let mut results: Vec<Value> = ["a", "b"].map(|name| host.add(&dual(), name)).into();
        results.extend(["c", "d"].map(|name| host.add(&other, name)));
        assert_reached(&host, &results);
        // The first store goes on as before, behind both.
        results.push(host.add(&dual(), "e"));
        assert_reached(&host, &results);
        for (name, conf) in
            [("a", dual()), ("b", dual()), ("c", other.clone()), ("d", other), ("e", dual())]
        {
            Call::new("DEL", &conf, name).run(&host).ok();
        }
        host.assert_clean("after every DEL");
    }
}

#[test]
fn a_lost_store_gives_no_address_of_a_running_pod_out_again() {
    let host = PluginHost::new();
    let mut results: Vec<Value> = ["a", "b", "dead"].map(|name| host.add(&dual(), name)).into();
    let dead = results.remove(2);
    host.run(&format!("ip link del {}", dead["interfaces"][1]["name"].as_str().unwrap())).ok();
    host.run("rm -r /run/humanz").ok();
    results.extend(["c", "d"].map(|name| host.add(&dual(), name)));
    assert_reached(&host, &results);
    assert_eq!(addresses(&results[2]), addresses(&dead), "nobody has it: its interface is gone");
    Call::new("DEL", &dual(), "a").key("prevResult", results[0].clone()).run(&host).ok();
    results.remove(0);
    assert_reached(&host, &results);
}

#[test]
fn a_requested_address_or_mac_of_a_running_pod_of_another_store_is_refused() {
    let host = PluginHost::new();
    let first = host.add(&dual(), "a");
    host.netns("b");
    let before = host.leftovers();
    let mac = first["interfaces"][2]["mac"].as_str().unwrap();
    for (args, code) in [
        ("IP=10.1.2.2".to_owned(), 101),
        ("IP=fd00::2".to_owned(), 101),
        (format!("MAC={mac}"), 101),
    ] {
        let answer = Call::new("ADD", &renamed(), "b").with("CNI_ARGS", &args).run(&host);
        assert_eq!(answer.code(), code, "{args}: {}", answer.error());
        assert!(answer.error().contains("humanz net a eth0"), "{args}: {}", answer.error());
        assert_eq!(host.leftovers(), before, "{args}");
    }
    assert_reached(&host, &[first]);
}

#[test]
fn a_subnet_full_of_another_stores_pods_is_exhausted() {
    let host = PluginHost::new();
    let small = |name: &str| conf("1.1.0", json!({ "name": name, "subnet": "10.1.2.0/30" }));
    host.add(&small("net"), "a");
    host.netns("b");
    let answer = Call::new("ADD", &small("renamed"), "b").run(&host);
    assert_eq!(answer.code(), 100, "{}", answer.error());
    assert!(answer.error().contains("humanz net a eth0"), "{}", answer.error());
    Call::new("DEL", &small("net"), "a").run(&host).ok();
    Call::new("ADD", &small("renamed"), "b").run(&host).ok();
}

#[test]
fn two_stores_at_once_give_no_address_twice() {
    let host = PluginHost::new();
    let names: Vec<String> = (0..12).map(|number| format!("c{number}")).collect();
    names.iter().for_each(|name| host.netns(name));
    let results: Vec<Value> = std::thread::scope(|scope| {
        let add = |(number, name): (usize, &String)| {
            let conf = if number % 2 == 0 { dual() } else { renamed() };
            let (host, name) = (&host, name.clone());
            // The runtime tries again after code 11.
            scope.spawn(move || {
                for _ in 0..50 {
                    let answer = Call::new("ADD", &conf, &name).run(host);
                    if answer.ended.succeeded() {
                        return answer.value;
                    }
                    assert_eq!(answer.code(), 11, "{}", answer.error());
                }
                panic!("{name} does not start");
            })
        };
        let running: Vec<_> = names.iter().enumerate().map(add).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    assert_eq!(veths(&host).len(), 12);
    assert_reached(&host, &results);
}
