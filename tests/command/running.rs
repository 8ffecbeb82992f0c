//! Subcommands beside an agent whose settings are in no file.

use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::node::{Place, command};
use crate::support::{Agent, Node, soon};
use crate::{object, refused, run};

const FILE: &str = "/etc/humanz/agent.env";

/// Nothing in the environment: a shell of an operator.
const SHELL: [(&str, &str); 1] = [("ETCD_HOST", "")];

const ASKING: [&str; 9] = [
    "status",
    "doctor",
    "ready",
    "routes",
    "ipam ls",
    "explain 10.244.2.1 10.244.2.1 --quiet",
    "nodes ls",
    "config --running",
    "pods",
];

/// `watch` follows the agent, and not the kernel alone.
fn watch_follows(host: &Node, damage: &str) {
    let mut watch = command(&format!("{EXECUTABLE} watch"));
    watch.envs(SHELL);
    let watch = host.spawn(&mut watch);
    soon(&format!("{damage}: watch shows what the agent does"), || {
        host.run("nft delete table inet humanz");
        assert!(watch.ended().is_none(), "{damage}: {}", watch.log());
        watch.log().contains("added nft table inet humanz")
    });
    assert!(!watch.log().contains("wrong:"), "{damage}: {}", watch.log());
}

#[test]
fn what_the_agent_was_started_with_is_known_to_all_subcommands() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir -p /etc/humanz").ok();
    let typed = "--standalone --subnet 10.244.2.0/24 --bridge-name br7 --mtu 1402";
    let agent = Agent::start_with(host, typed, &SHELL);
    agent.wait_ready();
    let mut codes = Vec::new();
    for (damage, text) in [
        ("none", ""),
        ("another host's", "BRIDGE_NAME=br1\nETCD_HOST=192.0.2.99\n"),
        ("a typing mistake", "MTU=many\nBACKEND=carrier-pigeon\n"),
        ("no syntax", "export MTU\n\"\n"),
    ] {
        host.write(FILE, text);
        let mut found = Vec::new();
        for line in ASKING {
            let ended = run(host, line, &SHELL);
            assert!(!ended.stderr.contains("wrong:"), "{damage}: {line}: {ended}");
            // A file with a fault is a problem, which these two show.
            match line {
                "status" | "doctor" => {
                    assert!(matches!(ended.status.code(), Some(0 | 1)), "{ended}")
                }
                _ => found.push((line, ended.status.code())),
            }
        }
        // The same as beside a file without faults.
        codes = if codes.is_empty() { found.clone() } else { codes };
        assert_eq!(codes, found, "{damage}");
        watch_follows(host, damage);
        let shown = run(host, "status", &SHELL);
        assert!(shown.stdout.contains("10.244.2.0/24"), "{damage}: {shown}");
        let running = object(&run(host, "config --running --json --changed", &SHELL));
        let settings = running["settings"].as_array().unwrap();
        let of = |name: &str| settings.iter().find(|setting| setting["name"] == name).unwrap();
        for (name, value) in [("BRIDGE_NAME", "br7"), ("MTU", "1402"), ("SUBNET", "10.244.2.0/24")]
        {
            assert_eq!(of(name)["value"], value, "{damage}: {running:#}");
            assert_eq!(of(name)["from"], "agent", "{damage}: {running:#}");
        }
    }
    // Who names a file, or a value, wants that.
    refused(&run(host, &format!("status --env-file {FILE}"), &SHELL), 2, &["export"]);
    let typed = object(&run(host, "config --running --json --mtu 1300", &SHELL)).to_string();
    assert!(typed.contains("\"1300\""), "{typed}");
    host.run(&format!("rm {FILE}")).ok();
    agent.stop();
    refused(&run(host, "config --running", &SHELL), 69, &["humanz-agent status"]);
    // What it served with last is known.
    let shown = run(host, "status", &SHELL);
    assert!(shown.stdout.contains("10.244.2.0/24 (from static)"), "{shown}");
}

#[test]
fn a_reload_is_followed() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir -p /etc/humanz").ok();
    let lines = "SUBNET_SOURCE=static\nSUBNET=10.244.2.0/24\n";
    host.write(FILE, lines);
    let agent = Agent::start(host, &SHELL);
    agent.wait_ready();
    host.write(FILE, &format!("{lines}MTU=1380\n"));
    let mtu = || {
        let running = object(&run(host, "config --running --json", &SHELL));
        let settings = running["settings"].as_array().unwrap().clone();
        settings.iter().find(|it| it["name"] == "MTU").unwrap()["value"].clone()
    };
    assert_eq!(mtu(), "auto");
    agent.reload();
    assert_eq!(mtu(), "1380");
}

/// Without an agent what it served with last is removed.
#[test]
fn an_uninstallation_knows_what_was_served() {
    let alone = Alone::new();
    let host = &alone.host;
    let typed = "--standalone --subnet 10.244.2.0/24 --bridge-name br7";
    let agent = Agent::start_with(host, typed, &SHELL);
    agent.wait_ready();
    agent.stop();
    let plan = run(host, "uninstall --dry-run", &SHELL).ok();
    assert!(plan.contains("- bridge br7"), "{plan}");
    run(host, "uninstall --purge", &SHELL).ok();
    assert!(!host.run("ip link show br7").succeeded());
}

/// A program of another user that answers as an agent would.
const FALSE_AGENT: &str = r#"
use Socket;
socket(my $server, AF_UNIX, SOCK_STREAM, 0) or die;
bind($server, sockaddr_un("/tmp/agent.sock")) or die;
listen($server, 9) or die;
while (accept(my $client, $server)) {
    sysread($client, my $question, 4096);
    syswrite($client, "HTTP/1.0 200 OK\r\n\r\n{\"settings\": {\"ETCD_HOST\": \"192.0.2.66\"}}");
    close($client);
}
"#;

#[test]
fn settings_come_from_root_alone() {
    if std::fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().last() == Some("1")
    {
        println!("not tried: there is no user but root in this user namespace");
        return;
    }
    let alone = Alone::new();
    let host = &alone.host;
    host.write("/tmp/agent.pl", FALSE_AGENT);
    for (user, code) in [("0", 0), ("65534", 69)] {
        host.run("rm -f /tmp/agent.sock").ok();
        let user = format!("setpriv --reuid {user} --clear-groups perl /tmp/agent.pl");
        let server = host.spawn(&mut command(&user));
        soon("it listens", || host.run("test -S /tmp/agent.sock").succeeded());
        let variables = [SHELL[0], ("SOCKET", "/tmp/agent.sock")];
        let ended = run(host, "config --running", &variables);
        assert_eq!(ended.status.code(), Some(code), "{ended}");
        assert_eq!(ended.stdout.contains("192.0.2.66"), code == 0, "{ended}");
        server.kill();
    }
}
