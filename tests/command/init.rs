//! `init`: one machine without an agent.

use serde_json::Value;

use crate::support::cluster::{Alone, give_uplink};
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Agent, Node, Place, Pod, facts, ping};
use crate::{object, refused, run};

const UNSET: &[(&str, &str)] = &[("ETCD_HOST", "")];
const CONF: &str = "/etc/cni/net.d/05-humanz.conflist";

fn pod(host: &Node, name: &str) -> Pod {
    make_netns(host, name);
    Pod::connect(host, &Network::of(host), Attachment::new(name)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn one_machine_gets_a_network_without_an_agent_and_loses_it_again() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir /etc/containerd").ok();
    host.write(
        "/etc/containerd/config.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/opt/cni/bin\"\n",
    );
    let dry = run(host, "init --dry-run", UNSET).ok();
    assert!(dry.contains(&format!("+ CNI configuration {CONF}")), "{dry}");
    assert_eq!((host.list("/opt/cni/bin"), host.list("/etc/cni/net.d")), (vec![], vec![]));

    let options = "init --subnet 10.4.0.0/24,fd04::/64";
    let said = run(host, options, UNSET).ok();
    println!("{said}");
    assert!(said.contains("+ plugin /opt/cni/bin/humanz-agent"), "{said}");
    assert!(said.contains("again: humanz-agent uninstall"), "{said}");
    let again = run(host, options, UNSET).ok();
    assert!(again.starts_with("everything is in place\n"), "{again}");

    let pods = ["one", "two"].map(|name| pod(host, name));
    ping::all_reach(&[&pods[0], &pods[1], host], &[pods[0].v4(), pods[1].v4(), pods[0].v6()]);
    pods[0].check().unwrap();
    assert!(pods[0].v4().to_string().starts_with("10.4.0."), "{}", pods[0].result);
    // The outside sees the host's address.
    let rules = host.run("nft list ruleset").ok();
    assert!(rules.contains("masquerade"), "{rules}");
    pods.into_iter().for_each(Pod::delete);
    let tested = run(host, "connectivity test", UNSET).ok();
    println!("{tested}");
    assert!(
        tested.contains("pod -> host port") && tested.contains("all 16 paths are open"),
        "{tested}"
    );
    let last = "not tried: services (--service ADDRESS:PORT); the outside (--outside ADDRESS)";
    assert_eq!(tested.trim_end().lines().last(), Some(last), "{tested}");

    run(host, "uninstall --purge", UNSET).ok();
    assert_eq!((host.list("/opt/cni/bin"), host.list("/etc/cni/net.d")), (vec![], vec![]));
    let links = host.run("ip -o link").ok();
    assert!(!links.contains("humanz0"), "{links}");
    assert!(!host.run("nft list ruleset").ok().contains("humanz"));
}

/// The plugin is not there yet, and is put where the runtime looks.
#[test]
fn a_runtime_that_looks_where_the_plugin_will_be_is_no_problem_of_the_dry_run() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir /etc/containerd").ok();
    let containerd = |place: &str| {
        let cni = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]";
        host.write("/etc/containerd/config.toml", &format!("{cni}\nbin_dir = \"{place}\"\n"));
        run(host, "--dry-run", &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]).ok()
    };
    let dry = containerd("/opt/cni/bin");
    assert!(dry.contains("+ plugin /opt/cni/bin/humanz-agent") && !dry.contains('!'), "{dry}");
    assert!(containerd("/opt/other").contains("! containerd looks for plugins in /opt/other"));
}

#[test]
fn what_there_is_no_etcd_for_is_refused_so_and_not_for_a_setting() {
    let alone = Alone::new();
    let host = &alone.host;
    run(host, "init --subnet 10.4.0.0/24", UNSET).ok();
    let none = "without agent and etcd (humanz-agent init set it up)";
    for line in ["nodes ls", "nodes reserve h9", "net ls", "pin ls", "export", "routes"] {
        refused(&run(host, line, UNSET), 2, &[none]);
    }
    for line in ["policy ls", "endpoint ls"] {
        refused(&run(host, line, UNSET), 2, &["humanz-agent init set it up without an agent"]);
    }
    // Who may not read the configuration cannot know it.
    let ask = |line| super::another_user::ask(host, line, UNSET);
    host.shell(&format!("chmod 0 {CONF}")).ok();
    let denied = format!("only root may read {CONF}: try sudo");
    for line in ["nodes ls", "net ls", "policy ls"] {
        refused(&ask(line), 69, &[&denied]);
    }
    let said = ask("status").stdout;
    let why = format!("unknown whether one is missed: only root may read {CONF}, which says");
    assert!(said.contains(&why) && !said.contains("systemctl"), "{said}");
}

