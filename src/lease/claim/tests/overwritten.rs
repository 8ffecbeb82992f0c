//! Claims that somebody wrote over with the name of a host without a subnet.

use super::*;

/// The claim of the subnet of h2 in the name of h1, later than `keys`.
fn with_claim<'a>(keys: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [keys, &[("/z/subnets/4/10.0.9.0-24", "h1")]].concat()
}

#[test]
fn a_claim_alone_takes_no_subnet_that_another_host_had_before() {
    let node = node("m2", "10.0.9.0/24");
    let (host, node) = (("/h/h2", "10.0.9.0/24"), ("/z/nodes/h2", &*node));
    for keys in [&[host, node][..], &[host], &[node], &[("/h/h2", "10.0.10.0/24"), node]] {
        let (subnet, transaction) = written(&with_claim(keys), &own());
        assert_eq!(subnet, "10.0.7.0/24", "{keys:?}");
        let written = writes(&transaction);
        assert!(!written.iter().any(|write| write.ends_with("10.0.9.0-24")), "{written:?}");
    }
}

#[test]
fn a_claim_that_was_there_before_any_other_key_is_a_reservation() {
    let node = node("m2", "10.0.9.0/24");
    let claim = ("/z/subnets/4/10.0.9.0-24", "h1");
    let later = [claim, ("/h/h2", "10.0.9.0/24"), ("/z/nodes/h2", &*node)];
    let elsewhere = [("/h/h2", "10.0.10.0/24"), claim];
    let many = [("/h/h2", "10.0.8.0/22"), claim];
    for keys in [&later[..1], &later, &elsewhere, &many] {
        assert_eq!(subnet_of(keys, &own()), "10.0.9.0/24", "{keys:?}");
    }
}

#[test]
fn a_subnet_of_several_slots_is_as_safe() {
    let keys = [("/h/h2", "10.0.8.0/23"), ("/z/subnets/4/10.0.8.0-23", "h1")];
    assert_eq!(subnet_of(&keys, &own()), "10.0.7.0/24");
    assert_eq!(subnet_of(&keys[1..], &own()), "10.0.8.0/23", "a reservation");
}

#[test]
fn keys_of_one_transaction_prove_more_than_a_claim_written_over_and_all_put_back_later() {
    let keys = |created: i64| {
        let mut found = found(&[OWN_ALIVE]);
        for (key, value, created, modified) in [
            ("/z/subnets/4/10.0.9.0-24", "h1", created, 19),
            ("/h/h2", "10.0.9.0/24", 5, 20),
            ("/z/nodes/h2", &*node("m2", "10.0.9.0/24"), 5, 21),
        ] {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&roots(), Raw { key, value, created, modified });
        }
        match next(&found, &own()) {
            Step::Write { lease, .. } => lease.subnets.v4.unwrap().to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(keys(5), "10.0.7.0/24");
    assert_eq!(keys(4), "10.0.9.0/24", "a reservation");
}

#[test]
fn each_family_has_its_own_owner() {
    let mut dual = own();
    dual.network.pools.v6 = Some(Pool::new(subnet::parse("fd00:10::/48").unwrap(), 16).unwrap());
    let config = dual.network.config("a").to_json();
    let v6 = subnet::parse("fd00:10:0:9::/64").unwrap();
    let lease = Lease { subnets: PerFamily { v6: Some(v6), ..v4("10.0.9.0/24") } };
    let theirs = Identity { machine_id: "m2".to_owned(), ..own().identity };
    let theirs = node_record(&theirs, &HostAttributes::default(), &lease).to_json();
    let keys = [("/h/h2", "10.0.9.0/24"), ("/z/nodes/h2", &*theirs), ("/z/config", &*config)];
    let with =
        |claims: &[(&'static str, &'static str)]| subnet_of(&[&keys, claims].concat(), &dual);
    let (reserved4, reserved6) =
        (("/z/subnets/4/10.0.11.0-24", "h1"), ("/z/subnets/6/fd00:10:0:b::-64", "h1"));
    let over6 = ("/z/subnets/6/fd00:10:0:9::-64", "h1");
    let over4 = ("/z/subnets/4/10.0.9.0-24", "h1");
    assert_eq!(with(&[reserved4, over6]), "10.0.11.0/24 fd00:10:0:7::/64");
    assert_eq!(with(&[over4, reserved6]), "10.0.7.0/24 fd00:10:0:b::/64");
    assert_eq!(with(&[over4, over6]), "10.0.7.0/24 fd00:10:0:7::/64");
}

#[test]
fn a_host_key_alone_takes_no_subnet_that_this_host_uses_or_used() {
    let keys = with_claim(&[("/h/evil", "10.0.9.0/24")]);
    for used in [
        Claimant { keep: v4("10.0.9.0/24"), ..own() },
        Claimant { remembered: v4("10.0.9.0/24"), ..own() },
    ] {
        assert_eq!(subnet_of(&keys, &used), "10.0.9.0/24");
        let worn = [&keys[..], &[("/h/h1", "garbage")]].concat();
        assert_eq!(subnet_of(&worn, &used), "10.0.9.0/24", "it proved that both came together");
    }
    let elsewhere = Claimant { remembered: v4("10.0.5.0/24"), ..own() };
    assert_eq!(subnet_of(&keys, &elsewhere), "10.0.5.0/24");
}
