//! The plugin as podman 5 and its netavark call it: arguments, stdin, stdout, exit code, on the real kernel.

use serde_json::{Value, json};

use crate::support::cni::PLUGINS;
use crate::support::node::command;
use crate::support::{Ended, Place, facts, soon};
use crate::{Machine, NETNS};

const CONF: &str = "/etc/cni/net.d/10-net.conf";

/// A machine with a configuration for the network `net`.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.node.run("mkdir -p /etc/cni/net.d").ok();
    let conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "humanz", "bridge": "hzt0",
        "subnet": "10.9.9.0/24" });
    machine.node.write(CONF, &conf.to_string());
    machine
}

/// One call, with an environment that means something to CNI and to loggers.
fn call(machine: &Machine, arguments: &str, stdin: &str) -> Ended {
    let mut command = command(&format!("{PLUGINS}/humanz {arguments}"));
    command.env("CNI_COMMAND", "DEL").env("RUST_LOG", "netavark=warn,trace");
    machine.node.run_command(&mut command, stdin)
}

fn answer(machine: &Machine, arguments: &str, stdin: &Value) -> Value {
    let ended = call(machine, arguments, &stdin.to_string());
    assert!(ended.succeeded() && ended.stderr.is_empty(), "{ended}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended}"))
}

/// The sentence of a call that fails: alone on stdout, as netavark reads it.
fn refused(ended: &Ended) -> String {
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    let object: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended}"));
    assert_eq!(object.as_object().unwrap().len(), 1, "{object}");
    object["error"].as_str().unwrap().to_owned()
}

/// What podman 5.4.2 wrote for `podman network create --driver humanz mine`.
fn network() -> Value {
    json!({ "name": "mine", "id": "928c9973", "driver": "humanz", "created": "2026-11-26T06:01:24.896048506Z",
        "ipv6_enabled": false, "internal": false, "dns_enabled": true })
}

/// What netavark 1.14.0 wrote for a container in that network; `null` takes the ports away.
fn container(id: &str, ifname: &str, ports: Value) -> Value {
    json!({
        "container_id": id, "container_name": format!("name-of-{id}"), "port_mappings": ports,
        "network": { "dns_enabled": false, "driver": "humanz", "id": "928c9973", "internal": false,
            "ipv6_enabled": false, "name": "mine", "network_interface": null,
            "options": { "config": CONF, "network": "net" }, "ipam_options": { "driver": "none" },
            "subnets": null, "routes": null, "network_dns_servers": null },
        "network_options": { "aliases": [id], "interface_name": ifname, "static_ips": null,
            "static_mac": null, "options": null },
    })
}

fn teardown(machine: &Machine, container: &Value) {
    let ended = call(machine, &format!("teardown {NETNS}"), &container.to_string());
    assert!(ended.succeeded() && ended.stdout.is_empty() && ended.stderr.is_empty(), "{ended}");
}

fn nothing_is_left(machine: &Machine) {
    assert_eq!((machine.reserved(), facts::veths(&machine.node)), (vec![], vec![]));
}

