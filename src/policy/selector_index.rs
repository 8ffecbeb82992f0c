//! Pure. Which of many selectors find a pod, without a look at each of them.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use crate::policy::endpoint::Endpoint;
use crate::policy::name::Scoped;
use crate::policy::selector::{Namespaces, Selector};

/// Selectors, owned or borrowed, by one thing that they ask for.
#[derive(Debug)]
pub struct SelectorIndex<S> {
    all: Vec<S>,
    /// Their places in `all` by the hash of what they ask for.
    places: HashMap<u64, Vec<usize>>,
}

/// What a pod must have, among more.
#[derive(PartialEq, Eq, Hash)]
enum IndexKey<'a> {
    /// A namespace of this name, and a label with this value, as far as there is any.
    Pods(Option<&'a str>, Option<(&'a str, &'a str)>),
    Group(&'a Scoped),
    Network(&'a Scoped),
}

impl<S> Default for SelectorIndex<S> {
    fn default() -> SelectorIndex<S> {
        SelectorIndex { all: Vec::new(), places: HashMap::new() }
    }
}

impl<S: Borrow<Selector>> SelectorIndex<S> {
    pub fn new(selectors: impl IntoIterator<Item = S>) -> SelectorIndex<S> {
        let all: Vec<S> = selectors.into_iter().collect();
        let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
        for (place, selector) in all.iter().enumerate() {
            for asked in asked(selector.borrow()) {
                places.entry(asked.hash()).or_default().push(place);
            }
        }
        SelectorIndex { all, places }
    }

    /// The selectors, by place.
    pub fn all(&self) -> &[S] {
        &self.all
    }

    /// The places of those that find `pod`, in their order.
    pub fn matching(&self, pod: &Endpoint) -> Vec<usize> {
        let namespace = pod.namespace.name().as_str();
        let labels = pod.labels.iter().map(|(key, value)| (&**key, &**value));
        let labels = labels.map(Some).chain([None]);
        let pods = labels.flat_map(|label| {
            [IndexKey::Pods(Some(namespace), label), IndexKey::Pods(None, label)]
        });
        let group = pod.group.as_ref().map(IndexKey::Group);
        let network = pod.network.as_ref().map(IndexKey::Network);
        let mut found: Vec<usize> = pods
            .chain(group)
            .chain(network)
            .filter_map(|asked| self.places.get(&asked.hash()))
            .flatten()
            .copied()
            .filter(|place| self.all[*place].borrow().matches_pod(pod))
            .collect();
        found.sort_unstable();
        // Of two things that a selector may ask for one hash.
        found.dedup();
        found
    }
}

impl IndexKey<'_> {
    fn hash(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }
}

/// A pod that the selector finds has exactly one of these.
fn asked(selector: &Selector) -> Vec<IndexKey<'_>> {
    match selector {
        Selector::Pods { namespaces, labels } => {
            let namespace = match namespaces {
                Namespaces::Named(name) => Some(name.as_str()),
                Namespaces::Labelled(_) => None,
            };
            match labels.one_of() {
                Some((key, values)) => {
                    values.map(|value| IndexKey::Pods(namespace, Some((key, value)))).collect()
                }
                None => vec![IndexKey::Pods(namespace, None)],
            }
        }
        Selector::Group(group) => vec![IndexKey::Group(group)],
        Selector::Network(network) => vec![IndexKey::Network(network)],
        Selector::Nodes(_) | Selector::Doubtful { .. } => Vec::new(),
    }
}
