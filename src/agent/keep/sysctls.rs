//! Keeps forwarding on.

use crate::agent::host::Facts;
use crate::agent::pass::Pass;
use crate::agent::report::Report;
use crate::linux::sysctl;
use crate::plan::{Describe, Line};

/// A sysctl that must change.
struct Change {
    key: String,
    value: &'static str,
}

impl Describe for Change {
    fn line(&self) -> Line {
        Line::changed(format!("sysctl {} = {}", self.key.replace('/', "."), self.value))
    }
}

/// Writes only what differs, so that a read-only /proc/sys that is right already does no harm.
pub fn keep(pass: &Pass<'_>, facts: &Facts, report: &mut Report) {
    if !pass.settings.manage_sysctl {
        return;
    }
    for (key, value) in wanted(pass, facts) {
        match sysctl::read(&key) {
            Ok(found) if found == value => {}
            Ok(_) => {
                let change = Change { key, value };
                report.apply(&change, || sysctl::write(&change.key, change.value));
            }
            Err(error) => report.failed(error),
        }
    }
}

/// Key below /proc/sys → value.
///
/// A host that forwards IPv6 ignores router advertisements, and with them its own default route,
/// unless `accept_ra` is 2 (kernel: Documentation/networking/ip-sysctl.rst).
fn wanted(pass: &Pass<'_>, facts: &Facts) -> Vec<(String, &'static str)> {
    let mut wanted = Vec::new();
    if pass.subnets.v4.is_some() {
        wanted.push(("net/ipv4/ip_forward".to_owned(), "1"));
    }
    if pass.subnets.v6.is_some() {
        for uplink in &facts.uplinks {
            wanted.push((format!("net/ipv6/conf/{uplink}/accept_ra"), "2"));
        }
        wanted.push(("net/ipv6/conf/all/forwarding".to_owned(), "1"));
    }
    wanted
}
