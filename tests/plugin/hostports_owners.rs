//! Owners of host ports: one at a time, as long as its reservation exists.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostports::{add, call, dual, elements, mapping};
use crate::support::echo::{Echo, ask_tcp};
use crate::support::facts::veths;
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, STORE};
use crate::support::{Place, soon};

/// Claims, as `tcp-8080/0.0.0.0`.
fn claims(host: &PluginHost) -> Vec<String> {
    let folder = "/run/humanz/ipam/.hostports";
    let ports = host.list(folder).into_iter().filter(|name| name != "lock");
    let claims = ports.flat_map(|port| {
        let addresses = host.list(&format!("{folder}/{port}"));
        addresses.into_iter().map(|address| format!("{port}/{address}")).collect::<Vec<_>>()
    });
    claims.collect()
}

#[track_caller]
fn assert_closed(host: &PluginHost, when: &str) {
    host.assert_clean(when);
    assert_eq!(claims(host), [""; 0], "{when}");
    assert_eq!(elements(host), [""; 0], "{when}");
}

fn gc(valid: Value) -> Call {
    let call = Call::new("GC", &dual(), "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", valid)
}

/// A call for a network with a store of its own, and that network's name.
pub fn elsewhere(verb: &str, name: &str, mappings: &Value) -> Call {
    call(verb, name, mappings).key("dataDir", json!("/run/elsewhere")).key("name", json!("other"))
}

#[test]
fn a_port_in_use_is_refused_with_its_owner() {
    let host = PluginHost::new();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
    host.netns("first");
    let mappings = json!([mapping("tcp", 80, "0.0.0.0"), mapping("tcp", 81, "192.0.2.11")]);
    call("ADD", "first", &mappings).with("CNI_ARGS", args).run(&host).ok();
    let before = (elements(&host), claims(&host), host.leftovers());
    host.netns("second");
    let refused = [("0.0.0.0", 80), ("", 80), ("192.0.2.11", 80), ("", 81), ("192.0.2.11", 81)];
    for (address, port) in refused {
        let wish = json!([mapping("tcp", 9000, ""), mapping("tcp", port, address)]);
        // In another network of the host as well.
        for network in ["net", "other"] {
            let answer = call("ADD", "second", &wish).key("name", json!(network)).run(&host);
            assert_eq!(answer.code(), 104, "{address} {port}");
            let holder = "taken by container first, interface eth0, pod default/web, network net";
            assert!(answer.error().contains(holder), "{}", answer.error());
            assert!(
                answer.error().contains(&format!("host port {port}/tcp")),
                "{}",
                answer.error()
            );
            assert_eq!((elements(&host), claims(&host), host.leftovers()), before);
        }
    }
    let granted = json!([
        mapping("tcp", 80, "::"),
        mapping("udp", 80, ""),
        mapping("tcp", 81, "192.0.2.12"),
        mapping("tcp", 82, ""),
    ]);
    call("ADD", "second", &granted).run(&host).ok();
    for name in ["first", "second"] {
        call("DEL", name, &json!([])).with("CNI_NETNS", "").run(&host).ok();
        call("DEL", name, &json!([])).run(&host).ok();
    }
    assert_closed(&host, "after DEL");
    call("DEL", "nobody", &mappings).run(&host).ok();
}

#[test]
fn of_sixteen_pods_that_request_one_port_one_gets_it() {
    let host = PluginHost::new();
    let names: Vec<String> = (0..16).map(|number| format!("c{number}")).collect();
    names.iter().for_each(|name| host.netns(name));
    let addresses = ["", "0.0.0.0", "192.0.2.11", ""];
    let outcomes: Vec<Result<String, u64>> = std::thread::scope(|scope| {
        let add = |(number, name): (usize, &String)| {
            let wish = json!([mapping("tcp", 8080, addresses[number % 4])]);
            let (host, name) = (&host, name.clone());
            scope.spawn(move || {
                let answer = call("ADD", &name, &wish).run(host);
                if answer.ended.succeeded() { Ok(name) } else { Err(answer.code()) }
            })
        };
        let running: Vec<_> = names.iter().enumerate().map(add).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    let winners: Vec<&String> = outcomes.iter().flatten().collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| !matches!(outcome, Err(code) if *code != 104)));
    assert_eq!(veths(&host).len(), 1);
    call("DEL", winners[0], &json!([])).run(&host).ok();
    assert_closed(&host, "after DEL");
}

