//! Takes renewed certificates and passwords over.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use crate::etcd::client::Etcd;
use crate::etcd::update::Update;

/// Time between two looks at the files. What is in them is taken when it was the same at two of them:
/// a certificate and its key are not written at once.
const LOOK: Duration = Duration::from_secs(2);

/// Looks at the files for ever, and says what is wrong with them whenever that changes.
///
/// They are looked at, not listened to: a file is replaced by a write, by a rename, by another symbolic
/// link above it (Kubernetes' `..data`), or by a mount.
pub async fn follow(etcd: &Etcd, mut say: impl FnMut(Update)) -> Infallible {
    let mut told = Default::default();
    loop {
        sleep(LOOK).await;
        etcd.members().look().await;
        etcd.members().look_at_oddity().await;
        let (taken, faults) = etcd.members().files();
        let old = taken.untimely().into_iter().map(|found| found.to_string());
        let now = (faults.into_iter().chain(old).collect(), taken.until());
        if told != now {
            told = now;
            let (wrong, until) = told.clone();
            say(Update::Files { wrong, until });
        }
    }
}
