//! The environment variables of the runtime.

use crate::support::Place;
use crate::{Call, Machine};

const PLUGINS: [&str; 2] = ["humanz", "loopback"];

#[test]
fn a_container_id_with_invalid_characters_is_refused() {
    let machine = Machine::new();
    for plugin in PLUGINS {
        for command in ["ADD", "CHECK", "DEL"] {
            for id in ["some-%%container-id", "../../etc", "-x", "a/b", "a b"] {
                let call = Call::new(plugin, command).with("CNI_CONTAINERID", id);
                let refusal = call.refused(&machine);
                refusal.says(4, &["CNI_CONTAINERID"]);
                assert_eq!(refusal.details, id);
            }
        }
    }
}

#[test]
fn an_interface_name_that_the_kernel_would_refuse_is_refused() {
    let machine = Machine::new();
    for command in ["ADD", "CHECK", "DEL"] {
        for name in ["1234567890123456", ".", "..", "test/test", "test:test", "test test"] {
            let call = Call::new("humanz", command).with("CNI_IFNAME", name);
            call.refused(&machine).says(4, &["CNI_IFNAME", name]);
        }
    }
}

#[test]
fn each_missing_variable_is_reported() {
    let machine = Machine::new();
    for command in ["ADD", "CHECK"] {
        for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
            let call = Call::new("humanz", command);
            call.clone().without(name).refused(&machine).says(4, &[name]);
            call.with(name, "").refused(&machine).says(4, &[name]);
        }
    }
    for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"] {
        Call::new("humanz", "DEL").without(name).refused(&machine).says(4, &[name]);
    }
}

#[test]
fn several_missing_variables_are_one_error_in_order() {
    let machine = Machine::new();
    let call = Call::new("humanz", "ADD").without("CNI_NETNS").without("CNI_IFNAME");
    let refusal = call.without("CNI_PATH").refused(&machine);
    refusal.says(4, &["CNI_NETNS, CNI_IFNAME, CNI_PATH"]);
}

#[test]
fn del_needs_no_namespace_and_no_arguments() {
    let machine = Machine::new();
    for plugin in PLUGINS {
        let call = Call::new(plugin, "DEL").without("CNI_ARGS");
        call.clone().without("CNI_NETNS").silent(&machine);
        call.with("CNI_NETNS", "").silent(&machine);
    }
}

#[test]
fn gc_and_status_need_no_container_and_ignore_invalid_container_variables() {
    let machine = Machine::new();
    let gc = Call::new("humanz", "GC")
        .conf(serde_json::json!({ "cni.dev/valid-attachments": [] }))
        .with("CNI_CONTAINERID", "../..")
        .with("CNI_IFNAME", "a/b")
        .with("CNI_NETNS", "%")
        .with("CNI_ARGS", ";;;");
    gc.silent(&machine);
    let bare = ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"];
    let gc = bare.into_iter().fold(gc, |call, name| call.without(name));
    gc.silent(&machine);
    gc.clone().without("CNI_PATH").refused(&machine).says(4, &["CNI_PATH"]);
    gc.with("CNI_COMMAND", "STATUS").without("CNI_PATH").refused(&machine).says(4, &["CNI_PATH"]);
}

#[test]
fn an_unknown_command_is_reported() {
    let machine = Machine::new();
    for plugin in PLUGINS {
        for bad in ["NOPE", "add", "GET"] {
            let refusal = Call::new(plugin, bad).refused(&machine);
            refusal.says(4, &["unknown CNI_COMMAND", bad]);
        }
    }
}

#[test]
fn arguments_are_pairs_and_unknown_ones_need_ignore_unknown() {
    let machine = Machine::new();
    for (args, word) in [
        ("Unk=nown", "Unk=nown"),
        ("IgnoreUnknown=0, Unk=nown", "CNI_ARGS"),
        ("IgnoreUnknown=1;", "CNI_ARGS"),
        ("IgnoreUnknown=1;K", "CNI_ARGS"),
        ("IP=10.9.9.300", "IP"),
        ("MAC=potato", "MAC"),
    ] {
        let call = Call::new("humanz", "ADD").with("CNI_ARGS", args);
        call.refused(&machine).says(4, &[word]);
        // DEL of a container that was never added must succeed.
        call.with("CNI_COMMAND", "DEL").silent(&machine);
    }
    Call::new("loopback", "ADD").with("CNI_ARGS", "IgnoreUnknown=True;Unk=nown").answer(&machine);
}

#[test]
fn the_plugins_own_namespace_is_refused_before_any_change() {
    let machine = Machine::new();
    machine.node.run("ip link add hzt0 up type bridge").ok();
    let before = machine.node.run("ip -o link").ok();
    let call = Call::new("humanz", "ADD").with("CNI_NETNS", "/proc/self/ns/net");
    call.refused(&machine).says(8, &["CNI_NETNS", "/proc/self/ns/net"]);
    assert_eq!(machine.node.run("ip -o link").ok(), before);
    assert_eq!(machine.reserved(), Vec::<String>::new());
    machine.node.run("ip link set lo down").ok();
    let call = Call::new("loopback", "ADD").with("CNI_NETNS", "/proc/self/ns/net");
    call.refused(&machine).says(8, &["CNI_NETNS", "/proc/self/ns/net"]);
    let shown = machine.node.run("ip link show lo").ok();
    assert!(!shown.contains("LOOPBACK,UP"), "{shown}");
    for leave in ["1", "true", "TRUE"] {
        let call = Call::new("loopback", "ADD").with("CNI_NETNS", "/proc/self/ns/net");
        call.with("CNI_NETNS_OVERRIDE", leave).answer(&machine);
    }
}

#[test]
fn a_path_that_is_no_namespace_fails_add_and_is_ignored_by_del() {
    let machine = Machine::new();
    machine.node.write("/run/left-over", "");
    for plugin in PLUGINS {
        for path in ["/run/netns/nobody", "/run/left-over"] {
            let call = Call::new(plugin, "ADD").with("CNI_NETNS", path);
            let refusal = call.refused(&machine);
            assert!(format!("{refusal:?}").contains(path), "{refusal:?}");
            call.with("CNI_COMMAND", "DEL").silent(&machine);
        }
    }
}