#[test]
fn a_flushed_table_frees_no_port_and_the_next_pod_restores_it() {
    let host = PluginHost::new();
    add(&host, "first", &json!([mapping("tcp", 80, ""), mapping("udp", 80, "192.0.2.11")]));
    let before = elements(&host);
    host.run("nft flush ruleset").ok();
    host.netns("second");
    let answer = call("ADD", "second", &json!([mapping("tcp", 80, "192.0.2.11")])).run(&host);
    assert_eq!(answer.code(), 104, "{answer:?}");
    // A pod without ports is enough.
    host.add(&dual(), "plain");
    assert_eq!(elements(&host), before);
    host.run("nft delete table inet humanz-hostports").ok();
    call("ADD", "second", &json!([mapping("tcp", 81, "")])).run(&host).ok();
    assert_eq!(elements(&host).len(), before.len() + 2);
    host.run("nft flush ruleset").ok();
    for name in ["first", "second", "plain"] {
        call("DEL", name, &json!([])).run(&host).ok();
    }
    assert_closed(&host, "after DEL");
}

#[test]
fn a_damaged_table_is_repaired_by_the_next_pod() {
    let host = PluginHost::new();
    add(&host, "first", &json!([mapping("tcp", 80, ""), mapping("tcp", 81, "192.0.2.11")]));
    let sound = |host: &PluginHost| {
        let listed = host.run("nft list table inet humanz-hostports").ok();
        let lines = listed.lines().filter(|line| !line.contains("elements")).map(|line| {
            let words = line.split_whitespace();
            words
                .filter(|word| !word.chars().all(|c| c.is_ascii_digit()))
                .collect::<Vec<_>>()
                .join(" ")
        });
        // The kernel lists chains as it likes.
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        (lines, elements(host))
    };
    let before = sound(&host);
    let table = "inet humanz-hostports";
    for (number, damage) in [
        format!("flush chain {table} output"),
        format!("delete chain {table} output"),
        format!("insert rule {table} prerouting drop"),
        format!("flush table {table}; delete map {table} any4"),
        format!("flush table {table}; delete map {table} any4; add map {table} any4 {{ type inet_service : ipv4_addr ; }}"),
        format!("delete chain {table} guard; add chain {table} guard {{ type filter hook output priority 0 ; }}"),
        format!("add table {table} {{ flags dormant ; }}"),
    ]
    .iter()
    .enumerate()
    {
        host.run_command(command("nft").arg(damage), "").ok();
        assert_ne!(sound(&host), before, "{damage}");
        host.add(&dual(), &format!("c{number}"));
        assert_eq!(sound(&host), before, "{damage}");
    }
}

#[test]
fn check_reports_a_port_that_is_missing_or_forwards_elsewhere() {
    let host = PluginHost::new();
    let mappings = json!([mapping("tcp", 80, "0.0.0.0"), mapping("udp", 81, "192.0.2.11")]);
    let result = add(&host, "c1", &mappings);
    let check = || call("CHECK", "c1", &mappings).key("prevResult", result.clone()).run(&host);
    check().ok();
    host.run("nft delete element inet humanz-hostports at4 { 192.0.2.11 . udp . 81 }").ok();
    assert_eq!(check().code(), 103);
    let missing = "host port 81/udp on 192.0.2.11 to 10.1.2.2:80: missing in nftables table inet \
                   humanz-hostports";
    assert!(check().error().contains(missing), "{}", check().error());
    // GC restores it, and removes elements without an owner.
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    gc(valid.clone()).run(&host).ok();
    check().ok();
    host.run("nft flush chain inet humanz-hostports prerouting").ok();
    assert!(check().error().contains("was changed or removed"), "{}", check().error());
    gc(valid).run(&host).ok();
    check().ok();
    gc(json!([])).run(&host).ok();
    assert_closed(&host, "after GC");
}

#[test]
fn a_pod_that_died_without_del_blocks_no_port() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, "")]);
    add(&host, "dead", &wish);
    host.run("ip netns del dead").ok();
    add(&host, "second", &wish);
    let leads = ["any4 tcp . 80 : 10.1.2.3 . 80", "any6 tcp . 80 : fd00::3 . 80"];
    assert_eq!(elements(&host), leads);
    // The late DEL of the dead one takes nothing from its successor.
    call("DEL", "dead", &wish).run(&host).ok();
    assert_eq!(elements(&host), leads);
    assert_eq!(claims(&host).len(), 2);
    // The same container again, after its namespace was made anew.
    host.run("ip netns del second").ok();
    soon("its link is deleted too", || veths(&host).is_empty());
    add(&host, "second", &json!([mapping("tcp", 81, "")]));
    assert_eq!(claims(&host), ["tcp-81/0.0.0.0", "tcp-81/::"]);
    assert_eq!(elements(&host).len(), 2);
}

