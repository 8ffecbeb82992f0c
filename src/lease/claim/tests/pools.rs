//! Claims at the edge of the pools, and in those of both families.

use super::*;

#[test]
fn a_subnet_outside_the_pool_is_refused_with_both_and_what_to_do() {
    assert_eq!(
        refused(&[("/h/h1", "10.1.9.0/24")], &own()).with_fix(),
        "this host's subnet 10.1.9.0/24 (etcd key /h/h1) lies outside the pool 10.0.0.0/16; etcdctl get \
         /h/h1 # set IP_SUBNET or IPV6_SUBNET back to a pool with 10.1.9.0/24, or drain this host and \
         delete the key"
    );
}

#[test]
fn a_claimed_subnet_that_this_host_served_before_stays_although_the_pool_does_not_contain_it() {
    let served = Claimant { remembered: v4("10.1.9.0/24"), ..own() };
    let claimed = [("/h/h1", "10.1.9.0/24"), ("/z/subnets/4/10.1.9.0-24", "h1")];
    assert_eq!(subnet_of(&claimed, &served), "10.1.9.0/24");
    let other = [("/h/h1", "10.1.8.0/24"), ("/z/subnets/4/10.1.8.0-24", "h1")];
    let lost = [("/h/h1", "10.1.9.0/24"), ("/z/subnets/4/10.1.9.0-24", "h2")];
    for (keys, host) in [(&claimed, &own()), (&other, &served), (&lost, &served)] {
        let error = refused(keys, host);
        assert!(matches!(error, LeaseError::OutsidePool { .. }), "{error}");
    }
}

#[test]
fn settings_that_differ_are_refused_by_name() {
    let mut other = own();
    other.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/16").unwrap(), 9).unwrap());
    let error = refused(&[], &other).to_string();
    assert!(
        error.starts_with("IP_SUBNET_MARGIN is 9 on this host, but 8 in the network"),
        "{error}"
    );
    let broken = refused(&[("/z/config", "{}")], &own());
    assert!(matches!(broken, LeaseError::ConfigBroken { .. }), "{broken}");
}

#[test]
fn a_full_pool_names_the_hosts_that_are_not_alive() {
    let mut small = own();
    small.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/24").unwrap(), 2).unwrap());
    let config = small.network.config("a").to_json();
    let node = node("m2", "10.0.0.64/26");
    let keys = [
        ("/z/config", &*config),
        OWN_ALIVE,
        ("/h/h2", "10.0.0.64/26"),
        ("/z/nodes/h2", &*node),
        ("/h/py", "10.0.0.128/26"),
        ("/h/py2", "10.0.0.192/26"),
    ];
    let pool = subnet::parse("10.0.0.0/24").unwrap();
    let dead = vec!["h2".parse().unwrap()];
    assert_eq!(refused(&keys, &small), LeaseError::Exhausted { pool, slots: 3, taken: 3, dead });
}

#[test]
fn a_host_whose_subnet_was_lost_stays_with_it_if_no_other_is_free() {
    let mut small = own();
    small.network.pools.v4 = Some(Pool::new(subnet::parse("10.0.0.0/24").unwrap(), 1).unwrap());
    small.keep = v4("10.0.0.128/25");
    small.vacated = small.keep;
    let config = small.network.config("a").to_json();
    let keys = [
        ("/z/config", &*config),
        OWN_ALIVE,
        ("/h/h2", "10.0.0.128/25"),
        ("/z/subnets/4/10.0.0.128-25", "h2"),
    ];
    let (subnet, owner) = (subnet::parse("10.0.0.128/25").unwrap(), "h2".parse().unwrap());
    assert_eq!(refused(&keys, &small), LeaseError::SubnetLost { subnet, owner });
}

#[test]
fn a_wide_subnet_without_a_claim_takes_nothing() {
    let keys = [("/h/evil", "10.0.0.0/17"), ("/h/evil2", "10.0.128.0/17")];
    let mut late = own();
    late.ticket = Some(300);
    assert_eq!(subnet_of(&keys, &late), "10.0.45.0/24");
    let remembering = Claimant { remembered: v4("10.0.9.0/24"), ..own() };
    assert_eq!(subnet_of(&keys, &remembering), "10.0.9.0/24");
    let claimed = [("/h/h2", "10.0.8.0/23"), ("/z/subnets/4/10.0.8.0-23", "h2")];
    let late = Claimant { ticket: Some(265), ..own() };
    assert_eq!(subnet_of(&claimed, &late), "10.0.10.0/24", "an adopted one has a claim");
}

#[test]
fn both_families_are_claimed_together_and_one_is_added_later() {
    let mut dual = own();
    dual.network.pools.v6 = Some(Pool::new(subnet::parse("fd00:10::/48").unwrap(), 16).unwrap());
    let config = dual.network.config("a").to_json();
    let both = subnet_of(&[("/z/config", &config)], &dual);
    assert_eq!(both, "10.0.7.0/24 fd00:10:0:7::/64");
    let added = subnet_of(&[("/z/config", &config), ("/h/h1", "10.0.9.0/24")], &dual);
    assert_eq!(added, "10.0.9.0/24 fd00:10:0:7::/64");
}

#[test]
fn without_ipv4_the_host_key_holds_the_ipv6_subnet() {
    let mut own = own();
    let v6 = Pool::new(subnet::parse("fd00:10::/48").unwrap(), 16).unwrap();
    own.network.pools = PerFamily { v4: None, v6: Some(v6) };
    let config = own.network.config("a").to_json();
    let (subnet, transaction) = written(&[("/z/config", &config)], &own);
    assert_eq!(subnet, "fd00:10:0:7::/64");
    let (key, value) = ("/h/h1".to_owned(), "fd00:10:0:7::/64".to_owned());
    assert!(transaction.writes.contains(&Write::Put { key, value, lease: 0 }));
}
