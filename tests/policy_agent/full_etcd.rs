//! An etcd that is full while pods start.

use std::cell::Cell;
use std::time::Duration;

use serde_json::json;

use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, local, soon};
use crate::tenants::{try_add, two_tenants};
use crate::{add, only_from};

/// It led from `status` to `doctor`, which said the same again, and to certificates and permissions.
#[test]
fn what_a_full_etcd_does_not_take_is_reported_with_the_way_to_make_room_there() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(FROM_ETCD);
    apply(host, &[&two_tenants()[..], &[only_from("db", &["web"])]].concat());
    let _db = add(host, "db", "db");
    cluster.etcd.set_full(true);
    let _web = add(host, "web", "web");
    let problem = local::wait_problem(host, "etcd", "members of this host");
    assert!(problem["what"].as_str().unwrap().ends_with("space exceeded"), "{problem}");
    assert!(problem["fix"].as_str().unwrap().starts_with("etcdctl alarm list #"), "{problem}");
    assert!(try_add(host, "blue/a", json!({})).is_err());
    let line = agents[0].wait_log(&["take a block", "space exceeded; etcdctl alarm list"]);
    assert!(line.ends_with("remove no host"), "{line}");
    // It was gone with each look at what etcd has, which does not fail.
    let problem = local::wait_problem(host, "etcd", "blocks of networks");
    assert!(problem["what"].as_str().unwrap().contains("take a block: etcd"), "{problem}");
    assert!(problem["fix"].as_str().unwrap().starts_with("etcdctl alarm list #"), "{problem}");
    for _ in 0..50 {
        let status = local::status(host);
        assert!(local::problem(&status, "etcd", "blocks of networks").is_some(), "{status:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.etcd.set_full(false);
    let is_gone = |of: &'static str| move |it: &_| local::problem(it, "etcd", of).is_none();
    local::status_when(host, "members are published", is_gone("members of this host"));
    let tries = Cell::new(0);
    soon("a pod in a block", || {
        tries.set(tries.get() + 1);
        try_add(host, &format!("blue/b{}", tries.get()), json!({})).is_ok()
    });
    local::status_when(host, "blocks are taken", is_gone("blocks of networks"));
    agents.iter().for_each(Agent::stop);
}
