//! Pure. What a container says of itself for policies: its UID, labels, and the
//! annotations that name its group and network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cni::args::CniArgs;
use crate::cni::json::JsonField;
use crate::net::gather::Gather;

/// Annotations of other prefixes are none of ours.
const PREFIXES: [&str; 2] = ["humanz.io/", "io.contiv."];

/// More than this many words of a kind, or longer ones, are left out: they are kept with each address.
const MAX_WORDS: usize = 64;
pub const MAX_BYTES: usize = 253;

/// Words of a container; whether they count is for policies to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Words {
    /// The pod's own, for as long as it lives: its name may be that of an earlier pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Words {
    /// `labels` of `args.cni`: an object, or a list of `{key, value}`.
    ///
    /// Source: CNI conventions, "labels".
    pub(super) fn labels(args: &JsonField) -> Words {
        let Some(labels) = args.get("labels") else { return Words::default() };
        let value = labels.value();
        let object = value.as_object().into_iter().flatten();
        let object = object.map(|(key, value)| (Some(key.as_str()), value.as_str()));
        let list = value.as_array().into_iter().flatten();
        let list = list.map(|item| (item["key"].as_str(), item["value"].as_str()));
        let pairs = object.chain(list).filter_map(|(key, value)| Some((key?, value?)));
        Words { labels: limited(pairs), ..Words::default() }
    }

    /// Those of the pod's annotations. A longer one is cut to more than [`MAX_BYTES`]: what it asks for is refused,
    /// where without it the pod would get something else.
    pub(super) fn annotated(annotations: &JsonField) -> Words {
        let all = annotations.value().as_object().into_iter().flatten();
        let pairs = all.filter_map(|(key, value)| Some((key, value.as_str()?)));
        let is_ours = |key: &str| PREFIXES.iter().any(|it| key.starts_with(it));
        let ours = pairs.filter(|(key, _)| is_ours(key) && key.len() <= MAX_BYTES);
        let cut = |text: &str| -> String {
            let chars = text.char_indices().take_while(|(place, _)| *place <= MAX_BYTES);
            chars.map(|(_, char)| char).collect()
        };
        let kept = ours.take(MAX_WORDS).map(|(key, value)| (key.clone(), cut(value)));
        Words { annotations: kept.gather(), ..Words::default() }
    }

    /// With the unknown keys of `CNI_ARGS` as labels, where there are no others of their name.
    pub(super) fn with(mut self, args: &CniArgs) -> Words {
        self.uid = args.pod_uid.clone().filter(|uid| uid.len() <= MAX_BYTES);
        let further = args.further.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in limited(further) {
            self.labels.entry(key).or_insert(value);
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.uid.is_none() && self.labels.is_empty() && self.annotations.is_empty()
    }
}

fn limited<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let short = pairs.filter(|(key, value)| key.len().max(value.len()) <= MAX_BYTES);
    short.take(MAX_WORDS).map(|(key, value)| (key.to_owned(), value.to_owned())).gather()
}
