//! Policies are on, and none could be read: what is said is what packets meet.

use crate::support::cni::Network;
use crate::support::{Agent, Node, Place, Pod, local, pod, soon};
use crate::traffic::{Flood, Server};
use crate::{FILE, add, alone, attachment, only_from, serve, write_policies};

const SETTINGS: &str = "/run/agent.env";
const NOT_JUDGED: &str = "not judged, every packet passes";

fn set(host: &Node, policy: &str) {
    let flows = if policy == "on" { "FLOWS=on\n" } else { "" };
    let text = format!(
        "{flows}SUBNET_SOURCE=static\nIPV6_SUBNET=fd10::/48\nPOLICY={policy}\nPOLICY_FILE={FILE}\n"
    );
    host.write(SETTINGS, &text);
}

fn start(host: &Node) -> Agent {
    Agent::start_with(host, &format!("--env-file {SETTINGS}"), &[("ETCD_HOST", "")])
}

fn spoil(host: &Node) {
    host.run("mkdir -p /etc/humanz").ok();
    host.write(FILE, "garbage: [");
}

/// Its exit code and its output.
fn ask(host: &Node, subcommand: &str) -> (i32, String) {
    let line = format!("--env-file {SETTINGS} {subcommand}");
    let ended = Agent::run(host, &line, &[("ETCD_HOST", "")]);
    (ended.status.code().unwrap(), ended.to_string())
}

/// What `policy ls` and `policy show` say then: neither that there are none, nor that one of them does not exist.
fn policies_are_not_known(host: &Node) -> [String; 2] {
    let (code, listed) = ask(host, "policy ls");
    assert!(code == 1 && !listed.contains("\nno policies\n"), "{code} {listed}");
    let (code, shown) = ask(host, "policy show shop/db");
    assert!(code == 69 && !shown.contains("there is no policy"), "{code} {shown}");
    [listed, shown]
}

/// All that is said of a pod that no policy judges, with an agent or without one.
fn assert_not_judged(host: &Node) {
    let (code, tested) =
        ask(host, "policy test --from shop/other --to shop/db:5000 --protocol udp");
    assert_eq!((code, tested.matches(NOT_JUDGED).count()), (0, 4), "{tested}");
    let (_, explained) = ask(host, "explain shop/other shop/db 5000");
    let (_, status) = ask(host, "status");
    let [listed, shown] = policies_are_not_known(host);
    for said in [explained, status, listed, shown, tested] {
        assert!(said.contains("every packet passes") || said.contains("no policies"), "{said}");
        assert!(!said.contains("quarantine"), "{said}");
    }
    assert!(ask(host, "status").1.contains(NOT_JUDGED));
}

#[test]
fn policies_turned_on_by_a_reload_with_a_faulty_file_judge_no_pod_and_every_answer_says_so() {
    let alone = alone();
    let host = &alone.host;
    spoil(host);
    set(host, "off");
    let agent = start(host);
    agent.wait_ready();
    let (db, other) = (add(host, "db", "db"), add(host, "other", "other"));
    let mut server = Server::open(&db);
    let _flood = Flood::start(&other, db.v4());
    server.wait(other.v4());
    set(host, "on");
    agent.reload();
    let status = local::status_when(host, "pods are not judged", |status| {
        status["policies"]["unjudged"] == true
    });
    assert_eq!(status["policies"]["quarantine"], serde_json::json!([]), "{status:#}");
    server.received(other.v4());
    server.wait(other.v4());
    assert_not_judged(host);
    let _counted = Flood::start(&other, db.v4());
    soon("a flow that is not judged", || ask(host, "flows").1.contains(NOT_JUDGED));
    let of_file = local::problem(&status, "policy", &format!("policies {FILE}"));
    assert!(of_file.is_some(), "{status:#}");
    let metrics = local::get(host, "/metrics").1;
    assert!(
        metrics.contains("humanz_policy_quarantined_pods{reason=\"no policies\"} 0\n"),
        "{metrics}"
    );
    let (code, why) = local::get(host, "/readyz");
    assert!(code == 503 && why.contains("no pod can start"), "{code} {why}");
    pod::make_netns(host, "late");
    let late = Pod::connect(host, &Network::of(host), attachment("late", "any"));
    assert_eq!(late.err().map(|error| error.code), Some(11));
    agent.kill();
    assert_not_judged(host);
    let agent = start(host);
    agent.wait_log(&[NOT_JUDGED]);
    let packets = server.received(other.v4());
    soon("packets of a pod that is not judged", || server.received(other.v4()) > packets);
    write_policies(host, &[only_from("db", &["web"])]);
    agent.wait_ready();
    server.wait_silence(other.v4(), std::time::Instant::now());
    assert_eq!(local::get(host, "/readyz").0, 200);
    assert_eq!(local::status(host)["policies"]["unjudged"], false);
    agent.stop();
}

/// Of `late` that it is in quarantine, of the others that nobody knows.
fn assert_as_before(host: &Node) {
    let (code, tested) = ask(host, "policy test --from shop/web --to shop/db:5000");
    assert_eq!((code, tested.matches("judged as before").count()), (1, 4), "{tested}");
    assert!(tested.contains("\nnot known here"), "{tested}");
    let explained = ask(host, "explain shop/web shop/db 5000").1;
    assert!(
        explained.contains("judged as before") && !explained.contains("quarantine"),
        "{explained}"
    );
    for said in policies_are_not_known(host) {
        assert!(said.contains("judged as before"), "{said}");
    }
    let (code, late) = ask(host, "policy test --from shop/late --to shop/db:5000");
    assert!(code == 1 && late.contains("denied: the pod is in quarantine"), "{late}");
    let (_, status) = ask(host, "status");
    assert_eq!(status.matches(" is in quarantine").count(), 1, "{status}");
    assert!(status.contains("shop/late (") && !status.contains(NOT_JUDGED), "{status}");
}

#[test]
fn a_table_of_before_stays_in_force_while_no_policies_are_known_and_no_command_guesses_what_it_says()
 {
    let alone = alone();
    let host = &alone.host;
    set(host, "on");
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let (db, web, other) =
        (add(host, "db", "db"), add(host, "web", "web"), add(host, "other", "other"));
    let mut server = Server::open(&db);
    let (_allowed, denied) = (Flood::start(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    agent.kill();
    spoil(host);
    host.shell("rm -f /var/lib/humanz/policy.json*").ok();
    let agent = start(host);
    agent.wait_ready();
    let late = add(host, "late", "web");
    local::status_when(host, "one pod in quarantine", |status| {
        let quarantine = status["policies"]["quarantine"].as_array().map(Vec::len);
        status["policies"]["known"] == false && quarantine == Some(1)
    });
    assert_as_before(host);
    let _late = Flood::start(&late, db.v4());
    server.wait(web.v4());
    denied.go_on();
    assert_eq!((server.received(other.v4()), server.received(late.v4())), (0, 0));
    agent.kill();
    assert_as_before(host);
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = start(host);
    server.wait(late.v4());
    agent.stop();
}
