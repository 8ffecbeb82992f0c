//! Policies, namespaces and pods of the API become updates for the agent, whatever happens to lists and
//! watches.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use humanz::kube::KubeSettings;
use humanz::net::{Problem, ProblemKind};
use humanz::os::event_loop::EventLoop;
use humanz::policy::{ObjectSource, PolicySnapshot, SourceUpdate};
use humanz::sources::{self, ApiStart, PodScope};
use serde_json::{Value, json};

use crate::api::{Api, Mode, TOKEN};
use crate::rbac::role;
use crate::state::{V1, V1BETA1};
use crate::support::process::lock;
use crate::support::wait::SOON;
use crate::support::{Node, eventually, soon};
use crate::{Scene, kubeconfig, node};

pub fn namespace(name: &str, labels: Value) -> Value {
    json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}})
}

/// A pod of `shop` with the label `app`.
pub fn pod(name: &str, app: &str, host: &str, addresses: &[&str]) -> Value {
    let ips: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
        "spec": {"nodeName": host, "containers": [{"name": "c", "env": [{"name": "SECRET", "value": "x"}],
            "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIPs": ips}})
}

/// Pods with `app=db` may be reached by those with `app=web`.
pub fn policy(name: &str) -> Value {
    json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]}})
}

/// Isolates all pods of `shop` from everything, or what stands in `spec`.
pub fn admin(name: &str) -> Value {
    json!({"kind": "ClusterNetworkPolicy", "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "metadata": {"name": name},
        "spec": {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}})
}

/// Follows the API on a host, in this process.
pub struct Follower {
    updates: Arc<Mutex<Vec<SourceUpdate>>>,
    _event_loop: EventLoop,
    _folder: tempfile::TempDir,
}

/// How to reach `api` from this process.
fn access(api: &Api) -> (KubeSettings, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ca.pem", &api.certificates.text("ca.pem"));
    write("token", TOKEN);
    write("kubeconfig", &kubeconfig("tokenFile: token"));
    (KubeSettings { kubeconfig: Some(folder.path().join("kubeconfig")), api: None }, folder)
}

impl Follower {
    pub fn start(api: &Api, host: &Node, pods: PodScope) -> Follower {
        let ruling = match pods {
            PodScope::All => ObjectSource::Kubernetes,
            PodScope::Own => ObjectSource::Etcd,
        };
        Follower::start_with(api, host, pods, ruling)
    }

    pub fn start_with(api: &Api, host: &Node, pods: PodScope, ruling: ObjectSource) -> Follower {
        let (settings, folder) = access(api);
        let start = ApiStart {
            api: settings,
            host: host.name().parse().unwrap(),
            pods,
            ruling,
            group: None,
        };
        let updates = Arc::new(Mutex::new(Vec::new()));
        let publish = {
            let updates = Arc::clone(&updates);
            move |update| lock(&updates).push(update)
        };
        let event_loop = host.with_namespace(|namespace| {
            namespace.on_its_network(|| sources::spawn(start, Default::default(), publish).unwrap())
        });
        Follower { updates, _event_loop: event_loop, _folder: folder }
    }

    fn last(&self) -> Option<SourceUpdate> {
        lock(&self.updates).last().cloned()
    }

    pub fn snapshot(&self) -> Option<PolicySnapshot> {
        self.last()?.snapshot
    }

    pub fn problems(&self) -> Vec<Problem> {
        self.last().map(|update| update.problems).unwrap_or_default()
    }

    /// Addresses of all members of all groups that this host needs.
    fn members(&self) -> Vec<String> {
        let members = self.snapshot().map(|snapshot| snapshot.members).unwrap_or_default();
        let members = members.values().flat_map(|found| &**found);
        let mut all: Vec<String> =
            members.flat_map(|member| &member.addresses).map(ToString::to_string).collect();
        all.sort();
        all
    }

