//! Pure. Which of many selectors find a pod, without a look at each of them.

use std::collections::HashMap;

use crate::policy::endpoint::Endpoint;
use crate::policy::name::Scoped;
use crate::policy::selector::{Namespaces, Selector};

/// Selectors by one thing that they ask for.
#[derive(Debug)]
pub struct SelectorIndex<'a> {
    all: Vec<&'a Selector>,
    /// Their places in `all`.
    places: HashMap<Asked<'a>, Vec<usize>>,
}

/// What a pod must have, among more.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Asked<'a> {
    /// A namespace of this name, and a label with this value, as far as there is any.
    Pods(Option<&'a str>, Option<(&'a str, &'a str)>),
    Group(&'a Scoped),
    Network(&'a Scoped),
}

impl<'a> SelectorIndex<'a> {
    pub fn new(selectors: impl IntoIterator<Item = &'a Selector>) -> SelectorIndex<'a> {
        let all: Vec<&Selector> = selectors.into_iter().collect();
        let mut places: HashMap<Asked<'a>, Vec<usize>> = HashMap::new();
        for (place, selector) in all.iter().enumerate() {
            for asked in asked(selector) {
                places.entry(asked).or_default().push(place);
            }
        }
        SelectorIndex { all, places }
    }

    /// The places of those that find `pod`.
    pub fn matching(&self, pod: &Endpoint) -> Vec<usize> {
        let namespace = pod.namespace.name().as_str();
        let labels = pod.labels.iter().map(|(key, value)| (&**key, &**value));
        let labels = labels.map(Some).chain([None]);
        let pods = labels
            .flat_map(|label| [Asked::Pods(Some(namespace), label), Asked::Pods(None, label)]);
        let group = pod.group.as_ref().map(Asked::Group);
        let network = pod.network.as_ref().map(Asked::Network);
        pods.chain(group)
            .chain(network)
            .filter_map(|asked| self.places.get(&asked))
            .flatten()
            .copied()
            .filter(|place| self.all[*place].matches_pod(pod))
            .collect()
    }
}

/// A pod that the selector finds has exactly one of these.
fn asked(selector: &Selector) -> Vec<Asked<'_>> {
    match selector {
        Selector::Pods { namespaces, labels } => {
            let namespace = match namespaces {
                Namespaces::Named(name) => Some(name.as_str()),
                Namespaces::Labelled(_) => None,
            };
            match labels.one_of() {
                Some((key, values)) => {
                    values.map(|value| Asked::Pods(namespace, Some((key, value)))).collect()
                }
                None => vec![Asked::Pods(namespace, None)],
            }
        }
        Selector::Group(group) => vec![Asked::Group(group)],
        Selector::Network(network) => vec![Asked::Network(network)],
        Selector::Nodes(_) => Vec::new(),
    }
}
