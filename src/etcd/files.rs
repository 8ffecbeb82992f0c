//! Applies renewed certificates and passwords.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use crate::etcd::client::Etcd;
use crate::etcd::update::Update;
use crate::net::gather::Gather;

/// Time between two checks of the files. Changes are applied when two checks find the same: a
/// certificate and its key are not written at once.
const LOOK: Duration = Duration::from_secs(2);

/// Checks the files forever and publishes their problems when these change.
///
/// Polled, because a file may be replaced by a write, by a rename, by another symbolic link above it
/// (Kubernetes' `..data`), or by a mount.
pub async fn follow(etcd: &Etcd, mut publish: impl FnMut(Update)) -> Infallible {
    let mut published = Default::default();
    loop {
        sleep(LOOK).await;
        etcd.members().check_files().await;
        etcd.members().check_login().await;
        let (taken, faults) = etcd.members().files();
        let old = taken.untimely(SystemTime::now());
        let now = (faults.into_iter().chain(old).gather(), taken.until());
        if published != now {
            published = now;
            let (problems, until) = published.clone();
            publish(Update::Files { problems, until });
        }
    }
}
