//! The cases of Kubernetes' `test/e2e/network/netpol/network_policy.go` as data, by their names there:
//! what is put into the cluster of [`crate::reachability`], and which pods must reach which then.
//!
//! The tables are of all nine pods, where those of upstream are of the pods that a case needs.

use std::net::IpAddr;

use humanz::policy::Transport;
use serde_json::{Value, json};

use crate::reachability::{Table, sctp, tcp, udp};

/// One case.
pub struct UpstreamCase {
    pub name: &'static str,
    /// One after another, in the same cluster.
    pub steps: Vec<UpstreamStep>,
}

/// What there is, and what must be so then.
pub struct UpstreamStep {
    /// All policies.
    pub policies: Vec<Value>,
    /// Labels that are added: to a namespace (`y`) or a pod (`x/b`), key, value.
    pub labels: Vec<(&'static str, &'static str, &'static str)>,
    pub reach: Vec<(Transport, Table)>,
}

fn case(name: &'static str, steps: Vec<UpstreamStep>) -> UpstreamCase {
    UpstreamCase { name, steps }
}

fn step<const N: usize>(policies: &[&Value], reach: [(Transport, Table); N]) -> UpstreamStep {
    let policies = policies.iter().map(|policy| (*policy).clone()).collect();
    UpstreamStep { policies, labels: Vec::new(), reach: reach.into() }
}

/// A case with one policy and one table.
fn plain(name: &'static str, policy: &Value, transport: Transport, table: Table) -> UpstreamCase {
    case(name, vec![step(&[policy], [(transport, table)])])
}

fn policy(place: &str, spec: Value) -> Value {
    let (namespace, name) = place.split_once('/').unwrap();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// For the pods of `place` (`x/a`, or `x/` for all of x).
fn directed(place: &str, direction: &str, rules: Value) -> Value {
    let (namespace, pod) = place.split_once('/').unwrap();
    let subject = if pod.is_empty() { json!({}) } else { labelled(pod) };
    let types = if direction == "ingress" { "Ingress" } else { "Egress" };
    let name = format!("{namespace}/{direction}-{}", if pod.is_empty() { "all" } else { pod });
    policy(&name, json!({"podSelector": subject, "policyTypes": [types], direction: rules}))
}

fn ingress(place: &str, rules: Value) -> Value {
    directed(place, "ingress", rules)
}

fn egress(place: &str, rules: Value) -> Value {
    directed(place, "egress", rules)
}

/// To x/a from these peers.
fn to_a(from: Value) -> Value {
    ingress("x/a", json!([{"from": from}]))
}

/// The same policy under another name.
fn renamed(mut policy: Value, name: &str) -> Value {
    policy["metadata"]["name"] = json!(name);
    policy
}

fn labelled(pod: &str) -> Value {
    json!({"matchLabels": {"pod": pod}})
}

const NAME: &str = "kubernetes.io/metadata.name";

fn namespace(name: &str) -> Value {
    json!({"matchLabels": {NAME: name}})
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

fn all() -> Table {
    Table::all()
}

/// Only these reach x/a.
fn only(from: &[&str]) -> Table {
    all().ingress_only(from, "x/a")
}

/// All of them, in the order of the file; `addresses` are those of a pod.
pub fn cases(addresses: &dyn Fn(&str) -> Vec<IpAddr>) -> Vec<UpstreamCase> {
    [selectors(), ports(), changes(), directions(), networks(addresses), protocols()]
        .into_iter()
        .flatten()
        .collect()
}

fn selectors() -> Vec<UpstreamCase> {
    let deny = ingress("x/", json!([]));
    let both =
        policy("x/deny-all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let to_all = to_a(json!([{"podSelector": {}, "namespaceSelector": {}}]));
    let other = expression(NAME, "NotIn", &["x"]);
    let one = tcp(80);
    vec![
        plain(
            "should support a 'default-deny-ingress' policy",
            &deny,
            one,
            all().no_ingress("x/*"),
        ),
        plain(
            "should support a 'default-deny-all' policy",
            &both,
            one,
            all().no_ingress("x/*").no_egress("x/*"),
        ),
        plain(
            "should enforce policy to allow traffic from pods within server namespace based on PodSelector",
            &to_a(json!([{"podSelector": labelled("b")}])),
            one,
            only(&["x/b"]),
        ),
        case(
            "should enforce policy to allow ingress traffic for a target",
            vec![step(&[&deny, &to_all], [(one, all().no_ingress("x/b").no_ingress("x/c"))])],
        ),
        plain(
            "should enforce policy to allow ingress traffic from pods in all namespaces",
            &to_a(json!([{"namespaceSelector": {"matchLabels": {}}}])),
            one,
            all(),
        ),
        plain(
            "should enforce policy to allow traffic only from a different namespace, based on \
             NamespaceSelector",
            &to_a(json!([{"namespaceSelector": namespace("y")}])),
            one,
            only(&["y/*"]),
        ),
        plain(
            "should enforce policy based on PodSelector with MatchExpressions",
            &to_a(json!([{"podSelector": expression("pod", "In", &["b"])}])),
            one,
            only(&["x/b"]),
        ),
        plain(
            "should enforce policy based on NamespaceSelector with MatchExpressions",
            &to_a(json!([{"namespaceSelector": expression(NAME, "In", &["y"])}])),
            one,
            only(&["y/*"]),
        ),
        plain(
            "should enforce policy based on PodSelector or NamespaceSelector",
            &to_a(json!([{"namespaceSelector": other}, {"podSelector": labelled("b")}])),
            one,
            only(&["y/*", "z/*", "x/b"]),
        ),
        plain(
            "should enforce policy based on PodSelector and NamespaceSelector",
            &to_a(json!([{"namespaceSelector": other, "podSelector": labelled("b")}])),
            one,
            only(&["y/b", "z/b"]),
        ),
        plain(
            "should enforce policy based on Multiple PodSelectors and NamespaceSelectors",
            &to_a(json!([{"namespaceSelector": other,
                "podSelector": expression("pod", "In", &["b", "c"])}])),
            one,
            only(&["y/b", "y/c", "z/b", "z/c"]),
        ),
        plain(
            "should enforce policy based on any PodSelectors",
            &to_a(json!([{"podSelector": labelled("b")}, {"podSelector": labelled("c")}])),
            one,
            only(&["x/b", "x/c"]),
        ),
        plain(
            "should enforce policy to allow traffic only from a pod in a different namespace based on \
             PodSelector and NamespaceSelector",
            &to_a(json!([{"namespaceSelector": namespace("y"), "podSelector": labelled("a")}])),
            one,
            only(&["y/a"]),
        ),
        plain(
            "should enforce policy to allow traffic based on NamespaceSelector with MatchLabels using \
             default ns label",
            &to_a(json!([{"namespaceSelector": namespace("y")}])),
            one,
            only(&["y/*"]),
        ),
        plain(
            "should enforce policy based on NamespaceSelector with MatchExpressions using default ns label",
            &egress(
                "x/a",
                json!([{"to": [{"namespaceSelector": expression(NAME, "NotIn", &["y"])}]}]),
            ),
            one,
            all().egress_only("x/a", &["x/*", "z/*"]),
        ),
    ]
}

/// To x/a from the namespace y, to one port.
fn from_y(protocol: &str, port: Value) -> Value {
    ingress(
        "x/a",
        json!([{"from": [{"namespaceSelector": namespace("y")}],
        "ports": [{"protocol": protocol, "port": port}]}]),
    )
}

fn ports() -> Vec<UpstreamCase> {
    let first = from_y("TCP", json!(81));
    let second = renamed(from_y("TCP", json!(80)), "second");
    let open = ingress("x/", json!([{}]));
    let named = ingress("x/", json!([{"ports": [{"port": "serve-81-tcp"}]}]));
    let out = egress("x/", json!([{"ports": [{"port": "serve-80-tcp"}]}]));
    vec![
        plain("should enforce policy based on Ports", &first, tcp(81), only(&["y/*"])),
        case(
            "should enforce multiple, stacked policies with overlapping podSelectors",
            vec![
                step(&[&first], [(tcp(81), only(&["y/*"])), (tcp(80), only(&[]))]),
                step(&[&first, &second], [(tcp(80), only(&["y/*"])), (tcp(81), only(&["y/*"]))]),
            ],
        ),
        case(
            "should support allow-all policy",
            vec![step(&[&open], [(tcp(80), all()), (tcp(81), all())])],
        ),
        case(
            "should allow ingress access on one named port",
            vec![step(&[&named], [(tcp(81), all()), (tcp(80), all().no_ingress("x/*"))])],
        ),
        case(
            "should allow ingress access from namespace on one named port",
            vec![step(
                &[&from_y("TCP", json!("serve-80-tcp"))],
                [(tcp(80), only(&["y/*"])), (tcp(81), only(&[]))],
            )],
        ),
        case(
            "should allow egress access on one named port",
            vec![step(&[&out], [(tcp(80), all()), (tcp(81), all().no_egress("x/*"))])],
        ),
    ]
}

fn changes() -> Vec<UpstreamCase> {
    let open = ingress("x/", json!([{}]));
    let shut = ingress("x/", json!([]));
    let by_namespace = to_a(json!([{"namespaceSelector": {"matchLabels": {"ns2": "updated"}}}]));
    let by_pod = to_a(json!([{"podSelector": {"matchLabels": {"pod": "b", "pod2": "updated"}}}]));
    let target = policy(
        "x/isolated",
        json!({"podSelector": {"matchLabels": {"target": "isolated"}}, "policyTypes": ["Ingress"]}),
    );
    let both =
        policy("x/deny-all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let after = |label, policy: &Value, table| UpstreamStep {
        labels: vec![label],
        ..step(&[policy], [(tcp(80), table)])
    };
    vec![
        case(
            "should enforce updated policy",
            vec![
                step(&[&open], [(tcp(81), all())]),
                step(&[&shut], [(tcp(81), all().no_ingress("x/*"))]),
            ],
        ),
        case(
            "should allow ingress access from updated namespace",
            vec![
                step(&[&by_namespace], [(tcp(80), only(&[]))]),
                after(("y", "ns2", "updated"), &by_namespace, only(&["y/*"])),
            ],
        ),
        case(
            "should allow ingress access from updated pod",
            vec![
                step(&[&by_pod], [(tcp(80), only(&[]))]),
                after(("x/b", "pod2", "updated"), &by_pod, only(&["x/b"])),
            ],
        ),
        plain(
            "should deny ingress from pods on other namespaces",
            &ingress("x/", json!([{"from": [{"podSelector": {"matchLabels": {}}}]}])),
            tcp(80),
            all().ingress_only(&["x/*"], "x/*"),
        ),
        case(
            "should deny ingress access to updated pod",
            vec![
                step(&[&target], [(tcp(80), all())]),
                after(("x/a", "target", "isolated"), &target, only(&[])),
            ],
        ),
        case(
            "should stop enforcing policies after they are deleted",
            vec![
                step(&[&both], [(tcp(80), all().no_ingress("x/*").no_egress("x/*"))]),
                step(&[], [(tcp(80), all())]),
            ],
        ),
    ]
}

fn directions() -> Vec<UpstreamCase> {
    let y_a =
        json!([{"to": [{"namespaceSelector": namespace("y"), "podSelector": labelled("a")}]}]);
    let to_y_a = egress("x/a", y_a);
    let from_x_a =
        json!([{"from": [{"namespaceSelector": namespace("x"), "podSelector": labelled("a")}]}]);
    let together = policy(
        "x/together",
        json!({"podSelector": labelled("a"), "policyTypes": ["Egress", "Ingress"],
            "ingress": [{"from": [{"podSelector": labelled("b")}]}],
            "egress": [{"ports": [{"port": 80}]}]}),
    );
    let port = json!([{"ports": [{"port": 80}]}]);
    let (in_80, out_80) = (ingress("x/", port.clone()), egress("x/", port));
    let in_any = renamed(ingress("x/", json!([{}])), "any");
    let out_any = renamed(egress("x/", json!([{}])), "any");
    let out_a = egress("x/a", json!([{}]));
    vec![
        plain(
            "should deny egress from pods based on PodSelector",
            &egress("x/a", json!([])),
            tcp(80),
            all().no_egress("x/a"),
        ),
        plain(
            "should deny egress from all pods in a namespace",
            &egress("x/", json!([])),
            tcp(80),
            all().no_egress("x/*"),
        ),
        case(
            "should work with Ingress, Egress specified together",
            vec![step(
                &[&together],
                [(tcp(80), only(&["x/b"])), (tcp(81), only(&["x/b"]).no_egress("x/a"))],
            )],
        ),
        case(
            "should support denying of egress traffic on the client side (even if the server explicitly \
             allows this traffic)",
            vec![step(
                &[&to_y_a, &ingress("y/a", from_x_a.clone()), &ingress("y/b", from_x_a)],
                [(
                    tcp(80),
                    all()
                        .egress_only("x/a", &["y/a"])
                        .ingress_only(&["x/a"], "y/a")
                        .ingress_only(&["x/a"], "y/b"),
                )],
            )],
        ),
        plain(
            "should enforce egress policy allowing traffic to a server in a different namespace based on \
             PodSelector and NamespaceSelector",
            &to_y_a,
            tcp(80),
            all().egress_only("x/a", &["y/a"]),
        ),
        case(
            "should enforce multiple ingress policies with ingress allow-all policy taking precedence",
            vec![
                step(&[&in_80], [(tcp(81), all().no_ingress("x/*"))]),
                step(&[&in_80, &in_any], [(tcp(81), all())]),
            ],
        ),
        case(
            "should enforce multiple egress policies with egress allow-all policy taking precedence",
            vec![
                step(&[&out_80], [(tcp(81), all().no_egress("x/*"))]),
                step(&[&out_80, &out_any], [(tcp(81), all())]),
            ],
        ),
        case(
            "should enforce policies to check ingress and egress policies can be controlled independently \
             based on PodSelector",
            vec![
                step(&[&out_a], [(tcp(80), all())]),
                step(&[&out_a, &ingress("x/a", json!([]))], [(tcp(80), only(&[]))]),
            ],
        ),
    ]
}

fn networks(addresses: &dyn Fn(&str) -> Vec<IpAddr>) -> Vec<UpstreamCase> {
    let single = |pod: &str| -> Vec<String> {
        let length = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
        addresses(pod).iter().map(|address| format!("{address}/{}", length(address))).collect()
    };
    let of = |pod: &str| -> Vec<Value> {
        single(pod).iter().map(|cidr| json!({"ipBlock": {"cidr": cidr}})).collect()
    };
    let around = |pod: &str| -> Vec<Value> {
        let wide = |cidr: &String| if cidr.contains(':') { "fc00::/6" } else { "0.0.0.0/4" };
        let block = |cidr| json!({"ipBlock": {"cidr": wide(cidr), "except": [cidr]}});
        single(pod).iter().map(block).collect()
    };
    let out = |to: Vec<Value>| egress("x/a", json!([{"to": to}]));
    let all_but_b = all().egress_only("x/a", &["x/c", "y/*", "z/*"]);
    vec![
        plain(
            "should allow egress access to server in CIDR block",
            &out(of("y/b")),
            tcp(80),
            all().egress_only("x/a", &["y/b"]),
        ),
        plain(
            "should enforce except clause while egress access to server in CIDR block",
            &out(around("x/b")),
            tcp(80),
            all_but_b.clone(),
        ),
        case(
            "should ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed",
            vec![
                step(&[&out(around("x/b"))], [(tcp(80), all_but_b)]),
                step(&[&out(of("x/b"))], [(tcp(80), all().egress_only("x/a", &["x/b"]))]),
            ],
        ),
    ]
}

fn protocols() -> Vec<UpstreamCase> {
    let deny = ingress("x/", json!([]));
    let allow = |protocol: &str, port: Value| {
        let mut rule = json!({"ports": [{"protocol": protocol}]});
        if !port.is_null() {
            rule["ports"][0]["port"] = port;
        }
        ingress("x/a", json!([rule]))
    };
    let y_a = to_a(json!([{"namespaceSelector": namespace("y"), "podSelector": labelled("a")}]));
    vec![
        case(
            "should enforce ingress policy allowing any port traffic to a server on a specific protocol",
            vec![step(&[&allow("TCP", Value::Null)], [(tcp(80), all()), (udp(80), only(&[]))])],
        ),
        case(
            "should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP', even if the plugin doesn't \
             support SCTP",
            vec![step(&[&deny, &allow("SCTP", json!(81))], [(tcp(81), all().no_ingress("x/*"))])],
        ),
        plain(
            "should properly isolate pods that are selected by a policy allowing SCTP, even if the plugin \
             doesn't support SCTP",
            &allow("SCTP", json!(80)),
            tcp(81),
            only(&[]),
        ),
        plain(
            "should not allow access by TCP when a policy specifies only UDP",
            &allow("UDP", json!(81)),
            tcp(81),
            only(&[]),
        ),
        plain(
            "using UDP should support a 'default-deny-ingress' policy",
            &deny,
            udp(80),
            all().no_ingress("x/*"),
        ),
        plain(
            "using UDP should enforce policy based on Ports",
            &from_y("UDP", json!(81)),
            udp(81),
            only(&["y/*"]),
        ),
        plain(
            "using UDP should enforce policy to allow traffic only from a pod in a different namespace \
             based on PodSelector and NamespaceSelector",
            &y_a,
            udp(80),
            only(&["y/a"]),
        ),
        plain(
            "using SCTP should support a 'default-deny-ingress' policy",
            &deny,
            sctp(80),
            all().no_ingress("x/*"),
        ),
        plain(
            "using SCTP should enforce policy based on Ports",
            &from_y("SCTP", json!(81)),
            sctp(81),
            only(&["y/*"]),
        ),
        plain(
            "using SCTP should enforce policy to allow traffic only from a pod in a different namespace \
             based on PodSelector and NamespaceSelector",
            &y_a,
            sctp(80),
            only(&["y/a"]),
        ),
    ]
}
