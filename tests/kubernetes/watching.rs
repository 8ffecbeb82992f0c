//! Changes of nodes become routes, whatever happens to lists and watches.

use std::time::Instant;

use serde_json::{Value, json};

use crate::api::Mode;
use crate::support::local::{self, has_problem, status_when, wait_problem};
use crate::support::ping::{addresses, all_reach};
use crate::support::wait::SOON;
use crate::support::watch::Watch;
use crate::support::{Agent, Place, Pod, eventually, facts, soon};
use crate::{Scene, count, node, peak_kb, routes_become, wait_logged};

const DUAL_STACK: (&str, &str) = ("IPV6_SUBNET", "fd10:244::/48");

fn all_pods_reach_each_other(scene: &Scene, more: &[(&str, &str)]) {
    let agents: Vec<_> = (1..=scene.cluster.hosts.len()).map(|n| scene.serve(n, more)).collect();
    for host in &scene.cluster.hosts {
        let others = scene.cluster.hosts.len() - 1;
        soon("all routes are there", || facts::devices(host).len() == 2 * others);
    }
    let pods: Vec<Pod> = scene.cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    all_reach(&places, &addresses(&places));
    for agent in &agents {
        assert_eq!(count(agent, "ERROR"), 0, "{}", agent.log());
    }
}

#[test]
fn pods_of_three_hosts_reach_each_other_with_no_etcd_at_all() {
    let scene = Scene::new(3, 0);
    scene.cluster.etcd.kill();
    all_pods_reach_each_other(&scene, &[DUAL_STACK]);
    let host = scene.host(1);
    assert_eq!(facts::addresses(host, "humanz0"), ["10.244.1.1/24", "fd10:244:0:1::1/64"]);
    // Nothing is written to the API.
    let requests = scene.api.requests();
    assert!(requests.iter().all(|line| line.starts_with("GET ")), "{requests:?}");
}

#[test]
fn each_host_shows_its_own_row_of_the_matrix_and_the_reason() {
    let scene = Scene::new(2, 0);
    let often = [("PROBE_INTERVAL", "1s")];
    let _agents = [scene.serve(1, &often), scene.serve(2, &often)];
    let matrix = eventually("h1 asked h2", 3 * SOON, || {
        let matrix: Value =
            serde_json::from_str(&local::get(scene.host(1), "/v1/matrix").1).unwrap();
        let seconds = &matrix["rows"][0]["seconds"]["h2"];
        if seconds.is_f64() { Ok(matrix) } else { Err(format!("{matrix:#}")) }
    });
    assert_eq!(matrix["rows"].as_array().unwrap().len(), 1, "{matrix:#}");
    assert_eq!(matrix["untold"], json!([{"host": "h2", "why": "it has no place to publish one"}]));
    let remarks = matrix["remarks"].to_string();
    assert!(remarks.contains("SUBNET_SOURCE=kubernetes"), "{remarks}");
}

#[test]
fn pods_behind_a_router_are_reached_by_tunnels_without_published_keys() {
    all_pods_reach_each_other(&Scene::new(1, 2), &[DUAL_STACK]);
}

#[test]
fn tunnels_follow_the_setting() {
    let scene = Scene::new(2, 0);
    scene.cluster.hosts[0].write("/etc/humanz/agent.env", "");
    let agent = scene.serve(1, &[]);
    let host = scene.host(1);
    routes_become(host, &[("10.244.2.0/24", "192.0.2.12")]);
    host.write("/etc/humanz/agent.env", "BACKEND=vxlan\n");
    agent.reload();
    let device = || facts::devices(host).get("10.244.2.0/24").cloned().unwrap_or_default();
    soon("the route leads into the tunnel", || device() == "humanz-vx4");
    host.write("/etc/humanz/agent.env", "BACKEND=direct\n");
    agent.reload();
    soon("the route is direct again", || device() == "eth0");
}

