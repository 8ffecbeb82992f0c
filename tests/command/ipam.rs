//! The subcommand `ipam`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::disk::EXECUTABLE;
use crate::support::echo::{Echo, ask_udp};
use crate::support::node::command;
use crate::support::pod::make_netns;
use crate::support::{Agent, Node, Place, Pod, eventually, local, soon};
use crate::{object, refused, run, shape};

const SETTINGS: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("IPV6_SUBNET", "fd10::/48")];

fn served() -> (Alone, Agent) {
    let alone = Alone::new();
    let agent = Agent::start(&alone.host, SETTINGS);
    agent.wait_ready();
    (alone, agent)
}

/// The file of a pod's first address, changed by a sed(1) script, under every name that it has.
fn rewrite(alone: &Alone, pod: &Pod, script: &str) {
    let dir = "/run/humanz/ipam/humanz";
    let files = format!(
        "{dir}/{} {dir}/{} {dir}/owners/{}:eth0",
        pod.v4(),
        pod.v6(),
        pod.attachment.container
    );
    alone
        .host
        .shell(&format!(
            "for file in {files}; do sed '{script}' $file > /tmp/new; cat /tmp/new > $file; done"
        ))
        .ok();
}

#[test]
fn addresses_are_listed_with_their_pods() {
    let (alone, _agent) = served();
    let host = &alone.host;
    let none = run(host, "ipam ls", SETTINGS).ok();
    assert!(none.contains("no pod of humanz has an address here"), "{none}");
    let (a, b) = (Pod::add(host, "web"), Pod::add(host, "db"));
    let listed = run(host, "ipam ls", SETTINGS).ok();
    println!("{listed}");
    for pod in [&a, &b] {
        let line =
            listed.lines().find(|line| line.starts_with(&format!("{},{}  ", pod.v4(), pod.v6())));
        let line = line.unwrap_or_else(|| panic!("{listed}"));
        assert!(line.contains(" attached ") && line.contains(" humanz "), "{line}");
    }
    let shown = run(host, &format!("ipam show {}", a.v6()), SETTINGS).ok();
    println!("{shown}");
    assert!(
        shown.contains(&format!("addresses  {}\n", a.v4()))
            && shown.contains("state      attached"),
        "{shown}"
    );
    assert_eq!(run(host, &format!("ipam show {}", a.attachment.container), SETTINGS).ok(), shown);
    refused(&run(host, "ipam show 10.9.9.9", SETTINGS), 1, &["10.9.9.9", "ipam ls lists all"]);
    refused(
        &run(host, "ipam ls --network other", SETTINGS),
        1,
        &["no store of network other", "there is: humanz"],
    );
    refused(
        &run(host, "ipam fre 10.9.9.9", SETTINGS),
        2,
        &["unknown subcommand \"fre\" of ipam; did you mean free?"],
    );
    refused(&run(host, "ipam free 10.9.9", SETTINGS), 2, &["10.9.9", "ipam free --help"]);

    let value = object(&run(host, "ipam ls --json", SETTINGS));
    let wanted = "addresses: list\naddresses[].addresses: list\naddresses[].addresses[]: string\n\
                  addresses[].container: string\naddresses[].host_ports: list\n\
                  addresses[].host_ports[].host: string\naddresses[].host_ports[].protocol: string\n\
                  addresses[].interface: string\naddresses[].netns: string\naddresses[].network: string\n\
                  addresses[].pod: null\naddresses[].since: number\naddresses[].state: string\n\
                  faults: list\nproblems: list\nschema: number";
    assert_eq!(shape(&value).replace("addresses[].pod: string", "addresses[].pod: null"), wanted);
    host.write("/run/humanz/ipam/humanz/10.244.1.200", "garbage");
    let listed = run(host, "ipam ls", SETTINGS);
    assert_eq!(listed.status.code(), Some(1), "{listed}");
    assert!(
        listed.stdout.contains("! /run/humanz/ipam/humanz/10.244.1.200 is not an entry"),
        "{listed}"
    );
    let status = object(&run(host, "status --json", SETTINGS));
    let of_entry = |problem: &&Value| problem["kind"] == "quarantine";
    let problem = status["problems"].as_array().unwrap().iter().find(of_entry);
    let problem = problem.unwrap_or_else(|| panic!("{status:#}"));
    assert!(problem["since"].is_string() && problem["fix"].is_string(), "{problem:#}");
}

