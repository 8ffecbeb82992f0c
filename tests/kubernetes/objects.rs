//! Groups, their policies, profiles and rules of namespaces as custom resources (packaging/crds.yaml).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use humanz::net::ProblemKind;
use humanz::policy::read::documents;
use humanz::policy::{ObjectSource, Scoped, Selector};
use humanz::sources::PodScope;
use serde_json::{Value, json};

use crate::api::Api;
use crate::beside_etcd::{self, apply, check_denied, own, wait_health};
use crate::enforced::{add, connect};
use crate::policies::{Follower, WEB, follower_is_well, namespace, pod, shop};
use crate::rbac::{role, role_beside_etcd};
use crate::support::guide::{Guide, Step};
use crate::support::local::{problem, status, status_when, wait_problem};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Pod, eventually};
use crate::traffic::{Flood, Server};
use crate::{KUBECONFIG, Scene};

pub const KINDS: [&str; 4] = ["Group", "GroupPolicy", "NamespaceRule", "NetProfile"];

pub fn custom(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub fn serve_all(scene: &Scene) {
    KINDS.iter().for_each(|kind| scene.api.serve_custom(kind, true));
}

/// Pods db* are of the group store, which the group ops alone reaches.
fn store() -> [(&'static str, &'static str, Value); 4] {
    let from_ops = json!({"direction": "in", "action": "allow", "peer": {"group": "ops"}});
    [
        ("GroupPolicy", "from-ops", json!({"rules": [from_ops]})),
        ("Group", "store", json!({"policies": ["from-ops"], "default": {"in": "deny"}})),
        ("Group", "ops", json!({"profile": "gold"})),
        ("NetProfile", "gold", json!({"dscp": 46})),
    ]
}

fn shop_rule() -> Value {
    json!({"allow": ["ops"], "pods": [{"match": "db*", "group": "store"}]})
}

fn put_store(scene: &Scene) {
    serve_all(scene);
    store().into_iter().for_each(|(kind, name, spec)| scene.api.put(custom(kind, name, spec)));
    scene.api.put(custom("NamespaceRule", "shop", shop_rule()));
}

/// The pod asks for the group ops.
fn add_ops(scene: &Scene, number: usize, name: &str) -> Pod {
    let host = scene.host(number);
    let mut object = pod(name, name, host.name(), &[]);
    object["metadata"]["annotations"] = json!({"humanz.io/group": "ops"});
    scene.api.put(object.clone());
    let added = connect(host, name).unwrap();
    object["status"]["podIPs"] = json!([{"ip": added.v4().to_string()}]);
    scene.api.put(object);
    added
}

/// Groups of this host's pods, as `shop/db blue/store`.
fn groups(follower: &Follower) -> BTreeSet<String> {
    let pods = follower.snapshot().map(|snapshot| snapshot.pods).unwrap_or_default();
    let group = |group: &Option<Scoped>| group.as_ref().map_or("-".to_owned(), ToString::to_string);
    pods.iter().map(|pod| format!("{pod} {}", group(&pod.group))).collect()
}

fn groups_become(follower: &Follower, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|one| (*one).to_owned()).collect();
    eventually(&format!("groups {wanted:?}"), 3 * SOON, || {
        let found = groups(follower);
        if found == wanted { Ok(()) } else { Err(format!("{found:?} {:?}", follower.problems())) }
    });
}

/// db on h1, web on h2, without policies; both in groups of the tenant blue.
fn blue() -> Scene {
    let scene = shop();
    scene.api.enforce(role());
    scene.api.delete_of("NetworkPolicy", "shop/db");
    serve_all(&scene);
    let from_web = json!({"direction": "in", "action": "allow", "peer": {"group": "web"}});
    scene.api.put(custom("GroupPolicy", "blue.from-web", json!({"rules": [from_web]})));
    let group = json!({"policies": ["from-web"], "default": {"in": "deny"}});
    scene.api.put(custom("Group", "blue.db", group));
    scene.api.put(custom("Group", "blue.web", json!({})));
    let pods = json!([{"match": "db*", "group": "db"}, {"match": "web*", "group": "web"}]);
    scene.api.put(custom("NamespaceRule", "shop", json!({"tenant": "blue", "pods": pods})));
    scene
}

