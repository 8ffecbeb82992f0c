//! `humanz-agent controller`: networks of the API in etcd, and the status of custom resources.

use etcd_client::Permission;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api::Api;
use crate::beside_etcd;
use crate::enforced::connect;
use crate::objects::{OF_API, custom, kubectl, serve_all};
use crate::policies::{namespace, pod};
use crate::rbac::{role_beside_etcd, role_of_controller};
use crate::support::guide::Guide;
use crate::support::local::{has_problem, status_when};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, eventually, soon};
use crate::{Scene, give_kubeconfig};

const SOCKET: (&str, &str) = ("SOCKET", "/run/humanz/controller.sock");

fn settings<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    OF_API.iter().chain([&SOCKET]).chain(more).copied().collect()
}

/// A controller, which is no service: no READY=1 comes when it is ready.
fn start(host: &Node) -> Agent {
    Agent::start_with(host, "controller", &settings(&[]))
}

/// Hosts, an API with the custom resources, and no more permissions than the controller's.
fn scene(hosts: u8) -> Scene {
    let scene = Scene::new(hosts, 0);
    serve_all(&scene);
    scene.api.serve_custom("Network", true);
    scene.api.enforce(role_of_controller());
    scene
}

fn network(name: &str, subnet: &str) -> Value {
    custom("Network", name, json!({"subnets": [subnet]}))
}

fn condition(api: &Api, kind: &str, name: &str, which: &str) -> Value {
    let object = api.get(kind, name).unwrap_or_default();
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut found = all.into_iter().filter(|one| one["type"] == which);
    let first = found.next().unwrap_or_default();
    assert!(found.next().is_none(), "{object}");
    first
}

/// Waits for `Accepted`; `why`: what stands in its message.
fn accepted(api: &Api, kind: &str, name: &str, is_so: bool, why: &str) -> Value {
    eventually(&format!("{kind} {name} accepted: {is_so} {why}"), 3 * SOON, || {
        let found = condition(api, kind, name, "Accepted");
        let generation = &api.get(kind, name).unwrap_or_default()["metadata"]["generation"];
        let is_it = found["status"] == if is_so { "True" } else { "False" }
            && found["observedGeneration"] == *generation
            && found["message"].as_str().unwrap_or_default().contains(why);
        if is_it { Ok(found) } else { Err(found.to_string()) }
    })
}

/// `spec` of a network in etcd.
fn stored(scene: &Scene, name: &str) -> Value {
    let key = format!("/humanz/v1-policies/Network/{name}");
    let value = scene.cluster.etcd.get(&key).map(|text| serde_json::from_str::<Value>(&text));
    value.map(|object| object.unwrap()["spec"].clone()).unwrap_or_default()
}

