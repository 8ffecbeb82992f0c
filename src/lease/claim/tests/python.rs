//! Claims beside hosts of the Python agent.

use super::*;
use crate::lease::claim::python;

#[test]
fn what_the_python_agent_left_is_adopted() {
    let (subnet, transaction) = written(&[("/h/h1", "10.0.9.0/24")], &own());
    assert_eq!(subnet, "10.0.9.0/24");
    assert_eq!(writes(&transaction), ["put /z/subnets/4/10.0.9.0-24", "put /z/nodes/h1"]);
}

#[test]
fn with_hosts_of_the_python_agent_only_the_drawn_slot_is_safe() {
    let keys = [OWN_ALIVE, ("/h/py", "10.0.7.0/24")];
    assert_eq!(next(&found(&keys), &own()), Step::AllocateTicket);
    assert_eq!(subnet_of(&[("/h/py", "10.0.6.0/24")], &own()), "10.0.7.0/24");
    let mut late = own();
    late.ticket = Some(300);
    assert_eq!(subnet_of(&[("/h/py", "10.0.45.0/24")], &late), "10.0.46.0/24");
}

#[test]
fn a_python_host_takes_only_a_subnet_that_a_host_can_have() {
    let lease = Lease { subnets: v4("10.0.9.0/24") };
    let keys = [("/h/h1", "10.0.9.0/24"), ("/h/a", "0.0.0.0/0"), ("/h/b", "10.0.0.0/16")];
    assert_eq!(python::taken_by(&found(&keys), &own(), &lease), None);
    let keys = [("/h/a", "10.0.9.0/24"), ("/h/h1", "10.0.9.0/24")];
    assert_eq!(python::taken_by(&found(&keys), &own(), &lease).unwrap().as_str(), "a");
    let had_a_record = Claimant { without_record: ["a".parse().unwrap()].into(), ..own() };
    assert_eq!(python::taken_by(&found(&keys), &had_a_record, &lease), None);
    let node = node("m2", "10.0.9.0/24");
    for record in [&*node, "garbage"] {
        let keys = [("/h/a", "10.0.9.0/24"), ("/z/nodes/a", record)];
        let found = found(&keys);
        assert_eq!(python::taken_by(&found, &own(), &lease), None, "it is none of those");
        assert!(!python::any(&found, &roots()));
    }
    let wide = [("/h/a", "10.0.8.0/23")];
    assert_eq!(python::taken_by(&found(&wide), &own(), &lease), None, "more than one slot");
}

#[test]
fn a_later_python_host_does_not_take_an_adopted_subnet() {
    let lease = Lease { subnets: v4("10.0.9.0/24") };
    let (ours, theirs) = (("/h/h1", "10.0.9.0/24"), ("/h/a", "10.0.9.0/24"));
    let claim = ("/z/subnets/4/10.0.9.0-24", "h1");
    let taken = |keys: &[_]| python::taken_by(&found(keys), &own(), &lease).is_some();
    assert!(!taken(&[ours, theirs]), "it was here first");
    assert!(!taken(&[ours, theirs, claim]), "and is claimed by now");
    assert!(taken(&[theirs, ours]), "the other one was");
    let mut chosen = found(&[]);
    for (key, value, revision) in
        [(ours.0, ours.1, 2), (claim.0, claim.1, 2), (theirs.0, theirs.1, 3)]
    {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        chosen.put(&roots(), Raw { key, value, created: revision, modified: revision });
    }
    assert!(python::taken_by(&chosen, &own(), &lease).is_some(), "it was chosen, not adopted");
    for used in
        [Claimant { keep: lease.subnets, ..own() }, Claimant { remembered: lease.subnets, ..own() }]
    {
        assert_eq!(python::taken_by(&chosen, &used, &lease), None, "pods use it");
    }
}

#[test]
fn a_dry_run_shows_the_claim_beside_a_python_host_of_the_same_subnet() {
    use crate::lease::session::{ClaimPreview, dry_run_claim};
    let (ours, theirs) = (("/h/h1", "10.0.9.0/24"), ("/h/a", "10.0.9.0/24"));
    let kept = ClaimPreview::Repaired(Lease { subnets: v4("10.0.9.0/24") });
    assert_eq!(dry_run_claim(&found(&[ours, theirs]), own()), Ok(kept));
    let another = ClaimPreview::Chosen(Lease { subnets: v4("10.0.7.0/24") });
    assert_eq!(dry_run_claim(&found(&[theirs, ours]), own()), Ok(another));
}
