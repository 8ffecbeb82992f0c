//! The subcommands `tenant`, `net`, `group`, `ns`, and `policy` rule by rule.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::{Cluster, Ended, Node};
use crate::{object, refused, run};

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", ""), ("POLICY", "on")];

fn done(host: &Node, line: &str) -> String {
    run(host, line, SETTINGS).ok()
}

fn typed(host: &Node, line: &str) -> Ended {
    run(host, line, SETTINGS)
}

#[test]
fn objects_are_made_changed_shown_and_removed_one_at_a_time() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    assert_eq!(done(host, "net ls"), "there is no Network\n");
    assert_eq!(done(host, "tenant ls"), "there is no tenant\n");
    let created = done(host, "net create blue/front --cidr 10.32.0.0/16 --dry-run");
    assert_eq!(created, "+ Network blue/front\nnothing was changed (--dry-run)\n");
    done(host, "net create blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64");
    assert_eq!(done(host, "policy create blue/web"), "+ GroupPolicy blue/web\n");
    let created =
        done(host, "netprofile create blue/gold --dscp 46 --egress-rate 100M --egress-burst 2M");
    assert_eq!(created, "+ NetProfile blue/gold\n");
    done(host, "group create blue/web --policies web --default deny --profile gold");
    done(host, "ns create shop --tenant blue --group web --network front --allow *");
    let rule = "policy rule-add blue/web --direction in --action allow --protocol tcp --port 80 --port 8000-8999";
    assert_eq!(done(host, &format!("{rule} --peer-group web")), "~ GroupPolicy blue/web\n");
    done(
        host,
        "policy rule-add blue/web --direction out --action deny --cidr 10.0.0.0/8 --except 10.1.0.0/16 --priority 9",
    );

    let rules = done(host, "policy rule-ls blue/web");
    let lines: Vec<Vec<&str>> =
        rules.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[1],
        ["1", "in", "1", "allow", "tcp", "80,8000-8999", "group", "web"],
        "{rules}"
    );
    assert_eq!(lines[2][..4], ["2", "out", "9", "deny"], "{rules}");
    let listed = object(&typed(host, "policy rule-ls blue/web --json"));
    let first = json!({"direction": "in", "action": "allow", "protocol": "tcp",
        "ports": [80, "8000-8999"], "peer": {"group": "web"}});
    assert_eq!(listed["rules"][0], first);

    assert_eq!(done(host, "net set blue/front --shared yes"), "~ Network blue/front\n");
    assert_eq!(done(host, "net set blue/front --shared yes"), "nothing differs\n");
    let net = object(&typed(host, "net show blue/front --json"));
    let spec = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"], "shared": true});
    assert_eq!((&net["object"]["spec"], &net["usedBy"]), (&spec, &json!(["NamespaceRule shop"])));
    let blocks =
        "net set blue/front --block-v4 /27 --block-v6 120 --pod-mtu 1400 --nat no --host-ports no";
    done(host, blocks);
    done(host, "net set blue/front --block-v6= --nat yes");
    let net = object(&typed(host, "net show blue/front --json"));
    let spec = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"], "shared": true, "blocks": {"v4": 27},
        "mtu": 1400, "nat": true, "hostPorts": false});
    assert_eq!(net["object"]["spec"], spec);
    let shown = done(host, "net show blue/front");
    assert!(shown.contains("blocks") && shown.contains("v4 27"), "{shown}");
    done(host, "net set blue/front --profile gold");
    assert_eq!(
        done(host, "profile set blue/gold --dscp 34 --ingress-rate 1G --ingress-burst 8M"),
        "~ NetProfile blue/gold\n"
    );
    let gold = object(&typed(host, "profile inspect blue/gold --json"));
    assert_eq!(gold["usedBy"], json!(["Group blue/web", "Network blue/front"]));
    let spec = json!({"dscp": 34, "egressRate": "100M", "egressBurst": "2M",
        "ingressRate": "1G", "ingressBurst": "8M"});
    assert_eq!(gold["object"]["spec"], spec);
    let row = done(host, "profile ls").lines().nth(1).unwrap().to_owned();
    assert!(row.split_whitespace().eq(["blue/gold", "34", "100M", "2M", "1G"]), "{row}");
    let group = done(host, "group show blue/web");
    assert!(
        group.contains("GroupPolicy blue/web") && group.contains("NamespaceRule shop"),
        "{group}"
    );
    let tenants = done(host, "tenant ls");
    let row: Vec<&str> = tenants.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["blue", "1", "1", "1", "1", "1"], "{tenants}");
    let tenant = object(&typed(host, "tenant show blue --json"));
    assert_eq!((&tenant["networks"], &tenant["namespaces"]), (&json!(["front"]), &json!(["shop"])));

    assert_eq!(done(host, "policy rule-rm blue/web 1"), "~ GroupPolicy blue/web\n");
    assert!(!done(host, "policy rule-ls blue/web").contains("tcp"));
    done(host, "group set blue/web --policies=");
    done(host, "policy rm GroupPolicy blue/web");
    for line in ["ns rm shop", "group rm blue/web", "net rm blue/front", "profile rm blue/gold"] {
        assert!(done(host, line).starts_with("- "));
    }
    assert_eq!(done(host, "tenant ls"), "there is no tenant\n");
}

