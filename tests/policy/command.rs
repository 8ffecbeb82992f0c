//! `policy test` and `policy diff`, from files as users have them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn pod(namespace: &str, name: &str, number: u8) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {"nodeName": "h1", "containers": [
            {"name": "c", "ports": [{"name": "sql", "containerPort": 5432}]}]},
        "status": {"phase": "Running", "podIPs": [
            {"ip": format!("10.244.1.{number}")}, {"ip": format!("fd00:1::{number}")}]}})
}

fn cluster() -> Value {
    let mut host = pod("shop", "host", 9);
    host["spec"]["hostNetwork"] = json!(true);
    let mut ended = pod("shop", "ended", 2);
    ended["status"]["phase"] = json!("Succeeded");
    json!({"apiVersion": "v1", "kind": "List", "items": [
        ended, pod("shop", "web", 2), pod("shop", "db", 3), pod("other", "web", 4), host,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "h1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}]})
}

const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  namespace: shop
spec:
  podSelector:
    matchLabels:
      app: db
  ingress:
  - from:
    - podSelector: {}
    ports:
    - port: 5432
      protocol: TCP
---
apiVersion: humanz.io/v1
kind: Group
metadata:
  name: unused
spec:
  default: deny
";

/// What `humanz-agent policy` prints in `folder`, and its exit code.
fn policy(folder: &Path, words: &str) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_humanz-agent"));
    command.arg("policy").args(words.split_whitespace()).current_dir(folder);
    let ended = command.output().unwrap();
    let text = [ended.stdout, ended.stderr].concat();
    (String::from_utf8(text).unwrap(), ended.status.code().unwrap())
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cluster.json"), cluster().to_string()).unwrap();
    std::fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
    folder
}

/// It said "no policies" and 0, where the agent's problem of such a file sent who asked.
#[test]
fn a_file_without_an_object_is_refused_as_the_agent_refuses_it() {
    let folder = folder();
    std::fs::write(folder.path().join("none.yaml"), "# none yet\n").unwrap();
    std::fs::write(folder.path().join("empty.yaml"), "[]\n").unwrap();
    let (said, code) = policy(folder.path(), "ls -f none.yaml");
    assert!(said.contains("none.yaml: it has no object; [] says") && code == 2, "{code}: {said}");
    assert_eq!(policy(folder.path(), "ls -f empty.yaml"), ("no policies\n".to_owned(), 0));
    // They said "allowed" and "no connection between these pods changes".
    let ends = "--from shop/web --to shop/db:80";
    for words in [
        format!("test -f cluster.json -f none.yaml {ends}"),
        format!("test --live -f none.yaml {ends}"),
        "diff -f cluster.json --new none.yaml".to_owned(),
    ] {
        let (said, code) = policy(folder.path(), &words);
        assert!(said.contains("none.yaml: it has no object") && code == 2, "{words}: {said}");
    }
    for words in [
        format!("test -f cluster.json -f empty.yaml {ends}"),
        "diff -f cluster.json --new empty.yaml".to_owned(),
    ] {
        assert_eq!(policy(folder.path(), &words).1, 0, "{words}");
    }
}

#[test]
fn a_connection_is_judged_at_both_ends_and_in_both_families() {
    let folder = folder();
    let test = |words: &str| {
        policy(folder.path(), &format!("test -f cluster.json -f policy.yaml {words}"))
    };
    let (text, code) = test("--from shop/web --to shop/db:5432");
    let wanted = "\
shop/web 10.244.1.2 -> shop/db 10.244.1.3:5432 tcp
  egress   allowed: no rule matches
  ingress  allowed: NetworkPolicy shop/db ingress rule 0
shop/web fd00:1::2 -> shop/db [fd00:1::3]:5432 tcp
  egress   allowed: no rule matches
  ingress  allowed: NetworkPolicy shop/db ingress rule 0
allowed
";
    assert_eq!((text.as_str(), code), (wanted, 0));
    for (words, wanted, code) in [
        ("--from other/web --to shop/db:5432", "denied: NetworkPolicy shop/db ingress default", 1),
        ("--from shop/web --to shop/db:5433", "denied: NetworkPolicy shop/db ingress default", 1),
        ("--from shop/web --to shop/db", "denied: NetworkPolicy shop/db ingress default", 1),
        ("--from shop/web --to shop/db:5432 --protocol udp", "ingress default", 1),
        ("--from 192.0.2.1 --to shop/db:1", "allowed: from the pod's own node", 0),
        ("--from shop/db --to [2001:db8::1]:443", "allowed: no rule matches", 0),
        ("--from shop/none --to shop/db:1", "shop/none is no address, and no pod", 2),
        ("--from shop/host --to shop/db:1", "has an address of its own", 2),
        ("--from shop/ended --to shop/db:1", "shop/ended is no address", 2),
        ("--from 192.0.2.1 --to 2001:db8::1", "no family in common", 2),
        ("-f none.json --from shop/web --to shop/db", "none.json: No such file", 2),
    ] {
        let (text, found) = test(words);
        assert!(text.contains(wanted) && found == code, "{words}: {found}\n{text}");
    }
    let (text, code) = test("--from other/web --to shop/db:5432 --json");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 1);
    let ingress = &json["connections"][0]["ingress"];
    assert_eq!(ingress["rule"], "NetworkPolicy shop/db ingress default");
    assert_eq!((&json["allowed"], &json["problems"]), (&json!(false), &json!([])));
}

#[test]
fn what_is_not_understood_is_listed_and_closes() {
    let folder = folder();
    let bad = POLICY.replace("podSelector: {}", "podSelector: 7").replace("Group", "Moon");
    std::fs::write(folder.path().join("policy.yaml"), bad).unwrap();
    let words = "test -f cluster.json -f policy.yaml --from shop/web --to shop/db:5432";
    let (text, code) = policy(folder.path(), words);
    let fault = "! NetworkPolicy shop/db: spec.ingress[0].from[0].podSelector: must be an object";
    assert!(text.contains(fault) && text.contains("kind \"Moon\" is not known"), "{text}");
    assert_eq!(code, 1, "{text}");
}

#[test]
fn the_group_of_the_hosts_settings_is_that_of_pods_that_nothing_else_puts_into_one() {
    let folder = folder();
    let own = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let base = json!([own("Group", "base", json!({"default": {"in": "deny"}}))]);
    std::fs::write(folder.path().join("groups.json"), base.to_string()).unwrap();
    let test = |words: &str| {
        let words = format!("test -f cluster.json {words} --from shop/web --to shop/db:5432");
        policy(folder.path(), &words)
    };
    assert_eq!(test("-f groups.json").1, 0);
    let (text, code) = test("-f groups.json --group base");
    assert!(text.contains("denied: group default/base ingress default"), "{text}");
    assert_eq!((code, text.contains('!')), (1, false), "{text}");
    let diff = |words: &str| {
        policy(folder.path(), &format!("diff -f cluster.json --new groups.json {words}"))
    };
    assert_eq!(diff("").1, 0);
    let (text, code) = diff("--group default/base");
    let wanted = "- denied, was allowed: other/web -> shop/web (and 1 like it) tcp on other ports";
    assert!(code == 1 && text.contains(wanted), "{text}");

    // What hosts report is reported here, too.
    let ruled = json!([own("NamespaceRule", "shop", json!({"tenant": "blue"}))]);
    std::fs::write(folder.path().join("ruled.json"), ruled.to_string()).unwrap();
    let (text, code) = test("-f groups.json -f ruled.json --group base");
    let wanted =
        "pod shop/db: POLICY_GROUP: group default/base is not allowed for pods of this namespace";
    assert!(code == 0 && text.contains(wanted), "{text}");
    let (text, code) = test("--group bsae");
    assert!(
        code == 0 && text.contains("POLICY_GROUP=default/bsae: there is no such group"),
        "{text}"
    );

    // A host has settings of its own.
    let here = [
        policy(folder.path(), "test --from shop/web --to shop/db --group base"),
        policy(folder.path(), "diff -f groups.json --group base"),
        policy(folder.path(), "diff --new groups.json --group base"),
    ];
    for (text, code) in here {
        assert!(code == 2 && text.contains("on this host POLICY_GROUP says it"), "{text}");
    }
    let (text, code) = test("--group a/b/c");
    assert!(code == 2 && text.contains("is not a name"), "{code} {text}");
}

#[test]
fn diff_lists_what_a_change_denies_and_allows() {
    let folder = folder();
    let (text, code) = policy(folder.path(), "diff -f cluster.json --new policy.yaml");
    assert_eq!(code, 1, "{text}");
    for line in [
        "- denied, was allowed: other/web -> shop/db tcp/5432: NetworkPolicy shop/db ingress default",
        "- denied, was allowed: shop/web -> shop/db tcp on other ports: NetworkPolicy shop/db",
        "- denied, was allowed: shop/web -> shop/db icmp type 8: NetworkPolicy shop/db ingress",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("shop/web -> shop/db tcp/5432"), "{text}");
    assert!(!text.contains("-> shop/web"), "{text}");
    let words = "diff -f cluster.json -f policy.yaml --new policy.yaml";
    let (text, code) = policy(folder.path(), words);
    assert_eq!((text.trim(), code), ("no connection between these pods changes", 0));
    let opened = POLICY.replace("  - from:\n    - podSelector: {}\n    ports:", "  - ports:");
    std::fs::write(folder.path().join("new.yaml"), opened).unwrap();
    let (text, _) = policy(folder.path(), "diff -f cluster.json -f policy.yaml --new new.yaml");
    let line = "+ allowed, was denied: other/web -> shop/db tcp/5432: NetworkPolicy shop/db";
    assert!(text.starts_with(line) && text.lines().count() == 1, "{text}");
}

#[test]
fn diff_tries_both_families_and_names_the_one_that_changes() {
    let folder = folder();
    let from = |blocks: &[&str]| {
        let peers: Vec<Value> =
            blocks.iter().map(|block| json!({"ipBlock": {"cidr": block}})).collect();
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "db"},
            "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
                {"from": peers, "ports": [{"port": 5432}]}]}})
    };
    let write = |name: &str, policy: Value| {
        std::fs::write(folder.path().join(name), policy.to_string()).unwrap();
    };
    write("both.json", from(&["10.244.0.0/16", "fd00::/16"]));
    write("v4.json", from(&["10.244.0.0/16"]));
    let (text, code) = policy(folder.path(), "diff -f cluster.json -f both.json --new v4.json");
    let denied = |name: &str| {
        format!(
            "- denied, was allowed: {name} -> shop/db tcp/5432 (IPv6): NetworkPolicy shop/db ingress \
             default"
        )
    };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines, code), (vec![&*denied("other/web"), &denied("shop/web")], 1), "{text}");
    let (text, _) = policy(folder.path(), "diff -f cluster.json --new v4.json");
    assert!(text.contains("shop/web -> shop/db icmp type 8: NetworkPolicy"), "{text}");
}

