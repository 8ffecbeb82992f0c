//! The reachability matrix, from every host.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::local::get;
use crate::support::{Agent, Node, Place, eventually};
use crate::{object, refused, run};

const OFTEN: (&str, &str) = ("PROBE_INTERVAL", "1s");

/// With [`OFTEN`] a changed report is published within ten seconds, after two others within 25.
const PUBLISHED: Duration = Duration::from_secs(90);

fn matrix(host: &Node) -> Value {
    let (code, body) = get(host, "/v1/matrix");
    assert_eq!(code, 200, "{body}");
    let value: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
    assert_eq!(value["schema"], 1);
    value
}

/// The matrix, once `holds`.
fn matrix_when(host: &Node, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("{}: matrix: {what}", host.name()), PUBLISHED, || {
        let matrix = matrix(host);
        if holds(&matrix) { Ok(matrix) } else { Err(format!("{matrix:#}")) }
    })
}

/// The faults, as `h2: h3 silent`.
fn faults(matrix: &Value) -> Vec<String> {
    let rows = matrix["rows"].as_array().unwrap().iter();
    let of = |row: &Value| {
        let name = row["host"].as_str().unwrap().to_owned();
        let all = row["faults"].as_array().unwrap().clone().into_iter();
        all.map(move |fault| {
            let text = |key: &str| fault[key].as_str().unwrap().to_owned();
            format!("{name}: {} {}", text("host"), text("kind"))
        })
    };
    rows.flat_map(of).collect()
}

/// Every host reports the latency of every other one.
fn is_whole(matrix: &Value, hosts: usize) -> bool {
    let rows = matrix["rows"].as_array().unwrap();
    let timed = |row: &&Value| row["seconds"].as_object().unwrap().len() == hosts - 1;
    rows.iter().filter(timed).count() == hosts
}

#[test]
fn each_host_has_the_reports_of_all_and_its_own_without_etcd() {
    let cluster = Cluster::new(3);
    let agents = cluster.start_agents(&[OFTEN, ("IPV6_SUBNET", "fd10::/48")]);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    for host in [h1, h2, h3] {
        let found = matrix_when(host, "all reports", |matrix| is_whole(matrix, 3));
        assert_eq!((&found["host"], &found["hosts"]), (&json!(host.name()), &json!(3)));
        assert_eq!(faults(&found), [""; 0], "{found:#}");
        assert_eq!(found["untold"], json!([]), "{found:#}");
        assert_eq!(found["remarks"], json!([]), "{found:#}");
        assert!(found["rows"][0]["median_seconds"].as_f64().unwrap() < 1.0, "{found:#}");
    }
    // Both are well, and h1 sees nothing of it itself.
    cluster.part(h2, h3);
    let both = ["h2: h3 silent", "h3: h2 silent"];
    let found = matrix_when(h1, "h2 and h3 are parted", |matrix| faults(matrix) == both);
    let by = |host| json!({"host": host, "by": 1, "of": 2, "most": false});
    assert_eq!(found["unreached"], json!([by("h2"), by("h3")]), "{found:#}");
    let said = run(h1, "probe --matrix", &[]);
    assert_eq!(said.status.code(), Some(1), "{said}");
    for words in ["h3 silent", "h2 silent", "1 of 2", "3 of 3 hosts report; 2 of them with faults"]
    {
        assert!(said.stdout.contains(words), "{words:?} is not in: {said}");
    }
    let only = object(&run(h3, "probe --matrix h1 --json", &[]));
    assert_eq!((faults(&only), &only["host"]), (vec![], &json!("h3")), "{only:#}");
    assert_eq!(only["from"], "host", "{only:#}");
    refused(&run(h1, "probe --matrix h9", &[]), 1, &["none of the 3 known hosts is called \"h9\""]);
    cluster.join();
    matrix_when(h1, "they are joined", |matrix| faults(matrix).is_empty());
    let said = run(h1, "probe --matrix", &[]).ok();
    assert!(
        said.contains("3 of 3 hosts report; no faults (asked by the hosts, not by their pods)"),
        "{said}"
    );

    cluster.etcd.kill();
    let alone = matrix_when(h1, "only this host's own report", |matrix| {
        matrix["rows"].as_array().unwrap().len() == 1
    });
    assert_eq!(alone["rows"][0]["host"], "h1");
    assert!(alone["remarks"].to_string().contains("only this host's own report"), "{alone:#}");
    cluster.etcd.restart();
    matrix_when(h1, "all reports again", |matrix| is_whole(matrix, 3));
    agents[2].stop();
    let found = matrix_when(h1, "no report of h3", |matrix| matrix["untold"] != json!([]));
    assert_eq!(found["untold"][0]["host"], "h3", "{found:#}");
    refused(&run(h3, "probe --matrix", &[]), 69, &["no agent serves this host"]);
}