#[test]
fn what_cannot_be_is_refused_with_its_reason_and_nothing_is_changed() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "net create blue/front --cidr 10.32.0.0/16");
    done(host, "group create blue/web");
    done(host, "ns create shop --tenant blue --group web --network front");
    done(host, "policy create blue/p");
    done(host, "profile create blue/gold --dscp 46");
    done(host, "group set blue/web --profile gold");
    // As an earlier version let it stand.
    let old = json!({"apiVersion": "humanz.io/v1", "kind": "Group", "spec": {},
        "metadata": {"tenant": "blue", "namespace": "x", "name": "old"}});
    cluster.etcd.put("/humanz/v1-policies/Group/blue/old", old.to_string());
    host.write("/root/old.json", &old.to_string());
    let before = done(host, "policy export");
    host.write("/root/export.json", &before);
    assert_eq!(done(host, "policy apply -f /root/export.json"), "nothing differs\n");
    let group =
        "apiVersion: humanz.io/v1\nkind: Group\nmetadata: {namespace: blue, name: db}\nspec: {}\n";
    host.write("/root/group.yaml", group);
    let nothing = "nothing was changed";
    for (line, code, words) in [
        ("net create blue/front --cidr 10.33.0.0/16", 1, &[nothing, "exists already"][..]),
        ("net create green/front --cidr 10.32.7.0/24", 1, &[nothing, "blue/front"]),
        ("net create green/front --cidr 10.244.0.0/24", 1, &[nothing, "10.244.0.0/16"]),
        (
            "net create green/front --cidr 10.33.0.7/24",
            1,
            &[nothing, "! Network green/front: ", "10.33.0.7/24"],
        ),
        ("net create green/front", 1, &[nothing, "subnets"]),
        ("net set green/front --shared no", 1, &[nothing, "Network green/front is not there"]),
        ("net set blue/front --shared perhaps", 2, &["perhaps"]),
        ("net set blue/front --pod-mtu 500", 1, &[nothing, "mtu: must be a number from 1280"]),
        ("net set blue/front --block-v4 31", 1, &[nothing, "/30 or wider"]),
        ("net set blue/front --block-v4 two", 1, &[nothing, "blocks.v4: must be a number"]),
        ("net set blue/front", 1, &[nothing, "no field of"]),
        ("net rm blue/front", 1, &[nothing, "NamespaceRule shop"]),
        ("net rm blue/frnt", 1, &[nothing, "blue/frnt is not there; did you mean blue/front?"]),
        ("net show blue/frnt", 1, &["blue/frnt is not there; did you mean blue/front?"]),
        (
            "ns set shop --network frnt",
            1,
            &[nothing, "Network blue/frnt does not exist; did you mean blue/front?"],
        ),
        (
            "ns set shop --group green/web",
            1,
            &["Group green/web does not exist; did you mean blue/web?"],
        ),
        ("net show a/b/c", 2, &["b/c"]),
        ("group create blue/db --policies gone", 1, &[nothing, "blue/gone does not exist"]),
        ("group set blue/web --default perhaps", 1, &[nothing, "perhaps"]),
        ("group rm blue/web", 1, &[nothing, "NamespaceRule shop"]),
        ("profile create blue/gold --dscp 1", 1, &[nothing, "exists already"]),
        ("profile create blue/high --dscp 64", 1, &[nothing, "dscp", "from 0 to 63"]),
        (
            "profile set blue/gold --egress-rate 10mbps",
            1,
            &[nothing, "egressRate", "at least 8 bits"],
        ),
        ("profile set blue/gold --egress-burst 8k", 1, &[nothing, "egressBurst needs egressRate"]),
        (
            "profile set blue/gold --ingress-rate= --ingress-burst 8k",
            1,
            &[nothing, "ingressBurst needs"],
        ),
        ("profile set blue/gold --dscp ef", 1, &[nothing, "from 0 to 63"]),
        ("profile rm blue/gold", 1, &[nothing, "Group blue/web", "blue/gold does not exist"]),
        ("group set blue/web --profile gone", 1, &[nothing, "NetProfile blue/gone"]),
        ("net set blue/front --profile a/b/c", 1, &[nothing, "profile", "b/c"]),
        ("net create default/default --profile gone", 1, &[nothing, "NetProfile default/gone"]),
        ("ns set shop --group gone", 1, &[nothing, "Group blue/gone does not exist"]),
        ("policy rule-add blue/p --direction in --action allow --peer-group gone", 1, &["gone"]),
        ("policy rule-add blue/p --direction up --action allow", 1, &[nothing, "up"]),
        ("policy rule-add blue/p --direction in --action allow --port 80", 1, &[nothing]),
        (
            "policy rule-add blue/p --direction in --action allow --cidr 10.0.0.0/8 --peer-group web",
            2,
            &["one of"],
        ),
        ("policy rule-add blue/gone --direction in --action allow", 1, &["create makes it"]),
        ("policy rule-rm blue/p 1", 1, &[nothing, "none with number 1"]),
        ("policy rule-rm blue/p 0", 1, &[nothing, "none with number 0"]),
        ("policy show blue/p", 2, &["GroupPolicy blue/p is in etcd", "policy rule-ls blue/p"]),
        ("policy show blue/gone", 69, &["no policies could be read yet"]),
        (
            "policy apply -f /root/group.yaml",
            1,
            &[
                nothing,
                "Group db: it is of a tenant",
                "without metadata.tenant it is of the tenant default",
            ],
        ),
        (
            "policy apply -f /root/old.json",
            1,
            &[nothing, "Group old: it is of a tenant: remove metadata.namespace\n"],
        ),
        ("tenant show gren", 1, &["nothing is of the tenant \"gren\""]),
        ("gruop ls", 2, &["did you mean group?"]),
        ("net crate x", 2, &["did you mean create?"]),
    ] {
        refused(&typed(host, line), code, words);
    }
    assert_eq!(done(host, "policy export"), before);
    // What may come later, or is as in Kubernetes, is only noted.
    let noted = done(host, "ns set shop --allow wbe --allow front");
    assert_eq!(
        noted,
        "~ NamespaceRule shop\nnote: NamespaceRule shop: allow: there is no group or network blue/wbe; did you mean blue/web?\n"
    );
    assert_eq!(done(host, "ns set shop --allow web"), "~ NamespaceRule shop\n");
    let noted =
        done(host, "policy rule-add blue/p --direction in --action allow --cidr 10.1.2.3/8");
    assert!(
        noted.ends_with("note: GroupPolicy blue/p: \"10.1.2.3/8\" is read as 10.0.0.0/8\n"),
        "{noted}"
    );
}