#[test]
fn a_network_of_the_api_has_pods_and_goes_with_the_last_block() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    api.enforce([role_beside_etcd(), role_of_controller()].concat());
    api.put(namespace("shop", json!({})));
    api.put(custom("NamespaceRule", "shop", json!({"tenant": "blue", "network": "front"})));
    let controller = start(host);
    let agent = Agent::start(host, &[OF_API, &[("BLOCK_RELEASE_AFTER", "1s")]].concat());
    agent.wait_ready();
    api.put(network("blue.front", "10.32.0.0/16"));
    accepted(api, "Network", "blue.front", true, "as it is here");
    accepted(api, "NamespaceRule", "shop", true, "");
    assert_eq!(stored(&scene, "blue/front"), json!({"subnets": ["10.32.0.0/16"]}));
    soon("the host knows network and rule", || {
        let known = host.read("/run/humanz/ipam/.networks.json").unwrap_or_default();
        known.contains("10.32.0.0/16") && known.contains("shop")
    });
    api.put(pod("db", "db", "h1", &[]));
    let db = eventually("the pod starts", 3 * SOON, || {
        connect(host, "db").map_err(|code| format!("code {code}"))
    });
    assert!(db.v4().to_string().starts_with("10.32."), "{}", db.v4());
    soon("one host has blocks", || {
        api.get("Network", "blue.front").unwrap()["status"]["hosts"] == 1
    });
    let run = |line: &str| Agent::run(host, line, OF_API);
    let listed = run("net ls");
    assert!(listed.stdout.contains("blue/front") && listed.succeeded(), "{listed}");
    let shown = run("net show blue/front");
    assert!(shown.stdout.contains("nothing in etcd: kubectl get namespacerules"), "{shown}");
    let shown = run("status").stdout;
    let words = "groups and rules of namespaces: those of kubernetes; networks: those of etcd";
    assert!(shown.contains(words), "{shown}");
    let refused = run("net create blue/other --cidr 10.33.0.0/16");
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("kubectl get networks.humanz.io"), "{refused}");
    let refused = run("net rm blue/front");
    assert!(refused.stderr.contains("hosts have blocks of 10.32.0.0/16 (h1)"), "{refused}");
    assert!(run("pin ls").succeeded());
    // The agent's socket stays its own.
    let refused = run("controller");
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(refused.stderr.contains("SOCKET=/run/humanz/agent.sock: another process"), "{refused}");
    assert!(run("ready").succeeded());

    api.delete_of("NamespaceRule", "shop");
    api.delete_of("Network", "blue.front");
    soon("it says who has blocks of it", || {
        let found = condition(api, "Network", "blue.front", "Removed");
        found["reason"] == "InUse" && found["message"].as_str().unwrap().contains("(h1)")
    });
    assert_eq!(condition(api, "Network", "blue.front", "Accepted")["status"], "True");
    assert!(stored(&scene, "blue/front").is_object());
    api.delete_of("Pod", "shop/db");
    db.delete();
    eventually("it is gone", 6 * SOON, || match api.get("Network", "blue.front") {
        None => Ok(()),
        Some(object) => Err(object.to_string()),
    });
    assert!(stored(&scene, "blue/front").is_null());
    status_when(host, "no problem of policies", |status| !has_problem(status, "policy"));
    controller.stop();
    agent.stop();
}