#[test]
fn a_host_without_probes_has_no_report_and_hostile_reports_are_remarked() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    let agents = [Agent::start(h1, &[OFTEN]), Agent::start(h2, &[("PROBE_INTERVAL", "0")])];
    for agent in &agents {
        agent.wait_ready();
    }
    let row = json!({"schema": 1, "at": u64::MAX, "asked": 9, "answer": 0, "median": 1,
                     "faults": {"h1": "silent IPv4", "h9": "silent", "nobody": "large 1450"},
                     "times": {"h7": 1}});
    cluster.etcd.put("/humanz/v1-probes/h9", row.to_string());
    cluster.etcd.put("/humanz/v1-probes/<b>", row.to_string());
    let found = matrix_when(h1, "its own report", |matrix| {
        matrix["rows"].as_array().unwrap().len() == 1
            && matrix["remarks"].to_string().contains("keys in etcd without a valid report: 1 (")
    });
    assert_eq!(found["untold"][0]["host"], "h2", "{found:#}");
    assert!(found["untold"][0]["why"].as_str().unwrap().contains("PROBE_INTERVAL=0"), "{found:#}");
    let there = matrix(h2);
    assert_eq!(there["untold"][0]["why"], "PROBE_INTERVAL=0: it probes no host", "{there:#}");
    // A report of an existing host may contain anything about any other.
    cluster.etcd.put("/humanz/v1-probes/h2", row.to_string());
    let found =
        matrix_when(h1, "the report of h2", |matrix| faults(matrix) == ["h2: h1 silent IPv4"]);
    let there = &found["rows"][1];
    assert_eq!((&there["host"], &there["seconds"]), (&json!("h2"), &json!({})), "{found:#}");
    assert_eq!(there["at"], "9999-12-31T23:59:59Z");
    let fault = &there["faults"][0];
    assert_eq!((&fault["family"], &fault["bytes"]), (&json!("IPv4"), &json!(null)), "{fault}");
    assert_eq!(cluster.etcd.get("/humanz/v1-probes/h2"), Some(row.to_string()), "it wrote none");
}

