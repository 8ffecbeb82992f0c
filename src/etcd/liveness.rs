//! The etcd lease of the alive key.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch as latest;
use tokio::time::sleep;

use crate::etcd::client::Etcd;
use crate::etcd::contact::Contact;
use crate::etcd::settings::EtcdSetup;
use crate::etcd::update::Update;
use crate::lease::EtcdError;
use crate::os::random;

/// How long the alive key outlives its agent.
const TTL: Duration = Duration::from_secs(30);

/// Time between two renewals.
const EVERY: Duration = Duration::from_secs(10);

/// Time between attempts while etcd does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps an etcd lease alive forever and publishes its id; a lost one is replaced.
///
/// Ownership of subnets does not depend on it. After each `change` etcd may be another one, and the
/// lease is new.
pub async fn keep(
    etcd: &Etcd,
    id: latest::Sender<Option<i64>>,
    mut change: latest::Receiver<EtcdSetup>,
    contact: &Contact,
    mut publish: impl FnMut(Update),
) -> Infallible {
    let mut refused = None;
    loop {
        change.mark_unchanged();
        let granted = etcd.grant(TTL).await;
        let why = granted.as_ref().err().cloned().map(Into::into);
        // That no member answers is the session's to publish.
        if refused != why && !matches!(granted, Err(EtcdError::Unreachable(_))) {
            refused.clone_from(&why);
            publish(Update::Refused(why));
        }
        match granted {
            Ok(granted) => {
                id.send_replace(Some(granted));
                tokio::select! {
                    () = hold(etcd, granted, contact) => {}
                    Ok(()) = change.changed() => continue,
                }
            }
            Err(error) => {
                log::debug!("{error}");
                contact.failed(&error);
            }
        }
        sleep(random::jittered(RETRY)).await;
    }
}

/// Keeps `lease` alive until it expires, across failures of members and replaced connections.
async fn hold(etcd: &Etcd, lease: i64, contact: &Contact) {
    let mut renewed = etcd.members().renewed();
    loop {
        tokio::select! {
            ended = etcd.keep_alive(lease, EVERY) => {
                contact.failed(&ended);
                log::debug!("{ended}");
                if let EtcdError::NoLease(_) = ended {
                    return;
                }
            }
            Ok(()) = renewed.changed() => continue,
        }
        sleep(random::jittered(RETRY)).await;
    }
}
