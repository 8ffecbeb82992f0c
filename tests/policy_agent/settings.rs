//! POLICY: what goes with it, and that nothing is left when it is off.

use serde_json::json;

use crate::etcd::{FROM_ETCD, apply};
use crate::start::connect;
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Node, Place, local, soon};
use crate::tenants::{self, reaches, two_tenants};
use crate::traffic::{Flood, Server};
use crate::{FILE, STANDALONE, add, alone, only_from, serve, write_policies};

#[test]
fn settings_that_would_lead_past_policies_are_refused_with_the_reason() {
    let alone = alone();
    let host = &alone.host;
    for (settings, reason) in [
        (&[("POD_ROUTING", "bridge")][..], "by the bridge, past every policy"),
        (&[("POD_GUARD", "off")], "by the bridge, past every policy"),
        (&[("FLOWTABLE", "true")], "pass by the forward chains"),
        (&[("ALLOWED_ADDRESSES", "192.0.2.0/24")], "from their own addresses only"),
        (&[("POLICY_FILE", "")], "needs a file"),
        (&[("SUBNET_SOURCE", "kubernetes")], "from the API alone"),
        (&[("POLICY_ON_AGENT_DOWN", "never")], "quarantine, fail or open"),
        (&[("POLICY_GROUP", "blue/a b")], "is not a name"),
        (&[("POLICY_MARK", "0x0000ff00")], "at least 16 bits"),
        (&[("POLICY_MARK", "0xff00ff00")], "beside each other"),
        (&[("POLICY_MARK", "65535")], "in hexadecimal"),
    ] {
        let ended = Agent::run(host, "check-config", &[STANDALONE, settings].concat());
        assert!(!ended.succeeded() && ended.to_string().contains(reason), "{ended}");
    }
}

#[test]
fn without_policies_there_is_no_table_and_the_plugin_asks_no_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let configuration = || host.read("/etc/cni/net.d/05-humanz.conflist").unwrap();
    serve(host, &[]).stop();
    assert!(host.run("nft list tables").ok().contains("humanz-policy"));
    assert!(configuration().contains("\"policy\": \"quarantine\""), "{}", configuration());
    let agent = serve(host, &[("POLICY", "off")]);
    assert!(!host.run("nft list tables").ok().contains("humanz-policy"));
    assert!(!configuration().contains("\"policy\""), "{}", configuration());
    agent.stop();
    serve(host, &[("POLICY_FILE", FILE)]).stop();
    Agent::run(host, "uninstall --purge", STANDALONE).ok();
    assert!(!host.run("nft list tables").ok().contains("humanz-policy"));
    assert_eq!(host.list("/var/lib/humanz"), Vec::<String>::new());
}

/// It came back with the next start that could not read its file.
#[test]
fn what_a_source_said_goes_with_the_source_at_a_start_as_well() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    write_policies(host, &[only_from("db", &["web"])]);
    let with_file: &[(&str, &str)] = &[("POLICY", "on"), ("POLICY_FILE", FILE)];
    let restart = |settings| {
        let agent = Agent::start(host, settings);
        agent.wait_ready();
        agent
    };
    let has = || {
        let kept = host.read("/var/lib/humanz/policy.json");
        kept.is_none_or(|kept| kept.contains("\"name\":\"db\""))
    };
    restart(with_file).stop();
    assert!(has());
    let agent = restart(&with_file[..1]);
    soon("nothing of the file is kept", || !has());
    agent.kill();
    host.write(FILE, "[{");
    let agent = restart(with_file);
    let said = local::status(host)["policies"]["sources"][0].clone();
    assert_eq!((&said["source"], &said["policies"]), (&json!("file"), &json!(0)), "{said}");
    agent.stop();
}

/// `status --all` alone said which hosts enforce policies.
#[test]
fn a_host_that_enforces_no_policies_is_a_problem_as_soon_as_there_are_some() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let off: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "off")];
    let agents = [Agent::start(h1, FROM_ETCD), Agent::start(h2, off)];
    for agent in &agents {
        agent.wait_ready();
    }
    let all = || Agent::run(h1, "doctor --all", FROM_ETCD).stdout;
    let here = |host, settings| Agent::run(host, "doctor", settings).stdout;
    soon("what both have in force", || {
        let shown = Agent::run(h1, "status --all", FROM_ETCD).stdout;
        shown.contains("in force") && shown.contains("off")
    });
    let quiet = |text: String| assert!(!text.contains("policy-off"), "{text}");
    quiet(all());
    quiet(here(h2, off));
    for (objects, there) in
        [(vec![only_from("db", &["web"])], "rules of policies"), (two_tenants(), "2 networks")]
    {
        apply(h1, &objects);
        for (said, host) in [(all(), "  h2"), (here(h2, off), "POLICY=off")] {
            let mut lines = said.lines();
            let line =
                lines.find(|line| line.starts_with("warning  policy-off")).unwrap_or_default();
            assert!(line.contains(there) && line.contains(host), "{said}");
        }
        quiet(here(h1, FROM_ETCD));
        // Who puts them there learns of it at once.
        let noted = |host: &Node, settings| {
            host.write("/etc/objects.json", &serde_json::json!(objects).to_string());
            let words = "policy apply --dry-run -f /etc/objects.json";
            Agent::run(host, words, settings).ok().contains("note: this host enforces none of it")
        };
        assert!(noted(h2, off) && !noted(h1, FROM_ETCD));
    }
    agents.iter().for_each(Agent::stop);
}

