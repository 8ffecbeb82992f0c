//! Policies that are there, and that a host with `POLICY=off` does not enforce.

use crate::inspect::{cluster, identity, last_policies};
use crate::net::{Object, Problem, ProblemKind};
use crate::policy::ObjectSource;
use crate::settings::Settings;
use crate::sources::{PoliciesStart, read_policies};

/// This host is one, and its etcd can be read.
pub fn here(settings: &Settings) -> Option<Problem> {
    let is_off = settings.policy.is_none() && !settings.agentless;
    let there = is_off.then(|| in_etcd(settings)).flatten()?;
    // Nobody withdraws what this host said while policies were on.
    let published = |host| last_policies::published(settings, &host).addresses().len();
    let former = match identity::node_name(settings).map_or(0, published) {
        0 => String::new(),
        count => format!(
            "; other hosts take a new pod at one of {count} addresses for the former one, which this host published"
        ),
    };
    let what =
        format!("etcd has {there}, of which this host enforces nothing (POLICY=off){former}");
    let subject = Object::Setting("POLICY", "off".to_owned());
    let fix = "humanz-agent policy export # has them: POLICY=on in the settings of this host enforces them";
    Some(Problem::new(ProblemKind::PolicyOff, subject, what).with_fix(fix))
}

/// What hosts enforce of what etcd has, as in `3 rules of policies and 1 network`; `None`: nothing, or it cannot be read.
pub fn in_etcd(settings: &Settings) -> Option<String> {
    let (etcd, roots) = cluster::etcd(settings).ok()?;
    let start = PoliciesStart { etcd: etcd.clone(), roots: roots.clone() };
    let (stored, _) = read_policies(&start).ok()?;
    let read = stored.read(&roots.policies_range(), ObjectSource::Etcd);
    let counted = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    let rules = counted(read.rules.iter().len(), "rule of policies", "rules of policies");
    let networks = counted(read.networks.iter().count(), "network", "networks");
    let all: Vec<String> = rules.into_iter().chain(networks).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}