/// From any host: who is well, who is not, and why.
#[test]
fn status_of_all_hosts_has_the_problems_of_each() {
    let cluster = Cluster::new(3);
    let agents = cluster.start_agents(&[OFTEN, ("RESYNC_INTERVAL", "1s")]);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    let first = run(h1, "status --all", &[]);
    assert_eq!(first.status.code(), Some(1), "nothing is published yet: {first}");
    assert!(first.stdout.contains("cannot be known"), "{first}");
    run(h1, "status --all --wait 60", &[]).ok();
    let doctor = run(h1, "doctor --all", &[]).ok();
    assert!(doctor.starts_with("the agents of 3 hosts report no problem\nchecked: "), "{doctor}");
    let route = "10.244.200.0/24 via 192.0.2.99";
    h2.run(&format!("ip route add {route}")).ok();
    let of_all = || run(h1, "status --all --json", &[]);
    let problems = |host: usize| object(&of_all())["hosts"][host]["report"]["problems"].clone();
    eventually("h2 publishes its problem", PUBLISHED, || match problems(1) {
        found if found == json!({ "route-conflict": 1 }) => Ok(()),
        found => Err(found.to_string()),
    });
    assert_eq!(problems(0), json!({}));
    let shown = run(h1, "status --all", &[]);
    assert_eq!(shown.status.code(), Some(1), "{shown}");
    let line = |host: &str| {
        let found = shown.stdout.lines().find(|line| line.starts_with(host));
        found.unwrap_or_else(|| panic!("{shown}")).split_whitespace().collect::<Vec<_>>()
    };
    let version = env!("CARGO_PKG_VERSION");
    let same = |name| [name, "alive", version, "1500", "auto", "no", "off", "2", "of", "2"];
    assert_eq!((line("h1"), line("h2")), (same("h1*").into(), same("h2").into()));
    let problems = "\n\nHOST  PROBLEMS\nh2    route-conflict\n\n";
    assert!(shown.stdout.contains(problems) && !shown.stdout.contains("not known"), "{shown}");
    assert!(shown.stdout.contains("2 of 3 hosts are well"), "{shown}");
    let doctor = run(h1, "doctor --all", &[]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor}");
    assert!(doctor.stdout.contains("route-conflict  reported by the agent  h2\n"), "{doctor}");
    h2.run(&format!("ip route del {route}")).ok();
    run(h1, "status --all --wait 60", &[]).ok();
    agents[2].stop();
    // Without an agent here etcd has what the others published.
    let tunnel = &object(&run(h3, "status --all --json", &[]))["hosts"][0]["tunnel"];
    assert!(tunnel["port"].is_u64() && tunnel["vni"].is_u64(), "{tunnel}");
    h2.run(&format!("ip route add {route}")).ok();
    eventually("a host without an agent shows the problem that h2 publishes", PUBLISHED, || {
        let shown = run(h3, "status --all", &[]);
        let has = |host: &str, word: &str| {
            let of = |line: &&str| line.starts_with(host) && line.contains(word);
            shown.stdout.lines().any(|line| of(&line))
        };
        let is_whole = has("h1", " 2 of 2") && has("h2", "route-conflict") && has("h3*", "silent");
        if is_whole { Ok(()) } else { Err(shown.to_string()) }
    });
    let doctor = run(h3, "doctor --all", &[]);
    assert!(doctor.stdout.contains("route-conflict  reported by the agent  h2\n"), "{doctor}");
    h2.run(&format!("ip route del {route}")).ok();
    let shown = run(h1, "status --all", &[]);
    assert_eq!(shown.status.code(), Some(1), "{shown}");
    assert!(shown.stdout.contains("h3    silent"), "{shown}");
    let doctor = object(&run(h1, "doctor --all --json", &[]));
    let first = &doctor["problems"][0];
    assert_eq!(
        (&first["kind"], &first["hosts"]),
        (&json!("agent-down"), &json!(["h3"])),
        "{doctor:#}"
    );
    refused(&run(h1, "doctor --all --bundle /tmp/x", &[]), 2, &["drop --all"]);
    // A key may be all that there is of a host.
    cluster.etcd.put("/humanz/hosts/gone", "10.244.77.0/24");
    eventually("it is not counted as well", PUBLISHED, || {
        let all = of_all();
        let first = object(&all)["hosts"][0].clone();
        assert_eq!(first["name"], "gone", "{all}");
        // Not known, or not reached by those that have asked it meanwhile.
        if first["well"] == true { Err(all.to_string()) } else { Ok(()) }
    });
    cluster.etcd.delete("/humanz/hosts/gone");
    let refused = run(h1, "status --all --wait x", &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
}

/// As their agents publish it; a host that does not say it has a question mark.
#[test]
fn status_of_all_hosts_says_what_each_has_in_force_of_policies() {
    let cluster = Cluster::new(3);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    let _agents = [
        Agent::start(h1, &[OFTEN, ("POLICY", "on")]),
        Agent::start(h2, &[OFTEN]),
        Agent::start(h3, &[("PROBE_INTERVAL", "0")]),
    ];
    let policies = |host: &Node| {
        let all = object(&run(host, "status --all --json", &[]));
        let of = |at: usize| all["hosts"][at]["policies"].clone();
        (json!([of(0), of(1), of(2)]), all["not_known"].clone())
    };
    let soon = |host: &Node, wanted: Value| {
        eventually(&format!("{wanted} on {}", host.name()), PUBLISHED, || match policies(host) {
            (found, not_known) if found == wanted => Ok(not_known),
            (found, _) => Err(found.to_string()),
        })
    };
    let not_known = soon(h2, json!(["in-force", "off", null]));
    assert!(not_known[0].as_str().unwrap().starts_with("what 1 of 3 hosts have"), "{not_known}");
    let shown = run(h2, "status --all", &[]).stdout;
    let has = |host: &str, word: &str| {
        let found = shown.lines().find(|line| line.starts_with(host)).unwrap();
        assert!(found.contains(&format!("  {word}  ")), "{word}: {shown}");
    };
    has("h1", "in force");
    has("h2*", "off");
    has("h3", "?");
    assert!(shown.contains("\nnot known: what 1 of 3 hosts have"), "{shown}");
    // What the host says, and words of other releases or of an attacker are no words of ours.
    let report = |policies: Value| {
        let report = json!({"schema": 1, "at": 1, "asked": 2, "answer": 2, "policies": policies});
        cluster.etcd.put("/humanz/v1-probes/h3", report.to_string());
    };
    for (published, shown) in [
        (json!("behind"), json!("behind")),
        (json!("\u{1b}[2J"), json!("unknown")),
        (json!("not-in-force"), json!("not-in-force")),
        (json!({"in-force": "in-force"}), json!(null)),
    ] {
        report(published);
        soon(h2, json!(["in-force", "off", shown]));
    }
    // Without etcd an agent has the policies of before, and says so of its own host.
    cluster.etcd.kill();
    let shown = eventually("policies to be behind", PUBLISHED, || {
        let shown = run(h1, "status --all", &[]).stdout;
        let own = shown.lines().find(|line| line.starts_with("h1*")).map(str::to_owned);
        match own.filter(|line| line.contains("  behind  ")) {
            Some(_) => Ok(shown),
            None => Err(shown),
        }
    });
    assert!(shown.contains("\n! "), "{shown}");
}