    pub fn members_become(&self, wanted: &[&str]) {
        eventually(&format!("members {wanted:?}"), 3 * SOON, || {
            let found = self.members();
            if found == wanted { Ok(()) } else { Err(format!("{found:?} {:?}", self.problems())) }
        });
    }

    pub fn rules(&self) -> usize {
        self.snapshot().map_or(0, |snapshot| snapshot.rules.iter().count())
    }

    /// The problem of this kind and subject, once there is one.
    pub fn wait_problem(&self, kind: ProblemKind, subject: &str) -> Problem {
        eventually(subject, 3 * SOON, || find_problem(self.problems(), kind, subject))
    }
}

/// # Errors
/// The problems, if none is of this kind and subject.
pub fn find_problem(
    problems: Vec<Problem>,
    kind: ProblemKind,
    subject: &str,
) -> Result<Problem, String> {
    let is_it =
        |problem: &&Problem| (problem.kind, &*problem.subject.to_string()) == (kind, subject);
    let found = problems.iter().find(is_it).cloned();
    found.ok_or_else(|| format!("{problems:?}"))
}

/// Hosts h1 and h2; db on h1, web on h2, and a policy that lets web reach db.
pub fn shop() -> Scene {
    let scene = Scene::new(2, 0);
    scene.api.put(namespace("shop", json!({})));
    scene.api.put(pod("db", "db", "h1", &["10.244.1.2"]));
    scene.api.put(pod("web", "web", "h2", &["10.244.2.2", "fd10:244:0:2::2"]));
    scene.api.put(policy("db"));
    scene
}

pub const WEB: &[&str] = &["10.244.2.2", "fd10:244:0:2::2"];

#[test]
fn a_host_needs_no_more_than_the_role_in_the_manifest_and_uses_all_of_it() {
    let scene = shop();
    scene.api.serve_custom("ClusterNetworkPolicy", true);
    scene.api.serve_custom("AdminNetworkPolicy", true);
    scene.api.serve_custom("BaselineAdminNetworkPolicy", true);
    crate::objects::KINDS.iter().for_each(|kind| scene.api.serve_custom(kind, true));
    scene.api.enforce(role());
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    eventually("everything is watched", SOON, || {
        let requests = scene.api.requests();
        let asked = |resource: &str, verb: &str| {
            requests.iter().any(|line| match verb {
                "watch" => line.contains(&format!("/{resource}?watch=1")),
                _ => line.contains(&format!("/{resource}?limit")),
            })
        };
        let rules = role();
        let pairs = rules.iter().flat_map(|rule| rule.pairs());
        // The agent's own nodes are read by their list, too.
        let unused: Vec<_> =
            pairs.filter(|(resource, verb)| *verb != "get" && !asked(resource, verb)).collect();
        if unused.is_empty() { Ok(()) } else { Err(format!("{unused:?}")) }
    });
    assert_eq!(follower.problems(), []);
    let forbidden = scene.api.requests().iter().filter(|line| !line.starts_with("GET ")).count();
    assert_eq!(forbidden, 0, "nothing is written");
}

#[test]
fn a_role_that_lacks_a_resource_is_a_problem_and_opens_nothing() {
    let scene = shop();
    let mut without = role();
    without.retain(|rule| !rule.permits("list", "/apis/networking.k8s.io/v1/networkpolicies"));
    scene.api.enforce(without);
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::All);
    let denied = follower.wait_problem(ProblemKind::KubernetesApi, "networkpolicies");
    let fix = denied.fix.as_deref().unwrap();
    let command = "kubectl get clusterrole humanz -o yaml # give its account the role";
    assert!(fix.starts_with(command) && fix.contains("policy-role.yaml"), "{denied}");
    assert!(follower.snapshot().is_none(), "pods stay closed until the policies were read");
    scene.api.enforce(role());
    follower.members_become(WEB);
    follower_is_well(&follower);
}

pub fn follower_is_well(follower: &Follower) {
    soon("no problem is left", || follower.problems().is_empty());
}

