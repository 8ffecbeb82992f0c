//! An etcd that is full while pods start.

use serde_json::json;

use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, local};
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
    cluster.etcd.set_full(false);
    let is_gone = |status: &_| local::problem(status, "etcd", "members of this host").is_none();
    local::status_when(host, "members are published", is_gone);
    agents.iter().for_each(Agent::stop);
}