#[test]
fn what_is_somebody_elses_is_left_alone() {
    let alone = Alone::new();
    let host = &alone.host;
    // An address of this host inside the pool.
    refused(&run(host, "init --subnet 192.0.2.0/24", UNSET), 2, &["192.0.2.0/24", "eth0"]);
    host.run("mkdir -p /etc/cni/net.d /etc/containerd").ok();
    let mine = r#"{ "name": "mine", "cniVersion": "1.0.0", "type": "bridge" }"#;
    host.write(CONF, mine);
    refused(&run(host, "init", UNSET), 1, &[CONF, "is not humanz's", "nothing was changed"]);
    assert_eq!(host.read(CONF).as_deref(), Some(mine));
    assert!(host.list("/opt/cni/bin").is_empty());
    // One that runtimes read first, and a runtime that looks for plugins elsewhere.
    host.run(&format!("mv {CONF} /etc/cni/net.d/00-mine.conf")).ok();
    host.write(
        "/etc/containerd/config.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/opt/other\"\n",
    );
    let dry = run(host, "init --subnet 10.9.0.0/24 --json --dry-run", UNSET);
    assert!(host.list("/opt/cni/bin").is_empty());
    let ended = run(host, "init --subnet 10.9.0.0/24 --json", UNSET);
    assert_eq!((dry.status.code(), ended.status.code()), (Some(1), Some(1)), "{dry}{ended}");
    let found = object(&ended);
    assert_eq!(object(&dry)["problems"], found["problems"], "{dry}");
    let problems = found["problems"].as_array().unwrap();
    let kinds: Vec<&str> = problems.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["cni-plugin", "cni-configuration-order"], "{found:#}");
    assert_eq!(problems[1]["fix"], "mv /etc/cni/net.d/00-mine.conf /root");
    // What helps is typed as it stands there, and what it says last takes all of it away.
    let fix = problems[0]["fix"].as_str().unwrap();
    let (uninstall, init) = fix.split_once(" && ").unwrap();
    let status = object(&run(host, "status --json", UNSET));
    let fixes: Vec<&Value> =
        status["problems"].as_array().unwrap().iter().map(|it| &it["fix"]).collect();
    assert!(fixes.contains(&&problems[0]["fix"]), "{status:#}");
    host.run(problems[1]["fix"].as_str().unwrap()).ok();
    run(host, uninstall.strip_prefix("humanz-agent ").unwrap(), UNSET).ok();
    let said = run(host, init.strip_prefix("humanz-agent ").unwrap(), UNSET).ok();
    assert!(host.list("/opt/cni/bin").is_empty(), "{said}");
    assert!(host.read(CONF).unwrap().contains("\"10.9.0.0/24\""), "{said}");
    let last = said.lines().last().unwrap().split_once("again: humanz-agent ").unwrap().1;
    run(host, last, UNSET).ok();
    assert_eq!((host.list("/opt/other"), host.list("/etc/cni/net.d")), (vec![], vec![]), "{said}");

    let agent = Agent::start(host, &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]);
    agent.wait_ready();
    let written = host.read(CONF);
    refused(&run(host, "init", UNSET), 1, &["an agent serves this host"]);
    assert_eq!(host.read(CONF), written);
    let etcd = &[("ETCD_HOST", "192.0.2.2"), ("SUBNET_SOURCE", "etcd")];
    refused(&run(host, "init", etcd), 1, &["SUBNET_SOURCE is set"]);
    assert!(facts::veths(host).is_empty());
}

/// `status` and `doctor` end with 1, and both have a problem with these words in its text or its fix.
fn wrong(host: &Node, words: &[&str]) {
    for line in ["status", "doctor"] {
        let ended = run(host, line, UNSET);
        assert_eq!(ended.status.code(), Some(1), "{words:?}: {ended}");
        for word in words {
            assert!(ended.stdout.contains(word), "{word:?} is not in: {ended}");
        }
        assert!(!ended.stdout.contains("no agent serves"), "{ended}");
    }
}

