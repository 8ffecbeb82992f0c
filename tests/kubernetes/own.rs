//! This host's own subnets and addresses, from its node object.

use serde_json::json;

use crate::support::cni::Network;
use crate::support::wait::SOON;
use crate::support::{Agent, Place, Pod, eventually, facts, soon};
use crate::{Scene, count, node, node_of, routes_become, wait_logged, with};

#[test]
fn a_host_whose_node_has_no_pod_cidr_waits_and_logs_it() {
    let scene = Scene::new(1, 0);
    let (api, host) = (&scene.api, scene.host(1));
    api.delete("h1");
    let agent = Agent::start(host, &with(&[]));
    wait_logged(&agent, "the Kubernetes API has no node h1");
    api.put(node("h1", &[], &["192.0.2.11"]));
    wait_logged(
        &agent,
        "kube-controller-manager gives it one, if it is started with --allocate-node-cidrs",
    );
    assert_eq!(facts::addresses(host, "humanz0"), [""; 0]);
    api.edit("h1", |node| {
        node["spec"] = json!({"podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24"]})
    });
    agent.wait_ready();
    assert_eq!(facts::addresses(host, "humanz0"), ["10.244.7.1/24"]);
    Pod::add(host, "a").run("ping -n -c 1 -W 3 10.244.7.1").ok();
}

#[test]
fn a_host_keeps_its_subnet_for_its_pods_when_its_node_is_registered_anew() {
    let scene = Scene::new(2, 0);
    let (api, host) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, &[]);
    let pod = Pod::add(host, "a");
    api.delete("h1");
    wait_logged(&agent, "the Kubernetes API has no node h1");
    api.put(node("h1", &["10.244.9.0/24"], &["192.0.2.11"]));
    wait_logged(&agent, "has the podCIDR 10.244.9.0/24 now, and this host serves 10.244.1.0/24");
    // The others are followed all the same.
    api.put(node("n5", &["10.244.5.0/24"], &["192.0.2.95"]));
    routes_become(host, &[("10.244.2.0/24", "192.0.2.12"), ("10.244.5.0/24", "192.0.2.95")]);
    assert_eq!(facts::addresses(host, "humanz0"), ["10.244.1.1/24"]);
    pod.check().unwrap();
    // A crash of the agent is nothing that its pods notice.
    agent.kill();
    let agent = scene.serve(1, &[]);
    wait_logged(&agent, "has the podCIDR 10.244.9.0/24 now, and this host serves 10.244.1.0/24");
    assert_eq!(facts::addresses(host, "humanz0"), ["10.244.1.1/24"]);
    pod.check().unwrap();
    // Another node may have got the former podCIDR.
    let refused = eventually("no new pod gets an address of it", SOON, || {
        let added = Pod::try_add(host, "b", &Network::of(host));
        added.err().ok_or_else(|| "it got one".to_owned())
    });
    assert!(format!("{refused:?}").contains("10.244.9.0/24"), "{refused:?}");
    pod.delete();
    // Drained and restarted it serves the new one.
    agent.stop();
    let agent = scene.serve(1, &[]);
    soon("the bridge has the new gateway", || {
        facts::addresses(host, "humanz0") == ["10.244.9.1/24"]
    });
    api.put(node_of(host));
    wait_logged(&agent, "and this host serves 10.244.9.0/24");
}

#[test]
fn a_subnet_outside_the_pool_is_a_settings_error() {
    let scene = Scene::new(1, 0);
    let ended = Agent::run(scene.host(1), "", &with(&[("IP_SUBNET", "10.99.0.0/16")]));
    assert_eq!(ended.status.code(), Some(2), "{ended}");
    let words = "set IP_SUBNET to the --cluster-cidr";
    assert!(ended.stderr.contains(words), "{ended}");
    let ended = Agent::run(scene.host(1), "--dry-run", &with(&[("IPV6_SUBNET", "fd11::/48")]));
    assert!(ended.status.code() == Some(2) && ended.stderr.contains("IPV6_SUBNET"), "{ended}");
    let ended = Agent::run(scene.host(1), "--dry-run", &with(&[]));
    assert!(ended.stdout.contains("10.244.1.1/24"), "{ended}");
}