#[test]
fn the_second_network_of_a_container_leaves_its_ports_to_the_first() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, "")]);
    let first = add(&host, "c1", &wish);
    let sets = json!([[{ "subnet": "10.9.9.0/24" }], [{ "subnet": "fd09::/64" }]]);
    let other = |verb: &str| {
        let call = call(verb, "c1", &wish).with("CNI_IFNAME", "eth1").key("name", json!("other"));
        call.key("bridge", json!("hz1")).key("ranges", sets.clone())
    };
    let before = elements(&host);
    let second = other("ADD").run(&host).ok();
    assert_eq!(elements(&host), before);
    call("CHECK", "c1", &wish).key("prevResult", first).run(&host).ok();
    other("CHECK").key("prevResult", second).run(&host).ok();
    other("DEL").run(&host).ok();
    assert_eq!(elements(&host), before);
    call("DEL", "c1", &wish).run(&host).ok();
    assert_closed(&host, "after DEL");
}

#[test]
fn a_running_pod_whose_store_is_lost_keeps_its_port_and_a_dead_one_blocks_none() {
    let host = PluginHost::new();
    let (wish, one) = (json!([mapping("tcp", 80, "")]), json!([mapping("tcp", 80, "192.0.2.11")]));
    add(&host, "lost", &wish);
    let before = elements(&host);
    host.run("rm -r /run/humanz").ok();
    for (name, wish) in [("second", &wish), ("beside", &one)] {
        host.netns(name);
        let answer = call("ADD", name, wish).run(&host);
        assert_eq!(answer.code(), 104, "{answer:?}");
        assert!(answer.error().contains("humanz net lost eth0"), "{}", answer.error());
        assert_eq!(elements(&host), before);
    }
    // Neither another pod nor GC, which restores the table, removes it.
    add(&host, "other", &json!([mapping("tcp", 81, "")]));
    let valid = ["lost", "other"].map(|id| json!({ "containerID": id, "ifname": "eth0" }));
    gc(json!(valid)).run(&host).ok();
    assert!(before.iter().all(|element| elements(&host).contains(element)), "{before:?}");
    host.run("ip netns del lost").ok();
    soon("its link is deleted too", || veths(&host).len() == 1);
    call("ADD", "second", &wish).run(&host).ok();
    // A network with a store of its own: refused while that pod is there, and not for ever.
    let elsewhere = || elsewhere("ADD", "third", &wish).with("CNI_ARGS", "IP=10.1.2.9");
    host.netns("third");
    let answer = elsewhere().run(&host);
    assert_eq!(answer.code(), 104, "{answer:?}");
    assert!(answer.error().contains("humanz net second eth0"), "{}", answer.error());
    host.run("ip netns del second").ok();
    soon("its link is deleted too", || veths(&host).len() == 1);
    elsewhere().run(&host).ok();
}

#[test]
fn of_two_stores_that_ask_for_a_port_together_one_gets_it() {
    let host = PluginHost::new();
    let (one, all) = (json!([mapping("tcp", 80, "192.0.2.11")]), json!([mapping("tcp", 80, "")]));
    for round in 0..24 {
        let [here, there] = ["a", "b"].map(|name| format!("{name}{round}"));
        [&here, &there].iter().for_each(|name| host.netns(name));
        let (wish, other) = if round % 2 == 0 { (&one, &all) } else { (&all, &one) };
        let elsewhere_add = elsewhere("ADD", &there, other).with("CNI_ARGS", "IP=10.1.2.99");
        let calls = [call("ADD", &here, wish), elsewhere_add];
        let [first, second] = std::thread::scope(|scope| {
            let running = calls.each_ref().map(|call| scope.spawn(|| call.run(&host)));
            running.map(|running| running.join().unwrap())
        });
        let won = [&first, &second].map(|answer| answer.ended.succeeded());
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{first:?} {second:?}");
        let refused = if won[0] { second } else { first };
        assert_eq!(refused.code(), 104, "{refused:?}");
        call("DEL", &here, wish).run(&host).ok();
        elsewhere("DEL", &there, other).run(&host).ok();
        assert_eq!(elements(&host), [""; 0]);
    }
}