#[test]
fn a_network_is_made_and_a_container_comes_and_goes() {
    let machine = machine();
    let info = answer(&machine, "info", &json!({}));
    assert_eq!(info["api_version"], "1.0.0");
    let made = answer(&machine, "create", &network());
    let started = container("c1", "eth0", Value::Null);
    assert_eq!(made["options"], started["network"]["options"]);
    assert_eq!(made["ipam_options"], started["network"]["ipam_options"]);

    let mut fixed = started.clone();
    fixed["network_options"]["static_ips"] = json!(["10.9.9.77"]);
    fixed["network_options"]["static_mac"] = json!("02:11:22:33:44:55");
    let status = answer(&machine, &format!("setup {NETNS}"), &fixed);
    let wanted = json!({ "mac_address": "02:11:22:33:44:55",
        "subnets": [{ "ipnet": "10.9.9.77/24", "gateway": "10.9.9.1" }] });
    assert_eq!(status["interfaces"], json!({ "eth0": wanted }));
    let seen = machine.node.run("ip -n pod -o address show eth0").ok();
    assert!(seen.contains("10.9.9.77/24"), "{seen}");
    assert_eq!(machine.reserved(), ["10.9.9.77"]);

    // The address is another container's now.
    let mut other = fixed.clone();
    other["container_id"] = json!("c2");
    let said = refused(&call(&machine, &format!("setup {NETNS}"), &other.to_string()));
    assert!(said.contains("10.9.9.77") && said.contains("name-of-c1"), "{said}");
    let log = machine.node.read("/var/log/humanz.log").unwrap();
    assert!(log.contains("ADD net container=c1 ifname=eth0 pod=name-of-c1"), "{log}");

    teardown(&machine, &fixed);
    nothing_is_left(&machine);
    teardown(&machine, &fixed);
}

/// podman runs its containers' networks through humanz alone; the CNI runtimes of the same machine may have more.
#[test]
fn a_configuration_with_another_plugin_starts_no_container_and_holds_up_no_other_one_and_no_end() {
    let machine = machine();
    let started = container("c1", "eth0", Value::Null);
    answer(&machine, &format!("setup {NETNS}"), &started);
    let chained = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
        { "type": "humanz", "bridge": "hzt0", "subnet": "10.9.9.0/24" }, { "type": "tuning" },
    ] });
    machine.node.write(CONF, &chained.to_string());
    let said = refused(&call(&machine, &format!("setup {NETNS}"), &started.to_string()));
    assert!(said.contains("\"tuning\" is chained"), "{said}");
    teardown(&machine, &started);
    nothing_is_left(&machine);
    let said = refused(&call(&machine, "create", &network().to_string()));
    assert!(said.contains("\"tuning\" is chained"), "{said}");

    let other = json!({ "cniVersion": "1.0.0", "name": "pods", "type": "humanz", "bridge": "hzt1",
        "subnet": "10.9.8.0/24" });
    machine.node.write("/etc/cni/net.d/20-pods.conf", &other.to_string());
    let mut asked = network();
    for options in [json!({ "network": "pods" }), json!(null)] {
        asked["options"] = options;
        let made = answer(&machine, "create", &asked);
        assert_eq!(made["options"]["network"], "pods", "{made}");
    }
}

#[test]
fn what_is_gone_already_is_torn_down() {
    let machine = machine();
    let started =
        container("c1", "eth0", json!([{ "host_port": 8080, "container_port": 80, "range": 2 }]));
    answer(&machine, &format!("setup {NETNS}"), &started);
    machine.node.run("ip netns delete pod").ok();
    teardown(&machine, &started);
    nothing_is_left(&machine);
    machine.node.run("ip netns add pod").ok();
    answer(&machine, &format!("setup {NETNS}"), &started);
    // Nobody tore it down, and it starts again.
    machine.node.run("ip netns delete pod").ok();
    // The kernel removes what was in it a moment later; until then the container may still be running there.
    soon("the port is gone", || facts::veths(&machine.node).is_empty());
    machine.node.run("ip netns add pod").ok();
    answer(&machine, &format!("setup {NETNS}"), &started);
    assert_eq!((machine.reserved().len(), facts::veths(&machine.node).len()), (1, 1));
    // By name, from the store, when the configuration is gone or has another network.
    let conf = machine.node.read(CONF).unwrap();
    machine.node.write(CONF, &conf.replace("\"net\"", "\"other\""));
    let said = refused(&call(&machine, &format!("setup {NETNS}"), &started.to_string()));
    assert!(said.contains("podman network create --driver humanz mine"), "{said}");
    machine.node.run(&format!("rm {CONF}")).ok();
    let said = refused(&call(&machine, "create", &network().to_string()));
    assert!(said.contains("humanz-agent init"), "{said}");
    teardown(&machine, &started);
    nothing_is_left(&machine);
    let rules = machine.node.run("nft list ruleset").ok();
    assert!(!rules.contains("8080"), "{rules}");
}