#[test]
fn added_changed_and_deleted_nodes_change_the_routes() {
    let scene = Scene::new(1, 0);
    let (api, host) = (&scene.api, scene.host(1));
    let _agent = scene.serve(1, &[]);
    routes_become(host, &[]);
    let watch = Watch::start(host, "route");
    let start = Instant::now();
    api.put(node("n2", &["10.244.2.0/24"], &["192.0.2.92"]));
    println!("a node came: {:?}", watch.after(start, &["10.244.2.0/24"]));
    api.put(node("n3", &[], &["192.0.2.93"]));
    api.put(node("n4", &["10.244.4.0/24"], &[]));
    routes_become(host, &[("10.244.2.0/24", "192.0.2.92")]);
    // kube-controller-manager and kubelet are late.
    api.edit("n3", |node| {
        node["spec"] = json!({"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]})
    });
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.94"}]);
    api.edit("n4", |node| node["status"]["addresses"] = addresses);
    routes_become(
        host,
        &[
            ("10.244.2.0/24", "192.0.2.92"),
            ("10.244.3.0/24", "192.0.2.93"),
            ("10.244.4.0/24", "192.0.2.94"),
        ],
    );
    let moved = json!([{"type": "InternalIP", "address": "192.0.2.95"}]);
    api.edit("n4", |node| node["status"]["addresses"] = moved);
    api.delete("n3");
    routes_become(host, &[("10.244.2.0/24", "192.0.2.92"), ("10.244.4.0/24", "192.0.2.95")]);
    assert_eq!((api.lists(), api.watches()), (1, 1), "one list and one watch brought it all");
}

#[test]
fn a_kubelet_heartbeat_triggers_no_reconcile() {
    let scene = Scene::new(2, 0);
    let agent = scene.serve(1, &[("RUST_LOG", "debug")]);
    routes_become(scene.host(1), &[("10.244.2.0/24", "192.0.2.12")]);
    let looked = || count(&agent, "looked at");
    eventually("the agent is quiet", SOON, || {
        let before = looked();
        std::thread::sleep(std::time::Duration::from_millis(500));
        if looked() == before { Ok(()) } else { Err("it looks".into()) }
    });
    let before = looked();
    for time in 0..20 {
        scene.api.edit("h2", |node| node["status"]["heartbeat"] = json!(time));
    }
    // A later change was received, so they were too.
    scene.api.put(node("n9", &["10.244.9.0/24"], &["192.0.2.99"]));
    routes_become(
        scene.host(1),
        &[("10.244.2.0/24", "192.0.2.12"), ("10.244.9.0/24", "192.0.2.99")],
    );
    let looked = looked() - before;
    assert!(looked <= 4, "{looked} looks\n{}", agent.log());
}

/// Routes to n2 … that stay, and a monitor that would show a deletion.
struct Steady {
    scene: Scene,
    agent: crate::Agent,
    routes: Watch,
    start: Instant,
}

impl Steady {
    fn new() -> Self {
        let scene = Scene::new(1, 0);
        scene.api.put(node("n2", &["10.244.2.0/24"], &["192.0.2.92"]));
        scene.api.put(node("n3", &["10.244.3.0/24"], &["192.0.2.93"]));
        let agent = scene.serve(1, &[]);
        routes_become(
            scene.host(1),
            &[("10.244.2.0/24", "192.0.2.92"), ("10.244.3.0/24", "192.0.2.93")],
        );
        let routes = Watch::start(scene.host(1), "route");
        Self { scene, agent, routes, start: Instant::now() }
    }

    /// Changes missed by the watch are found, and nothing else was changed.
    fn ends_in_sync(self) {
        routes_become(
            scene_host(&self.scene),
            &[("10.244.2.0/24", "192.0.2.92"), ("10.244.4.0/24", "192.0.2.94")],
        );
        self.routes.after(self.start, &["Deleted", "10.244.3.0/24"]);
        let log = self.routes.log();
        let gone: Vec<&str> =
            log.lines().filter(|line| line.contains("Deleted 10.244.2")).collect();
        assert!(gone.is_empty(), "{gone:?}");
        assert!(self.agent.process.ended().is_none());
        let peak = peak_kb(self.scene.host(1));
        println!("the agent had at most {peak} kB");
        // A debug executable has some 20 MB of its own.
        assert!(peak < 120_000, "{peak} kB");
    }

    fn changes(&self) {
        self.scene.api.delete("n3");
        self.scene.api.put(node("n4", &["10.244.4.0/24"], &["192.0.2.94"]));
    }
}

fn scene_host(scene: &Scene) -> &crate::Node {
    scene.host(1)
}

#[test]
fn a_broken_watch_resumes_at_its_version() {
    let steady = Steady::new();
    let api = &steady.scene.api;
    let lists = api.lists();
    api.break_watches();
    steady.changes();
    routes_become(
        steady.scene.host(1),
        &[("10.244.2.0/24", "192.0.2.92"), ("10.244.4.0/24", "192.0.2.94")],
    );
    assert_eq!(api.lists(), lists, "nothing was listed again");
    steady.ends_in_sync();
}

#[test]
fn after_a_bookmark_compaction_needs_no_list() {
    let steady = Steady::new();
    let api = &steady.scene.api;
    let (lists, watches) = (api.lists(), api.watches());
    api.pass_versions(1000);
    api.compact_keeping_watches();
    api.bookmark();
    api.break_watches();
    soon("it watches again", || api.watches() > watches);
    steady.changes();
    routes_become(
        steady.scene.host(1),
        &[("10.244.2.0/24", "192.0.2.92"), ("10.244.4.0/24", "192.0.2.94")],
    );
    assert_eq!(api.lists(), lists, "nothing was listed again");
    steady.ends_in_sync();
}

/// The previous watch has expired, by an event or by the status of the answer.
fn expires(by_status: bool) {
    let steady = Steady::new();
    let api = &steady.scene.api;
    if by_status {
        api.refuse_by_status();
    }
    api.stop();
    steady.changes();
    api.compact();
    let lists = api.lists();
    api.run();
    soon("it lists again", || api.lists() > lists);
    steady.ends_in_sync();
}

#[test]
fn a_watch_that_expired_is_followed_by_a_list() {
    expires(false);
}

#[test]
fn a_watch_that_is_refused_as_expired_is_followed_by_a_list() {
    expires(true);
}

#[test]
fn an_api_outage_changes_nothing_and_the_watch_resumes_afterwards() {
    let steady = Steady::new();
    steady.scene.api.stop();
    wait_logged(&steady.agent, "the Kubernetes API does not answer");
    steady.changes();
    std::thread::sleep(std::time::Duration::from_secs(2));
    steady.scene.api.run();
    wait_logged(&steady.agent, "the Kubernetes API answers: https://192.0.2.2:6443");
    steady.ends_in_sync();
}

#[test]
fn invalid_nodes_of_the_api_are_reported_and_affect_no_other() {
    for (mode, words) in [
        (Mode::Garbage, "key must be a string"),
        (Mode::Huge, "bytes"),
        (Mode::Forbidden, "give its account the role in packaging/daemonset-kubernetes.yaml"),
    ] {
        let steady = Steady::new();
        steady.scene.api.set_mode(mode);
        wait_logged(&steady.agent, words);
        steady.changes();
        // Until it gives up the version it had, and lists.
        let lists = steady.scene.api.lists();
        eventually("it lists again", 2 * SOON, || {
            if steady.scene.api.lists() > lists { Ok(()) } else { Err("not yet".into()) }
        });
        steady.scene.api.set_mode(Mode::Well);
        steady.ends_in_sync();
    }
}

#[test]
fn requests_to_an_unresponsive_api_time_out() {
    let steady = Steady::new();
    steady.scene.api.set_mode(Mode::Silent);
    eventually("the timeout is logged", 3 * SOON, || {
        let logged = steady
            .agent
            .log()
            .contains("watch nodes: https://192.0.2.2:6443: no answer within 30s");
        if logged { Ok(()) } else { Err(steady.agent.log()) }
    });
    steady.changes();
    steady.scene.api.set_mode(Mode::Well);
    eventually("the watch resumes", 3 * SOON, || {
        if facts::routes(steady.scene.host(1)).contains_key("10.244.4.0/24") {
            Ok(())
        } else {
            Err("not yet".into())
        }
    });
    steady.ends_in_sync();
}

#[test]
fn watches_that_end_at_once_are_retried_with_a_delay() {
    for mode in [Mode::Brief, Mode::Bookmark] {
        let steady = Steady::new();
        let api = &steady.scene.api;
        api.set_mode(mode);
        steady.changes();
        let before = api.requests().len();
        std::thread::sleep(std::time::Duration::from_secs(5));
        let asked = api.requests().len() - before;
        assert!(asked < 20, "{asked} requests in 5 s");
        let host = scene_host(&steady.scene);
        let problem = wait_problem(host, "kubernetes-api", "the Kubernetes API");
        assert!(problem["what"].to_string().contains("watch nodes: it ends at once"), "{problem}");
        api.set_mode(Mode::Well);
        status_when(host, "all nodes are followed", |it| !has_problem(it, "kubernetes-api"));
        steady.ends_in_sync();
    }
}

#[test]
fn a_list_of_empty_pages_without_end_is_an_error() {
    let scene = Scene::new(1, 0);
    scene.api.set_mode(Mode::Endless);
    let agent = Agent::start(scene.host(1), &crate::with(&[]));
    wait_logged(&agent, "empty pages");
    let asked = scene.api.requests().len();
    assert!(asked < 300, "{asked} requests");
    scene.api.set_mode(Mode::Well);
    agent.wait_ready();
}

#[test]
fn a_list_of_many_pages_is_read_completely_and_restarted_if_it_expires() {
    let scene = Scene::new(1, 0);
    for number in 0..600 {
        let (third, fourth) = (number / 4 + 64, number % 4 * 64);
        let subnet = format!("10.244.{third}.{fourth}/26");
        scene.api.put(node(&format!("n{number:03}"), &[&subnet], &["192.0.2.77"]));
    }
    scene.api.compact_between_pages();
    let _agent = scene.serve(1, &[]);
    soon("all routes are there", || facts::routes(scene.host(1)).len() == 600);
    let requests = scene.api.requests();
    let continued = requests.iter().filter(|line| line.contains("continue=")).count();
    assert_eq!((scene.api.lists(), continued), (2, 7), "{requests:?}");
}
