//! The agent's command line: options, variables, exit codes, messages.

use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Ended, Place, soon};
use crate::{CONFIGURATION, STANDALONE, alone, assert_unchanged, standalone, state};

fn refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {ended}");
    }
}

#[test]
fn help_names_every_setting_and_exit_code() {
    let alone = alone();
    let help = Agent::run(&alone.host, "--help", &[]).ok();
    for word in ["--etcd-host", "--cleanup-on-stop", "--dry-run", "config --check", "69", "75"] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
    assert!(Agent::run(&alone.host, "--version", &[]).ok().starts_with("humanz-agent 0."));
    let help = Agent::run(&alone.host, "check-config --help", &[]).ok();
    assert!(help.contains("Usage: humanz-agent config"), "{help}");
}

#[test]
fn invalid_arguments_exit_with_code_2() {
    let alone = alone();
    refused(&Agent::run(&alone.host, "--etcd-hots x", &[]), 2, &["--etcd-hots"]);
    refused(&Agent::run(&alone.host, "chek-config", &[]), 2, &["chek-config"]);
    refused(&Agent::run(&alone.host, "", &[("ETCD_HOST", "")]), 2, &["ETCD_HOST", "--standalone"]);
}

#[test]
fn all_errors_are_reported_at_once() {
    let alone = alone();
    let wrong = [("IP_SUBNET", "10.1.2.3/16"), ("MTU", "9"), ("ETCD_CACERT", "ca.pem")];
    let ended = Agent::run(&alone.host, "check-config", &wrong);
    refused(&ended, 2, &["IP_SUBNET=10.1.2.3/16", "10.1.0.0/16", "MTU=9", "ETCD_CACERT=ca.pem"]);
    refused(&ended, 2, &["ETCD_HOST=192.0.2.2: ETCD_CACERT is set"]);
    assert_eq!(ended.stderr.lines().count(), 5, "a heading and a line each: {ended}");
}

#[test]
fn invalid_values_and_host_checks_are_reported_together() {
    let alone = alone();
    let wrong = [
        ("BRIDGE_NAME", "lo"),
        ("MTU", "12"),
        ("IP_SUBNET", "192.0.0.0/16"),
        ("ETCD_CACERT", "/nope"),
        ("ETCD_HOST", "192.0.2.2"),
        ("RUST_LOG", "bogus"),
    ];
    let ended = Agent::run(&alone.host, "check-config", &wrong);
    let each = ["ETCD_HOST=192", "/nope", "IP_SUBNET=192", "BRIDGE_NAME=lo", "MTU=12", "RUST_LOG="];
    refused(&ended, 2, &each);
    assert_eq!(ended.stderr.lines().count(), 1 + each.len(), "{ended}");
    // Whose addresses lie in the pool is not asked as long as the bridge is not known.
    alone.host.shell("ip link add br7 type bridge; ip addr add 10.244.3.1/24 dev br7").ok();
    let ended = Agent::run(&alone.host, "check-config", &standalone(&[("BRIDGE_NAME", "b/r")]));
    refused(&ended, 2, &["BRIDGE_NAME=b/r"]);
    assert_eq!(ended.stderr.lines().count(), 2, "{ended}");
}

#[test]
fn a_subnet_without_effect_is_reported() {
    let alone = alone();
    let both = [("SUBNET", "10.244.9.0/24"), ("ETCD_HOST", "192.0.2.2")];
    let ended = Agent::run(&alone.host, "check-config", &both);
    assert!(ended.succeeded(), "{ended}");
    assert!(ended.stderr.contains("SUBNET=10.244.9.0/24 has no effect"), "{ended}");
    let ended = Agent::run(&alone.host, "check-config", &standalone(&both[..1]));
    assert_eq!(ended.stderr, "", "{ended}");
}

#[test]
fn a_log_filter_that_would_silence_the_log_is_an_error() {
    let alone = alone();
    for line in ["check-config", "config", "--once"] {
        let ended = Agent::run(&alone.host, line, &standalone(&[("RUST_LOG", "bogus")]));
        refused(&ended, 2, &["RUST_LOG=bogus", "must be a level"]);
    }
    let both = standalone(&[("RUST_LOG", "humanz"), ("MTU", "9")]);
    refused(&Agent::run(&alone.host, "check-config", &both), 2, &["MTU=9", "RUST_LOG=humanz"]);
    let right = standalone(&[("RUST_LOG", "warn,humanz::agent=debug")]);
    Agent::run(&alone.host, "check-config", &right).ok();
}

