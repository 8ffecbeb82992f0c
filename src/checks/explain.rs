//! Pure. Where packets from one address to another are lost on this host.
//!
//! The hops stand in the order in which a packet meets what each depends on: a neighbour that does
//! not answer is judged after everything that could keep it from answering. The first one that is
//! lost ends the list, because what comes after it follows from it.

mod encryption;
mod ends;
mod firewall;
mod hop;
mod last;
mod middle;
mod path;
pub mod pin;
mod policy;
mod tunnel_table;

use crate::net::{Object, Problem, ProblemKind};

pub use hop::{AGENT, Hop, HopFix, HopVerdict, without_agent};
pub use path::{
    EchoResult, EncryptedHop, EndPlace, Lookup, Path, PathEnd, PathHost, PathTunnel, PodNetns,
    PortListener, RemoteEnd, TracedPod, TunnelTable,
};
pub use policy::{PathPolicies, PolicyDecision, PolicyEnd};

/// The hops of `path`, up to the one where packets are lost, if they are.
pub fn hops(path: &Path) -> Vec<Hop> {
    let mut hops = Vec::new();
    let parts: [fn(&Path) -> Vec<Hop>; 7] = [
        pod_words,
        ends::source,
        middle::host,
        policies,
        ends::destination,
        middle::back,
        last::all,
    ];
    for part in parts {
        for hop in part(path) {
            let lost = hop.is_lost();
            hops.push(hop);
            if lost {
                return hops;
            }
        }
    }
    hops
}

/// What is said of the pods at the ends.
fn pod_words(path: &Path) -> Vec<Hop> {
    let hops = |end: &PathEnd| -> Vec<Hop> {
        let pod = Object::Pod(end.name.clone());
        let known = path.policies.iter().flat_map(|policies| &policies.pod_words);
        let hop = |problem: &Problem| {
            let name = match problem.kind {
                ProblemKind::UnknownPodKey => "pod-keys",
                _ => "pod-asks",
            };
            let fix = problem.fix.as_deref().unwrap_or_default();
            Hop::odd(name, &end.name, &problem.what, fix)
        };
        known.filter(|problem| problem.subject == pod).map(hop).collect()
    };
    [&path.from, &path.to].into_iter().flat_map(hops).collect()
}

fn policies(path: &Path) -> Vec<Hop> {
    let names = [path.from.name.as_str(), path.to.name.as_str()];
    path.policies.iter().flat_map(|policies| policy::hops(policies, names)).collect()
}