#[test]
fn custom_resources_are_followed_and_hold_while_the_api_is_away() {
    let scene = blue();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    follower.members_become(WEB);
    groups_become(&follower, &["shop/db blue/db"]);
    let web = Scoped { tenant: "blue".parse().unwrap(), name: "web".parse().unwrap() };
    let web = Selector::Group(web);
    assert!(follower.snapshot().unwrap().members.contains_key(&web));
    assert_eq!((follower.rules(), follower.problems()), (2, vec![]));

    let edit =
        |kind: &str, name: &str, spec: Value| api.edit_of(kind, name, |it| it["spec"] = spec);
    edit("NamespaceRule", "shop", json!({"tenant": "blue", "group": "db"}));
    follower.members_become(&[]);
    edit("NamespaceRule", "shop", json!({"tenant": "blue", "group": "web"}));
    groups_become(&follower, &["shop/db blue/web"]);
    edit(
        "NamespaceRule",
        "shop",
        json!({"tenant": "blue", "pods": [{"match": "db", "group": "db"}], "group": "web"}),
    );
    follower.members_become(WEB);
    let before = follower.snapshot();
    api.stop();
    follower.wait_problem(ProblemKind::KubernetesApi, "groups");
    assert_eq!(follower.snapshot(), before);
    api.delete_of("NamespaceRule", "shop");
    api.compact();
    api.run();
    groups_become(&follower, &["shop/db -"]);
    follower_is_well(&follower);
    edit("Group", "blue.db", json!({"policies": ["gone"]}));
    follower.wait_problem(ProblemKind::Policy, "Group blue/db");
    assert_eq!(follower.rules(), 2, "both directions are denied");
}

#[test]
fn a_role_that_lacks_custom_resources_is_a_problem_and_opens_nothing() {
    let scene = blue();
    let mut earlier = role();
    earlier.retain(|rule| !rule.permits("list", "/apis/humanz.io/v1alpha1/groups"));
    assert!(earlier.len() < role().len());
    scene.api.enforce(earlier);
    let follower = Follower::start(&scene.api, scene.host(1), PodScope::All);
    let denied = follower.wait_problem(ProblemKind::KubernetesApi, "groups");
    assert!(denied.fix.as_ref().unwrap().contains("give its account the role"), "{denied}");
    assert!(follower.snapshot().is_none(), "pods stay closed until the rules were read");
    scene.api.enforce(role());
    groups_become(&follower, &["shop/db blue/db"]);
    follower_is_well(&follower);
    // Where they are not in force, nobody needs the permission.
    let mut earlier = role_beside_etcd();
    earlier.retain(|rule| !rule.permits("list", "/apis/humanz.io/v1alpha1/groups"));
    scene.api.enforce(earlier);
    let beside = Follower::start(&scene.api, scene.host(1), PodScope::Own);
    groups_become(&beside, &["shop/db -"]);
    assert_eq!(beside.problems(), []);
}