#[test]
fn a_host_that_boots_without_the_api_has_the_network_it_had() {
    let scene = Scene::new(2, 0);
    let (agent, _other) = (scene.serve(1, &[]), scene.serve(2, &[]));
    routes_become(scene.host(1), &[("10.244.2.0/24", "192.0.2.12")]);
    soon("what is known is kept", || {
        scene
            .host(1)
            .read("/var/lib/humanz/state.json")
            .is_some_and(|text| text.contains("10.244.2.0/24"))
    });
    let far = Pod::add(scene.host(2), "a");
    let boot_id = || scene.host(1).read("/proc/sys/kernel/random/boot_id").unwrap();
    let before = boot_id();
    scene.api.stop();
    agent.kill();
    drop(agent);
    scene.cluster.reboot(scene.host(1));
    assert_ne!(boot_id(), before);
    assert!(facts::routes(scene.host(1)).is_empty());
    assert_eq!(facts::addresses(scene.host(1), "humanz0"), [""; 0]);
    let agent = scene.serve(1, &[]);
    wait_logged(&agent, "serving the last known good state");
    let output = Agent::run(scene.host(1), "status", &with(&[]));
    for words in ["kubernetes  ", ", as far as was known last"] {
        assert!(output.stdout.contains(words), "{words:?} is not in: {output}");
    }
    let output = Agent::run(scene.host(1), "nodes ls", &with(&[]));
    assert!(output.stdout.contains("the Kubernetes API does not answer: "), "{output}");
    // A node has no field for it.
    let output = Agent::run(scene.host(1), "status --all --json", &with(&[]));
    let shown: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    let mtus: Vec<_> = shown["hosts"].as_array().unwrap().iter().map(|host| &host["mtu"]).collect();
    assert!(mtus.len() == 2 && mtus.iter().all(|mtu| mtu.is_null()), "{output}");
    assert_eq!(facts::addresses(scene.host(1), "humanz0"), ["10.244.1.1/24"]);
    routes_become(scene.host(1), &[("10.244.2.0/24", "192.0.2.12")]);
    let pod = Pod::add(scene.host(1), "a");
    pod.run(&format!("ping -n -c 1 -W 3 {}", far.v4())).ok();
    // Nodes missing from the list are removed, and only then.
    scene.api.delete("h2");
    scene.api.run();
    routes_become(scene.host(1), &[]);
}

#[test]
fn a_host_without_saved_state_waits_for_the_api() {
    let scene = Scene::new(1, 0);
    scene.api.stop();
    let agent = Agent::start(scene.host(1), &with(&[]));
    wait_logged(&agent, "the Kubernetes API does not answer");
    assert_eq!(facts::addresses(scene.host(1), "humanz0"), [""; 0]);
    scene.api.run();
    agent.wait_ready();
    assert_eq!(facts::addresses(scene.host(1), "humanz0"), ["10.244.1.1/24"]);
}

#[test]
fn the_node_address_is_the_internal_ip_and_not_that_of_the_default_route() {
    let scene = Scene::new(1, 1);
    let host = scene.host(1);
    host.run("ip address add 192.0.2.61/24 dev eth0").ok();
    scene.api.put(node("h1", &["10.244.1.0/24"], &["192.0.2.61"]));
    let agent = scene.serve(1, &[("BACKEND", "vxlan")]);
    wait_logged(&agent, "this host's address for the others: 192.0.2.61 (InternalIP)");
    let local = || host.run("ip -d link show humanz-vx4").stdout.contains("local 192.0.2.61");
    soon("the tunnel begins there", local);
    agent.reload();
    assert!(local(), "a reload forgets it");
    // An address that the host has not is none.
    scene.api.put(node("h1", &["10.244.1.0/24"], &["198.51.100.77"]));
    soon("it is changed back", || {
        host.run("ip -d link show humanz-vx4").stdout.contains("local 192.0.2.11")
    });
}

#[test]
fn network_unavailable_is_cleared_if_it_is_set_and_the_role_permits() {
    let scene = Scene::new(1, 0);
    let api = &scene.api;
    let unavailable =
        json!({"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"});
    let say = |api: &crate::Api| {
        api.edit("h1", |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|found| found["type"] != "NetworkUnavailable");
            conditions.push(unavailable.clone());
        });
    };
    api.forbid_patches();
    say(api);
    let agent = scene.serve(1, &[]);
    wait_logged(&agent, "let the role patch nodes/status");
    // Other nodes are no reason to ask again.
    api.put(node("n9", &["10.244.9.0/24"], &["192.0.2.99"]));
    for time in 0..50 {
        api.edit("n9", |node| node["status"]["heartbeat"] = json!(time));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    api.delete("n9");
    routes_become(scene.host(1), &[]);
    assert_eq!(api.patches(), 1);
    api.allow_patches();
    api.edit("h1", |node| node["status"]["conditions"][0]["status"] = json!("Unknown"));
    eventually("the condition is false", SOON, || {
        let conditions = api.node("h1")["status"]["conditions"].clone();
        let found = conditions
            .as_array()
            .unwrap()
            .iter()
            .find(|found| found["type"] == "NetworkUnavailable");
        let found = found.unwrap();
        let well = found["status"] == "False" && found["reason"] == "HumanzIsUp";
        if well { Ok(()) } else { Err(found.to_string()) }
    });
    assert_eq!(api.node("h1")["status"]["conditions"][0]["type"], "Ready", "and nothing else");
    assert_eq!(count(&agent, "let the role"), 1, "logged once");
}

#[test]
fn two_machines_under_one_name_do_not_serve_one_subnet() {
    let scene = Scene::new(1, 0);
    scene.api.edit("h1", |node| {
        node["status"]["nodeInfo"] = json!({"machineID": "0123", "bootID": "4567"});
    });
    let agent = Agent::start(scene.host(1), &with(&[]));
    wait_logged(&agent, "node h1 is another machine");
    assert_eq!(facts::addresses(scene.host(1), "humanz0"), [""; 0]);
    let id = scene.host(1).read("/etc/machine-id").unwrap();
    scene.api.edit("h1", |node| node["status"]["nodeInfo"]["machineID"] = json!(id.trim()));
    agent.wait_ready();
}
