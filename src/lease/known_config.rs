//! Pure. The network settings, kept as they were while those in etcd are broken or contradict them: one
//! bad key must not stop all agents.

use crate::lease::claim::refusal;
use crate::lease::error::LeaseError;
use crate::lease::identity::Network;
use crate::lease::records::{Key, RecordError};
use crate::lease::snapshot::{IgnoredKey, RecordStore, Snapshot, Stored};

/// Replaces network settings of `found` that `ours` cannot be used with by those of `known`, where they can,
/// and reports them as a fault. The revision of their last change stays that of etcd; their creation is only
/// remembered, as another creation of these settings would be a loss of data.
pub fn keep(found: &mut Snapshot, known: Option<&Snapshot>, ours: &Network) {
    let Some(known) = known.filter(|known| refusal::config(known, ours).is_none()) else { return };
    let Some(config) = known.config.as_ref() else { return };
    let what = match refusal::config(found, ours) {
        Some(LeaseError::ConfigBroken { reason, .. }) => reason,
        Some(LeaseError::ConfigMismatch { variable, theirs, ours, .. }) => {
            RecordError::Settings { variable, theirs, ours }
        }
        _ => return,
    };
    let (created, modified) = found.revisions(&ours.roots, &Key::Config);
    found.config = Some(Stored { value: config.value.clone(), created: 0, modified });
    found.add_fault(IgnoredKey {
        store: RecordStore::Etcd,
        key: ours.key(&Key::Config).into(),
        what,
        created,
        modified,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::{Backend, Roots};
    use crate::lease::restore::{Continuity, continuity};
    use crate::lease::snapshot::Raw;
    use crate::net::PerFamily;
    use crate::net::subnet::{self, Pool};

    fn network(pool: &str, margin: u8) -> Network {
        let pool = Pool::new(subnet::parse(pool).unwrap(), margin).ok();
        Network {
            roots: Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/z".into() },
            pools: PerFamily { v4: pool, v6: None },
            limits: PerFamily::default(),
            backend: Backend::Direct,
            tenants: Default::default(),
        }
    }

    fn store(config: &str, revision: i64) -> Snapshot {
        let mut found = Snapshot::default();
        let (key, value) = (b"/z/config".as_slice(), config.as_bytes());
        let roots = network("10.0.0.0/16", 8).roots;
        // Written anew each time.
        found.put(&roots, Raw { key, value, created: revision, modified: revision });
        found
    }

    #[test]
    fn settings_that_cannot_be_used_are_reported_and_those_before_are_kept() {
        let ours = network("10.0.0.0/16", 8);
        let good = store(&ours.config("a").to_json(), 1);
        let moved = network("10.128.0.0/16", 8).config("a").to_json();
        let cut = network("10.0.0.0/16", 9).config("a").to_json();
        for (bad, why) in [
            ("garbage", "not valid"),
            ("{}", "not valid"),
            (&*moved, "IP_SUBNET is 10.128.0.0/16 there, and 10.0.0.0/16 on this host"),
            (&*cut, "IP_SUBNET_MARGIN is 9 there, and 8 on this host"),
        ] {
            let mut found = store(bad, 7);
            keep(&mut found, Some(&good), &ours);
            assert_eq!(refusal::config(&found, &ours), None, "{bad}");
            let kept = found.config.as_ref().unwrap();
            assert_eq!(kept.value, good.config.as_ref().unwrap().value);
            assert_eq!((kept.created, kept.modified), (0, 7), "conditions still hold");
            assert_eq!(continuity(&good, &found), Continuity::Same, "no data was lost");
            let text = found.faults["/z/config"].to_string();
            assert!(text.contains(why), "{text}");
            let mut unknown = store(bad, 7);
            keep(&mut unknown, None, &ours);
            assert!(refusal::config(&unknown, &ours).is_some(), "a new host knows none before");
        }
    }

    #[test]
    fn usable_settings_are_taken_over() {
        let ours = network("10.0.0.0/16", 8);
        let good = store(&ours.config("a").to_json(), 1);
        for usable in [ours.config("b"), network("10.0.0.0/15", 9).config("a")] {
            let mut found = store(&usable.to_json(), 7);
            keep(&mut found, Some(&good), &ours);
            assert_eq!(found.config.unwrap().value, usable);
            assert!(found.faults.is_empty());
        }
    }
}
