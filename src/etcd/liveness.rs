//! The etcd lease of the sign of life.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch as latest;
use tokio::time::sleep;

use crate::etcd::client::Etcd;
use crate::etcd::contact::Contact;
use crate::etcd::settings::Setup;
use crate::lease::EtcdError;
use crate::os::random;

/// How long the sign of life outlives its agent.
const TTL: Duration = Duration::from_secs(30);

/// Time between two prolongations.
const EVERY: Duration = Duration::from_secs(10);

/// Time between attempts while etcd does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps an etcd lease alive for ever and tells its id; a lost one is replaced.
///
/// It says nothing about who owns what, and nothing waits for it. After each `change` etcd is perhaps
/// another one, and the lease a new one.
pub async fn keep(
    etcd: &Etcd,
    id: latest::Sender<Option<i64>>,
    mut change: latest::Receiver<Setup>,
    contact: &Contact,
) -> Infallible {
    loop {
        change.mark_unchanged();
        match etcd.grant(TTL).await {
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

/// Keeps `lease` alive until it is gone; a member that fails does not mean that, nor does a connection
/// that takes the place of the one in use.
async fn hold(etcd: &Etcd, lease: i64, contact: &Contact) {
    let mut renewed = etcd.members().renewed();
    loop {
        tokio::select! {
            ended = etcd.keep_alive(lease, EVERY) => {
                contact.failed(&ended);
                match ended {
                    EtcdError::NoLease(why) => {
                        log::debug!("{why}");
                        return;
                    }
                    why => log::debug!("{why}"),
                }
            }
            Ok(()) = renewed.changed() => continue,
        }
        sleep(random::jittered(RETRY)).await;
    }
}