#[test]
fn a_pin_that_cannot_be_says_which_pod_has_the_address_and_what_to_do() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "net create blue/front --cidr 10.32.0.0/16 --pins 10.32.255.0/29");
    done(host, "pin create shop/db-0 --network blue/front");
    let again = typed(host, "pin create shop/db-1 --address 10.32.255.2");
    let taken = "10.32.255.2 is pinned to pod shop/db-0 already: take another one";
    refused(&again, 1, &["nothing was changed", taken, "or remove that pin: humanz-agent pin rm"]);
    assert_eq!(again.stderr.lines().count(), 2, "{again}");
    done(host, "pin create shop/db-1 --address 10.32.255.6");
    refused(&typed(host, "pin set shop/db-1 --address 10.32.255.2"), 1, &[taken]);
    assert_eq!(done(host, "pin set shop/db-1 --address 10.32.255.6"), "nothing differs\n");
    let full = "(network blue/front) are pinned, to shop/db-0, shop/db-1: remove one by pin rm, or";
    refused(&typed(host, "pin create shop/db-2 --network blue/front"), 1, &[full]);
    let gone = "Network blue/frnt is not there; did you mean blue/front?";
    refused(&typed(host, "pin create shop/db-2 --network blue/frnt"), 1, &[gone]);
}