#[test]
fn a_port_of_one_address_and_that_of_all_conflict_across_stores() {
    let host = PluginHost::new();
    let (one, all) = (json!([mapping("tcp", 80, "192.0.2.11")]), json!([mapping("tcp", 80, "")]));
    for (number, (first, second)) in [(&one, &all), (&all, &one)].into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|name| format!("{name}{number}"));
        add(&host, &a, first);
        let before = elements(&host);
        host.netns(&b);
        let answer = elsewhere("ADD", &b, second).run(&host);
        assert_eq!(answer.code(), 104, "{answer:?}");
        assert!(answer.error().contains(&format!("humanz net {a} eth0")), "{}", answer.error());
        assert_eq!(elements(&host), before);
        // Not that of a pod that died without a DEL.
        host.run(&format!("ip netns del {a}")).ok();
        soon("its link is deleted too", || veths(&host).is_empty());
        elsewhere("ADD", &b, second).run(&host).ok();
        // In the other family there is no conflict.
        let left = elements(&host);
        let mut conflicting = before.iter().filter(|element| !element.starts_with("any6"));
        assert!(conflicting.all(|element| !left.contains(element)), "{left:?}");
        elsewhere("DEL", &b, second).run(&host).ok();
        call("DEL", &a, first).run(&host).ok();
        assert_eq!(elements(&host), [""; 0]);
    }
}

/// Without ports nobody needs it, and pods shall not have it.
#[test]
fn the_way_from_127_0_0_1_is_there_while_any_store_has_a_port() {
    let host = PluginHost::new();
    let [one, two] = [8080, 8081].map(|port| json!([mapping("tcp", port, "")]));
    let is_there =
        || host.read("/proc/sys/net/ipv4/conf/hz0/route_localnet").unwrap().trim() == "1";
    add(&host, "a", &one);
    host.netns("b");
    elsewhere("ADD", "b", &two).run(&host).ok();
    let _echo = Echo::serve(&host.container("b"), 80);
    call("DEL", "a", &one).run(&host).ok();
    assert!(is_there(), "the other store has a port");
    assert!(ask_tcp(&*host, "127.0.0.1:8081".parse().unwrap()).is_ok());
    add(&host, "c", &one);
    elsewhere("DEL", "b", &two).run(&host).ok();
    assert!(is_there(), "the first store has a port");
    call("DEL", "c", &one).run(&host).ok();
    assert!(!is_there());
}

#[test]
fn a_late_del_closes_no_port_that_another_store_has_now() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, ""), mapping("udp", 81, "192.0.2.11")]);
    add(&host, "dead", &wish);
    host.run("ip netns del dead").ok();
    soon("its link is deleted too", || veths(&host).is_empty());
    let wish = json!([mapping("tcp", 80, "")]);
    host.netns("second");
    elsewhere("ADD", "second", &wish).run(&host).ok();
    assert_eq!(elements(&host).len(), 3);
    call("DEL", "dead", &json!([])).run(&host).ok();
    assert_eq!(claims(&host), [""; 0]);
    assert_eq!(elements(&host), ["any4 tcp . 80 : 10.1.2.2 . 80", "any6 tcp . 80 : fd00::2 . 80"]);
    elsewhere("DEL", "second", &wish).run(&host).ok();
    assert_eq!(elements(&host), [""; 0]);
}

#[test]
fn a_port_of_a_pod_whose_link_was_renamed_is_taken() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, "")]);
    let result = add(&host, "first", &wish);
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    host.shell(&format!("ip link set {link} down; ip link set {link} name other0 up")).ok();
    host.netns("second");
    let answer = elsewhere("ADD", "second", &wish).run(&host);
    assert_eq!(answer.code(), 104, "{answer:?}");
    assert!(answer.error().contains("humanz net first eth0"), "{}", answer.error());
    assert_eq!(elements(&host).len(), 2);
}

#[test]
fn a_failed_add_frees_the_port() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, "")]);
    host.netns("c1");
    host.run("ip -n c1 link add eth0 type veth peer name eth1").ok();
    assert_ne!(call("ADD", "c1", &wish).run(&host).code(), 104);
    assert_closed(&host, "after a failed ADD");
    // Its output is not read, so that everything is undone at the very end.
    host.netns("c2");
    let unread = call("ADD", "c2", &wish);
    let mut bash = command("bash -c");
    bash.arg("/opt/cni/bin/humanz > /dev/full");
    bash.envs(unread.variables.iter().map(|(name, value)| (*name, value)));
    let ended = host.run_command(&mut bash, &unread.conf.to_string());
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert_closed(&host, "after an ADD without a listener");
}