#[test]
fn bridge_names_reserved_by_the_kernel_are_errors() {
    let alone = alone();
    for (name, why) in
        [("hz%d", "contains '%'"), ("all", "not allowed"), ("default", "not allowed")]
    {
        let ended = Agent::run(&alone.host, "check-config", &standalone(&[("BRIDGE_NAME", name)]));
        refused(&ended, 2, &[&format!("BRIDGE_NAME={name}"), why]);
    }
}

#[test]
fn a_pool_without_usable_pod_addresses_is_an_error() {
    let alone = alone();
    for (variable, pool, why) in [
        ("IP_SUBNET", "0.0.0.0/0", "every address there is"),
        ("IP_SUBNET", "0.0.0.0/8", "this network"),
        ("IP_SUBNET", "127.0.0.0/8", "loopback"),
        ("IP_SUBNET", "169.254.0.0/16", "link-local"),
        ("IP_SUBNET", "224.0.0.0/8", "multicast"),
        ("IP_SUBNET", "255.255.0.0/16", "reserved"),
        ("IPV6_SUBNET", "ff00::/48", "multicast"),
        ("IPV6_SUBNET", "::ffff:0:0/96", "IPv4 addresses"),
        ("SUBNET", "240.1.1.0/24", "reserved"),
    ] {
        let ended = Agent::run(&alone.host, "check-config", &standalone(&[(variable, pool)]));
        refused(&ended, 2, &[&format!("{variable}={pool}: "), "cannot be used for pods", why]);
    }
}

#[test]
fn a_valid_configuration_is_printed_with_its_effective_values() {
    let alone = alone();
    let shown = Agent::run(&alone.host, "--bridge-name br7 check-config", STANDALONE).ok();
    for line in ["BRIDGE_NAME=br7", "SUBNET_SOURCE=static", "IP_SUBNET=10.244.0.0/16"] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in:\n{shown}");
    }
}

#[test]
fn options_override_the_environment_which_overrides_the_file() {
    let alone = alone();
    let file = "BRIDGE_NAME=br1\nMTU=1301\nCNI_NAME=\"one\"\nETCD_HOST=file\n";
    alone.host.write("/etc/humanz.env", file);
    let ended = Agent::run(
        &alone.host,
        "--env-file /etc/humanz.env --bridge-name br3 check-config",
        &[("BRIDGE_NAME", "br2"), ("MTU", "1302"), ("ETCD_HOST", "")],
    );
    for line in ["BRIDGE_NAME=br3", "MTU=1302", "CNI_NAME=one", "ETCD_HOST=file"] {
        assert!(ended.stdout.lines().any(|shown| shown == line), "{line} is not in: {ended}");
    }
    assert!(ended.stderr.contains("line 2: MTU is ignored"), "{ended}");
}

#[test]
fn errors_of_the_file_are_reported_with_line_numbers() {
    let alone = alone();
    alone.host.write("/etc/humanz.env", "MTU=1400\nnonsense\nMTU=\"1\n");
    let check = |file: &str| {
        Agent::run(&alone.host, &format!("--env-file {file} check-config"), STANDALONE)
    };
    refused(&check("/etc/humanz.env"), 2, &["/etc/humanz.env line 2", "line 3: a quote"]);
    refused(&check("/etc/none.env"), 2, &["read /etc/none.env: No such file"]);
    refused(&check("/etc"), 2, &["read /etc: Is a directory"]);
    refused(&check("/dev/zero"), 2, &["/dev/zero", "no settings file"]);
    check("/dev/null").ok();
}

#[test]
fn settings_that_do_not_fit_this_host_are_errors() {
    let alone = alone();
    let bridge = Agent::run(&alone.host, "", &standalone(&[("BRIDGE_NAME", "eth0")]));
    refused(&bridge, 2, &["BRIDGE_NAME=eth0", "a veth, not a bridge"]);
    let pool = Agent::run(&alone.host, "", &standalone(&[("IP_SUBNET", "192.0.0.0/16")]));
    refused(&pool, 2, &["IP_SUBNET=192.0.0.0/16", "192.0.2.11/24", "eth0"]);
    let etcd = [("ETCD_HOST", "https://192.0.2.2"), ("ETCD_CACERT", "/etc/none.pem")];
    refused(&Agent::run(&alone.host, "", &etcd), 2, &["ETCD_CACERT=/etc/none.pem", "No such file"]);
}