#[test]
fn what_cannot_be_changes_nothing_in_etcd_and_says_why() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    // Made by hand: one has no custom resource, one gets the same, one another.
    host.write(
        "/etc/objects.json",
        &json!([
            beside_etcd::own("Network", "hand", json!({"subnets": ["10.40.0.0/16"]})),
            beside_etcd::own("Network", "same", json!({"subnets": ["10.41.0.0/16"]})),
            beside_etcd::own("Network", "other", json!({"subnets": ["10.42.0.0/16"]})),
        ])
        .to_string(),
    );
    Agent::run(host, "policy apply -f /etc/objects.json", &[]).ok();
    let revision =
        || scene.cluster.etcd.pairs("/humanz/v1-policies/Network/default/same")[0].mod_revision();
    let before = revision();
    api.put(network("same", "10.41.0.0/16"));
    api.put(network("other", "10.43.0.0/16"));
    let controller = start(host);
    let ready = |wanted: bool| {
        soon("its probe", || Agent::run(host, "ready", &settings(&[])).succeeded() == wanted);
    };
    accepted(api, "Network", "same", true, "");
    accepted(api, "Network", "other", true, "");
    ready(true);
    assert_eq!(
        (revision(), stored(&scene, "default/other")),
        (before, json!({"subnets": ["10.43.0.0/16"]}))
    );
    assert!(stored(&scene, "default/hand").is_object());

    let all = || scene.cluster.etcd.list("/humanz/v1-policies/");
    let there = all();
    for (name, spec, why) in [
        (
            "red.a",
            json!({"subnets": ["10.40.128.0/17"]}),
            "lies in 10.40.0.0/16 of network default/hand",
        ),
        ("red.b", json!({"subnets": ["10.0.0.0/8"]}), "10.244.0.0/16 lies in 10.0.0.0/8"),
        (
            "red.c",
            json!({"subnets": ["10.50.0.0/16"], "profile": "gold"}),
            "NetProfile red/gold does not exist",
        ),
        ("red.d", json!({"subnets": ["10.51.0.0"]}), "is not a subnet"),
        ("red.e", json!({"subnets": ["10.52.0.0/16"], "color": "red"}), "\"color\" is not known"),
        ("red.f", json!("text"), "must be an object"),
        ("default.g", json!({"subnets": ["10.53.0.0/16"]}), "the tenant default is left out"),
        ("default", json!({"subnets": ["10.54.0.0/16"]}), "\"subnets\" is not known"),
    ] {
        api.put_unchecked(custom("Network", name, spec));
        accepted(api, "Network", name, false, why);
    }
    assert_eq!(all(), there, "nothing was written");
    // What was in the way goes, or comes.
    api.put(custom("NetProfile", "red.gold", json!({"dscp": 46})));
    accepted(api, "Network", "red.c", true, "");
    api.put(network("red.a", "10.55.0.0/16"));
    accepted(api, "Network", "red.a", true, "");
    let since = condition(api, "Network", "red.a", "Accepted")["lastTransitionTime"].clone();
    assert!(since.is_string());
    api.put(network("red.a", "10.43.1.0/24"));
    let refused = accepted(api, "Network", "red.a", false, "of network default/other;");
    let words = "; what was accepted before stays in force";
    assert!(refused["message"].as_str().unwrap().ends_with(words), "{refused}");
    assert_eq!(stored(&scene, "red/a"), json!({"subnets": ["10.55.0.0/16"]}));
    // A mistake with the name of one that was made by hand leaves that in etcd, whatever becomes of the controller.
    let controller = {
        api.put(network("hand", "10.43.1.0/24"));
        let refused = accepted(api, "Network", "hand", false, "of network default/other;");
        let words =
            "; the network of this name in etcd, which is not of this object, stays in force";
        assert!(refused["message"].as_str().unwrap().contains(words), "{refused}");
        controller.stop();
        api.delete_of("Network", "hand");
        assert!(api.get("Network", "hand").is_some(), "it is held");
        start(host)
    };
    soon("it goes", || api.get("Network", "hand").is_none());
    assert_eq!(stored(&scene, "default/hand"), json!({"subnets": ["10.40.0.0/16"]}));
    // A rule of a namespace refers to it.
    api.put(custom("NamespaceRule", "shop", json!({"tenant": "red", "network": "c"})));
    accepted(api, "NamespaceRule", "shop", true, "");
    api.delete_of("Network", "red.c");
    soon("it is held", || {
        let found = condition(api, "Network", "red.c", "Removed");
        found["message"].as_str().unwrap_or_default().contains("NamespaceRule shop: Network red/c")
    });
    api.delete_of("NamespaceRule", "shop");
    for name in ["red.a", "red.b", "red.d", "red.e", "red.f", "default.g", "default"] {
        api.delete_of("Network", name);
    }
    for name in ["red.a", "red.b", "red.c", "red.d", "red.e", "red.f", "default.g", "default"] {
        soon(name, || api.get("Network", name).is_none());
    }
    let names: Vec<String> =
        all().into_iter().map(|(key, _)| key).filter(|key| key.contains("Network/")).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    // Nothing is written where nothing changes.
    let patches = api.patches();
    scene.cluster.etcd.put("/humanz/v1-policies/Namespace/none", "x");
    api.put(network("blue.last", "10.60.0.0/16"));
    accepted(api, "Network", "blue.last", true, "");
    assert_eq!(api.patches(), patches + 2, "a finalizer and a status");
    scene.cluster.etcd.kill();
    api.put(network("blue.later", "10.61.0.0/16"));
    ready(false);
    scene.cluster.etcd.start();
    accepted(api, "Network", "blue.later", true, "");
    ready(true);
    controller.stop();
    // A host without the settings of the agents' is no place for it.
    let refused = Agent::run(host, "controller", &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("POLICY_OBJECTS=kubernetes"), "{refused}");
}

