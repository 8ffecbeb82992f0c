//! The history of a host outlives its agent.

use serde_json::{Value, json};

use crate::support::local::get;
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, eventually};
use crate::{alone, serve};

const FILE: &str = "/var/lib/humanz/history.json";

fn history(host: &Node) -> Value {
    let (code, body) = get(host, "/v1/history");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The history once `is_so` of its spans: from, until, [problems, hosts that are not reached, hosts, pods].
fn spans(host: &Node, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually("the history", SOON, || {
        let spans = history(host)["spans"].as_array().unwrap().clone();
        if is_so(&spans) { Ok(spans) } else { Err(format!("{spans:?}")) }
    })
}

fn pods(spans: &[Value]) -> Vec<u64> {
    spans.iter().map(|span| span[2][3].as_u64().unwrap()).collect()
}

fn start(host: &Node) -> Agent {
    serve(host, &[])
}

#[test]
fn what_an_agent_saw_is_there_after_a_stop_and_after_a_kill() {
    let alone = alone();
    let host = &alone.host;
    let agent = start(host);
    spans(host, |spans| pods(spans) == [0]);
    assert_eq!(history(host)["changes"], json!([]), "of earlier lives");
    let _pod = Pod::add(host, "a");
    agent.stop();

    // The last sample is that of the stop.
    let agent = start(host);
    let before = spans(host, |spans| pods(spans).ends_with(&[1]));
    assert_eq!(pods(&before), [0, 1], "{before:?}");
    let changes = history(host)["changes"].to_string();
    assert!(changes.contains("added bridge humanz0"), "{changes}");
    // The first sample of this life is on the disk.
    agent.kill();

    let agent = start(host);
    let after = spans(host, |spans| !spans.is_empty());
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1][0], before[1][0], "the time goes on: {after:?}");
    let list = host.shell(&format!("stat -c %a {FILE}; ls /var/lib/humanz")).stdout;
    assert!(list.starts_with("600\n") && list.matches("history").count() == 1, "{list}");
    agent.stop();
}

#[test]
fn a_file_that_no_agent_has_written_is_logged_and_replaced() {
    let alone = alone();
    let host = &alone.host;
    start(host).stop();
    let good = host.read(FILE).unwrap();
    let year_9999 =
        good.replacen("]],\"changes\"", "],[253000000000,253000000060,[0,0,0,0]]],\"changes\"", 1);
    for (damaged, expected) in [
        (good[..good.len() / 2].to_owned(), "EOF"),
        ("\0".repeat(4096), "expected value"),
        ("[".repeat(1 << 20), "invalid type"),
        (good.replacen("\"machineId\":\"", "\"machineId\":\"other", 1), "another machine"),
        (good.replacen("\"spans\":[", "\"spans\":[[9,1,[0,0,0,0]],", 1), "no agent has written"),
    ] {
        host.write(FILE, &damaged);
        let agent = start(host);
        let line = agent.wait_log(&["history.json", expected]);
        assert!(line.contains("WARN"), "{line}");
        assert_eq!(spans(host, |spans| !spans.is_empty()).len(), 1);
        agent.stop();
        assert_eq!(history_of(&host.read(FILE).unwrap()).len(), 1, "it was replaced");
    }
    // It was written while the clock was wrong.
    host.write(FILE, &year_9999);
    let agent = start(host);
    let spans = spans(host, |spans| spans.len() == 3);
    assert!(spans[2][0].as_u64() < spans[1][0].as_u64(), "{spans:?}");
    assert!(!agent.log().contains("history"), "{}", agent.log());
    agent.stop();
}

fn history_of(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["spans"].as_array().unwrap().clone()
}

#[test]
fn an_agent_that_cannot_keep_it_serves_all_the_same_and_says_so_once() {
    let alone = alone();
    let host = &alone.host;
    host.shell(&format!("mkdir -p {FILE}/in-the-way")).ok();
    let agent = start(host);
    spans(host, |spans| !spans.is_empty());
    agent.wait_log(&["history.json", "begins anew"]);
    agent.wait_log(&["history.json", "a restart of the agent loses"]);
    agent.stop();
    assert_eq!(agent.log().matches("a restart of the agent loses").count(), 1, "{}", agent.log());
}