#[test]
fn a_label_on_one_host_is_a_member_on_another_within_100_ms() {
    let scene = shop();
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    let mut times = Vec::new();
    for round in 0..20 {
        let (app, wanted): (_, &[&str]) =
            if round % 2 == 0 { ("other", &[]) } else { ("web", WEB) };
        let begun = Instant::now();
        scene.api.edit_of("Pod", "shop/web", |pod| pod["metadata"]["labels"]["app"] = json!(app));
        while follower.members() != wanted {
            assert!(begun.elapsed() < 3 * SOON, "{:?}", follower.members());
            std::thread::sleep(Duration::from_millis(1));
        }
        times.push(begun.elapsed());
    }
    times.sort();
    println!("label changed → members: median {:?}, longest {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(100), "{times:?}");
}

#[test]
fn pods_without_addresses_of_their_own_are_no_members() {
    let scene = shop();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    let with = |name: &str, address: &str, change: &dyn Fn(&mut Value)| {
        let mut pod = pod(name, "web", "h2", &[address]);
        change(&mut pod);
        api.put(pod);
    };
    with("node", "192.0.2.12", &|pod| pod["spec"]["hostNetwork"] = json!(true));
    with("done", "10.244.2.3", &|pod| pod["status"]["phase"] = json!("Succeeded"));
    with("failed", "10.244.2.4", &|pod| pod["status"]["phase"] = json!("Failed"));
    with("pending", "10.244.2.5", &|pod| pod["spec"]["nodeName"] = json!(null));
    with("leaving", "10.244.2.6", &|pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T00:00:00Z");
    });
    follower.members_become(&[WEB[0], "10.244.2.6", WEB[1]]);
    // It gave its address up.
    api.edit_of("Pod", "shop/leaving", |pod| pod["status"]["phase"] = json!("Succeeded"));
    follower.members_become(WEB);
    assert_eq!(follower.problems(), []);
}

#[test]
fn a_pod_of_this_host_is_known_before_it_has_an_address() {
    let scene = shop();
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::Own);
    soon("the db is known", || {
        follower.snapshot().is_some_and(|snapshot| snapshot.pods.len() == 1)
    });
    let mut new = pod("db2", "db", "", &[]);
    new["status"] = json!({"phase": "Pending"});
    scene.api.put(new);
    scene.api.edit_of("Pod", "shop/db2", |pod| pod["spec"]["nodeName"] = json!("h1"));
    soon("so is the new one", || {
        let pods = follower.snapshot().unwrap().pods;
        pods.iter().any(|pod| pod.to_string() == "shop/db2" && pod.addresses.is_empty())
    });
    assert_eq!(follower.members(), [""; 0], "pods of other hosts are not read");
    let requests = scene.api.requests();
    let pods = requests.iter().filter(|line| line.contains("/pods?"));
    assert!(pods.clone().count() > 0);
    for line in pods {
        assert!(line.contains("fieldSelector=spec.nodeName%3Dh1"), "{line}");
    }
    scene.api.delete_of("Pod", "shop/db2");
    soon("it is gone", || follower.snapshot().unwrap().pods.len() == 1);
}

