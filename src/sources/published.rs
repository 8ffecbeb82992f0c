//! What this host sent of its members of groups, on disk: an agent that is killed, or a host that fails, does
//! not forget what etcd may have.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::etcd::EtcdSettings;
use crate::lease::records::Roots;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::os::files::{self, FileError};
use crate::policy::held::Published;
use crate::sources::kept_file;

/// In the state directory.
pub const FILE: &str = "published.json";

/// Where members are published, and as whose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedAt {
    endpoints: BTreeSet<String>,
    prefix: String,
    host: NodeName,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotedPublished {
    at: PublishedAt,
    published: Published,
    /// The generation that was sent last.
    #[serde(default)]
    generation: u64,
}

impl PublishedAt {
    pub fn of(etcd: &EtcdSettings, roots: &Roots, host: &NodeName) -> PublishedAt {
        let endpoints = etcd.endpoints.iter().cloned().gather();
        PublishedAt { endpoints, prefix: roots.humanz.clone(), host: host.clone() }
    }

    /// An etcd that has a member in common is the same one.
    pub fn is_same(&self, other: &PublishedAt) -> bool {
        let is_same_etcd = !self.endpoints.is_disjoint(&other.endpoints);
        is_same_etcd && (&self.prefix, &self.host) == (&other.prefix, &other.host)
    }
}

/// # Errors
/// It cannot be written.
pub fn write(
    state_dir: &Path,
    at: &PublishedAt,
    published: &Published,
    generation: u64,
) -> Result<(), FileError> {
    let noted = NotedPublished { at: at.clone(), published: published.clone(), generation };
    let text = serde_json::to_vec(&noted).unwrap_or_default();
    files::replace(&state_dir.join(FILE), &text, 0o600)
}

/// What was sent, and its generation. Not known, where there is no file, none that can be used, or one about
/// another place: new pods wait then until etcd has what this host says.
pub fn read(state_dir: &Path, at: &PublishedAt) -> (Published, u64) {
    let path = state_dir.join(FILE);
    match kept_file::read::<NotedPublished>(&path) {
        Some(noted) if noted.at.is_same(at) => (noted.published, noted.generation),
        Some(noted) => {
            let PublishedAt { prefix, host, .. } = noted.at;
            log::warn!("{} is of host {host} below {prefix}: not used", path.display());
            Default::default()
        }
        None => Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_was_published_elsewhere_or_as_another_host_is_not_known_here() {
        let folder = tempfile::tempdir().unwrap();
        let at = |endpoints: &[&str], prefix: &str, host: &str| PublishedAt {
            endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(),
            prefix: prefix.to_owned(),
            host: host.parse().unwrap(),
        };
        let here = at(&["http://a:2379", "http://b:2379"], "/humanz/v1", "n1");
        let owners = Arc::new([("10.1.2.3".parse().unwrap(), "c1".to_owned())].into());
        let mut published = Published::default();
        published.send(&owners);
        published.commit(&owners);
        write(folder.path(), &here, &published, 7).unwrap();
        let is_known = |at: &PublishedAt| read(folder.path(), at) == (published.clone(), 7);
        assert!(is_known(&here) && is_known(&at(&["http://b:2379"], "/humanz/v1", "n1")));
        assert!(!is_known(&at(&["http://c:2379"], "/humanz/v1", "n1")));
        assert!(!is_known(&at(&["http://a:2379"], "/other/v1", "n1")));
        let other = at(&["http://a:2379"], "/humanz/v1", "n2");
        assert!(!is_known(&other) && !read(folder.path(), &other).0.is_known());
        for hostile in ["", "[]", r#"{"committed":{},"perhaps":{}}"#, "\u{0}"] {
            fs::write(folder.path().join(FILE), hostile).unwrap();
            assert!(!read(folder.path(), &here).0.is_known(), "{hostile}");
        }
        // Of a version that knew no generations.
        let earlier = r#"{"at":{"endpoints":["http://a:2379"],"prefix":"/humanz/v1","host":"n1"},
            "published":{"committed":{},"perhaps":{}}}"#;
        fs::write(folder.path().join(FILE), earlier).unwrap();
        let (published, generation) = read(folder.path(), &here);
        assert!(published.is_known() && generation == 0);
    }
}
