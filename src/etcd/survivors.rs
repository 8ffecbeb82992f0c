//! The wait of a new host on an empty etcd, in which hosts that lost their keys put them back.
//!
//! It counts only while etcd answers: what interrupts this host's stream, or silences it, keeps those hosts from
//! writing, too. Where nothing was ever written into the data, and etcd, of one member, has been running for
//! longer, those hosts have had that time already, and no host waits: the first host of a new cluster.

use std::time::Duration;

use etcd_client::{ResponseHeader, WatchOptions, WatchStream};
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::client::Etcd;
use crate::etcd::connection::MemberConnection;
use crate::etcd::failure::reason;
use crate::etcd::watch::canceled;
use crate::lease::EtcdError;
use crate::lease::records::{Key, Roots};
use crate::lease::session::grace::{GRACE, PUT_BACK};

/// How long a member may take from its start until it serves.
const SERVES: Duration = Duration::from_secs(3);

/// The revision of data into which nothing was ever written.
const UNWRITTEN: i64 = 1;

/// Time between two requests for a sign of life.
const ASK: Duration = Duration::from_millis(250);

/// Ends once etcd has answered all the time for [`GRACE`], or for what is left of it.
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
    let revision = answer(&mut stream).await?;
    let left = if revision == UNWRITTEN { left(etcd).await } else { GRACE };
    while since.elapsed() < left {
        sleep(ASK.min(left.saturating_sub(since.elapsed()))).await;
        answer(&mut stream).await?;
    }
    Ok(())
}

/// What those hosts have not had of [`GRACE`] since the only member serves.
async fn left(etcd: &Etcd) -> Duration {
    let uptime = timeout(PUT_BACK, etcd.members().uptime()).await;
    let served = uptime.ok().flatten().unwrap_or_default().saturating_sub(SERVES);
    GRACE.saturating_sub(served)
}

/// The revision in an answer to a request of now, before survivors would be late.
async fn answer(stream: &mut WatchStream) -> Result<i64, EtcdError> {
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
            Some(answer) => return Ok(answer.header().map_or(0, ResponseHeader::revision)),
            None => return Err(failed("the stream ended".to_owned())),
        }
    }
}

fn waiting(why: String) -> String {
    format!("wait on an empty etcd: {why}")
}
