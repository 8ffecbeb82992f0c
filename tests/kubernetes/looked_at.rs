//! What subcommands say where hosts are nodes of Kubernetes.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::enforced::{ON, add, shop};
use crate::policies::policy;
use crate::support::local::{has_problem, status};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, eventually, soon};
use crate::{Scene, node, routes_become, with};

fn doctor(host: &Node) -> Vec<(String, String)> {
    let said = Agent::run(host, "doctor --json", &with(ON)).stdout;
    let said: Value = serde_json::from_str(&said).unwrap();
    let problems = said["problems"].as_array().unwrap_or_else(|| panic!("{said:#}")).iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    problems.map(|one| (text(&one["kind"]), text(&one["what"]))).collect()
}

/// Waits until `doctor` has problems of these kinds alone.
fn doctor_becomes(host: &Node, wanted: &[&str]) {
    eventually(&format!("{}: {wanted:?}", host.name()), 2 * SOON, || {
        let found = doctor(host);
        let kinds: BTreeMap<&str, ()> = found.iter().map(|(kind, _)| (&**kind, ())).collect();
        if kinds.into_keys().eq(wanted.iter().copied()) {
            Ok(())
        } else {
            Err(format!("{found:#?}"))
        }
    });
}

#[test]
fn doctor_compares_with_the_subnets_that_the_agent_serves() {
    // Nodes have IPv6, and the settings no IPV6_SUBNET: no node is wrong for that.
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    api.put(policy("db"));
    let agents = [scene.serve(1, ON), scene.serve(2, ON)];
    let _db = add(&scene, 1, "db", true);
    doctor_becomes(h1, &[]);
    api.put(node("h1", &["10.244.9.0/24", "fd10:244:0:9::/64"], &[&h1.v4().to_string()]));
    eventually("the agent to learn of the other podCIDR", 2 * SOON, || {
        let status = status(h1);
        if has_problem(&status, "lease") { Ok(()) } else { Err(format!("{status:#}")) }
    });
    // The pod has an address of before.
    doctor_becomes(h1, &["lease", "policy"]);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn subcommands_take_the_internal_ip_as_the_agent_does() {
    let scene = shop();
    let (api, h1) = (&scene.api, scene.host(1));
    h1.run("ip address add 192.0.2.61/24 dev eth0").ok();
    api.put(node("h1", &["10.244.1.0/24"], &["192.0.2.61"]));
    let vxlan = [ON, &[("BACKEND", "vxlan")]].concat();
    let agent = scene.serve(1, &vxlan);
    soon("the tunnel begins there", || {
        h1.run("ip -d link show humanz-vx4").stdout.contains("local 192.0.2.61")
    });
    eventually("nothing to change", 2 * SOON, || {
        let doctor = Agent::run(h1, "doctor", &with(&vxlan)).stdout;
        let start = Agent::run(h1, "--dry-run", &with(&vxlan)).stdout;
        let is_same = !doctor.contains("change-pending") && !start.contains("humanz-vx4");
        if is_same { Ok(()) } else { Err(format!("{doctor}{start}")) }
    });
    agent.stop();
}

#[test]
fn routes_and_nodes_of_kubernetes_are_shown() {
    let scene = Scene::new(2, 0);
    let agent = scene.serve(1, &[]);
    let h1 = scene.host(1);
    routes_become(h1, &[("10.244.2.0/24", "192.0.2.12")]);
    let run = |command: &str| Agent::run(h1, command, &with(&[])).ok();
    let routes = run("routes");
    assert!(routes.contains("10.244.2.0/24") && routes.contains("192.0.2.12"), "{routes}");
    let shown = run("nodes show h2");
    assert!(shown.contains("10.244.2.0/24") && shown.contains("192.0.2.12"), "{shown}");
    agent.stop();
}