#[test]
fn calls_killed_at_any_system_call_leave_no_port() {
    let host = PluginHost::new();
    let wish = json!([mapping("tcp", 80, ""), mapping("udp", 80, "192.0.2.11")]);
    let calls = "?open,openat,?link,linkat,?rename,renameat,?unlink,unlinkat,?rmdir,sendto,write,writev,socket,setns,flock,close";
    let killed_at = |verb: &str, when: usize| {
        let strace = format!(
            "strace -f -qq -o /run/trace -e trace={calls} -e inject={calls}:signal=KILL:when={when}"
        );
        !call(verb, "c1", &wish).under(&strace).run(&host).ended.succeeded()
    };
    let mut kills = [0, 0];
    for when in 1.. {
        host.netns("c1");
        let killed = killed_at("ADD", when);
        match when % 3 {
            0 => gc(json!([])).run(&host).ok(),
            _ => call("DEL", "c1", &json!([])).run(&host).ok(),
        };
        assert_closed(&host, &format!("after ADD killed at call {when}"));
        host.run("ip netns del c1").ok();
        if !killed {
            break;
        }
        kills[0] += 1;
    }
    for when in 1.. {
        add(&host, "c1", &wish);
        let killed = killed_at("DEL", when);
        call("DEL", "c1", &json!([])).run(&host).ok();
        assert_closed(&host, &format!("after DEL killed at call {when}"));
        host.run("ip netns del c1").ok();
        if !killed {
            break;
        }
        kills[1] += 1;
    }
    println!("killed: {kills:?}");
    assert!(kills[0] > 20 && kills[1] > 15, "{kills:?}");
}

#[test]
fn no_port_has_two_owners_while_calls_are_killed() {
    let host = PluginHost::new();
    let names: Vec<String> = (0..6).map(|number| format!("c{number}")).collect();
    names.iter().for_each(|name| host.netns(name));
    let wish = json!([mapping("tcp", 80, ""), mapping("udp", 80, "192.0.2.11")]);
    let mut seed = u64::from(std::process::id());
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut owner: Option<usize> = None;
    for _ in 0..60 {
        let first = random(names.len() as u64) as usize;
        let mut running = Vec::new();
        for number in (0..3).map(|step| (first + step) % names.len()) {
            let verb = if owner == Some(number) { "DEL" } else { "ADD" };
            let call = call(verb, &names[number], &wish);
            let mut command = call.command();
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = host.spot().inside(|| command.spawn()).unwrap();
            let conf = call.conf.to_string();
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), conf.as_bytes()).unwrap();
            running.push((number, verb, child));
        }
        // The moment is the input of this test, not a wait for something.
        std::thread::sleep(Duration::from_micros(random(8000)));
        let deleted =
            running.iter().any(|(number, verb, _)| *verb == "DEL" && owner == Some(*number));
        let mut winners = Vec::new();
        for (number, verb, mut child) in running {
            if random(3) == 0 {
                child.kill().unwrap();
            }
            let ended = child.wait().unwrap();
            if verb == "ADD" && ended.success() {
                winners.push(number);
            } else {
                // What a runtime does after a failure, and after a DEL that it killed.
                call("DEL", &names[number], &json!([])).run(&host).ok();
            }
        }
        assert!(winners.len() <= 1 && (owner.is_none() || deleted || winners.is_empty()));
        owner = winners.first().copied().or(owner.filter(|_| !deleted));
    }
    for name in &names {
        call("DEL", name, &json!([])).run(&host).ok();
    }
    assert_closed(&host, "at the end");
}

#[test]
fn five_thousand_ports_are_five_thousand_elements_and_no_rules() {
    let host = PluginHost::new();
    let rules = || {
        let listed = host.run("nft -j list table inet humanz-hostports").stdout;
        listed.matches("\"rule\"").count()
    };
    add(&host, "c0", &json!([mapping("tcp", 9, "0.0.0.0")]));
    let before = rules();
    for pod in 1..=5 {
        let ports = (0..1000).map(|port| mapping("tcp", pod * 1000 + port, "0.0.0.0"));
        add(&host, &format!("c{pod}"), &ports.collect());
    }
    assert_eq!((elements(&host).len(), rules()), (5001, before));
    host.run("nft flush ruleset").ok();
    host.add(&dual(), "plain");
    assert_eq!((elements(&host).len(), rules()), (5001, before));
    for pod in 1..=5 {
        call("DEL", &format!("c{pod}"), &json!([])).run(&host).ok();
    }
    assert_eq!(elements(&host).len(), 1);
    assert_eq!(claims(&host).len(), 1);
    assert!(host.list(STORE).len() < 20);
}