/// A group says the same as hosts do, and no host may do what the controller does.
#[test]
fn custom_resources_say_whether_hosts_understand_them() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    api.put(custom("Group", "blue.db", json!({"policies": ["front"], "profile": "gold"})));
    // As a definition without checks would let through.
    api.put_unchecked(custom(
        "GroupPolicy",
        "blue.bad",
        json!({"rules": [{"direction": "in", "action": "maybe"}]}),
    ));
    api.put_unchecked(custom("NamespaceRule", "shop", json!({"tenants": "blue"})));
    api.put_unchecked(custom("NetProfile", "blue.bad", json!({"dscp": 64})));
    let controller = start(host);
    accepted(api, "Group", "blue.db", false, "policies[0]: policy blue/front does not exist");
    accepted(api, "GroupPolicy", "blue.bad", false, "maybe");
    accepted(api, "NamespaceRule", "shop", false, "field \"tenants\" is not known");
    accepted(api, "NetProfile", "blue.bad", false, "dscp");
    api.put(custom("GroupPolicy", "blue.front", json!({"rules": []})));
    accepted(api, "Group", "blue.db", false, "NetProfile blue/gold does not exist");
    api.stop();
    api.put(custom("NetProfile", "blue.gold", json!({"dscp": 46})));
    controller.wait_log(&["not followed now"]);
    api.run();
    let found = accepted(api, "Group", "blue.db", true, "hosts understand it");
    assert_eq!(found["reason"], "InForce");
    // Others write there, too.
    let version = api.get("Group", "blue.db").unwrap()["metadata"]["resourceVersion"].clone();
    assert!(version.is_string());
    controller.stop();
}

#[test]
fn objects_that_cannot_be_changed_hold_up_no_other() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    let sealed = ["blue.a", "blue.b", "blue.c", "blue.d"];
    api.enforce(role_of_controller().into_iter().map(|rule| rule.sealing(&sealed)).collect());
    for (number, name) in sealed.iter().enumerate() {
        api.put(network(name, &format!("10.4{number}.0.0/16")));
    }
    api.put(network("blue.z", "10.50.0.0/16"));
    api.put(custom("Group", "blue.z", json!({})));
    let controller = start(host);
    accepted(api, "Network", "blue.z", true, "");
    accepted(api, "Group", "blue.z", true, "");
    // The first three fail each time.
    api.enforce(role_of_controller().into_iter().map(|it| it.sealing(&sealed[..3])).collect());
    accepted(api, "Network", "blue.d", true, "");
    api.enforce(role_of_controller());
    for name in sealed {
        accepted(api, "Network", name, true, "");
    }
    controller.stop();
}

/// Killed between etcd and status, two at once, and one that was still while a network was deleted.
#[test]
fn controllers_that_are_killed_held_up_or_two_do_no_harm() {
    let scene = scene(2);
    let (api, [h1, h2]) = (&scene.api, [scene.host(1), scene.host(2)]);
    give_kubeconfig(api, h2);
    let mut without_status = role_of_controller();
    without_status.retain(|rule| !rule.pairs().any(|(resource, _)| resource.contains("/status")));
    api.enforce(without_status);
    let first = start(h1);
    api.put(network("blue.front", "10.32.0.0/16"));
    soon("etcd has it", || stored(&scene, "blue/front").is_object());
    first.wait_log(&["not everything could be written", "controller.yaml"]);
    // Nor does its status say that it is in force; it is refused afterwards, and goes.
    api.put(network("blue.lost", "10.90.0.0/16"));
    soon("etcd has the other, too", || stored(&scene, "blue/lost").is_object());
    api.put(network("blue.lost", "10.244.0.0/17"));
    first.kill();
    drop(first);
    api.delete_of("Network", "blue.lost");
    assert!(api.get("Network", "blue.lost").unwrap()["status"].is_null());
    assert!(api.get("Network", "blue.front").unwrap()["status"].is_null());
    api.enforce(role_of_controller());
    let two = [start(h1), start(h2)];
    accepted(api, "Network", "blue.front", true, "");
    soon("the other is gone", || api.get("Network", "blue.lost").is_none());
    assert!(stored(&scene, "blue/lost").is_null());
    for number in 0..8 {
        api.put(network(&format!("blue.n{number}"), &format!("10.{}.0.0/16", 40 + number)));
    }
    for number in 0..8 {
        accepted(api, "Network", &format!("blue.n{number}"), true, "");
    }
    // This one still believes in what is gone, and learns of changes of etcd first.
    two[1].process.signal(Signal::SIGSTOP);
    api.delete_of("Network", "blue.n0");
    soon("it is gone", || api.get("Network", "blue.n0").is_none());
    api.put(network("blue.n1", "10.70.0.0/16"));
    accepted(api, "Network", "blue.n1", true, "");
    two[1].process.signal(Signal::SIGCONT);
    api.put(network("blue.last", "10.71.0.0/16"));
    accepted(api, "Network", "blue.last", true, "");
    two[0].kill();
    api.put(network("blue.later", "10.72.0.0/16"));
    accepted(api, "Network", "blue.later", true, "");
    assert!(stored(&scene, "blue/n0").is_null());
    assert_eq!(stored(&scene, "blue/n1"), json!({"subnets": ["10.70.0.0/16"]}));
    two[1].stop();
}