#[test]
fn etcd_with_a_configured_ca_is_never_contacted_in_plain_text() {
    let alone = alone();
    let etcd = [("ETCD_HOST", "192.0.2.2"), ("ETCD_CACERT", "/etc/ssl/ca.pem")];
    let ended = Agent::run(&alone.host, "check-config", &etcd);
    refused(&ended, 2, &["ETCD_HOST=192.0.2.2: ETCD_CACERT is set", "https://192.0.2.2:2379"]);
    // Taking humanz off a host asks no etcd.
    let ended = Agent::run(&alone.host, "uninstall", &[("ETCD_HOST", ""), etcd[1]]);
    assert!(ended.succeeded(), "{ended}");
}

#[test]
fn a_dry_run_prints_the_changes_of_a_start_and_makes_none() {
    let alone = alone();
    soon("the link is up", || alone.host.run("ip link show eth0").stdout.contains("state UP"));
    let before = state(&alone.host);
    let output = Agent::run(&alone.host, "--dry-run", STANDALONE).ok();
    assert_unchanged(&alone.host, &before);
    for line in [
        "+ bridge humanz0",
        "+ address 10.244.1.1/24 on bridge humanz0",
        "+ address fd10:0:0:1::1/64 on bridge humanz0",
        "+ nft table inet humanz",
        "+ CNI configuration /etc/cni/net.d/05-humanz.conflist",
    ] {
        assert!(
            output.lines().any(|output| output.starts_with(line)),
            "{line} is not in:\n{output}"
        );
    }

    Agent::run(&alone.host, "--once", STANDALONE).ok();
    let nothing = Agent::run(&alone.host, "--dry-run", STANDALONE).ok();
    assert_eq!(nothing.trim(), "nothing would change");
}

#[test]
fn once_reconciles_the_host_and_exits() {
    let alone = alone();
    Agent::run(&alone.host, "--once", STANDALONE).ok();
    let first = state(&alone.host);
    assert!(first.contains("10.244.1.1/24"), "{first}");
    Agent::run(&alone.host, "--once", STANDALONE).ok();
    // A second time changes nothing, not even the age of a file.
    assert_unchanged(&alone.host, &first);
}

#[test]
fn a_failure_of_once_is_reported_once() {
    let alone = alone();
    alone.host.shell("mkdir -p /opt/cni; rm -rf /opt/cni/bin; touch /opt/cni/bin").ok();
    let ended = Agent::run(&alone.host, "--once", STANDALONE);
    refused(&ended, 1, &["create directory /opt/cni/bin: File exists"]);
    for what in ["add plugin /opt/cni/bin/humanz-agent", "add link /opt/cni/bin/humanz "] {
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(what)).collect();
        assert_eq!(lines.len(), 1, "{ended}");
        assert_eq!(lines[0].matches("File exists").count(), 1, "{ended}");
    }
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.contains("File exists"), "the last line says what failed: {ended}");
}

#[test]
fn unreachable_etcd_is_exit_code_69() {
    let alone = alone();
    let nowhere = [("ETCD_HOST", "127.0.0.1:1"), ("ETCD_TIMEOUT", "1s")];
    refused(&Agent::run(&alone.host, "--dry-run", &nowhere), 69, &["127.0.0.1:1"]);
}

#[test]
fn a_second_agent_is_refused_and_the_first_keeps_running() {
    let alone = alone();
    let agent = crate::serve(&alone.host, &[]);
    refused(&Agent::run(&alone.host, "--once", STANDALONE), 1, &["another humanz-agent"]);
    agent.stop();
    Agent::run(&alone.host, "--once", STANDALONE).ok();
}

