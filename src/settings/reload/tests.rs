//! Every setting: taken over, or refused with the reason.

use std::collections::BTreeMap;

use crate::lease::records::Roots;
use crate::lease::snapshot::Raw;
use crate::settings::flags::VARIABLES;
use crate::settings::reload::*;
use crate::settings::{parse, values_only};

/// The texts of all settings, with these.
fn texts(set: &[(&'static str, &str)]) -> Texts {
    let mut texts: Texts =
        VARIABLES.iter().map(|variable| (variable.name, variable.default.to_owned())).collect();
    texts.insert("ETCD_HOST", "192.0.2.2".to_owned());
    texts.extend(set.iter().map(|(name, value)| (*name, (*value).to_owned())));
    texts
}

fn planned(
    before: &[(&'static str, &str)],
    after: &[(&'static str, &str)],
    found: Option<&Snapshot>,
) -> ReloadPlan {
    planned_beside(before, after, found, &TenantPools::default())
}

fn planned_beside(
    before: &[(&'static str, &str)],
    after: &[(&'static str, &str)],
    found: Option<&Snapshot>,
    tenants: &TenantPools,
) -> ReloadPlan {
    let (from, to) = (texts(before), texts(&[before, after].concat()));
    let settings =
        [&from, &to].map(|texts| parse(texts, values_only).unwrap_or_else(|e| panic!("{e:?}")));
    let name = |settings: &Settings| settings.node_name.clone().unwrap_or("h1".parse().unwrap());
    let names = [name(&settings[0]), name(&settings[1])];
    let running = SettingsView { texts: &from, settings: &settings[0], name: &names[0] };
    let wanted = SettingsView { texts: &to, settings: &settings[1], name: &names[1] };
    let plan = plan(&running, &wanted, found, tenants);
    parse(&plan.texts, values_only).expect("what holds then is right");
    let held = |change: &SettingChange, text: &String| plan.texts[change.variable] == *text;
    assert!(plan.changes.iter().all(|change| held(change, &change.to)));
    assert!(plan.refusals.iter().all(|refusal| held(&refusal.change, &refusal.change.from)));
    plan
}

fn taken(before: &[(&'static str, &str)], after: &[(&'static str, &str)]) {
    let plan = planned(before, after, None);
    assert_eq!(plan.refusals, [], "{after:?}");
    let variables: Vec<_> = plan.changes.iter().map(|change| change.variable).collect();
    let expected: BTreeMap<_, _> = after.iter().copied().collect();
    assert_eq!(variables, expected.keys().copied().collect::<Vec<_>>());
}

/// Refused, with a reason that has these words; `MTU` beside it is taken.
fn refused(
    before: &[(&'static str, &str)],
    after: &[(&'static str, &str)],
    found: Option<&Snapshot>,
    words: &[&str],
) {
    let plan = planned(before, &[after, &[("MTU", "1400")]].concat(), found);
    let changes: Vec<String> = plan.changes.iter().map(SettingChange::to_string).collect();
    assert_eq!(changes, ["MTU: auto → 1400"]);
    let refusals: Vec<String> = plan.refusals.iter().map(RefusedChange::to_string).collect();
    assert_eq!(refusals.len(), after.len(), "{refusals:?}");
    for word in words {
        assert!(refusals[0].contains(word), "{word:?} is not in {refusals:?}");
    }
}

/// An etcd with these keys.
fn store(keys: &[(&str, &str)]) -> Snapshot {
    let roots = Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
    let mut found = Snapshot::default();
    for (key, value) in keys {
        let raw = Raw { key: key.as_bytes(), value: value.as_bytes(), created: 1, modified: 1 };
        found.put(&roots, raw);
    }
    found
}

#[test]
fn most_settings_are_taken_over() {
    taken(&[], &[]);
    taken(&[], &[("MTU", "1400"), ("NODE_IP", "192.0.2.7"), ("IP_MASQ", "false")]);
    taken(&[], &[("NON_MASQ_CIDRS", "10.0.0.0/8"), ("MANAGE_FORWARD", "no")]);
    taken(&[], &[("ETCD_HOST", "etcd-1,etcd-2"), ("ETCD_TIMEOUT", "2s")]);
    taken(&[], &[("CNI_VERSION", "1.1.0"), ("CNI_CONFIG_LOCATION", "/etc/cni/net.d/1.conf")]);
    taken(&[], &[("CNI_TYPE", "other"), ("PLUGIN_LOG_FILE", "none")]);
    taken(&[], &[("RESYNC_INTERVAL", "10s"), ("CLEANUP_ON_STOP", "true")]);
}

#[test]
fn what_pods_or_other_hosts_depend_on_is_refused_by_itself() {
    for (variable, value, word) in [
        ("NODE_NAME", "h2", "drain the host"),
        ("ETCD_PREFIX", "/other/hosts", "joins the network"),
        ("ETCD_COUNTER_KEY", "/other/counter", "joins the network"),
        ("HUMANZ_PREFIX", "/other/v1", "joins the network"),
        ("BRIDGE_NAME", "br1", "plugged into the bridge"),
        ("CNI_NAME", "other", "booked under the name"),
        ("IPAM_DIR", "/run/other", "booked there"),
        ("STATE_DIR", "/var/lib/other", "move the directory"),
        ("SUBNET_SOURCE", "static", "drain the host"),
    ] {
        refused(&[], &[(variable, value)], None, &[variable, value, "restart needed", word]);
    }
}

#[test]
fn the_name_that_a_host_has_anyway_is_no_change_for_it() {
    taken(&[], &[("NODE_NAME", "h1")]);
}

#[test]
fn a_pool_grows_and_does_not_shrink() {
    let wide = [("IP_SUBNET", "10.244.0.0/15"), ("IP_SUBNET_MARGIN", "9")];
    taken(&[], &wide);
    let v6 = [("IPV6_SUBNET", "fd10:244::/48")];
    taken(&v6, &[("IPV6_SUBNET", "fd10:244::/47"), ("IPV6_SUBNET_MARGIN", "17")]);
    let narrow = [("IP_SUBNET", "10.244.0.0/16"), ("IP_SUBNET_MARGIN", "8")];
    let found =
        store(&[("/z/subnets/4/10.245.3.0-24", "h3"), ("/z/subnets/4/10.244.3.0-24", "h4")]);
    refused(&wide, &narrow, Some(&found), &["can only grow", "h3 (10.245.3.0/24)"]);
    refused(&[], &[("IP_SUBNET", "10.99.0.0/16")], None, &["can only grow", "10.244.0.0/16"]);
    refused(&[], &[("IP_SUBNET_MARGIN", "9")], None, &["cut into /24"]);
    refused(&[], &v6, None, &["all hosts of a network have IPv6 or none"]);
}

#[test]
fn a_pool_does_not_grow_around_a_host() {
    let node = r#"{"schema":1,"machineId":"m2","bootId":"b","version":"0.1.0","subnets":["10.244.2.0/24"],"addresses":["10.245.9.9"],"backend":"direct","mtu":1500}"#;
    let found = store(&[("/z/nodes/h2", node)]);
    let wide = [("IP_SUBNET", "10.244.0.0/15"), ("IP_SUBNET_MARGIN", "9")];
    refused(&[], &wide, Some(&found), &["10.245.9.9", "h2"]);
}

#[test]
fn a_pool_does_not_grow_over_a_network_of_a_tenant() {
    let wide = [("IP_SUBNET", "10.244.0.0/15"), ("IP_SUBNET_MARGIN", "9")];
    for (pool, is_refused) in [("10.245.0.0/16", true), ("10.246.0.0/16", false)] {
        let pools = vec![(pool.parse().unwrap(), "blue/front".to_owned())];
        let tenants = TenantPools { pools, ..TenantPools::default() };
        let plan = planned_beside(&[], &wide, Some(&store(&[])), &tenants);
        assert_eq!(plan.refusals.len(), if is_refused { 2 } else { 0 }, "{pool}");
        let why = "10.245.0.0/16 of network blue/front";
        assert!(plan.refusals.iter().all(|refusal| refusal.why.contains(why)));
    }
}

#[test]
fn one_host_alone_keeps_its_subnet() {
    let alone = [("SUBNET_SOURCE", "static"), ("IP_SUBNET", "10.245.0.0/16")];
    let wide = [("IP_SUBNET", "10.244.0.0/15"), ("IP_SUBNET_MARGIN", "9")];
    refused(&alone, &wide, None, &["set SUBNET"]);
    taken(&alone, &[&wide[..], &[("SUBNET", "10.245.1.0/24")]].concat());
    refused(&alone, &[("SUBNET", "10.245.2.0/24")], None, &["drain the host"]);
}