/// All that a subcommand printed; something is wrong, and nothing else is said of the pods.
fn failed(host: &Node, line: &str) -> String {
    let ended = run(host, line, SETTINGS);
    assert!(!ended.succeeded(), "{line}: {ended}");
    format!("{}{}", ended.stdout, ended.stderr)
}

/// By whichever subcommand it is met.
#[test]
fn a_broken_store_is_reported_with_its_fix() {
    let alone = Alone::new();
    let host = &alone.host;
    host.shell("mkdir -p /run/humanz").ok();
    let of_dir = "; ls -la /run/humanz/ipam # make IPAM_DIR a directory";
    let of_file = "; ls -la /run/humanz/ipam/humanz/10.244.1.7 # see what wrote it";
    for (script, what, fix) in [
        ("echo > $d", "read /run/humanz/ipam (IPAM_DIR): Not a directory", of_dir),
        ("mkdir $d; echo > $d/humanz", "/run/humanz/ipam/humanz/owners: Not a directory", of_dir),
        (
            "mkdir -p $d/humanz; touch $d/humanz/lock; echo > $d/humanz/owners",
            "/run/humanz/ipam/humanz/owners: Not a directory",
            of_dir,
        ),
        (
            "mkdir -p $d/humanz/10.244.1.7; touch $d/humanz/lock",
            "read /run/humanz/ipam/humanz/10.244.1.7: Is a directory",
            of_dir,
        ),
        (
            "mkdir -p $d/humanz; touch $d/humanz/lock; echo { > $d/humanz/10.244.1.7",
            "/run/humanz/ipam/humanz/10.244.1.7 is not an entry: ",
            of_file,
        ),
    ] {
        host.shell(&format!("d=/run/humanz/ipam; rm -rf $d; {script}")).ok();
        for line in [
            "ipam ls",
            "ipam show 10.244.1.7",
            "ipam free 10.244.1.7",
            "pods",
            "top --seconds 1",
            "explain 10.244.1.7 192.0.2.1",
            "explain default/web 192.0.2.1",
        ] {
            let text = failed(host, line);
            assert!(text.contains(what) && text.contains(fix), "{script}: {line}: {text}");
        }
        let doctor = object(&run(host, "doctor --json", SETTINGS));
        let kind = if fix == of_file { "quarantine" } else { "ipam-store" };
        let found = local::problem(&doctor, kind, "store /run/humanz/ipam");
        assert!(found.is_some_and(|found| found["fix"].is_string()), "{script}: {doctor:#}");
    }
    for line in ["ipam ls --json", "pods --json", "top --seconds 1 --json"] {
        let value = object(&run(host, line, SETTINGS));
        let found = local::problem(&value, "quarantine", "store /run/humanz/ipam").unwrap();
        assert_eq!(value["faults"], json!([found["what"]]), "{line}: {value:#}");
    }
}

#[test]
fn what_has_ended_under_a_held_lock_is_a_problem_until_the_agent_releases_it() {
    let alone = Alone::new();
    let agent = Agent::start(&alone.host, &[SETTINGS, &[("RESYNC_INTERVAL", "1s")]].concat());
    agent.wait_ready();
    let host = &alone.host;
    // Of a further network, which no agent has: the agent looks at all of them.
    let further = host.read("/etc/cni/net.d/05-humanz.conflist").unwrap();
    let further = further.replace("\"name\": \"humanz\"", "\"name\": \"further\"");
    let pod = Pod::try_add(host, "web", &Network::parse(&further)).unwrap();
    let store = "/run/humanz/ipam/further";
    let holder = host.spawn(&mut command(&format!("flock -F {store}/lock sleep 600")));
    let held = format!("flock -n {store}/lock true");
    let is_held = || if host.run(&held).succeeded() { Err("it is free".into()) } else { Ok(()) };
    eventually("the lock is held", Duration::from_secs(10), is_held);
    pod.delete();
    let owners = || host.list(&format!("{store}/owners"));
    let status = object(&run(host, "status --json", SETTINGS));
    let mut of_store = local::problems(&status, "leaked-addresses");
    let problem = of_store.next().unwrap_or_else(|| panic!("{status:#}"));
    assert!(problem["fix"].as_str().unwrap().contains("fuser"), "{problem:#}");
    assert_eq!(owners(), ["web:eth0"]);
    holder.kill();
    let is_released = || if owners().is_empty() { Ok(()) } else { Err(format!("{:?}", owners())) };
    eventually("the agent has released it", Duration::from_secs(10), is_released);
    assert_eq!(host.list(&format!("{store}/ended")), Vec::<String>::new());
}

