//! Pods in the networks of tenants: what their start costs more, and the rates of profiles.

use serde_json::{Value, json};

use crate::parallel;
use crate::policy::{Side, last_call, row};
use crate::series::middle;
use crate::support::cni::{Attachment, Network};
use crate::support::node::{Node, Place};
use crate::support::wait::SOON;
use crate::support::{Cluster, Pod, pod};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const STARTS: usize = 60;
const TRANSFERS: usize = 5;

/// The rate of the profile in both directions, in Mbit/s.
const LIMIT: f64 = 100.0;

/// Until the agent has done what the last pod left to do.
const QUIET: std::time::Duration = std::time::Duration::from_millis(80);

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let off = Side::start_with(&[("POLICY", "off")]);
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    host.write("/etc/objects.json", &objects().to_string());
    let settings = [("POLICY", "on")];
    crate::support::Agent::run(host, "policy apply -f /etc/objects.json", &settings).ok();
    let _agents = cluster.start_agents(&settings);
    // The block is there from now on.
    let _stays = connect(host, "blue", "stays", "");
    starts(off.host(), host, table);
    parallel::delegated(workspace, host, "blue", table);
    limits(host, table);
}

fn objects() -> Value {
    let object = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
    let named = |name: &str| json!({"name": name});
    let rate = format!("{LIMIT}M");
    json!([
        object(
            "Network",
            json!({"tenant": "blue", "name": "front"}),
            json!({"subnets": ["10.32.0.0/16"]})
        ),
        object("NamespaceRule", named("blue"), json!({"tenant": "blue", "network": "front"})),
        object("NamespaceRule", named("shop"), json!({"allow": ["slow"]})),
        object("NetProfile", named("slow"), json!({"ingressRate": rate, "egressRate": rate})),
        object("Group", named("slow"), json!({"profile": "slow"})),
    ])
}

fn connect(host: &Node, namespace: &str, name: &str, more: &str) -> Pod {
    pod::make_netns(host, name);
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};app={name}{more}"
    );
    let attachment = Attachment { args, ..Attachment::new(name) };
    Pod::connect(host, &Network::of(host), attachment).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Pods of a host without policies, of the network of the settings, and of a tenant's, by turns. No two have the same
/// name: whoever comes back on a port whose guard is still there waits until the kernel has removed that.
fn starts(off: &Node, host: &Node, table: &mut Table) {
    let turn = |host: &Node, namespace: &str, number: usize| {
        std::thread::sleep(QUIET);
        let pod = connect(host, namespace, &format!("{namespace}{number}"), "");
        let added = last_call(host, "ADD");
        pod.delete();
        [added, last_call(host, "DEL")]
    };
    let (mut own, mut plain, mut tenants) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..STARTS {
        own.push(turn(host, "plain", number));
        plain.push(turn(off, "plain", number));
        tenants.push(turn(host, "blue", number));
    }
    let more = |than: &[[f64; 2]], verb: usize| {
        let more = tenants.iter().zip(than).map(|(with, without)| with[verb] - without[verb]);
        let without = middle(than.iter().map(|it| it[verb]).collect());
        (middle(more.collect()), format!("{without:.1} ms"))
    };
    for (verb, name, limit) in [(0, "ADD", 0.6), (1, "DEL", 0.1)] {
        let (above, without) = more(&plain, verb);
        let what = format!("{name} in a tenant's network: more than without policies by");
        row(what, (limit, "ms"), above, &without, table);
        let (above, without) = more(&own, verb);
        let what = "  more than in the network of the settings by".to_owned();
        table.push(Row {
            what,
            floor: without,
            humanz: format!("{above:.2} ms"),
            ..Row::default()
        });
    }
}

/// One TCP stream to and from a pod with a profile, by turns.
fn limits(host: &Node, table: &mut Table) {
    let slow = connect(host, "shop", "slow", ";humanz.io/group=slow");
    let free = connect(host, "shop", "free", "");
    checks(host, &free, &slow, table);
    let [mut receives, mut sends] = [Vec::new(), Vec::new()];
    for _ in 0..TRANSFERS {
        receives.push(transfer(&free, &slow));
        sends.push(transfer(&slow, &free));
    }
    for (what, rates) in [("receives (ingressRate)", receives), ("sends (egressRate)", sends)] {
        let rate = middle(rates);
        table.push(Row {
            what: format!("TCP that a pod with a profile {what}"),
            humanz: format!("{rate:.1} Mbit/s"),
            target: format!("{LIMIT} Mbit/s ± 10 %"),
            reached: format!("{:+.1} %", (rate / LIMIT - 1.0) * 100.0),
            met: Some((rate / LIMIT - 1.0).abs() <= 0.1),
            ..Row::default()
        });
    }
}

/// CHECK looks at the queue of the profile.
fn checks(host: &Node, free: &Pod, slow: &Pod, table: &mut Table) {
    let check = |pod: &Pod| {
        pod.check().unwrap();
        last_call(host, "CHECK")
    };
    let both: Vec<[f64; 2]> = (0..STARTS).map(|_| [check(free), check(slow)]).collect();
    let more = middle(both.iter().map(|[without, with]| with - without).collect());
    let without = format!("without {:.2} ms", middle(both.iter().map(|it| it[0]).collect()));
    let what = "CHECK of a pod with a profile that limits it: more by".to_owned();
    row(what, (0.2, "ms"), more, &without, table);
}

/// Mbit/s that arrive in two seconds.
fn transfer(from: &Pod, to: &Pod) -> f64 {
    to.run("iperf3 --server --one-off --daemon").ok();
    let client = format!("iperf3 --json --time 2 --omit 1 --client {}", to.v4());
    let report: Value = serde_json::from_str(&from.until_ok(&client, SOON)).unwrap();
    report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e6
}