/// netavark passes the ports with each network.
#[test]
fn a_container_in_two_networks_has_its_ports_once() {
    let machine = machine();
    let ports = json!([{ "host_port": 8080, "container_port": 80, "protocol": "tcp", "host_ip": "", "range": 1 }]);
    let both = ["eth0", "eth1"].map(|ifname| container("c1", ifname, ports.clone()));
    for one in &both {
        answer(&machine, &format!("setup {NETNS}"), one);
    }
    assert_eq!(machine.reserved().len(), 2);
    let said = refused(&call(
        &machine,
        &format!("setup {NETNS}"),
        &container("c2", "eth2", ports).to_string(),
    ));
    assert!(said.contains("host port 8080/tcp"), "{said}");
    both.iter().for_each(|one| teardown(&machine, one));
    nothing_is_left(&machine);
}

#[test]
fn sixteen_at_once_have_sixteen_addresses() {
    let machine = machine();
    let numbers: Vec<u8> = (0..16).collect();
    let one = |number: &u8| {
        let id = format!("c{number}");
        machine.node.run(&format!("ip netns add {id}")).ok();
        let status = answer(
            &machine,
            &format!("setup /run/netns/{id}"),
            &container(&id, "eth0", Value::Null),
        );
        status["interfaces"]["eth0"]["subnets"][0]["ipnet"].to_string()
    };
    let mut all: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = numbers.iter().map(|it| scope.spawn(move || one(it))).collect();
        running.into_iter().map(|it| it.join().unwrap()).collect()
    });
    all.sort();
    all.dedup();
    assert_eq!((all.len(), machine.reserved().len()), (16, 16), "{all:?}");
}

#[test]
fn hostile_calls_are_refused_and_leave_nothing() {
    let machine = machine();
    let sound = container("c1", "eth0", Value::Null);
    let changed = |place: &str, value: Value| {
        let mut changed = sound.clone();
        *changed.pointer_mut(place).unwrap() = value;
        changed.to_string()
    };
    let cases = [
        (String::new(), "stdin is not JSON"),
        ("[".repeat(100_000), "stdin is not JSON"),
        (" ".repeat(2 << 20), "more than 1048576 bytes"),
        ("{}".to_owned(), "CNI_CONTAINERID"),
        (changed("/container_id", json!("../../etc/passwd")), "CNI_CONTAINERID"),
        (changed("/network_options/interface_name", json!("a/b")), "CNI_IFNAME"),
        (changed("/network_options/static_ips", json!(["192.0.2.1"])), "192.0.2.1"),
        (changed("/network/options/config", json!("/etc/shadow")), "/etc/shadow"),
        (changed("/network/options/config", json!("/dev/zero")), "/dev/zero has no CNI network"),
        (
            changed(
                "/port_mappings",
                json!([{ "host_port": 1, "container_port": 1, "range": 65535 }]),
            ),
            "16384",
        ),
    ];
    for (stdin, wanted) in cases {
        let said = refused(&call(&machine, &format!("setup {NETNS}"), &stdin));
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // The host itself is no container.
    for netns in ["/proc/self/ns/net", "/dev/null", "/nonexistent", ""] {
        refused(&call(&machine, &format!("setup {netns}"), &sound.to_string()));
    }
    nothing_is_left(&machine);
}

/// netavark that has ended meanwhile does not know of the container.
#[test]
fn a_reply_that_cannot_be_written_leaves_nothing() {
    let machine = machine();
    let script = format!("{PLUGINS}/humanz setup {NETNS} >/dev/full");
    let mut shell = command("sh -c");
    shell.arg(script);
    let ended =
        machine.node.run_command(&mut shell, &container("c1", "eth0", Value::Null).to_string());
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    nothing_is_left(&machine);
}