#[test]
fn pins_that_many_make_at_once_have_an_address_each() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "net create blue/data --cidr 10.36.0.0/16 --pins 10.36.255.0/24");
    let make = |n: u32| done(host, &format!("pin create shop/db-{n} --network blue/data"));
    std::thread::scope(|scope| (0..24).for_each(|n| drop(scope.spawn(move || make(n)))));
    let listed = done(host, "pin ls");
    let addresses = listed.lines().skip(1).map(|line| line.split_whitespace().nth(1));
    assert_eq!(addresses.collect::<BTreeSet<_>>().len(), 24, "{listed}");
}

/// As somebody else may write it.
#[test]
fn an_object_that_is_invalid_is_listed_and_shown_with_its_fault() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "net create blue/front --cidr 10.32.0.0/16");
    let put = |kind: &str, spec: serde_json::Value| {
        let object = json!({"apiVersion": "humanz.io/v1", "kind": kind,
            "metadata": {"tenant": "blue", "name": "bad"}, "spec": spec});
        cluster.etcd.put(&format!("/humanz/v1-policies/{kind}/blue/bad"), object.to_string());
    };
    put("Network", json!({"subnets": ["10.34.0.0/33"]}));
    put("Group", json!({"default": "perhaps"}));
    put("NetProfile", json!({"dscp": 64}));
    for (kind, why, row) in [
        ("net", "! Network blue/bad: subnets[0]: \"10.34.0.0/33\"", "blue/bad    10.34.0.0/33  -"),
        ("group", "! Group blue/bad: default: ", "blue/bad  -         perhaps  -"),
        ("profile", "! NetProfile blue/bad: dscp: ", "blue/bad  64    -       -"),
    ] {
        let listed = typed(host, &format!("{kind} ls"));
        assert_eq!(listed.status.code(), Some(1), "{listed}");
        assert!(listed.stdout.starts_with(why), "{listed}");
        assert!(listed.stdout.lines().any(|line| line.starts_with(row)), "{listed}");
        assert_eq!(listed.stdout.matches("! ").count(), 1, "{listed}");
        let shown = typed(host, &format!("{kind} show blue/bad"));
        assert!(shown.status.code() == Some(1) && shown.stdout.starts_with(why), "{shown}");
    }
    done(host, "net show blue/front");
    assert_eq!(object(&typed(host, "net ls --json"))["problems"].as_array().unwrap().len(), 1);
    // A change that repairs it does not repeat the fault.
    let others = done(host, "net set blue/bad --cidr 10.34.0.0/16");
    assert!(others.starts_with("~ Network blue/bad\n") && !others.contains("10.34"), "{others}");
    done(host, "net ls");
}

#[test]
fn pruning_takes_out_what_no_file_has() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "group create blue/web");
    done(host, "net create blue/front --cidr 10.32.0.0/16");
    host.write("/root/all.json", &done(host, "policy export"));
    done(host, "group create blue/db");
    done(host, "ns create shop --tenant blue --group db");
    let pruned = done(host, "policy apply -f /root/all.json --prune");
    let freed = "note: there is no NamespaceRule any more: pods of all namespaces choose their group and network freely\n";
    assert_eq!(pruned, format!("- Group blue/db\n- NamespaceRule shop\n{freed}"));
    assert_eq!(done(host, "policy apply -f /root/all.json --prune"), "nothing differs\n");
    // A full disk or a command that failed leaves an empty file, and jq has null for what is not there.
    for (text, files) in [
        ("null\n", "-f /root/empty.yaml"),
        (r#"{"apiVersion": "v1", "kind": "List", "items": null}"#, "-f /root/empty.yaml"),
        ("\u{feff}", "-f /root/empty.yaml"),
        ("\n", "-f /root/empty.yaml"),
        ("---\n# shop\n", "-f /root/empty.yaml"),
        ("# all of it\n", "-f /root/all.json -f /root/empty.yaml"),
    ] {
        host.write("/root/empty.yaml", text);
        let ended = typed(host, &format!("policy apply {files} --prune"));
        refused(&ended, 2, &["/root/empty.yaml: it has no object", "[]"]);
    }
    done(host, "policy apply -f /root/empty.yaml");
    // A value that is not understood is nobody's to take out but by its name.
    cluster.etcd.put("/humanz/v1-policies/Group/blue/bad", "{");
    done(host, "policy apply -f /root/all.json --prune");
    refused(&typed(host, "group set blue/bad --default allow"), 1, &["blue/bad is not there"]);
    done(host, "group rm blue/bad");
    host.write("/root/none.json", "[]");
    assert_eq!(done(host, "policy apply -f /root/none.json --prune").lines().count(), 2);
}