#[test]
fn custom_resources_may_come_later_but_not_where_they_must_be() {
    let scene = blue();
    let api = &scene.api;
    KINDS.iter().for_each(|kind| api.serve_custom(kind, false));
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    let wanted = Follower::start_with(api, scene.host(1), PodScope::Own, ObjectSource::Kubernetes);
    groups_become(&follower, &["shop/db -"]);
    assert_eq!(follower.problems(), [], "a cluster without them has none");
    let missing = wanted.wait_problem(ProblemKind::KubernetesApi, "groups");
    assert!(format!("{missing:?}").contains("apply packaging/crds.yaml"), "{missing:?}");
    assert!(wanted.snapshot().is_none(), "POLICY_OBJECTS=kubernetes says that they are there");
    serve_all(&scene);
    eventually("all of them", 6 * SOON, || match &wanted.problems()[..] {
        [] => Ok(()),
        problems => Err(format!("{problems:?}")),
    });
    let rules = wanted.snapshot().unwrap().standalone.unwrap().rules;
    assert!(rules.contains_key("shop"), "{rules:?}");
    eventually("the group", Duration::from_secs(90), || {
        let found = groups(&follower);
        if found.contains("shop/db blue/db") { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

#[test]
fn what_is_not_in_force_is_a_problem() {
    let scene = blue();
    let beside = Follower::start(&scene.api, scene.host(1), PodScope::Own);
    beside.wait_problem(ProblemKind::Policy, "objects of humanz in the Kubernetes API");
    let said = beside.snapshot().unwrap();
    assert!(said.without_objects && said.rules.is_empty());
    assert!(said.standalone.unwrap().rules.is_empty());
}

#[test]
fn hostile_custom_resources_close_what_they_are_about() {
    let scene = blue();
    let api = &scene.api;
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    groups_become(&follower, &["shop/db blue/db"]);
    let rules = follower.rules();
    // As a definition without checks would let through.
    let good = json!({"tenant": "blue", "group": "db"});
    for bad in [
        json!("text"),
        json!(null),
        json!({"group": "../db"}),
        json!({"tenants": "blue"}),
        json!({"network": "front"}),
    ] {
        api.put_unchecked(custom("NamespaceRule", "shop", bad.clone()));
        follower.wait_problem(ProblemKind::Policy, "NamespaceRule shop");
        groups_become(&follower, &[]);
        api.edit_of("NamespaceRule", "shop", |it| it["spec"] = good.clone());
        groups_become(&follower, &["shop/db blue/db"]);
        follower_is_well(&follower);
    }
    api.put_unchecked(custom("Group", "blue.bad", json!({"default": {"in": "perhaps"}})));
    follower.wait_problem(ProblemKind::Policy, "Group blue/bad");
    assert_eq!(follower.rules(), rules + 2, "it denies everything");
    // One name for two objects, and objects that an owner of a namespace could write.
    api.put_unchecked(custom("Group", "default.db", json!({})));
    follower.wait_problem(ProblemKind::Policy, "Group \"default.db\"");
    let mut inside = custom("NamespaceRule", "shop", json!({"tenant": "red", "group": "db"}));
    inside["metadata"]["namespace"] = json!("shop");
    api.put_unchecked(inside);
    follower.wait_problem(ProblemKind::Policy, "NamespaceRule \"shop/shop\"");
    assert_eq!(groups(&follower), ["shop/db blue/db".to_owned()].into());
    let many: Vec<String> = (0..20_000).map(|number| format!("g{number}")).collect();
    api.put_unchecked(custom("Group", "blue.many", json!({"policies": many})));
    follower.wait_problem(ProblemKind::Policy, "Group blue/many");
    for name in ["blue.bad", "default.db", "blue.many"] {
        api.delete_of("Group", name);
    }
    api.delete_of("NamespaceRule", "shop/shop");
    follower_is_well(&follower);
    assert_eq!(follower.rules(), rules);
}

/// Who may create pods in a namespace, and label and annotate that, gets no group of another tenant by it.
#[test]
fn an_owner_of_a_namespace_gets_no_foreign_tenant() {
    let scene = blue();
    let api = &scene.api;
    api.put(custom("Group", "red.db", json!({})));
    api.put(custom("NamespaceRule", "shop", json!({"tenant": "blue", "allow": ["*"]})));
    let follower = Follower::start(api, scene.host(1), PodScope::All);
    groups_become(&follower, &["shop/db -"]);
    thieves_get(api, &follower, "-");
    // Nor does it leave the one that the rule gives it.
    let rule = json!({"tenant": "blue", "group": "web", "allow": ["*"]});
    api.edit_of("NamespaceRule", "shop", |it| it["spec"] = rule.clone());
    groups_become(&follower, &["shop/db blue/web"]);
    thieves_get(api, &follower, "blue/web");
    // Of its own tenant it may ask for any, as the rule says.
    let mut fair = pod("fair", "db", "h1", &["10.244.1.66"]);
    fair["metadata"]["annotations"] = json!({"humanz.io/group": "db"});
    api.put(fair);
    groups_become(&follower, &["shop/db blue/web", "shop/fair blue/db"]);
    follower_is_well(&follower);
}

/// Of those that ask for a foreign tenant's group, beside db, which has the group `given`.
fn thieves_get(api: &Api, follower: &Follower, given: &str) {
    let mut own =
        namespace("shop", json!({"humanz.io/tenant": "red", "humanz.io/group": "red/db"}));
    own["metadata"]["annotations"] =
        json!({"humanz.io/tenant": "red", "humanz.io/group": "red/db"});
    api.put(own);
    for (place, words) in [
        ("annotations", json!({"humanz.io/group": "red/db"})),
        ("annotations", json!({"humanz.io/tenant": "red", "humanz.io/group": "db"})),
        ("labels", json!({"io.contiv.tenant": "red", "io.contiv.net-group": "db"})),
        ("labels", json!({"humanz.io/group": "red/db"})),
    ] {
        let mut thief = pod("thief", "db", "h1", &["10.244.1.66"]);
        thief["metadata"][place] = words;
        api.put(thief);
        follower.wait_problem(ProblemKind::Policy, "pod shop/thief");
        let [db, thief] = ["shop/db", "shop/thief"].map(|pod| format!("{pod} {given}"));
        groups_become(follower, &[&db, &thief]);
        api.delete_of("Pod", "shop/thief");
        groups_become(follower, &[&db]);
    }
}

#[test]
fn pods_are_in_the_groups_of_custom_resources_without_any_etcd() {
    let scene = Scene::new(2, 0);
    scene.api.enforce(role());
    scene.api.put(namespace("shop", json!({})));
    put_store(&scene);
    let on = &[("POLICY", "on")];
    let agents = [scene.serve(1, on), scene.serve(2, on)];
    let db = add(&scene, 1, "db", true);
    let (web, other) = (add_ops(&scene, 2, "web"), add(&scene, 2, "other", true));
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    check_denied(&mut server, &[(&other, &floods[1])], &web);
    let listed = Agent::run(scene.host(1), "policy ls", &crate::with(on)).ok();
    let line = listed.lines().find(|line| line.contains("default/store")).unwrap();
    assert!(line.starts_with("group") && line.contains("kubernetes"), "{listed}");
    let found = status(scene.host(1));
    assert_eq!(found["policies"]["objects"], "kubernetes");
    let refused = Agent::run(scene.host(1), "group ls", &crate::with(on));
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("kubectl get networks.humanz.io,groups"), "{refused}");
    agents.iter().for_each(Agent::stop);
}

pub const OF_API: &[(&str, &str)] =
    &[("POLICY", "kubernetes"), ("KUBECONFIG", KUBECONFIG), ("POLICY_OBJECTS", "kubernetes")];

#[test]
fn objects_of_the_api_are_in_force_and_those_of_etcd_beside_it_are_a_problem() {
    let scene = beside_etcd::shop(2);
    let (api, [h1, h2]) = (&scene.api, [scene.host(1), scene.host(2)]);
    // With these alone everybody reaches everybody.
    apply(
        h1,
        &[
            own("Group", "store", json!({})),
            own("NamespaceRule", "shop", json!({"group": "store"})),
        ],
    );
    put_store(&scene);
    let agents = scene.cluster.start_agents(OF_API);
    let db = add(&scene, 1, "db", false);
    let (web, other) = (add_ops(&scene, 2, "web"), add(&scene, 2, "other", false));
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    let denied = [(&other, &floods[1])];
    check_denied(&mut server, &denied, &web);
    wait_problem(h1, "policy", "objects of humanz in etcd");
    assert_eq!(status(h1)["policies"]["objects"], "kubernetes");
    let shown = Agent::run(h1, "status", OF_API).stdout;
    assert!(
        shown.contains(
            "groups and rules of namespaces: those of kubernetes; networks: those of etcd"
        ),
        "{shown}"
    );
    let pods = Agent::run(h2, "endpoint ls", OF_API).stdout;
    assert!(
        pods.lines().any(|line| line.contains("default/ops") && line.contains("default/gold")),
        "{pods}"
    );
    let refused = Agent::run(h1, "group create more", OF_API);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("those of the Kubernetes API"), "{refused}");

    let allow =
        |allow: Value| api.edit_of("NamespaceRule", "shop", |it| it["spec"]["allow"] = allow);
    let begun = Instant::now();
    allow(json!([]));
    server.wait_silence(web.v4(), begun);
    allow(json!(["ops"]));
    server.wait(web.v4());
    api.stop();
    wait_health(h1, false, true);
    check_denied(&mut server, &denied, &web);
    api.run();
    wait_health(h1, true, true);

    // What is not in force can be taken away, and then it is no problem.
    for object in ["NamespaceRule shop", "Group store"] {
        Agent::run(h1, &format!("policy rm {object}"), OF_API).ok();
    }
    status_when(h1, "no unused objects", |status| {
        problem(status, "policy", "objects of humanz in etcd").is_none()
    });
    check_denied(&mut server, &denied, &web);
    agents.iter().for_each(Agent::stop);
}

fn configure(host: &Node, objects: &str) {
    let text = format!("POLICY=kubernetes\nKUBECONFIG={KUBECONFIG}\nPOLICY_OBJECTS={objects}\n");
    host.write("/etc/humanz/agent.env", &text);
}

/// The former source says at once that it has none any longer, and the new one is away.
#[test]
fn a_change_of_the_source_of_objects_opens_nothing() {
    let scene = beside_etcd::shop(1);
    let (api, host) = (&scene.api, scene.host(1));
    let mut objects: Vec<Value> =
        store().into_iter().map(|(kind, name, spec)| own(kind, name, spec)).collect();
    objects.push(own("NamespaceRule", "shop", shop_rule()));
    apply(host, &objects);
    put_store(&scene);
    configure(host, "etcd");
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let db = add(&scene, 1, "db", false);
    let (web, other) = (add_ops(&scene, 1, "web"), add(&scene, 1, "other", false));
    let mut server = Server::open(&db);
    let floods = [&web, &other].map(|pod| Flood::start(pod, db.v4()));
    server.wait(web.v4());
    let denied = [(&other, &floods[1])];
    check_denied(&mut server, &denied, &web);
    let before = server.received(other.v4());

    api.stop();
    configure(host, "kubernetes");
    agent.reload();
    wait_health(host, false, true);
    check_denied(&mut server, &denied, &web);
    api.run();
    wait_health(host, true, true);
    check_denied(&mut server, &denied, &web);
    assert_eq!(server.received(other.v4()), before);
    api.edit_of("Group", "store", |it| it["spec"]["default"] = json!({"in": "allow"}));
    server.wait(other.v4());
    let begun = Instant::now();
    configure(host, "etcd");
    agent.reload();
    server.wait_silence(other.v4(), begun);
    wait_problem(host, "policy", "objects of humanz in the Kubernetes API");
    agent.stop();
}

/// Does what `kubectl apply -f` of the step does; one of the definitions makes their resources known.
pub fn kubectl(scene: &Scene, step: &Step) -> bool {
    let Some(file) = step.command.strip_prefix("kubectl apply -f ") else { return false };
    let text = match file {
        "crds.yaml" => CRDS.to_owned(),
        file => scene.host(1).read(&format!("/root/{file}")).unwrap(),
    };
    for object in documents::objects(&text).unwrap() {
        match object["kind"].as_str() {
            Some("CustomResourceDefinition") => {
                scene.api.serve_custom(object["spec"]["names"]["kind"].as_str().unwrap(), true);
            }
            _ => scene.api.put(object),
        }
    }
    true
}

pub const CRDS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/crds.yaml"));

#[test]
fn the_guide_to_custom_resources_does_what_it_shows() {
    let scene = Scene::new(1, 0);
    scene.api.enforce(role());
    scene.api.put(namespace("shop", json!({})));
    let host = scene.host(1);
    // An agent looks for definitions of resources now and then; one that starts does at once.
    let mut agent = None;
    let _db = {
        let first = scene.serve(1, &[("POLICY", "on")]);
        let db = add(&scene, 1, "db", true);
        first.stop();
        db
    };
    let mut guide = Guide::read("tenants.md");
    guide.follow("As custom resources", host, |step| {
        let is_done = kubectl(&scene, step);
        if !is_done && agent.is_none() {
            agent = Some(scene.serve(1, &[("POLICY", "on")]));
        }
        is_done
    });
    agent.unwrap().stop();
}
