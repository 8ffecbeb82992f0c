//! Pure. Pods whose policies would take more of a host's table than their namespace may have there.
//!
//! Pods with the same rules share a program; a policy stands in as many as pods that it selects differ in other policies.
//! 10,000 lines for all pods of a namespace, and a policy more for each of twelve, made a table of 300,000 lines: 800 MB
//! and a minute.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::gather::Gather;
use crate::policy::compile::program_keys::{ProgramKey, ProgramKeys};
use crate::policy::endpoint::Endpoint;
use crate::policy::lines::lines_of;
use crate::policy::local::PodKey;
use crate::policy::name::ObjectName;
use crate::policy::rule::{PolicyKind, Rules};

/// Lines of all programs of one namespace's pods on a host, as far as they come from NetworkPolicies: those of two with
/// as many as a namespace may have.
pub const HOST_LINES: usize = 20_000;

/// What pods take.
#[derive(Debug, Default)]
pub struct LineUse {
    keys: ProgramKeys,
    namespaces: BTreeMap<ObjectName, NamespaceUse>,
}

/// What the pods of one namespace take.
#[derive(Debug, Default)]
struct NamespaceUse {
    pods: BTreeMap<PodKey, [ProgramKey; 2]>,
    /// Those that had no room at the last look, or came since: they take it from no other.
    waiting: BTreeSet<PodKey>,
    /// Pods that share a program, and its lines.
    programs: BTreeMap<ProgramKey, (usize, usize)>,
    lines: usize,
}

impl LineUse {
    /// Without pods.
    pub fn new(rules: &Rules) -> LineUse {
        LineUse { keys: ProgramKeys::new(rules), namespaces: BTreeMap::new() }
    }

    /// A pod more.
    pub fn add(&mut self, key: &PodKey, pod: &Endpoint) {
        let programs = self.keys.of(pod);
        let lines = programs.each_ref().map(|program| lines(&self.keys, program));
        if lines == [0, 0] {
            return;
        }
        let namespace = self.namespaces.entry(pod.namespace.name().clone()).or_default();
        for (program, lines) in programs.iter().zip(lines) {
            let (users, _) = namespace.programs.entry(program.clone()).or_insert((0, lines));
            *users += 1;
            namespace.lines += if *users == 1 { lines } else { 0 };
        }
        namespace.waiting.insert(key.clone());
        namespace.pods.insert(key.clone(), programs);
    }

    /// A pod less.
    pub fn remove(&mut self, key: &PodKey, pod: &Endpoint) {
        let Some(namespace) = self.namespaces.get_mut(pod.namespace.name()) else { return };
        namespace.waiting.remove(key);
        for program in namespace.pods.remove(key).into_iter().flatten() {
            let Some((users, lines)) = namespace.programs.get_mut(&program) else { continue };
            *users -= 1;
            if *users == 0 {
                namespace.lines -= *lines;
                namespace.programs.remove(&program);
            }
        }
    }

    /// The pods that exceed what is left: those that had room at the last look come first, then the others in the order of
    /// their keys; those that share their programs with earlier ones take nothing.
    pub fn crowded(&mut self) -> BTreeSet<PodKey> {
        self.namespaces.values_mut().flat_map(NamespaceUse::crowded).gather()
    }
}

impl NamespaceUse {
    fn crowded(&mut self) -> Vec<PodKey> {
        if self.lines <= HOST_LINES {
            self.waiting.clear();
            return Vec::new();
        }
        let (others, placed): (Vec<_>, Vec<_>) =
            self.pods.iter().partition(|(key, _)| self.waiting.contains(*key));
        let (mut used, mut seen, mut crowded) = (0, BTreeSet::new(), Vec::new());
        for (key, programs) in placed.into_iter().chain(others) {
            let new = programs.iter().filter(|program| !seen.contains(program));
            let lines: usize = new.map(|program| self.programs[program].1).sum();
            if used + lines > HOST_LINES {
                crowded.push(key.clone());
            } else {
                used += lines;
                seen.extend(programs);
            }
        }
        self.waiting = crowded.iter().cloned().gather();
        crowded
    }
}

/// Of NetworkPolicies: others are those of administrators.
fn lines(keys: &ProgramKeys, program: &ProgramKey) -> usize {
    let is_limited = |origin| origin == PolicyKind::NetworkPolicy;
    keys.rules(program).filter(|rule| is_limited(rule.origin.source)).map(lines_of).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::documents;

    /// A policy of so many lines for the pods with this label.
    fn policy(name: &str, label: &str, lines: usize) -> Value {
        let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
        let ingress: Vec<Value> =
            (0..lines / 2).map(|at| json!({"from": from, "ports": [{"port": at + 1}]})).collect();
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}, "ingress": ingress}})
    }

    /// A pod of `shop` with these labels.
    fn pod(labels: &[&str]) -> Endpoint {
        let labels: BTreeMap<&str, &str> = labels.iter().map(|label| (*label, "")).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "p", "labels": labels},
            "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.1.2.3"}]}});
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        documents::read(&[namespace, pod], true).endpoints.pods.remove(0)
    }

    fn key(name: &str) -> PodKey {
        (name.to_owned(), "eth0".to_owned())
    }

    #[test]
    fn pods_that_differ_in_their_policies_share_what_a_namespace_may_have() {
        let own = [policy("x", "x", 10), policy("y", "y", 10), policy("z", "z", 10)];
        let all: Vec<Value> = [policy("all", "all", 9_000)].into_iter().chain(own).collect();
        let rules = documents::read(&all, true).rules;
        let mut lines = LineUse::new(&rules);
        let pods = [["a", "x"], ["b", "y"], ["c", "z"], ["d", "x"]];
        for [name, label] in pods {
            lines.add(&key(name), &pod(&["all", label]));
        }
        lines.add(&key("e"), &pod(&["z"]));
        lines.add(&key("f"), &pod(&[]));
        assert_eq!(lines.crowded(), [key("c")].into());
        lines.add(&key("0"), &pod(&["all", "z"]));
        assert_eq!(lines.crowded(), [key("0"), key("c")].into(), "who has room keeps it");
        lines.remove(&key("0"), &pod(&["all", "z"]));
        lines.remove(&key("a"), &pod(&["all", "x"]));
        assert_eq!(lines.crowded(), [key("c")].into(), "d has the same program");
        lines.remove(&key("d"), &pod(&["all", "x"]));
        assert_eq!(lines.crowded(), BTreeSet::new());
        lines.remove(&key("d"), &pod(&["all", "x"]));
        lines.remove(&key("f"), &pod(&[]));
        for name in ["b", "c", "e"] {
            lines.remove(&key(name), &pod(&[]));
        }
        assert_eq!(lines.namespaces["shop"].lines, 0);
    }
}
