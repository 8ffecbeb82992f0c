//! Pure. Settings of the kernel that keep packets from pods.

use ipnetwork::IpNetwork;

use crate::net::PerFamily;

/// A line for each family that is not forwarded.
pub fn forwarding<'a>(
    subnets: &PerFamily<IpNetwork>,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let keys = [
        (subnets.v4.is_some(), "net/ipv4/ip_forward"),
        (subnets.v6.is_some(), "net/ipv6/conf/all/forwarding"),
    ];
    let off = keys.into_iter().filter(|(wanted, key)| *wanted && value(key) == Some("0"));
    let line = |(_, key): (bool, &str)| {
        let key = key.replace('/', ".");
        format!(
            "pods reach nothing beyond this host: MANAGE_SYSCTL=false, and sysctl {key} = 0; set \
             it to 1"
        )
    };
    off.map(line).collect()
}

/// A line for each setting that is wrong for pods of these families. `value` gives a sysctl's, by
/// its name below /proc/sys; `None` if there is no such setting.
pub fn obstacles<'a>(
    subnets: &PerFamily<IpNetwork>,
    kube_proxy: bool,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let services = kube_proxy.then(|| services(subnets, value)).flatten();
    let ipv6 = subnets.v6.and_then(|_| ipv6(value));
    services.into_iter().chain(ipv6).chain(connections(value)).collect()
}

fn ipv6<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Option<String> {
    let what = match value("net/ipv6/conf/all/disable_ipv6") {
        Some("0") => return None,
        Some(_) => "sysctl net.ipv6.conf.all.disable_ipv6 = 1; set it to 0",
        None => "this kernel has no IPv6; boot without ipv6.disable=1",
    };
    Some(format!("IPV6_SUBNET is set and IPv6 is off: {what}, or set IPV6_SUBNET= for IPv4 only"))
}

/// The answer of a pod on the same bridge does not pass the address translation of kube-proxy
/// unless bridges hand their packets to it.
fn services<'a>(
    subnets: &PerFamily<IpNetwork>,
    value: &dyn Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let keys = [
        (subnets.v4.is_some(), "net/bridge/bridge-nf-call-iptables"),
        (subnets.v6.is_some(), "net/bridge/bridge-nf-call-ip6tables"),
    ];
    let mut off = keys.into_iter().filter(|(wanted, key)| *wanted && value(key) != Some("1"));
    let (_, key) = off.next()?;
    let key = key.replace('/', ".");
    Some(format!(
        "pods cannot use services of kube-proxy that lead to pods of this host: modprobe \
         br_netfilter && sysctl -w {key}=1"
    ))
}

/// So many parts of a hundred of the table of connections are still fine.
const FULL_PERCENT: u64 = 90;

fn connections<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Option<String> {
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    let count = number("net/netfilter/nf_conntrack_count")?;
    let max = number("net/netfilter/nf_conntrack_max").filter(|max| *max > 0)?;
    (count.saturating_mul(100) > max.saturating_mul(FULL_PERCENT)).then(|| {
        format!(
            "more than {FULL_PERCENT} % of the {max} connections that the kernel follows are in \
             use, and it drops new ones when all are: raise sysctl net.netfilter.nf_conntrack_max"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is wrong for IPv4 and IPv6 but what `changed` says.
    fn check(changed: &[(&str, Option<&str>)], kube_proxy: bool, wanted: &[&str]) {
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
        let mut lines = forwarding(&subnets, &value);
        lines.extend(obstacles(&subnets, kube_proxy, &value));
        assert_eq!(lines.len(), wanted.len(), "{changed:?}: {lines:?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.contains(wanted), "{line}");
        }
    }

    #[test]
    fn a_host_that_is_right_is_not_told() {
        check(&[], true, &[]);
    }

    #[test]
    fn forwarding_that_is_off_is_told() {
        check(&[("net/ipv4/ip_forward", Some("0"))], false, &["net.ipv4.ip_forward = 0"]);
        let off = [("net/ipv6/conf/all/forwarding", Some("0"))];
        check(&off, false, &["net.ipv6.conf.all.forwarding = 0"]);
    }

    #[test]
    fn ipv6_that_is_off_is_told_with_how() {
        let key = "net/ipv6/conf/all/disable_ipv6";
        check(&[(key, Some("1"))], false, &["net.ipv6.conf.all.disable_ipv6 = 1"]);
        check(&[(key, None)], false, &["this kernel has no IPv6"]);
    }

    #[test]
    fn bridges_matter_where_kube_proxy_is() {
        let off = [("net/bridge/bridge-nf-call-iptables", Some("0"))];
        check(&off, false, &[]);
        check(&off, true, &["sysctl -w net.bridge.bridge-nf-call-iptables=1"]);
        let no_module = [
            ("net/bridge/bridge-nf-call-iptables", None),
            ("net/bridge/bridge-nf-call-ip6tables", None),
        ];
        check(&no_module, true, &["modprobe br_netfilter"]);
    }

    #[test]
    fn a_table_of_connections_that_runs_full_is_told() {
        let count = [("net/netfilter/nf_conntrack_count", Some("235930"))];
        check(&count, false, &["more than 90 % of the 262144 connections"]);
        check(&[("net/netfilter/nf_conntrack_max", Some("0"))], false, &[]);
    }
}