/// Nothing is wrong, and no agent is missed.
fn well(host: &Node) {
    let said = run(host, "status", UNSET).ok();
    assert!(said.contains("agent     none: a single machine without an agent"), "{said}");
    assert!(said.contains("hosts     no others") && !said.contains("pending"), "{said}");
    assert!(said.ends_with("nothing is wrong\n"), "{said}");
    let said = run(host, "doctor", UNSET).ok();
    assert!(said.contains("nothing is wrong"), "{said}");
}

#[test]
fn no_agent_is_missed_where_init_set_the_machine_up_and_what_is_wrong_is_said() {
    let alone = Alone::new();
    let host = &alone.host;
    let init = "init --bridge-name pods0 --subnet 10.4.0.0/29,fd04::/64";
    run(host, init, UNSET).ok();
    well(host);
    let pods = ["one", "two"].map(|name| pod(host, name));
    well(host);
    let found = object(&run(host, "status --json", UNSET));
    assert_eq!(found["agent"]["single_machine"], true, "{found:#}");
    assert_eq!(found["lease"]["subnets"][0], "10.4.0.0/29", "{found:#}");
    let listed = run(host, "pods", UNSET).ok();
    assert!(listed.contains("default/one") && listed.contains("attached"), "{listed}");
    run(host, "explain one two", UNSET).ok();

    host.run("sysctl -w net.ipv4.ip_forward=0").ok();
    wrong(host, &["no agent runs here, and sysctl net.ipv4.ip_forward = 0"]);
    host.run("sysctl -w net.ipv4.ip_forward=1").ok();
    host.run("nft delete table inet humanz_humanz").ok();
    wrong(host, &["~ nft table inet humanz_humanz", "start a pod"]);
    let ended = run(host, "explain one 192.0.2.1", UNSET);
    assert!(ended.stdout.contains("its ADD puts it back (no agent runs here)"), "{ended}");
    // What it says is right.
    let third = pod(host, "three");
    well(host);
    let dropping =
        "nft add table ip f { chain f { type filter hook forward priority 0; policy drop; } ; }";
    host.run(dropping).ok();
    wrong(host, &["chain f"]);
    host.run("nft delete table ip f").ok();
    host.run("rm /opt/cni/bin/humanz").ok();
    let fix = "humanz-agent init --bridge-name pods0 --subnet 10.4.0.0/29,fd04::/64";
    wrong(host, &["+ link /opt/cni/bin/humanz", fix]);
    run(host, fix.strip_prefix("humanz-agent ").unwrap(), UNSET).ok();
    let more = ["four", "five"].map(|name| pod(host, name));
    wrong(host, &["10.4.0.0/29"]);
    more.into_iter().chain([third]).for_each(Pod::delete);

    let conf = host.read(CONF).unwrap();
    for broken in
        [conf.replacen('{', "{,", 1), conf.replace("\"ranges\"", "\"bridge\": 7, \"ranges\"")]
    {
        assert_ne!(broken, conf);
        host.write(CONF, &broken);
        wrong(host, &["no pod starts with the CNI configuration", fix]);
    }
    host.write(CONF, &conf);
    host.run("mv /run/humanz/ipam /run/humanz/away").ok();
    host.run("touch /run/humanz/ipam").ok();
    wrong(host, &["IPAM_DIR"]);
    host.run("rm /run/humanz/ipam").ok();
    host.run("mv /run/humanz/away /run/humanz/ipam").ok();
    well(host);
    // With the address the kernel forgets the neighbours that the plugin has pinned.
    host.run("ip addr del 10.4.0.1/29 dev pods0").ok();
    wrong(host, &["~ bridge pods0: bridge pods0 has no address 10.4.0.1/29", "recreate pods"]);
    pods.into_iter().for_each(Pod::delete);

    // Whoever starts an agent later misses it when it has ended.
    for set in
        [&[("ETCD_HOST", "192.0.2.2")][..], &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]]
    {
        let ended = run(host, "status", set);
        assert!(
            ended.status.code() == Some(1) && ended.stdout.contains("no agent serves"),
            "{ended}"
        );
    }
    let agent = Agent::start(host, &[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")]);
    agent.wait_ready();
    agent.stop();
    let ended = run(host, "status", UNSET);
    assert!(ended.status.code() == Some(1) && ended.stdout.contains("no agent serves"), "{ended}");
}

/// A configuration beside that of `init`.
#[test]
fn explain_follows_packets_from_one_network_of_a_machine_to_another() {
    let alone = Alone::new();
    let host = &alone.host;
    run(host, "init", UNSET).ok();
    let one = pod(host, "one");
    let second = r#"{"cniVersion": "1.0.0", "name": "second", "type": "humanz", "bridge": "br2",
        "subnet": "10.60.0.0/24"}"#;
    make_netns(host, "two");
    let two = Pod::connect(host, &Network::parse(second), Attachment::new("two"));
    let two = two.unwrap_or_else(|e| panic!("{e}"));
    for ends in ["one two", "two one"] {
        let said = run(host, &format!("explain {ends}"), UNSET).ok();
        assert!(said.contains("a port of humanz0") && said.contains("a port of br2"), "{said}");
    }
    let port = two.result["interfaces"][1]["name"].as_str().unwrap();
    host.run(&format!("ip link set {port} nomaster")).ok();
    let said = run(host, "explain one two", UNSET).stdout;
    assert!(
        said.contains(&format!("lost at pod-port (this host, to default/two): {port}")),
        "{said}"
    );
    [one, two].into_iter().for_each(Pod::delete);
}

