//! The generations of other hosts' members that were received, on disk: an agent that starts after etcd was restored
//! from an older state does not believe that either.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::net::node_name::NodeName;
use crate::os::files::{self, FileError};
use crate::sources::kept_file;
use crate::sources::published::PublishedAt;

/// In the state directory.
pub const FILE: &str = "heard.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotedHeard {
    at: PublishedAt,
    generations: BTreeMap<NodeName, u64>,
}

/// # Errors
/// It cannot be written.
pub fn write(
    state_dir: &Path,
    at: &PublishedAt,
    generations: &BTreeMap<NodeName, u64>,
) -> Result<(), FileError> {
    let noted = NotedHeard { at: at.clone(), generations: generations.clone() };
    let text = serde_json::to_vec(&noted).unwrap_or_default();
    files::replace(&state_dir.join(FILE), &text, 0o600)
}

/// Nothing, if there is no file that can be used, or one of another etcd.
pub fn read(state_dir: &Path, at: &PublishedAt) -> BTreeMap<NodeName, u64> {
    let noted = kept_file::read::<NotedHeard>(&state_dir.join(FILE));
    noted.filter(|noted| noted.at.is_same(at)).map(|noted| noted.generations).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::EtcdSettings;
    use crate::lease::records::Roots;

    #[test]
    fn what_was_received_of_another_etcd_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/humanz/v1".into() };
        let at = |endpoint: &str| {
            let etcd =
                EtcdSettings { endpoints: vec![endpoint.to_owned()], ..EtcdSettings::default() };
            PublishedAt::of(&etcd, &roots, &"n1".parse().unwrap())
        };
        let received = [("n2".parse().unwrap(), 7)].into();
        assert!(read(folder.path(), &at("http://a:2379")).is_empty());
        write(folder.path(), &at("http://a:2379"), &received).unwrap();
        assert_eq!(read(folder.path(), &at("http://a:2379")), received);
        assert!(read(folder.path(), &at("http://b:2379")).is_empty());
        std::fs::write(folder.path().join(FILE), r#"{"at":1}"#).unwrap();
        assert!(read(folder.path(), &at("http://a:2379")).is_empty());
    }
}
