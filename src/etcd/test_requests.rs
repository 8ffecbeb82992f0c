//! Asks another host for pods of a connectivity test, and keeps the request for as long as the test runs.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::etcd::client::Etcd;
use crate::etcd::test_calls::REQUEST_TTL;
use crate::lease::EtcdError;
use crate::lease::records::{NodeName, TestPodsState, TestRequest};

/// How long an agent may take to read the request, while it detaches the pods of an earlier test, between two, or while its
/// watch rests; and to attach the pods.
const READ_WITHIN: Duration = Duration::from_secs(10);
const ATTACHED_WITHIN: Duration = Duration::from_secs(30);

/// The first wait for an answer; each further one is twice as long, up to the other.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_millis(400);

/// How often both hosts look for the request while the pods are held.
pub const LOOK: Duration = Duration::from_millis(500);

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedTest {
    Answered(TestPodsState),
    /// What is there is no answer.
    Unclear(String),
    NoAnswer,
    /// The request was read, and no pods came.
    NoPods,
    /// This host asks that one already.
    Already,
    /// etcd does not answer, or refuses the request.
    Failed(String),
    /// The request was there, and is not any more: the other host detaches the pods.
    Ended,
}

/// Asks `other` in the name of `host`, reports what becomes of it, and keeps the request until `stopped`; reports also if
/// it ends before.
pub async fn keep(
    etcd: &Etcd,
    (host, other): (&NodeName, &NodeName),
    report: impl Fn(AskedTest),
    mut stopped: oneshot::Receiver<()>,
) {
    let made = tokio::select! {
        // What was written by then ends with its etcd lease.
        _ = &mut stopped => return,
        made = etcd.request_test(host, other) => made,
    };
    let (lease, revision) = match made {
        Ok(Some(made)) => made,
        Ok(None) => return report(AskedTest::Already),
        Err(error) => return report(AskedTest::Failed(error.to_string())),
    };
    let answer = async {
        let asked = wait(etcd, (host, other), revision).await;
        report(asked.unwrap_or_else(|error| AskedTest::Failed(error.to_string())));
        ended(etcd, TestRequest { from: host.clone(), revision }, other).await;
        report(AskedTest::Ended);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        _ = stopped => {}
        never = answer => match never {},
        never = keep_alive(etcd, lease) => match never {},
    }
    if let Err(error) = etcd.revoke(lease).await {
        log::debug!("the request ends by itself: {error}");
    }
}

/// Returns when `request` is gone. While etcd does not answer that is not known.
async fn ended(etcd: &Etcd, request: TestRequest, other: &NodeName) {
    while !matches!(etcd.is_test_requested(&request, other).await, Ok(false)) {
        sleep(LOOK).await;
    }
}

async fn wait(
    etcd: &Etcd,
    (host, other): (&NodeName, &NodeName),
    revision: i64,
) -> Result<AskedTest, EtcdError> {
    let (begun, mut pause, mut is_read) = (Instant::now(), FIRST_LOOK, false);
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_LOOK);
        match etcd.test_answer(other, host, revision).await? {
            Some(Ok(answer)) if answer.state == TestPodsState::Preparing => is_read = true,
            Some(Ok(answer)) => return Ok(AskedTest::Answered(answer.state)),
            Some(Err(why)) => return Ok(AskedTest::Unclear(why)),
            None => {}
        }
        match (is_read, begun.elapsed()) {
            (false, waited) if waited > READ_WITHIN => return Ok(AskedTest::NoAnswer),
            (true, waited) if waited > ATTACHED_WITHIN => return Ok(AskedTest::NoPods),
            _ => {}
        }
    }
}

async fn keep_alive(etcd: &Etcd, lease: i64) -> Infallible {
    loop {
        let error = etcd.keep_alive(lease, REQUEST_TTL / 3).await;
        log::debug!("keep the request: {error}");
        sleep(FIRST_LOOK * 10).await;
    }
}