#[test]
fn running_pods_keep_the_subnet_and_the_network_that_they_came_with() {
    let alone = Alone::new();
    let host = &alone.host;
    run(host, "init --subnet 10.4.0.0/24", UNSET).ok();
    let one = pod(host, "one");
    let conf = host.read(CONF);
    for (options, former) in [
        ("--subnet 10.5.0.0/24", "SUBNET=10.4.0.0/24"),
        ("--subnet 10.4.0.0/24 --cni-name other", "CNI_NAME=humanz"),
    ] {
        let why = format!("1 pod is attached with {former}: stop it first");
        for dry in ["", " --dry-run"] {
            let ended = run(host, &format!("init {options}{dry}"), UNSET);
            refused(&ended, 1, &[&why, "nothing was changed"]);
        }
    }
    assert_eq!(host.read(CONF), conf);
    let again = run(host, "init --subnet 10.4.0.0/24 --pod-guard off", UNSET).ok();
    assert!(again.starts_with("~ CNI configuration"), "{again}");
    one.delete();
    run(host, "init --subnet 10.5.0.0/24", UNSET).ok();
    let two = pod(host, "two");
    assert!(two.v4().to_string().starts_with("10.5.0."), "{}", two.result);
}

#[test]
fn where_the_store_has_no_room_no_other_configuration_is_advised() {
    let alone = Alone::new();
    let host = &alone.host;
    run(host, "init", UNSET).ok();
    let one = pod(host, "one");
    host.run("mv /run/humanz/ipam /run/humanz/away").ok();
    host.shell(
        "mkdir /run/humanz/ipam && mount -t tmpfs -o size=64m,mode=755 store /run/humanz/ipam
         cp -a /run/humanz/away/. /run/humanz/ipam
         dd if=/dev/zero of=/run/humanz/ipam/rest bs=1M || true",
    )
    .ok();
    let is_said = |why: &str| {
        let words = [why, "no pod starts: write to /run/humanz/ipam", "df -h /run/humanz/ipam"];
        wrong(host, &words);
        let said = run(host, "status", UNSET).stdout;
        assert!(!said.contains("rm /etc/cni"), "{said}");
    };
    is_said("No space left on device");
    host.shell("rm /run/humanz/ipam/rest && mount -o remount,ro /run/humanz/ipam").ok();
    is_said("Read-only file system");
    host.run("mount -o remount,rw /run/humanz/ipam").ok();
    well(host);
    one.delete();
}

/// Its policies would go on to keep new pods from each other.
#[test]
fn what_an_agent_has_left_is_to_be_uninstalled_before_init() {
    let alone = Alone::new();
    let host = &alone.host;
    host.write("/run/policies.json", "[]");
    let policies = [("POLICY", "on"), ("POLICY_FILE", "/run/policies.json")];
    let agent = Agent::start(
        host,
        &[&[("ETCD_HOST", ""), ("SUBNET_SOURCE", "static")][..], &policies].concat(),
    );
    agent.wait_ready();
    agent.stop();
    let written = host.read(CONF);
    let why = [
        "nft table inet humanz is left from an agent",
        "humanz-agent uninstall",
        "nothing was changed",
    ];
    refused(&run(host, "init", UNSET), 1, &why);
    assert_eq!(host.read(CONF), written);
    run(host, "uninstall", UNSET).ok();
    run(host, "init", UNSET).ok();
    let [one, two] = ["one", "two"].map(|name| pod(host, name));
    one.run(&format!("ping -n -c 1 -W 3 {}", two.v4())).ok();
    well(host);
    [one, two].into_iter().for_each(Pod::delete);
}

