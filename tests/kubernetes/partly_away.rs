//! A part of the API is away while the rest of it goes on to answer.

use std::time::{Duration, Instant};

use crate::enforced::{ON, add, shop};
use crate::policies::admin;
use crate::support::local::problem_text;
use crate::support::soon;
use crate::traffic::{Flood, Server};

/// Before it asked again, an agent that had just started took one answer for the end of all such policies.
#[test]
fn an_api_that_does_not_have_a_resource_yet_when_the_agent_starts_opens_nothing() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    api.serve_custom("ClusterNetworkPolicy", true);
    api.put(admin("all"));
    let agent = scene.serve(1, ON);
    let (db, near) = (add(&scene, 1, "db", true), add(&scene, 1, "near", true));
    let mut server = Server::open(&db);
    let flood = Flood::start(&near, db.v4());
    flood.go_on();
    assert_eq!(server.received(near.v4()), 0);
    agent.stop();
    api.serve_custom("ClusterNetworkPolicy", false);
    let before = api.requests().len();
    let agent = scene.serve(1, ON);
    let asked = |what: &str| api.requests()[before..].iter().any(|line| line.contains(what));
    soon("the answer that there is none", || asked("/clusternetworkpolicies?limit"));
    soon("the lists of the others", || asked("/networkpolicies?watch"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        flood.go_on();
        assert_eq!(server.received(near.v4()), 0, "after {:?}", begun.elapsed());
    }
    let what = problem_text(h1, "kubernetes-api", "clusternetworkpolicies");
    assert!(what.contains("status 404"), "{what}");
    agent.stop();
}
