//! Pure. Settings of the kernel that keep packets from pods.

use ipnetwork::IpNetwork;

use crate::net::{Object, PerFamily, Problem, ProblemKind};

/// In place of the value of one that exists and could not be read: the agent has no file descriptor left.
pub const UNREAD: &str = "";

/// Families that are not forwarded, and `why` the agent does not change that.
pub fn forwarding<'a>(
    subnets: &PerFamily<IpNetwork>,
    why: &str,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Vec<Problem> {
    let keys = [
        (subnets.v4.is_some(), "net/ipv4/ip_forward"),
        (subnets.v6.is_some(), "net/ipv6/conf/all/forwarding"),
    ];
    let off = keys.into_iter().filter(|(wanted, key)| *wanted && value(key) == Some("0"));
    let problem = |(_, key): (bool, &str)| {
        let name = key.replace('/', ".");
        let what = format!("pods reach nothing beyond this host: {why}, and sysctl {name} = 0");
        of_sysctl(ProblemKind::Forwarding, key, what).with_fix(format!("sysctl -w {name}=1"))
    };
    off.map(problem).collect()
}

/// Settings that are wrong for pods of these families. `value` gives a sysctl's, by its name below
/// /proc/sys; `None` if there is no such setting.
pub fn problems<'a>(
    subnets: &PerFamily<IpNetwork>,
    kube_proxy: bool,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Vec<Problem> {
    let services = kube_proxy.then(|| services(subnets, value)).flatten();
    let ipv6 = subnets.v6.and_then(|_| ipv6(value));
    services.into_iter().chain(ipv6).chain(connections(value)).collect()
}

fn of_sysctl(kind: ProblemKind, key: &str, what: String) -> Problem {
    Problem::new(kind, Object::Sysctl(key.to_owned()), what)
}

fn ipv6<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Option<Problem> {
    let key = "net/ipv6/conf/all/disable_ipv6";
    let (why, fix) = match value(key) {
        Some("0" | UNREAD) => return None,
        Some(_) => (
            "sysctl net.ipv6.conf.all.disable_ipv6 = 1",
            "sysctl -w net.ipv6.conf.all.disable_ipv6=0 #",
        ),
        None => ("this kernel has no IPv6", "cat /proc/cmdline # boot without ipv6.disable=1,"),
    };
    let what = format!("IPV6_SUBNET is set and IPv6 is off: {why}");
    let fix = format!("{fix} or set IPV6_SUBNET= for IPv4 only");
    Some(of_sysctl(ProblemKind::Ipv6, key, what).with_fix(fix))
}

/// The answer of a pod on the same bridge does not pass the address translation of kube-proxy
/// unless bridges hand their packets to it.
fn services<'a>(
    subnets: &PerFamily<IpNetwork>,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Option<Problem> {
    let keys = [
        (subnets.v4.is_some(), "net/bridge/bridge-nf-call-iptables"),
        (subnets.v6.is_some(), "net/bridge/bridge-nf-call-ip6tables"),
    ];
    let mut off = keys
        .into_iter()
        .filter(|(wanted, key)| *wanted && !matches!(value(key), Some("1" | UNREAD)));
    let (_, key) = off.next()?;
    let what = "pods cannot use services of kube-proxy that lead to pods of this host";
    let fix = format!("modprobe br_netfilter && sysctl -w {}=1", key.replace('/', "."));
    Some(of_sysctl(ProblemKind::BridgeNetfilter, key, what.to_owned()).with_fix(fix))
}

/// Up to this part of the connection tracking table may be in use.
const FULL_PERCENT: u64 = 90;

fn connections<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Option<Problem> {
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    let count = number("net/netfilter/nf_conntrack_count")?;
    let key = "net/netfilter/nf_conntrack_max";
    let max = number(key).filter(|max| *max > 0)?;
    let what = || {
        format!(
            "more than {FULL_PERCENT} % of the {max} connections that the kernel tracks are in use, \
             and it drops new ones when all are"
        )
    };
    let fix = || format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(2));
    (count.saturating_mul(100) > max.saturating_mul(FULL_PERCENT))
        .then(|| of_sysctl(ProblemKind::Conntrack, key, what()).with_fix(fix()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a host where all sysctls are right except those `changed`.
    fn check(changed: &[(&str, Option<&str>)], kube_proxy: bool, wanted: &[(ProblemKind, &str)]) {
        let right = [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/all/disable_ipv6", "0"),
            ("net/bridge/bridge-nf-call-iptables", "1"),
            ("net/bridge/bridge-nf-call-ip6tables", "1"),
            ("net/netfilter/nf_conntrack_count", "235929"),
            ("net/netfilter/nf_conntrack_max", "262144"),
        ];
        let value = |key: &str| match changed.iter().find(|(changed, _)| *changed == key) {
            Some((_, value)) => *value,
            None => right.iter().find(|(right, _)| *right == key).map(|(_, value)| *value),
        };
        let subnets = PerFamily {
            v4: Some("10.244.3.0/24".parse().unwrap()),
            v6: Some("fd10::/64".parse().unwrap()),
        };
        let mut found = forwarding(&subnets, "MANAGE_SYSCTL=false", &value);
        found.extend(problems(&subnets, kube_proxy, &value));
        let found: Vec<(ProblemKind, String)> =
            found.iter().map(|problem| (problem.kind, problem.subject.to_string())).collect();
        let wanted: Vec<(ProblemKind, String)> =
            wanted.iter().map(|(kind, key)| (*kind, format!("sysctl {key}"))).collect();
        assert_eq!(found, wanted, "{changed:?}");
    }

    #[test]
    fn a_host_that_is_right_has_no_problem() {
        check(&[], true, &[]);
    }

    #[test]
    fn forwarding_that_is_off_is_reported() {
        let kind = ProblemKind::Forwarding;
        check(&[("net/ipv4/ip_forward", Some("0"))], false, &[(kind, "net.ipv4.ip_forward")]);
        let off = [("net/ipv6/conf/all/forwarding", Some("0"))];
        check(&off, false, &[(kind, "net.ipv6.conf.all.forwarding")]);
    }

    #[test]
    fn ipv6_that_is_off_is_reported() {
        let key = "net/ipv6/conf/all/disable_ipv6";
        let off = [(ProblemKind::Ipv6, "net.ipv6.conf.all.disable_ipv6")];
        check(&[(key, Some("1"))], false, &off);
        check(&[(key, None)], false, &off);
        check(&[(key, Some(UNREAD))], false, &[]);
    }

    #[test]
    fn bridges_matter_where_kube_proxy_is() {
        let off = [("net/bridge/bridge-nf-call-iptables", Some("0"))];
        let iptables = [(ProblemKind::BridgeNetfilter, "net.bridge.bridge-nf-call-iptables")];
        check(&off, false, &[]);
        check(&off, true, &iptables);
        let no_module = [
            ("net/bridge/bridge-nf-call-iptables", None),
            ("net/bridge/bridge-nf-call-ip6tables", None),
        ];
        check(&no_module, true, &iptables);
        check(&no_module.map(|(key, _)| (key, Some(UNREAD))), true, &[]);
    }

    #[test]
    fn a_connection_table_that_runs_full_is_reported() {
        let count = [("net/netfilter/nf_conntrack_count", Some("235930"))];
        check(&count, false, &[(ProblemKind::Conntrack, "net.netfilter.nf_conntrack_max")]);
        check(&[("net/netfilter/nf_conntrack_max", Some("0"))], false, &[]);
    }
}
