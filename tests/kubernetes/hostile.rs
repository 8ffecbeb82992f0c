//! Invalid nodes: each affects its own host only.

use serde_json::json;

use crate::support::Place;
use crate::{Scene, node, routes_become, wait_logged};

#[test]
fn hostile_nodes_affect_no_other_node() {
    let scene = Scene::new(2, 0);
    let (api, host) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, &[]);
    let good = [("10.244.2.0/24", "192.0.2.12"), ("10.244.6.0/24", "192.0.2.96")];
    api.put(node("evil1", &["10.244.1.128/25"], &["192.0.2.81"]));
    api.put(node("evil2", &["0.0.0.0/0"], &["192.0.2.82"]));
    api.put(node("evil3", &["$(reboot)"], &["192.0.2.83"]));
    api.put(node("evil4", &["10.244.40.0/24"], &["192.0.2.11"]));
    api.put(node("evil5", &["10.244.50.0/24"], &["127.0.0.1"]));
    api.put(node("evil6", &["10.244.60.0/24"], &["10.244.60.1"]));
    let mut twin = node("evil7", &["10.244.2.0/24"], &["192.0.2.87"]);
    twin["metadata"]["creationTimestamp"] = json!("2026-11-20T18:46:01Z");
    api.put(twin);
    api.put(node("good", &["10.244.6.0/24"], &["192.0.2.96"]));
    routes_become(host, &good);
    for words in [
        "host evil1: subnet 10.244.1.128/25 is ignored: it overlaps 10.244.1.0/24 of host h1 (this host)",
        "host evil2: subnet 0.0.0.0/0 is ignored",
        "Kubernetes node \"evil3\": \"$(reboot)\" is not a subnet",
        "host evil4: address 192.0.2.11 is ignored: it is this host's own",
        "host evil5: address 127.0.0.1 is ignored",
        "host evil6: address 10.244.60.1 is ignored: it lies inside the pool",
        "host evil7: subnet 10.244.2.0/24 is ignored: it overlaps 10.244.2.0/24 of host h2",
    ] {
        wait_logged(&agent, words);
    }
    for number in 1..=7 {
        api.delete(&format!("evil{number}"));
    }
    wait_logged(&agent, "no longer: host evil7");
    routes_become(host, &good);
    host.run("ip link show humanz0").ok();
}