/// It said "Read-only file system (os error 30)", and not what to do.
#[test]
fn a_state_directory_on_a_read_only_file_system_is_reported_with_the_fix() {
    let alone = alone();
    let host = &alone.host;
    host.shell("mkdir -p /var/lib/humanz && mount -t tmpfs -o ro none /var/lib/humanz").ok();
    let fix = "; findmnt # let the agent write there";
    let lock = "create /var/lib/humanz/lock: Read-only file system";
    refused(&Agent::run(host, "--once", STANDALONE), 1, &[lock, fix]);
    let below = [STANDALONE, &[("STATE_DIR", "/var/lib/humanz/state")]].concat();
    let folder = "create STATE_DIR /var/lib/humanz/state: Read-only file system";
    refused(&Agent::run(host, "--once", &below), 1, &[folder, fix]);
}

/// Each would change what the other one has put in place.
#[test]
fn an_agent_with_another_state_directory_is_refused_by_the_process_that_serves_the_host() {
    let alone = alone();
    let host = &alone.host;
    let agent = crate::serve(host, &[]);
    let other = [
        STANDALONE,
        &[("STATE_DIR", "/run/other"), ("SOCKET", "/run/other.sock"), ("NODE_NAME", "other")],
    ]
    .concat();
    let before = crate::state(host);
    let pid = host.run("pidof humanz-agent").stdout;
    let holder = format!("process {} holds @humanz-agent", pid.trim());
    refused(&Agent::run(host, "", &other), 1, &["with a STATE_DIR of its own", &holder]);
    refused(&Agent::run(host, "--once", &other), 1, &[&holder]);
    let uninstalled = Agent::run(host, "uninstall --force", &other);
    refused(&uninstalled, 1, &[&holder, "stop it first"]);
    let planned = Agent::run(host, "uninstall --dry-run", &other).ok();
    assert!(planned.contains("\n! another humanz-agent serves this host"), "{planned}");
    let status = Agent::run(host, "status", &other);
    assert!(status.stdout.contains(&holder), "{status}");
    crate::assert_unchanged(host, &before);
    // As from a container, where the other process has no number.
    let mut contained = command("unshare --pid --fork --mount-proc");
    contained.arg(EXECUTABLE).envs(other.iter().copied());
    let contained = host.run_command(&mut contained, "");
    refused(&contained, 1, &["another container holds @humanz-agent"]);
    // However it ends, the next one is not refused.
    agent.kill();
    let agent = crate::serve(host, &[]);
    agent.stop();
    Agent::run(host, "--once", &other).ok();
}

/// Any user of the host may bind the socket.
#[test]
fn a_socket_that_another_user_holds_keeps_no_agent_from_serving() {
    let alone = alone();
    let hold = "import socket, time; s = socket.socket(socket.AF_UNIX); \
                s.bind(b'\\0humanz-agent'); s.listen(); time.sleep(1000)";
    let mut stranger = command("setpriv --reuid=65534 --clear-groups python3 -c");
    let _stranger = alone.host.spawn(stranger.arg(hold));
    soon("the socket is bound", || {
        alone.host.run("cat /proc/net/unix").stdout.contains("@humanz-agent")
    });
    let agent = crate::serve(&alone.host, &[]);
    agent.wait_log(&["no agent holds the socket @humanz-agent"]);
}

/// The name under which a runtime finds the plugin is not the agent's.
#[test]
fn a_runtime_that_executes_the_agent_gets_an_error_with_install_instructions() {
    let alone = alone();
    let ended = Agent::run(&alone.host, "", &[("CNI_COMMAND", "ADD")]);
    refused(&ended, 1, &["ln -s humanz-agent"]);
    assert_eq!(ended.stdout, "");
}

/// A socket with the file descriptor of stdout would receive the messages for the operator.
#[test]
fn closed_standard_streams_are_not_reused_for_other_files() {
    let alone = alone();
    let wait = format!("until test -e {CONFIGURATION}; do sleep 0.05; done");
    let show = "readlink /proc/$!/fd/0 /proc/$!/fd/1 /proc/$!/fd/2; kill $!; wait $!";
    let mut shell = command("bash -c");
    shell.arg(format!("{EXECUTABLE} <&- >&- 2>&- & {wait}; {show}"));
    shell.envs(STANDALONE.iter().copied());
    assert_eq!(alone.host.run_command(&mut shell, "").ok(), "/dev/null\n".repeat(3));
}
