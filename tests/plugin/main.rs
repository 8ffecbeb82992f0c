//! The plugin, run as a runtime runs it, on hosts without an agent or etcd.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and prints its measurements"
)]

use humanz_test_support as support;

use serde_json::{Value, json};
use support::plugin_host::conf;
use support::pod::requested_settings;

mod add;
mod addresses;
mod bandwidth;
mod chain;
mod check;
mod counted;
mod del;
mod faults;
mod gc;
mod hostports;
mod hostports_lost;
mod hostports_owners;
mod killed;
mod locked;
mod log;
mod manual;
mod many;
mod reach;
mod second;
mod status;
mod stores;
mod tuning;
mod twice;
mod vlans;

/// Both families, and everything that a pod can ask for; `name` is the container's.
fn everything(name: &str) -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let sysctl = json!({ "net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_ignore": "1" });
    let keys = json!({ "ranges": sets, "runtimeConfig": requested_settings(name), "sysctl": sysctl,
        "promisc": true, "macspoofchk": support::kernel::locks_ports() });
    conf("1.1.0", keys)
}

/// Every version of the protocol.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
