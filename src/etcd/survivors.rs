//! The wait of a new host on an empty etcd, in which hosts that lost their keys put them back.
//!
//! It counts only while etcd answers: what interrupts this host's stream, or silences it, keeps those hosts from
//! writing, too.

use std::time::Duration;

use etcd_client::{WatchOptions, WatchStream};
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::client::Etcd;
use crate::etcd::connection::MemberConnection;
use crate::etcd::failure::reason;
use crate::etcd::watch::canceled;
use crate::lease::EtcdError;
use crate::lease::records::{Key, Roots};
use crate::lease::session::grace::{GRACE, PUT_BACK};

/// Time between two requests for a sign of life.
const ASK: Duration = Duration::from_millis(250);

/// Ends once etcd has answered all the time for [`GRACE`].
///
/// # Errors
/// etcd was away meanwhile: the wait begins anew with the next attempt.
pub async fn wait(etcd: &Etcd, roots: &Roots) -> Result<(), EtcdError> {
    let key = roots.key(&Key::Config);
    let request = async |mut member: MemberConnection| {
        member.watch.watch(key.as_str(), Some(WatchOptions::new())).await
    };
    let mut stream = etcd.members().call("watch", request).await?;
    let since = Instant::now();
    while since.elapsed() < GRACE {
        answer(&mut stream).await?;
        sleep(ASK).await;
    }
    answer(&mut stream).await
}

/// An answer to a request of now, before survivors would be late.
async fn answer(stream: &mut WatchStream) -> Result<(), EtcdError> {
    let failed = |why: String| EtcdError::Unreachable(waiting(why).into());
    stream.request_progress().await.map_err(|error| failed(reason(&error)))?;
    loop {
        let answer = timeout(PUT_BACK, stream.message()).await;
        let answer = answer.map_err(|_| failed(format!("no answer within {PUT_BACK:?}")))?;
        match answer.map_err(|error| failed(reason(&error)))? {
            Some(answer) if answer.canceled() => {
                return Err(canceled(&answer, waiting));
            }
            // The one that the watch was created with comes first.
            Some(answer) if answer.created() => {}
            Some(_) => return Ok(()),
            None => return Err(failed("the stream ended".to_owned())),
        }
    }
}

fn waiting(why: String) -> String {
    format!("wait on an empty etcd: {why}")
}
