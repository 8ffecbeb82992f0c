//! The source `POLICY_FILE`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::net::node_name::NodeName;
use crate::net::shell::word;
use crate::net::subnet::gateway;
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::labels::Labels;
use crate::policy::read::documents;
use crate::policy::{Node, PolicySnapshot, Provider, Scoped, SourceUpdate, members};
use crate::settings::{Settings, Source};

/// The longest file that is read, in bytes.
const LIMIT: u64 = 64 << 20;

/// What the file says. With faults it says nothing, unless there is nothing else to go by (`last_resort`):
/// then what is not understood closes.
///
/// `own`: this host, as [`this_host`] gives it. `group`: that of pods that nothing else puts into one.
pub fn read(path: &Path, own: &Node, group: Option<&Scoped>, last_resort: bool) -> SourceUpdate {
    let update = |snapshot, problems| SourceUpdate { provider: Provider::File, snapshot, problems };
    let mut read = match text(path).and_then(|text| documents::read_text(&text, true)) {
        Ok(read) => read,
        Err(why) => return update(None, vec![unread(path, &why, last_resort)]),
    };
    if !read.problems.is_empty() && !last_resort {
        return update(None, read.problems);
    }
    let nodes = &mut read.endpoints.nodes;
    match nodes.iter_mut().find(|node| node.name == own.name) {
        Some(node) => node.addresses.extend(&own.addresses),
        None => nodes.extend((!own.addresses.is_empty()).then(|| own.clone())),
    }
    let is_own = |pod: &crate::policy::Endpoint| pod.host == own.name;
    // This host's are judged by the rules of all sources; of what those do not allow their own host speaks.
    for pod in read.endpoints.pods.iter_mut().filter(|pod| !is_own(pod)) {
        read.cluster.configure(pod, group);
    }
    let wanted = members::peers(read.rules.iter());
    let members = members::find(&wanted, &read.endpoints);
    let mut pods: Vec<_> = read.endpoints.pods.into_iter().filter(is_own).collect();
    // The room is that of all pods in the file, which are those of all hosts.
    pods.shrink_to_fit();
    let snapshot = PolicySnapshot {
        rules: read.rules,
        unread: read.unread,
        pods,
        members,
        standalone: Some(read.cluster),
        networks: read.networks,
        profiles: read.profiles,
        ..PolicySnapshot::default()
    };
    update(Some(snapshot), read.problems)
}

/// This host as a node without labels, by the gateways of its pods; without addresses where other sources know it.
pub fn this_host(settings: &Settings, name: &NodeName) -> Node {
    let addresses = match &settings.source {
        Source::Static(subnets) => subnets.iter().map(|subnet| gateway(*subnet)).collect(),
        Source::Etcd { .. } | Source::Kubernetes(_) => Vec::new(),
    };
    Node { name: name.clone(), labels: Labels::new(), addresses }
}

fn unread(path: &Path, why: &str, last_resort: bool) -> Problem {
    let outcome = match last_resort {
        true => "no policies of this file hold",
        false => "the last valid policies hold",
    };
    let subject = Object::File("policies", path.to_owned());
    let what = format!("{}: {why}; {outcome}", path.display());
    let fix = format!("humanz-agent policy ls -f {} # lists what is wrong", word(path.display()));
    Problem::new(ProblemKind::Policy, subject, what).with_fix(fix)
}

fn text(path: &Path) -> Result<String, String> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let read = File::open(path)?.take(LIMIT + 1).read_to_string(&mut text)? as u64;
        if read > LIMIT {
            return Err(io::Error::other(format!("more than {LIMIT} bytes")));
        }
        Ok(text)
    };
    read().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Node {
        Node { name: name.parse().unwrap(), labels: Labels::new(), addresses: Vec::new() }
    }

    #[test]
    fn an_empty_file_says_nothing_and_an_empty_list_that_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.yaml");
        let says_something = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path, &host("h1"), None, false).snapshot.is_some()
        };
        for text in ["", "\n", "---\n# shop\n", "  # nothing\n---\n", "--- # none\n...\n"] {
            assert!(!says_something(text), "{text:?}");
        }
        // As jq prints of a field that is not there.
        for text in ["null\n", "[null]", "~", r#"{"kind": "List", "items": null}"#, "kind: List\n"]
        {
            assert!(!says_something(text), "{text:?}");
        }
        for text in ["\u{feff}", "\u{feff}# none\n", "%YAML 1.2\n---\n", "null\n---\n~\n"] {
            assert!(!says_something(text), "{text:?}");
        }
        for text in ["[]", "---\n[] # none\n", "apiVersion: v1\nkind: List\nitems: []\n"] {
            assert!(says_something(text), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_says_whether_earlier_policies_hold() {
        let own = host("h7");
        for (last_resort, what) in
            [(true, "no policies of this file hold"), (false, "the last valid policies hold")]
        {
            let found = read(Path::new("/nowhere"), &own, None, last_resort);
            assert!(
                found.snapshot.is_none() && found.problems[0].what.ends_with(what),
                "{found:?}"
            );
        }
    }

    #[test]
    fn pods_of_other_hosts_are_members_of_the_group_of_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.json");
        let pod = |name: &str, namespace: &str, address: &str| {
            serde_json::json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "h2"},
                "metadata": {"namespace": namespace, "name": name}, "status": {"podIP": address}})
        };
        let own = |kind: &str, name: &str, spec: serde_json::Value| {
            serde_json::json!({"apiVersion": "humanz.io/v1", "kind": kind,
                "metadata": {"name": name}, "spec": spec})
        };
        let rules =
            serde_json::json!([{"direction": "in", "action": "allow", "peer": {"group": "base"}}]);
        let all = serde_json::json!([
            own("Group", "base", serde_json::json!({"policies": ["p"]})),
            own("GroupPolicy", "p", serde_json::json!({"rules": rules})),
            own("NamespaceRule", "ruled", serde_json::json!({"tenant": "blue"})),
            pod("web", "shop", "10.1.9.8"),
            pod("web", "ruled", "10.1.9.9"),
        ]);
        std::fs::write(&path, all.to_string()).unwrap();
        let group = Scoped::parse("base", &"default".parse().unwrap()).unwrap();
        let read = read(&path, &host("h1"), Some(&group), false);
        assert_eq!(read.problems, []);
        let members = read.snapshot.unwrap().members;
        let found = members.values().flat_map(|it| &**it).flat_map(|it| &it.addresses);
        assert_eq!(found.map(ToString::to_string).collect::<Vec<_>>(), ["10.1.9.8"]);
    }

    #[test]
    fn pods_of_other_hosts_take_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policies.json");
        let pod = |number: usize| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "shop", "name": format!("p{number}")},
                "spec": {"nodeName": format!("h{}", number % 1000)},
                "status": {"podIPs": [{"ip": format!("10.1.{}.{}", number / 250, number % 250)}]},
            })
        };
        let all: Vec<_> = (0..5000).map(pod).collect();
        std::fs::write(&path, serde_json::Value::from(all).to_string()).unwrap();
        let pods = read(&path, &host("h7"), None, false).snapshot.unwrap().pods;
        assert_eq!(pods.len(), 5);
        assert!(pods.capacity() < 100, "{}", pods.capacity());
    }
}
