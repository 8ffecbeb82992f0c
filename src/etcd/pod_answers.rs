//! The pods of all hosts, on request: a host writes a request, each agent answers with one value, and both go with
//! etcd leases without keep-alive. Without a request nothing is written.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::etcd::client::{Etcd, FoundPods};
use crate::lease::EtcdError;
use crate::lease::records::{HostPods, NodeName};
use crate::os::random;

/// Least time between two answers of a host, whatever others ask.
const BETWEEN: Duration = Duration::from_secs(2);

/// The first wait for answers; each further one is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// The pods of this host; `None`: they are not known.
pub type PodSource = Arc<dyn Fn() -> Option<HostPods> + Send + Sync>;

/// Shared by the agent and the connection with etcd.
#[derive(Default)]
pub struct PodAnswers {
    /// The longest random wait before the answer, so that not all hosts write at once.
    asked: latest::Sender<Duration>,
    source: OnceLock<PodSource>,
}

impl PodAnswers {
    /// This host answers with what `source` gives. Without one it does not.
    pub fn answer_with(&self, source: PodSource) {
        // Once, at the start.
        drop(self.source.set(source));
    }

    /// A host asks. Returns at once.
    pub fn ask(&self, spread: Duration) {
        self.asked.send_replace(spread);
    }
}

impl fmt::Debug for PodAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodAnswers")
    }
}

/// Answers forever. `etcd_lease`: that of the alive key.
pub async fn serve(
    etcd: &Etcd,
    answers: &PodAnswers,
    name: &NodeName,
    etcd_lease: &latest::Receiver<Option<i64>>,
) -> Infallible {
    let mut asked = answers.asked.subscribe();
    while asked.changed().await.is_ok() {
        let spread = *asked.borrow_and_update();
        sleep(random::up_to(spread)).await;
        if let Some(source) = answers.source.get().cloned()
            && let Ok(Some(pods)) = spawn_blocking(move || source()).await
            && let Some(alive) = current(etcd_lease)
            && let Err(error) = etcd.answer_pods(name, &pods, alive).await
        {
            log::debug!("pods of this host for another one: {error}");
        }
        sleep(BETWEEN).await;
    }
    std::future::pending().await
}

/// A copy. Borrowed in the condition above it would be locked until the answer is written, and the session, which
/// writes a new etcd lease there in the same thread, would wait for ever.
fn current(etcd_lease: &latest::Receiver<Option<i64>>) -> Option<i64> {
    *etcd_lease.borrow()
}

/// Asks in the name of `host`; gives the answers once all of `expected` have answered, or after `within`.
pub async fn ask(
    etcd: &Etcd,
    host: &NodeName,
    expected: &BTreeSet<NodeName>,
    within: Duration,
) -> Result<FoundPods, EtcdError> {
    let (lease, revision) = etcd.ask_for_pods(host).await?;
    let (end, mut wait) = (Instant::now() + within, FIRST_LOOK);
    let found = loop {
        sleep(wait.min(end.saturating_duration_since(Instant::now()))).await;
        let found = etcd.pods_since(revision).await;
        let is_complete = |found: &FoundPods| expected.iter().all(|host| found.has(host));
        match found {
            Ok(found) if found.cut || is_complete(&found) || Instant::now() >= end => {
                break Ok(found);
            }
            Err(error) => break Err(error),
            Ok(_) => wait *= 2,
        }
    };
    if let Err(error) = etcd.revoke(lease).await {
        log::debug!("the request ends by itself: {error}");
    }
    found
}