#[test]
fn labels_of_namespaces_and_nodes_count() {
    let scene = shop();
    let api = &scene.api;
    api.put(namespace("front", json!({"team": "a"})));
    let mut other = pod("ui", "ui", "h2", &["10.244.2.7"]);
    other["metadata"]["namespace"] = json!("front");
    api.put(other);
    let mut rule = policy("team");
    rule["spec"]["ingress"] =
        json!([{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}]);
    api.delete_of("NetworkPolicy", "shop/db");
    api.put(rule);
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(&["10.244.2.7"]);
    api.put(namespace("front", json!({"team": "b"})));
    follower.members_become(&[]);
    api.put(namespace("front", json!({"team": "a"})));
    follower.members_become(&["10.244.2.7"]);
    // A namespace that is gone and made again.
    api.delete_of("Namespace", "front");
    follower.members_become(&[]);
    api.put(namespace("front", json!({"team": "a"})));
    follower.members_become(&["10.244.2.7"]);
    api.serve_custom("ClusterNetworkPolicy", true);
    api.edit("h2", |node| node["metadata"]["labels"] = json!({"role": "gate"}));
    let mut nodes = admin("nodes");
    nodes["spec"]["egress"] = json!([{"action": "Accept", "to":
        [{"nodes": {"matchLabels": {"role": "gate"}}}]}]);
    nodes["spec"].as_object_mut().unwrap().remove("ingress");
    api.put(nodes);
    eventually("the node is a member", Duration::from_secs(90), || {
        let found = follower.members();
        let wanted = ["10.244.2.1", "10.244.2.7", "192.0.2.12", "fd10:244:0:2::1", "fd99::12"];
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

#[test]
fn a_cluster_that_gets_the_custom_resource_later_and_loses_it() {
    let scene = shop();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    let rules = follower.rules();
    assert_eq!(follower.problems(), [], "a cluster without it is none");
    api.put(admin("all"));
    api.serve_custom("ClusterNetworkPolicy", true);
    let begun = Instant::now();
    eventually("its rule is there", Duration::from_secs(90), || {
        if follower.rules() > rules { Ok(()) } else { Err(follower.rules().to_string()) }
    });
    println!("a new resource was noticed after {:?}", begun.elapsed());
    // A server that starts may not have it yet: what it said before stays.
    api.serve_custom("ClusterNetworkPolicy", false);
    follower.wait_problem(ProblemKind::KubernetesApi, "clusternetworkpolicies");
    assert!(follower.rules() > rules);
    api.serve_custom("ClusterNetworkPolicy", true);
    eventually("it is well again", Duration::from_secs(90), || {
        if follower.problems().is_empty() { Ok(()) } else { Err(String::new()) }
    });
    assert!(follower.rules() > rules);
    api.serve_custom("ClusterNetworkPolicy", false);
    eventually("its policies are gone with it", Duration::from_secs(240), || {
        if follower.rules() == rules { Ok(()) } else { Err(follower.rules().to_string()) }
    });
}

#[test]
fn a_cluster_that_has_another_version_alone_is_read_in_that_one() {
    let scene = shop();
    let api = &scene.api;
    api.enforce(role());
    api.put(admin("all"));
    // Admission and clusters change; what is enforced does not.
    api.serve_path(V1BETA1, true);
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    eventually("its rule is there", 3 * SOON, || {
        if follower.rules() == 3 { Ok(()) } else { Err(format!("{:?}", follower.last())) }
    });
    assert_eq!(follower.problems(), []);
    // One that is not known is read as well as can be, and is a problem.
    api.serve_path(V1, true);
    api.serve_path(V1BETA1, false);
    let mut strange = admin("strange");
    strange["spec"]["ingress"][0]["from"][0] = json!({"services": {}});
    api.put(strange);
    follower.wait_problem(ProblemKind::Policy, "ClusterNetworkPolicy \"all\"");
    follower.wait_problem(ProblemKind::Policy, "ClusterNetworkPolicy strange");
    assert_eq!(follower.rules(), 4, "the unknown peer denies all");
    // The preferred version is back, and the unknown one gone.
    api.delete_of("ClusterNetworkPolicy", "strange");
    api.serve_custom("ClusterNetworkPolicy", true);
    api.serve_path(V1, false);
    eventually("it is well again", 3 * SOON, || {
        if follower.problems().is_empty() {
            Ok(())
        } else {
            Err(format!("{:?}", follower.problems()))
        }
    });
    assert_eq!(follower.rules(), 3);
    let asked = api.requests();
    assert!(asked.iter().any(|line| line.contains("/v1alpha2/clusternetworkpolicies?watch=1")));
}

#[test]
fn a_cluster_whose_versions_cannot_be_read_opens_nothing() {
    let scene = shop();
    let mut without = role();
    without.retain(|rule| !rule.permits("get", "/apis/policy.networking.k8s.io"));
    scene.api.enforce(without);
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::All);
    follower.wait_problem(ProblemKind::KubernetesApi, "clusternetworkpolicies");
    assert!(follower.snapshot().is_none(), "pods stay closed");
    scene.api.enforce(role());
    follower.members_become(WEB);
    follower_is_well(&follower);
}

#[test]
fn everything_stays_in_force_while_the_api_is_away_and_is_read_again_after_it() {
    let scene = shop();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    let before = follower.snapshot();
    api.stop();
    follower.wait_problem(ProblemKind::KubernetesApi, "networkpolicies");
    assert_eq!(follower.snapshot(), before);
    // What happens meanwhile is forgotten by the server: 410 Gone.
    api.put(pod("web2", "web", "h2", &["10.244.2.9"]));
    api.delete_of("Pod", "shop/web");
    api.compact();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(follower.snapshot(), before);
    api.run();
    follower.members_become(&["10.244.2.9"]);
    follower_is_well(&follower);
}

#[test]
fn malformed_endless_and_refused_answers_change_nothing() {
    let scene = shop();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    let before = follower.snapshot();
    for mode in [Mode::Garbage, Mode::Huge, Mode::Forbidden] {
        api.set_mode(mode);
        follower.wait_problem(ProblemKind::KubernetesApi, "networkpolicies");
        assert_eq!(follower.snapshot(), before, "{mode:?}");
        api.set_mode(Mode::Well);
        follower_is_well(&follower);
    }
}

#[test]
fn hostile_objects_cost_what_they_stand_for() {
    let scene = shop();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    // A stolen kubelet gives its pods the addresses of others.
    api.put(pod("thief", "web", "h2", &["10.244.1.9", "192.0.2.1"]));
    follower.wait_problem(ProblemKind::Policy, "pod shop/thief");
    let mut many = pod("labels", "web", "h2", &["10.244.2.8"]);
    for number in 0..3000 {
        many["metadata"]["labels"][format!("l{number}")] = json!("x".repeat(60));
    }
    api.put(many);
    follower.wait_problem(ProblemKind::Policy, "Pod \"shop/labels\"");
    let mut odd = pod("odd", "web", "h2", &["$(reboot)", "10.244.2.77"]);
    odd["spec"]["nodeName"] = json!("a/../b");
    api.put(odd);
    follower.wait_problem(ProblemKind::Policy, "Pod \"shop/odd\"");
    assert_eq!(follower.members(), WEB);
    // A policy with an unknown field isolates, and allows nothing by what is not understood.
    let mut strange = policy("strange");
    strange["spec"]["ingress"][0]["from"][0]["serviceSelector"] = json!({});
    api.put(strange);
    follower.wait_problem(ProblemKind::Policy, "NetworkPolicy shop/strange");
    // A node that says it is another's pod is not one of its addresses.
    let mut liar = node("liar", &["10.244.1.0/24"], &["192.0.2.66"]);
    liar["metadata"]["creationTimestamp"] = json!("2026-11-20T18:46:01Z");
    api.put(liar);
    api.put(namespace("x", json!({"a": "x".repeat(1 << 20)})));
    follower.members_become(WEB);
    // What etcd takes, 1.5 MiB, is six times as long where JSON escapes each byte.
    let mut large = pod("large", "db", "h2", &["10.244.2.9"]);
    large["spec"]["containers"][0]["args"] = json!(["x".repeat(9 << 20)]);
    api.put(large);
    api.put(pod("late", "web", "h2", &["10.244.2.10"]));
    let with_late = ["10.244.2.10", WEB[0], WEB[1]];
    follower.members_become(&with_late);
    // In a list, too.
    let other = Follower::start(api, scene.host(1), PodScope::All);
    other.members_become(&with_late);
    drop(other);
    api.delete_of("NetworkPolicy", "shop/strange");
    for pod in ["thief", "labels", "odd", "large", "late"] {
        api.delete_of("Pod", &format!("shop/{pod}"));
    }
    follower_is_well(&follower);
}