#[test]
fn custom_resources_in_files_are_the_objects_that_they_stand_for() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let own = "apiVersion: humanz.io/v1alpha1\nkind: Network\nmetadata:\n  name: blue.front\n  uid: u\n\
               spec:\n  subnets: [10.32.0.0/16]\nstatus: {}\n";
    host.write("/root/own.yaml", own);
    assert_eq!(done(host, "apply -f /root/own.yaml"), "+ Network blue/front\n");
    let net = object(&typed(host, "net show blue/front --json"));
    assert_eq!(net["object"]["apiVersion"], "humanz.io/v1");
    host.write("/root/own.yaml", &own.replace("uid: u", "namespace: shop"));
    let why = "/root/own.yaml: Network blue.front: metadata.namespace: is of a namespace";
    refused(&typed(host, "apply -f /root/own.yaml"), 2, &[why]);
    for kind in ["Group", "GroupPolicy", "Network", "NetProfile", "NamespaceRule"] {
        let bare = json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": "x"}});
        host.write("/root/bare.json", &bare.to_string());
        let ended = typed(host, "apply -f /root/bare.json");
        refused(&ended, 1, &["nothing was changed", "x: spec is missing\n"]);
    }
}

/// Policy `blue/p` with rules for these ports.
fn with_rules(host: &Node, ports: &[u16]) {
    done(host, "policy create blue/p");
    for port in ports {
        let rule = "policy rule-add blue/p --direction in --action allow --protocol tcp";
        done(host, &format!("{rule} --port {port}"));
    }
}

fn ports(host: &Node) -> Vec<u64> {
    let listed = object(&typed(host, "policy rule-ls blue/p --json"));
    let rules = listed["rules"].as_array().unwrap();
    rules.iter().map(|rule| rule["ports"][0].as_u64().unwrap()).collect()
}

#[test]
fn a_rule_is_changed_in_its_place_and_the_rest_of_it_stays() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    done(host, "group create blue/web");
    with_rules(host, &[80, 81, 82]);
    let changed = |fields: &str| {
        assert_eq!(
            done(host, &format!("policy rule-set blue/p 2 {fields}")),
            "~ GroupPolicy blue/p\n"
        );
        object(&typed(host, "policy rule-ls blue/p --json"))["rules"][1].clone()
    };
    let rule = changed(
        "--action deny --port 8080 --port 9000-9999 --peer-group web --priority 7 --audit yes",
    );
    let wanted = json!({"direction": "in", "action": "deny", "protocol": "tcp", "priority": 7,
        "ports": [8080, "9000-9999"], "peer": {"group": "web"}, "audit": true});
    assert_eq!(rule, wanted);
    let rule = changed("--peer-group= --priority= --audit no --protocol udp");
    let wanted = json!({"direction": "in", "action": "deny", "protocol": "udp", "ports": [8080, "9000-9999"]});
    assert_eq!(rule, wanted);
    assert_eq!(ports(host), [80, 8080, 82]);
    let before = done(host, "export");
    let nothing = "nothing was changed";
    for (fields, code, words) in [
        ("1", 2, &["no field of rule 1"][..]),
        ("4 --port 1", 1, &[nothing, "none with number 4"]),
        ("1 --peer-group gone", 1, &[nothing, "Group blue/gone does not exist"]),
        ("1 --direction up", 1, &[nothing, "up"]),
        ("1 --protocol icmp", 1, &[nothing]),
        ("1 --except 10.0.0.0/8", 1, &[nothing, "--except is for --cidr"]),
        ("1 --priority high", 2, &["is no number"]),
        ("1 --peer-group web --cidr 10.0.0.0/8", 2, &["one of"]),
        ("1 --audit perhaps", 2, &["perhaps"]),
    ] {
        refused(&typed(host, &format!("policy rule-set blue/p {fields}")), code, words);
    }
    done(host, "policy rule-set blue/p 1 --port 7 --dry-run");
    assert_eq!(done(host, "export"), before);
    done(host, "policy set blue/p --audit yes");
    assert!(done(host, "export").contains("\"audit\": true"));
    refused(&typed(host, "policy set blue/p"), 1, &[nothing, "no field of"]);
}