#[test]
fn the_address_of_an_existing_pod_is_not_freed() {
    let (alone, _agent) = served();
    let host = &alone.host;
    let pod = Pod::add(host, "web");
    let free = format!("ipam free {}", pod.v4());
    refused(&run(host, &free, SETTINGS), 1, &["stays", "is attached and has it", "--force"]);
    assert_eq!(object(&run(host, "ipam gc --json --yes", SETTINGS))["gone"], Value::Array(vec![]));
    let forced = object(&run(host, &format!("{free} --force --json"), SETTINGS));
    assert_eq!(forced["freed"].as_array().unwrap().len(), 2, "{forced}");
    refused(&run(host, &free, SETTINGS), 1, &["is not allocated"]);
    let ports = host.run("nft list table inet humanz-hostports").stdout;
    assert!(!ports.contains(&pod.v4().to_string()), "its host ports are closed: {ports}");
}

#[test]
fn only_stale_addresses_are_freed_and_only_with_yes() {
    let (alone, _agent) = served();
    let host = &alone.host;
    let (stays, gone) = (Pod::add(host, "web"), Pod::add(host, "db"));
    // A container that ended without a DEL takes its namespace, and that its interface with it.
    host.run(&format!("ip netns del {}", gone.attachment.container)).ok();
    eventually("its interface is gone", Duration::from_secs(30), || {
        let links = host.run("ip -o link show type veth").ok();
        let count = links.lines().filter(|line| line.contains(" hz")).count();
        if count == 1 { Ok(()) } else { Err(links) }
    });
    let listed = run(host, "ipam ls", SETTINGS).ok();
    assert!(
        listed
            .lines()
            .any(|line| line.starts_with(&gone.v4().to_string()) && line.contains(" gone ")),
        "{listed}"
    );
    let output = run(host, "ipam gc", SETTINGS).ok();
    assert!(output.contains("1 would be freed: --yes does it"), "{output}");
    assert_eq!(run(host, "ipam ls", SETTINGS).ok().lines().count(), 3, "nothing was freed");
    let output = run(host, "ipam gc --yes", SETTINGS).ok();
    assert!(
        output.contains(&format!("- {} and {} of ", gone.v4(), gone.v6()))
            && output.contains("1 freed"),
        "{output}"
    );
    let listed = run(host, "ipam ls", SETTINGS).ok();
    assert!(
        listed.contains(&stays.v4().to_string()) && !listed.contains(&gone.v4().to_string()),
        "{listed}"
    );
    let ports = host.run("nft list table inet humanz-hostports").ok();
    assert!(
        ports.contains(&stays.v4().to_string()) && !ports.contains(&gone.v4().to_string()),
        "{ports}"
    );
    // One whose interface went but whose namespace is there may be about to get one.
    rewrite(&alone, &stays, "s/\"containerID\":\"[^\"]*\"/\"containerID\":\"other\"/");
    assert!(run(host, "ipam gc --yes", SETTINGS).ok().contains("may be there"));
}

/// The next pod with the address would get what comes to the port.
#[test]
fn an_address_is_freed_only_after_its_host_ports_are_closed() {
    let (alone, _agent) = served();
    let host = &alone.host;
    let lock = "/run/humanz/ipam/.hostports/lock";
    let flows = || host.run("conntrack -L -p udp --orig-port-dst 8080").stdout;
    for verb in ["gc --yes", "free"] {
        make_netns(host, "web");
        let mapping = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "udp" });
        let runtime = json!({ "portMappings": [mapping] });
        let attachment = Attachment { runtime, ..Attachment::new("web") };
        let pod = Pod::connect(host, &Network::of(host), attachment).unwrap();
        let address = pod.v4().to_string();
        let line = match verb {
            "free" => format!("ipam free {address}"),
            _ => format!("ipam {verb}"),
        };
        let echo = Echo::serve(&pod, 80);
        ask_udp(host, 5000, "192.0.2.11:8080".parse().unwrap()).unwrap();
        drop(echo);
        host.run("ip netns del web").ok();
        let is_gone = || run(host, "ipam ls", SETTINGS).ok().contains(" gone ");
        soon("its interface is gone", is_gone);
        assert!(flows().contains("sport=5000"), "{}", flows());
        let holder = host.spawn(&mut command(&format!("flock -F {lock} sleep 600")));
        soon("the lock is held", || !host.run(&format!("flock -n {lock} true")).succeeded());
        refused(&run(host, &line, SETTINGS), 75, &[lock]);
        assert!(is_gone() && run(host, "ipam ls", SETTINGS).ok().contains(&address), "{verb}");
        holder.kill();
        soon("the lock is free", || host.run(&format!("flock -n {lock} true")).succeeded());
        run(host, &line, SETTINGS).ok();
        let ports = host.run("nft list table inet humanz-hostports").stdout;
        assert!(!ports.contains(&address), "{verb}: {ports}");
        assert!(!flows().contains("sport=5000"), "{verb}: {}", flows());
    }
}

