//! Members of groups from an etcd with users.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use etcd_client::Permission;
use humanz::policy::{Members, Selector};
use humanz::sources::{ExchangeInputs, ExchangeStart, Exchanged, ExchangedMembers, exchange};

use crate::access::{enable, password_file, start_as_agent};
use crate::host::roots;
use crate::support::etcd::{EtcdServer, isolated};

fn group(name: &str) -> Selector {
    let labels = format!(r#"[{{"In":["app",["{name}"]]}}]"#);
    let pods = format!(r#"{{"namespaces":{{"named":"shop"}},"labels":{labels}}}"#);
    Selector::parse(&format!(r#"{{"pods":{pods}}}"#)).unwrap()
}

/// What is received next, all of it without a problem, until each of `groups` was read.
fn wait_read(received: &Receiver<ExchangedMembers>, groups: &[Selector]) {
    loop {
        let members = received.recv_timeout(Duration::from_secs(10)).expect("they are read");
        assert!(members.problems.is_empty(), "{:?}", members.problems);
        if groups.iter().all(|group| members.members.contains_key(group)) {
            return;
        }
    }
}

/// etcd checks the token of a watch again with each range that is watched further.
#[test]
fn another_group_is_read_without_a_problem_after_the_token_of_the_watch_has_expired() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start_with(&["--auth-token-ttl", "2"]);
        enable(&mut etcd, vec![Permission::read("/humanz").with_prefix()]);
        let start = ExchangeStart {
            etcd: start_as_agent(&etcd, &password_file(folder.path(), "password")).etcd,
            roots: roots(),
            host: "h1".parse().unwrap(),
            kept: Members::new(),
            state_dir: folder.path().to_owned(),
        };
        let (sender, received) = channel();
        let exchange = exchange(start, move |exchanged| {
            if let Exchanged::Members(members) = exchanged {
                sender.send(members).unwrap();
            }
        });
        let exchange = exchange.unwrap();
        let mut needed = Vec::new();
        for name in ["web", "db", "cache"] {
            needed.push(group(name));
            let needed_now = needed.iter().cloned().collect();
            exchange.set(ExchangeInputs { needed: needed_now, ..ExchangeInputs::default() });
            wait_read(&received, &needed);
            // Only time ends a token.
            thread::sleep(Duration::from_secs(4));
        }
    });
}