#[test]
fn of_two_removals_of_a_rule_at_once_neither_removes_another_rule() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    with_rules(host, &(1..=24).collect::<Vec<u16>>());
    let mut others = 0;
    for _ in 0..8 {
        let before = ports(host);
        let both = std::thread::scope(|scope| {
            let rm = || scope.spawn(|| typed(host, "policy rule-rm blue/p 2"));
            [rm(), rm()].map(|one| one.join().unwrap())
        });
        let removed = both.iter().filter(|ended| ended.succeeded()).count();
        for ended in both.iter().filter(|ended| !ended.succeeded()) {
            refused(ended, 75, &["nothing was changed", "somebody changed GroupPolicy blue/p"]);
            others += 1;
        }
        let kept: Vec<u64> = [&before[..1], &before[1 + removed..]].concat();
        assert_eq!(ports(host), kept, "{before:?}");
    }
    println!("{others} of 16 met another change");
}

#[test]
fn all_of_a_tenant_goes_at_once_or_nothing_does() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    for line in [
        "net create blue/front --cidr 10.32.0.0/16 --pins 10.32.255.0/24",
        "net create red/front --cidr 10.33.0.0/16 --pins 10.33.255.0/24",
        "group create blue/web",
        "profile create blue/gold --dscp 46",
        "ns create shop --tenant blue --group web --network front",
        "ns create bank --tenant red --network front --allow blue/front",
        "pin create shop/db --network blue/front",
        "pin create bank/db --network red/front",
        "policy create blue/p",
    ] {
        done(host, line);
    }
    let before = done(host, "export");
    let why = "a tenant is no object of its own: it exists once an object of it does, as one that net create or group create makes";
    refused(&typed(host, "tenant create green"), 2, &[why]);
    refused(&typed(host, "tenant rm green"), 1, &["nothing is of the tenant \"green\""]);
    done(host, "ns set bank --group blue/web");
    refused(
        &typed(host, "tenant rm blue"),
        1,
        &["nothing was changed", "NamespaceRule bank: Group blue/web does not exist"],
    );
    done(host, "ns set bank --group=");
    assert_eq!(done(host, "export"), before);
    let shown = done(host, "tenant rm blue --dry-run");
    assert_eq!(done(host, "export"), before);
    let removed = "- Group blue/web\n- NamespaceRule shop\n- Network blue/front\n- GroupPolicy blue/p\n\
                   - NetProfile blue/gold\n- Pin shop/db\n";
    assert_eq!(shown, format!("{removed}nothing was changed (--dry-run)\n"));
    assert_eq!(done(host, "tenant rm blue"), removed);
    let left = done(host, "export");
    assert!(left.contains("\"bank\"") && !left.contains("\"shop\""), "{left}");
}

#[test]
fn a_policy_of_groups_needs_no_kind_where_no_other_has_its_name() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let kubernetes = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "blue", "name": "p"}, "spec": {"podSelector": {}}});
    host.write("/root/policy.json", &kubernetes.to_string());
    assert_eq!(done(host, "apply -f /root/policy.json"), "+ NetworkPolicy blue/p\n");
    done(host, "policy create blue/p");
    done(host, "policy create blue/other");
    let both = "there is NetworkPolicy blue/p: say its kind: policy rm NetworkPolicy blue/p";
    refused(&typed(host, "policy rm blue/p"), 1, &["nothing was changed", both]);
    refused(&typed(host, "policy rm blue/none"), 1, &["GroupPolicy blue/none is not there"]);
    refused(&typed(host, "policy rm Group"), 2, &["no name of a Group"]);
    refused(&typed(host, "policy rm Policy blue/p"), 2, &["is no kind of policies"]);
    assert_eq!(done(host, "policy rm blue/other"), "- GroupPolicy blue/other\n");
    assert_eq!(done(host, "policy rm GroupPolicy blue/p"), "- GroupPolicy blue/p\n");
    assert_eq!(done(host, "policy rm networkpolicy blue/p"), "- NetworkPolicy blue/p\n");
    assert_eq!(done(host, "export"), done(host, "policy export"));
}
