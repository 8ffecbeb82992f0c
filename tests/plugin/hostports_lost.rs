//! Host ports of attachments that the store does not know, and a table that is not there.

use std::net::SocketAddr;

use serde_json::json;

use super::hostports::{add, call, elements, mapping};
use super::hostports_owners::elsewhere;
use crate::support::Place;
use crate::support::echo::{Echo, ask_udp};
use crate::support::plugin_host::PluginHost;

/// The address goes to the next pod, and with it what a port that is open leads there.
#[test]
fn a_del_without_an_entry_closes_the_ports_of_its_pod_alone() {
    let host = PluginHost::new();
    let outside = host.outside();
    let to: SocketAddr = "192.0.2.11:8080".parse().unwrap();
    let wish = json!([mapping("tcp", 8080, ""), mapping("udp", 8080, "")]);
    add(&host, "here", &json!([mapping("tcp", 81, "")]));
    host.netns("there");
    let beside = json!([mapping("tcp", 82, "")]);
    elsewhere("ADD", "there", &beside).with("CNI_ARGS", "IP=10.1.2.99").run(&host).ok();
    let others = elements(&host);
    // The configuration has another `dataDir` by now; the store is lost; both stores are.
    let lost = ["true", "rm -r /run/humanz/ipam", "rm -r /run/humanz/ipam /run/former"];
    for (number, lost) in lost.into_iter().enumerate() {
        let name = format!("c{number}");
        host.netns(&name);
        let call = |verb| call(verb, &name, &wish);
        match number {
            0 => call("ADD").key("dataDir", json!("/run/former")).run(&host).ok(),
            _ => call("ADD").run(&host).ok(),
        };
        let echo = Echo::serve(&host.container(&name), 80);
        assert_eq!(ask_udp(&outside, 5000, to), Ok("192.0.2.99".parse().unwrap()), "{name}");
        drop(echo);
        host.run(lost).ok();
        call("DEL").run(&host).ok();
        assert_eq!(elements(&host), others, "{name}");
        let flows = host.run("conntrack -L -p udp").stdout;
        assert!(!flows.contains("sport=5000"), "{name}: {flows}");
        call("DEL").run(&host).ok();
    }
}

/// Both find no table, make it, and restore what is claimed: each in the time in which the other one does.
#[test]
fn of_two_stores_that_ask_for_a_port_together_without_a_table_one_gets_it() {
    let host = PluginHost::new();
    let (one, all) = (json!([mapping("tcp", 80, "192.0.2.11")]), json!([mapping("tcp", 80, "")]));
    let slow = |at: &str| {
        format!("strace -f -qq -o /run/{at} -e trace=sendto -e inject=sendto:delay_exit=20000")
    };
    for round in 0..4 {
        host.run("nft delete table inet humanz-hostports");
        let [here, there] = ["a", "b"].map(|name| format!("{name}{round}"));
        [&here, &there].iter().for_each(|name| host.netns(name));
        let elsewhere_add = elsewhere("ADD", &there, &all).with("CNI_ARGS", "IP=10.1.2.99");
        let calls = [call("ADD", &here, &one).under(&slow("a")), elsewhere_add.under(&slow("b"))];
        let [first, second] = std::thread::scope(|scope| {
            let running = calls.each_ref().map(|call| scope.spawn(|| call.run(&host)));
            running.map(|running| running.join().unwrap())
        });
        let won = [&first, &second].iter().filter(|answer| answer.ended.succeeded()).count();
        assert_eq!(won, 1, "{first:?} {second:?}");
        call("DEL", &here, &one).run(&host).ok();
        elsewhere("DEL", &there, &all).run(&host).ok();
    }
}