/// What a host has published stays in etcd, and nothing said so.
#[test]
fn a_host_whose_policies_were_turned_off_says_that_others_go_by_its_former_pods() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let off: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "off")];
    let agents = cluster.start_agents(FROM_ETCD);
    apply(h1, &[only_from("db", &["web"])]);
    let (web, db) = (add(h1, "web", "web"), add(h2, "db", "db"));
    let mut server = Server::open(&db);
    let flood = Flood::sparse(&web, db.v4());
    server.wait(web.v4());
    drop(flood);
    agents[0].stop();
    let agent = Agent::start(h1, off);
    agent.wait_ready();
    let address = web.v4();
    web.delete();
    make_netns(h1, "evil");
    let evil = connect(h1, "evil", "evil", &address.to_string()).unwrap();
    let _flood = Flood::sparse(&evil, db.v4());
    server.wait(address);
    let said = Agent::run(h1, "doctor", off).stdout;
    let line = said.lines().find(|line| line.starts_with("warning  policy-off"));
    assert!(line.is_some_and(|line| line.contains("a new pod at one of 2 addresses")), "{said}");
    agent.stop();
    agents[1].stop();
}

/// A reload left their routes, a start took them away, and `doctor` reported what the reload had left.
#[test]
fn pods_of_tenants_run_on_over_a_start_with_policies_turned_off() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let configure = |host: &Node, policy: &str| {
        host.run("mkdir -p /etc/humanz").ok();
        host.write("/etc/humanz/agent.env", &format!("IPV6_SUBNET=fd10::/48\nPOLICY={policy}\n"));
    };
    [h1, h2].iter().for_each(|host| configure(host, "on"));
    let agents = cluster.start_agents(&[]);
    apply(h1, &two_tenants());
    soon("networks", || {
        h1.read("/run/humanz/ipam/.networks.json").is_some_and(|it| it.contains("10.33"))
    });
    let pods = [h1, h2].map(|host| tenants::add(host, "red/pod"));
    let run_on = || {
        soon("pods of one network", || reaches(&pods[0], &pods[1]));
        let said = Agent::run(h1, "doctor", &[]).stdout;
        assert!(said.contains("policy-off") && !said.contains("change-pending"), "{said}");
    };
    soon("pods of one network", || reaches(&pods[0], &pods[1]));
    let kept = |file: &str| h1.read(&format!("/var/lib/humanz/{file}")).unwrap_or_default();
    soon("what holds is on disk", || {
        kept("policy.json").contains("10.33.0.0") && kept("blocks.json").contains("[\"h2\"")
    });
    configure(h1, "off");
    agents[0].reload();
    run_on();
    agents[0].stop();
    run_on();
    let again = Agent::start(h1, &[]);
    again.wait_ready();
    run_on();
    again.stop();
    agents[1].stop();
}

/// What was received of other hosts, what this one had published and its blocks stayed.
#[test]
fn a_purge_leaves_nothing_of_policies_and_tenants() {
    let cluster = Cluster::new(2);
    let [host, other] = [&cluster.hosts[0], &cluster.hosts[1]];
    let web = only_from("db", &["web"]);
    apply(host, &[&two_tenants()[..], &[web]].concat());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [add(host, "db", "db"), add(other, "web", "web")];
    let tenants = crate::tenants::try_add(host, "red/a", serde_json::json!({})).unwrap();
    for file in ["blocks.json", "heard.json", "policy.json", "published.json"] {
        soon(file, || host.list("/var/lib/humanz").iter().any(|found| found == file));
    }
    agents[0].stop();
    Agent::run(host, "uninstall --purge --force", FROM_ETCD).ok();
    assert_eq!(host.list("/var/lib/humanz"), Vec::<String>::new());
    drop((pods, tenants));
}

/// The marks of connections from `source`.
fn marks(host: &Node, source: std::net::IpAddr) -> Vec<u32> {
    let listed = host.run(&format!("conntrack -L -p udp --orig-src {source}")).stdout;
    let marks = listed.split(' ').filter_map(|word| word.strip_prefix("mark="));
    marks.map(|mark| mark.parse().unwrap()).collect()
}

#[test]
fn policies_use_the_bits_of_the_mark_that_they_may_and_no_others() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    // Another program has a mark of its own on each connection.
    host.shell("nft 'table ip other { chain c { type filter hook prerouting priority 0; ct state new ct mark set 0xab000000 ; }; }'").ok();
    for mask in [0x00ff_ff00_u32, 0x0000_ffff] {
        let setting = format!("{mask:#x}");
        let agent = serve(host, &[("POLICY_MARK", &setting)]);
        let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
        let mut server = Server::open(&db);
        let flood = Flood::start(&web, db.v4());
        server.wait(web.v4());
        let found = marks(host, web.v4());
        let is_judged = |mark: &u32| mark & mask != 0 && mark & !mask == 0xab00_0000;
        assert!(!found.is_empty() && found.iter().all(is_judged), "{setting}: {found:x?}");
        // Running connections are reached, whichever bits they are.
        write_policies(host, &[only_from("db", &["mon"])]);
        server.wait_silence(web.v4(), std::time::Instant::now());
        write_policies(host, &[only_from("db", &["web"])]);
        drop((server, flood));
        db.delete();
        web.delete();
        agent.stop();
    }
}