#[test]
fn of_policies_those_for_the_pods_of_a_group_are_listed_and_shown() {
    let folder = folder();
    let own = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let rule = json!({"direction": "in", "action": "allow", "protocol": "tcp", "ports": [80]});
    let groups = json!([
        own("GroupPolicy", "front", json!({"rules": [rule]})),
        own("Group", "sql", json!({"policies": ["front"]})),
        own("Group", "web", json!({"policies": ["front"], "default": "deny"})),
        own("NamespaceRule", "shop", json!({"pods": [{"match": "db", "group": "sql"}]})),
        own("NamespaceRule", "other", json!({"group": "web"})),
    ]);
    std::fs::write(folder.path().join("groups.json"), groups.to_string()).unwrap();
    let files = "-f cluster.json -f policy.yaml -f groups.json";
    let names = |group: &str| {
        let (text, code) = policy(folder.path(), &format!("ls {files} --group {group}"));
        assert_eq!(code, 0, "{text}");
        let name = |line: &str| line.split_whitespace().nth(2).unwrap_or_default().to_owned();
        text.lines().skip(1).map(name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("sql"), "default/front shop/db");
    assert_eq!(names("default/web"), "default/front default/web");
    assert_eq!(names("none"), "");
    let (both, _) = policy(folder.path(), &format!("show front {files}"));
    let (one, code) = policy(folder.path(), &format!("show front {files} --group sql"));
    assert!(both.contains("other/web (") && both.contains("shop/db ("), "{both}");
    assert!(code == 0 && one.contains("shop/db (") && !one.contains("other/web"), "{one}");
    let (none, code) = policy(folder.path(), &format!("show db {files} --group web"));
    assert!(code == 2 && none.contains("policy db has no rule for group default/web"), "{none}");
}

#[test]
fn policies_of_files_are_listed_and_shown_in_words() {
    let folder = folder();
    let (text, code) = policy(folder.path(), "ls -f cluster.json -f policy.yaml");
    assert_eq!(code, 0, "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["group", "group", "default/unused", "0", "in,out", "-"], "{text}");
    assert_eq!(rows[2], ["policy", "NetworkPolicy", "shop/db", "1", "in", "-"], "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let (text, code) = policy(folder.path(), "show db -f cluster.json -f policy.yaml");
    let wanted = "\
NetworkPolicy shop/db (tier policy)
  ingress rule 0: allow tcp/5432 from pods of namespace shop
  ingress default: deny everything from anywhere
  pods that it has rules for: shop/db (10.244.1.3, fd00:1::3)
  pods of namespace shop now: 10.244.1.2, fd00:1::2, 10.244.1.3, fd00:1::3
";
    assert_eq!((text.as_str(), code), (wanted, 0));
    let (text, code) = policy(folder.path(), "show none -f cluster.json");
    assert!(code == 2 && text.contains("there is no policy none"), "{code} {text}");
}

#[test]
fn diff_does_not_say_that_nothing_changes_where_it_compares_nothing() {
    let folder = folder();
    for (words, why) in [
        ("diff", "no objects are given: -f FILE"),
        ("diff -f policy.yaml", "without this host's policies: -f FILE"),
        ("diff -f cluster.json -f policy.yaml", "without this host's policies: -f FILE"),
        ("diff --new policy.yaml", "without this host's policies: -f FILE"),
        (
            "diff -f policy.yaml --new policy.yaml --json",
            "no pods to compare for: give with -f a file",
        ),
    ] {
        let (text, code) = policy(folder.path(), words);
        assert!(text.contains(why) && code == 2, "{words}: {code} {text}");
    }
}