/// The user of a host may not write networks, and one with the permissions of the guide needs no more.
#[test]
fn the_role_of_a_host_in_etcd_does_not_permit_it_and_that_of_the_guide_does() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    let made = Agent::run(host, "nodes roles --apply --passwords /root h1", &[]);
    assert!(made.stdout.contains("+ etcdctl user grant-role h1 humanz-h1"), "{made}");
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/tenants.md"));
    assert!(guide.contains("read and write below `/humanz/v1-policies/`, read below `/humanz/v1-blocks/` and `/humanz/v1/`"));
    scene.cluster.etcd.call(async |client| {
        client.role_add("controller").await?;
        for permission in [
            Permission::read_write("/humanz/v1-policies/"),
            Permission::read("/humanz/v1-blocks/"),
            Permission::read("/humanz/v1/"),
        ] {
            client.role_grant_permission("controller", permission.with_prefix()).await?;
        }
        client.user_add("controller", "word", None).await?;
        client.user_grant_role("controller", "controller").await?;
        client.user_add("root", "secret", None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        client.auth_enable().await.map(drop)
    });
    host.write("/root/controller", "word");
    let start = |user: &str| {
        let file = format!("/root/{user}");
        let login = [("ETCD_USER", user), ("ETCD_PASSWORD_FILE", file.as_str())];
        Agent::start_with(host, "controller", &settings(&login))
    };
    api.put(network("blue.front", "10.32.0.0/16"));
    let stolen = start("h1");
    stolen.wait_log(&["not everything could be written", "write /humanz/v1-policies/"]);
    let found = api.get("Network", "blue.front").unwrap();
    assert!(found["status"].is_null(), "{found}");
    stolen.stop();
    let controller = start("controller");
    accepted(api, "Network", "blue.front", true, "");
    api.delete_of("Network", "blue.front");
    soon("it is gone", || api.get("Network", "blue.front").is_none());
    controller.stop();
}

#[test]
fn the_guide_to_networks_of_the_api_does_what_it_shows() {
    let scene = scene(1);
    let (api, host) = (&scene.api, scene.host(1));
    // Subcommands have the settings of the agents.
    let text = OF_API.iter().map(|(name, value)| format!("{name}={value}\n"));
    host.write(
        "/etc/humanz/agent.env",
        &format!("ETCD_HOST=192.0.2.2\n{}", text.collect::<String>()),
    );
    let controller = start(host);
    let mut guide = Guide::read("tenants.md");
    guide.follow("Networks as custom resources", host, |step| {
        if step.command == "kubectl get networks.humanz.io" {
            accepted(api, "Network", "blue.front", true, "");
            accepted(api, "NamespaceRule", "shop", true, "");
            return true;
        }
        kubectl(&scene, step)
    });
    controller.stop();
}
