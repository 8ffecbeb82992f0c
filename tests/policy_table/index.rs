//! The index of selectors finds what each of them finds.

use std::collections::BTreeSet;

use humanz::policy::members::peers;
use humanz::policy::selector_index::SelectorIndex;
use humanz::policy::{LabelSelector, Namespaces, Selector};

use super::random::Random;
use super::world::World;

#[test]
fn selectors_are_found_as_if_each_were_looked_at() {
    let (mut found, mut not_found) = (0, 0);
    for seed in 0..3000 {
        let world = World::random(&mut Random::new(seed));
        let subjects = world.rules.iter().map(|rule| rule.subject.clone());
        let nothing = LabelSelector::new([]);
        let everything =
            Selector::Pods { namespaces: Namespaces::Labelled(nothing.clone()), labels: nothing };
        let all: BTreeSet<Selector> =
            subjects.chain(peers(world.rules.iter())).chain([everything]).collect();
        let all: Vec<&Selector> = all.iter().collect();
        let index = SelectorIndex::new(all.iter().copied());
        for pod in &world.endpoints.pods {
            let mut places = index.matching(pod);
            places.sort_unstable();
            let wanted: Vec<usize> =
                (0..all.len()).filter(|place| all[*place].matches_pod(pod)).collect();
            assert_eq!(places, wanted, "seed {seed}, {pod}");
            found += wanted.len();
            not_found += all.len() - wanted.len();
        }
    }
    println!("found {found}, not found {not_found}");
    assert!(found > 10_000 && not_found > 10_000);
}