/// Back to bridge and host-local, and to humanz again, in one boot.
#[test]
fn an_address_that_the_former_network_gave_out_meanwhile_has_no_second_owner() {
    let alone = Alone::new();
    let host = &alone.host;
    let options = "--subnet 10.4.0.0/24 --cni-name cbr0 --bridge-name cni0";
    run(host, &format!("init {options}"), UNSET).ok();
    let one = pod(host, "one");
    assert_eq!(one.v4().to_string(), "10.4.0.2");
    one.delete();
    run(host, &format!("uninstall {options}"), UNSET).ok();
    host.run("mkdir -p /var/lib/cni/networks/cbr0").ok();
    host.write("/var/lib/cni/networks/cbr0/10.4.0.3", "two\r\neth0");
    run(host, &format!("init {options}"), UNSET).ok();
    let three = pod(host, "three");
    assert_eq!(three.v4().to_string(), "10.4.0.4", "{}", three.result);
    let listed = run(host, "ipam ls", UNSET).ok();
    assert!(listed.contains("10.4.0.3") && listed.contains("two"), "{listed}");
    three.delete();
}

/// The same in two boots: what was imported in the first one has another owner in the second.
#[test]
fn an_address_that_the_former_network_gives_out_again_after_a_reboot_has_no_second_owner() {
    let alone = Alone::new();
    let host = &alone.host;
    let options = "--subnet 10.4.0.0/24 --cni-name cbr0 --bridge-name cni0";
    let reserve = |container: &str| {
        host.run("mkdir -p /var/lib/cni/networks/cbr0").ok();
        host.write("/var/lib/cni/networks/cbr0/10.4.0.2", &format!("{container}\r\neth0"));
    };
    reserve("one");
    run(host, &format!("init {options}"), UNSET).ok();
    let two = pod(host, "two");
    assert_eq!(two.v4().to_string(), "10.4.0.3", "{}", two.result);
    two.delete();
    run(host, &format!("uninstall {options}"), UNSET).ok();
    host.power_off();
    host.boot();
    give_uplink(host);
    reserve("three");
    run(host, &format!("init {options}"), UNSET).ok();
    let four = pod(host, "four");
    assert_eq!(four.v4().to_string(), "10.4.0.3", "{}", four.result);
    four.delete();
}

#[test]
fn an_empty_line_of_the_settings_file_leaves_the_default_of_init_and_uninstall() {
    let alone = Alone::new();
    let host = &alone.host;
    host.run("mkdir -p /etc/humanz").ok();
    host.write("/etc/humanz/agent.env", "ETCD_HOST=\nSUBNET_SOURCE=\nSUBNET=\n");
    let said = run(host, "init", UNSET).ok();
    assert!(host.read(CONF).unwrap().contains("\"10.244.1.0/24\""), "{said}");
    well(host);
    run(host, "uninstall", UNSET).ok();
    assert_eq!((host.list("/opt/cni/bin"), host.list("/etc/cni/net.d")), (vec![], vec![]));
}

#[test]
fn addresses_are_looked_for_and_imported_where_init_keeps_them() {
    let alone = Alone::new();
    let host = &alone.host;
    let options = "--subnet 10.4.0.0/24 --cni-name cbr0 --ipam-dir /var/lib/humanz/ipam";
    run(host, &format!("init {options}"), UNSET).ok();
    let one = pod(host, "one");
    let listed = run(host, "ipam ls", UNSET).ok();
    assert!(listed.contains("10.4.0.2") && listed.contains("default/one"), "{listed}");
    let seed = r#"[{"IP":"10.4.0.1/24","Used":true},{"IP":"10.4.0.3/24","Used":true}]"#;
    host.write("/run/seed.json", seed);
    run(host, "ipam import /run/seed.json", UNSET).ok();
    let two = pod(host, "two");
    assert_eq!(two.v4().to_string(), "10.4.0.4", "{}", two.result);
    assert!(host.list("/run/humanz/ipam").is_empty());
    let stays = run(host, "ipam free 10.4.0.2", UNSET);
    refused(&stays, 1, &["default/one is attached"]);
    [one, two].into_iter().for_each(Pod::delete);
}
