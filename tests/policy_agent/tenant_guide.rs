//! packaging/tenants.md and packaging/contiv.md do what they say.

use std::collections::BTreeMap;

use serde_json::json;

use crate::support::guide::{Guide, Step};
use crate::support::{Agent, Cluster, Node, Pod, soon};
use crate::tenants::{SOON_GIVEN_BACK, try_add};

/// The pods that kubectl would have started and removed, by namespace and name.
#[derive(Default)]
struct Kubectl(BTreeMap<String, Pod>);

impl Kubectl {
    /// Does what `step` says, if it is a command of kubectl.
    fn run(&mut self, step: &Step, host: &Node) -> bool {
        let Some(words) = step.command.strip_prefix("kubectl -n ") else { return false };
        let words: Vec<&str> = words.split_whitespace().collect();
        match words[..] {
            [namespace, "run", name, ref options @ ..] => {
                let annotation = options.iter().find_map(|it| it.strip_prefix("--annotations="));
                let said = annotation.and_then(|it| it.split_once('='));
                let annotations = said.map_or(json!({}), |(key, value)| json!({ key: value }));
                let pod = format!("{namespace}/{name}");
                // An agent learns of a new network within a moment, and a runtime tries again.
                let started = try_add(host, &pod, annotations);
                self.0.insert(pod, started.unwrap_or_else(|error| panic!("{error}")));
            }
            [namespace, "delete", "pod", ref names @ ..] => {
                for name in names {
                    self.0.remove(&format!("{namespace}/{name}")).unwrap().delete();
                }
            }
            _ => panic!("{}", step.command),
        }
        true
    }
}

#[test]
fn the_guide_of_tenants_does_what_it_shows() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let mut guide = Guide::read("tenants.md");
    let agent = Agent::start(host, SOON_GIVEN_BACK);
    agent.wait_ready();
    let mut kubectl = Kubectl::default();
    for heading in ["Before you begin", "Networks"] {
        guide.follow(heading, host, |_| false);
    }
    soon("the agent to know the networks", || {
        let file = host.read("/run/humanz/ipam/.networks.json").unwrap_or_default();
        ["back", "bank"].iter().all(|name| file.contains(name))
    });
    for heading in ["Pods", "Which pods reach each other", "Several interfaces"] {
        guide.follow(heading, host, |step| kubectl.run(step, host));
    }
    let refused =
        try_add(host, "bank/spy", json!({"humanz.io/network": "blue/back"})).err().unwrap();
    let shown = "network of the pod: network blue/back is not allowed for pods of this namespace";
    assert!(refused.code == 7 && refused.to_string().contains(shown), "{refused}");
    // What is allowed already stays if that is typed.
    let refused =
        try_add(host, "shop/spy", json!({"humanz.io/network": "red/front"})).err().unwrap();
    let fix = "humanz-agent ns set shop --allow blue/back --allow red/front #";
    assert!(refused.code == 7 && refused.to_string().contains(fix), "{refused}");
    guide.leave_to("tests/kubernetes/objects.rs", &["As custom resources"]);
    guide.leave_to("tests/kubernetes/controller.rs", &["Networks as custom resources"]);
    guide.follow("Take it away", host, |step| kubectl.run(step, host));
    guide.finish();
    agent.stop();
}

/// What the netmaster of Contiv answers.
const OF_CONTIV: &str = include_str!("contiv/objects.json");

#[test]
fn the_guide_for_those_who_come_from_contiv_does_what_it_shows() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let mut guide = Guide::read("contiv.md");
    let agent = Agent::start(host, SOON_GIVEN_BACK);
    agent.wait_ready();
    let mut kubectl = Kubectl::default();
    let asks_netmaster = |step: &Step| {
        let asks = step.command.contains("http://netmaster:9999/");
        if asks {
            host.write("/root/contiv.json", OF_CONTIV);
        }
        asks
    };
    for heading in ["Configure the hosts of Contiv", "Take the objects over"] {
        guide.follow(heading, host, asks_netmaster);
    }
    soon("the agent to know the networks", || {
        let file = host.read("/run/humanz/ipam/.networks.json").unwrap_or_default();
        ["poc-net", "bank"].iter().all(|name| file.contains(name))
    });
    for heading in ["Start pods anew", "See that the rules hold"] {
        guide.follow(heading, host, |step| kubectl.run(step, host));
    }
    guide.finish();
    let half = OF_CONTIV.replace(r#""fromEndpointGroup":"web""#, r#""matchEndpointGroup":"web""#);
    host.write("/root/half.json", &half);
    let refused = Agent::run(host, "policy from-contiv -f /root/half.json", &[]);
    let why =
        "! GroupPolicy blue/poc-policy: rule \"2\": field \"matchEndpointGroup\" is not known";
    assert!(refused.status.code() == Some(1) && refused.stdout.is_empty(), "{refused}");
    assert!(refused.stderr.contains(why), "{refused}");
    for (text, why) in
        [("[{", "EOF"), ("", "no objects are given"), (&"[".repeat(100_000), "recursion")]
    {
        host.write("/root/half.json", text);
        let refused = Agent::run(host, "policy from-contiv -f /root/half.json", &[]);
        assert!(refused.status.code() == Some(2) && refused.stderr.contains(why), "{refused}");
    }
    agent.stop();
}