/// In a container: as a DaemonSet without the host's /run/netns, and without its network.
#[test]
fn addresses_of_pods_that_cannot_be_seen_are_not_freed() {
    let (alone, _agent) = served();
    let host = &alone.host;
    let pods = [Pod::add(host, "web"), Pod::add(host, "db")];
    let gc = |folder: &str| {
        host.shell(&format!(
            "unshare -mn sh -ec 'mkdir -p /mnt; mount --bind /run/humanz /mnt; mount -t tmpfs none /run
             mkdir -p /run/humanz {folder}; mount --move /mnt /run/humanz; mount --make-rprivate /
             export SUBNET_SOURCE=static ETCD_HOST= IPV6_SUBNET=fd10::/48
             {EXECUTABLE} ipam gc --yes; {EXECUTABLE} ipam ls'"
        ))
        .ok()
    };
    // There is no such directory, an empty one, and one with files that are no namespaces here.
    for folder in ["", "/run/netns", "/run/netns; touch /run/netns/other"] {
        let said = gc(folder);
        assert!(said.contains("2 stay: their network namespaces cannot be seen"), "{said}");
        assert!(!said.contains(" gone "), "{said}");
    }
    let listed = run(host, "ipam ls", SETTINGS).ok();
    assert!(pods.iter().all(|pod| listed.contains(&pod.v4().to_string())), "{listed}");
    let free = format!("ipam free {}", pods[0].v4());
    refused(&run(host, &free, SETTINGS), 1, &["stays"]);
}

#[test]
fn addresses_of_earlier_plugins_are_taken_over() {
    let (alone, _agent) = served();
    let host = &alone.host;
    host.shell(
        "mkdir -p /var/lib/cni/networks/old; cd /var/lib/cni/networks/old; \
         printf 'c1\\r\\neth0' > 10.244.1.50; printf 'c1\\r\\neth0' > fd10:0:0:1::50; touch lock last_reserved_ip.0",
    ).ok();
    host.write(
        "/run/seed.json",
        r#"[{"IP":"10.244.1.1/24","Used":true},{"IP":"10.244.1.60/24","Used":true}]"#,
    );
    let output = run(host, "ipam import /var/lib/cni/networks/old", SETTINGS).ok();
    println!("{output}");
    assert!(output.contains("+ 10.244.1.50 of container c1, interface eth0"), "{output}");
    assert!(output.contains("2 imported into network humanz, 0 skipped"), "{output}");
    let again = run(host, "ipam import /var/lib/cni/networks/old", SETTINGS).ok();
    assert!(again.contains("0 imported into network humanz, 2 skipped"), "{again}");
    let seed = object(&run(host, "ipam import /run/seed.json --json", SETTINGS));
    assert_eq!(seed["imported"][0]["addresses"][0], "10.244.1.60", "{seed:#}");
    let listed = run(host, "ipam ls", SETTINGS).ok();
    assert_eq!(listed.matches(" unknown ").count(), 2, "{listed}");
    assert!(run(host, "ipam gc --yes", SETTINGS).ok().contains("may be there"), "unknown");
    refused(&run(host, "ipam free 10.244.1.60", SETTINGS), 1, &["is unknown", "--force"]);
    assert!(run(host, "ipam free 10.244.1.60 --force", SETTINGS).ok().contains("10.244.1.60 of "));
    run(host, "ipam free 10.244.1.50 --force", SETTINGS).ok();
    assert!(run(host, "ipam ls", SETTINGS).ok().contains("no pod"));
    refused(&run(host, "ipam import /nowhere", SETTINGS), 1, &["/nowhere: No such file"]);
    refused(&run(host, "ipam import /etc", SETTINGS), 1, &["/etc: holds no reservation"]);
    refused(
        &run(host, "ipam import /run/seed.json --network ../x", SETTINGS),
        2,
        &["--network ../x"],
    );
}
