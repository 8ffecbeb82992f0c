//! `explain` reports the broken hop, and no other.

mod direct;
mod tunnel;

use serde_json::Value;

use crate::support::{Ended, Node, Place, Pod};
use crate::{object, run};

/// Settings of the agents of these tests and of `explain`.
const VARIABLES: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10:244::/48")];

/// `explain` on `host`: the hop where packets are lost, `-` if nowhere, and all that was said.
fn lost(host: &Node, ends: &str) -> (String, Value) {
    let ended = run(host, &format!("explain --json {ends}"), VARIABLES);
    let value = object(&ended);
    let lost = value["lost"].as_str();
    assert_eq!(ended.succeeded(), lost.is_none(), "the exit code: {ended}");
    let wrong = hops(&value).filter(|hop| hop["verdict"] == "lost").count();
    assert_eq!(wrong, usize::from(lost.is_some()), "{value:#}");
    (lost.unwrap_or("-").to_owned(), value)
}

fn hops(value: &Value) -> impl Iterator<Item = &Value> {
    value["hops"].as_array().into_iter().flatten()
}

/// A fault on a host, and the expected output of `explain`.
struct Broken<'a> {
    host: &'a Node,
    /// Placeholders in the scripts and endpoints: `$POD`.
    words: Vec<(&'static str, String)>,
    faults: Vec<String>,
}

impl Broken<'_> {
    fn filled(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, value) in &self.words {
            text = text.replace(word, value);
        }
        text
    }

    /// Breaks the path with `script`, runs `explain` for `ends`, repairs with `repair`.
    fn check(&mut self, script: &str, ends: &str, wanted: &str, repair: &str) {
        self.host.shell(&self.filled(script)).ok();
        let ends = self.filled(ends);
        let (found, value) = lost(self.host, &ends);
        if found != wanted {
            let said: Vec<String> =
                hops(&value).map(|hop| format!("    {} {}", hop["hop"], hop["seen"])).collect();
            let said = said.join("\n");
            self.faults.push(format!("{script}: {ends}: {found}, not {wanted}\n{said}"));
        }
        self.host.shell(&self.filled(repair)).ok();
    }

    /// A pod of its own, called `p`, for damage that cannot be repaired.
    fn check_pod(&mut self, script: &str, ends: &str, wanted: &str) {
        let pod = Pod::add(self.host, "p");
        let network = humanz::plan::pod::LinkIdentity {
            network: "humanz",
            container_id: "p",
            ifname: "eth0",
        };
        let before = self.words.len();
        self.words.push(("$PORT", network.host_ifname().to_string()));
        self.words.push(("$P4", pod.v4().to_string()));
        self.words.push(("$P6", pod.v6().to_string()));
        self.check(script, ends, wanted, "true");
        self.words.truncate(before);
        self.host.shell("ip netns add p 2>/dev/null || true").ok();
        pod.delete();
    }
}

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.faults.is_empty(), "{}", self.faults.join("\n"));
        }
    }
}

fn text(ended: Ended) -> String {
    assert!(ended.succeeded(), "{ended}");
    ended.stdout
}
