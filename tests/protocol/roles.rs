//! One executable: the role by the name it is called by, and interactive calls.

use serde_json::{Value, json};

use crate::support::cni::PLUGINS;
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Ended, Place};
use crate::{Call, Machine};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn is_the_version_object(ended: Ended) {
    assert!(ended.succeeded() && ended.stderr.is_empty(), "{ended}");
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(object["supportedVersions"], json!(VERSIONS));
    assert!(VERSIONS.iter().any(|version| object["cniVersion"] == *version), "{object}");
}

#[test]
fn version_needs_no_variable_and_reads_nothing() {
    let machine = Machine::new();
    for plugin in ["humanz", "loopback"] {
        // A pipe whose other end never writes and never closes.
        let script =
            format!("mkfifo /tmp/p; exec 3<>/tmp/p; rm /tmp/p; exec {PLUGINS}/{plugin} <&3");
        let mut shell = command("timeout 20 sh -c");
        is_the_version_object(
            machine.node.run_command(shell.arg(script).env("CNI_COMMAND", "VERSION"), ""),
        );
        let call = Call::new(plugin, "VERSION").with("CNI_IFNAME", "a/b").with("CNI_ARGS", ";");
        is_the_version_object(call.stdin("{").run(&machine));
        is_the_version_object(Call::new(plugin, "VERSION").run(&machine));
    }
}

#[test]
fn an_interactive_call_prints_what_the_program_is() {
    let machine = Machine::new();
    for plugin in ["humanz", "loopback"] {
        for set in [None, Some("")] {
            let mut command = command(&format!("{PLUGINS}/{plugin}"));
            command.envs(set.map(|empty| ("CNI_COMMAND", empty)));
            let ended = machine.node.run_command(&mut command, "");
            assert!(ended.succeeded() && ended.stdout.is_empty(), "{ended}");
            assert!(ended.stderr.contains("CNI") && ended.stderr.contains("humanz"), "{ended}");
            assert!(VERSIONS.iter().all(|version| ended.stderr.contains(version)), "{ended}");
        }
    }
}

#[test]
fn any_other_name_is_the_plugin() {
    let machine = Machine::new();
    let other = "/opt/elsewhere/x-net";
    machine.node.shell(&format!("mkdir /opt/elsewhere; ln -s {EXECUTABLE} {other}")).ok();
    let call = Call::new("humanz", "VERSION");
    let mut command = command(other);
    is_the_version_object(machine.node.run_command(command.envs(&call.variables), ""));
}

#[test]
fn the_agent_called_as_a_plugin_reports_how_to_install_it() {
    let machine = Machine::new();
    let ended = Call::new("humanz-agent", "ADD").run(&machine);
    assert!(!ended.succeeded(), "{ended}");
    assert!(ended.stderr.contains("ln -s") && ended.stderr.contains("humanz-agent"), "{ended}");
}

#[test]
fn a_result_that_cannot_be_printed_is_a_failure() {
    let machine = Machine::new();
    for (plugin, verb) in [("humanz", "VERSION"), ("loopback", "ADD")] {
        let call = Call::new(plugin, verb);
        let mut shell = command("sh -c");
        shell.arg(format!("exec {PLUGINS}/{plugin} >/dev/full")).envs(&call.variables);
        let ended = machine.node.run_command(&mut shell, &call.stdin);
        assert!(ended.status.code().is_some_and(|code| code != 0), "{ended}");
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    }
}
