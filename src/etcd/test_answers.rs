//! Pods of this host for connectivity tests of other hosts, on request: one test at a time, in turn, for a bounded time.
//!
//! Whoever may write a request gets two pods as any pod is, and nothing else: a request has no values.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::etcd::client::Etcd;
use crate::etcd::test_requests::LOOK;
use crate::lease::records::{NodeName, TestAnswer, TestPodsState, TestRequest};
use crate::os::attended::AttendedProgram;

/// Longest time for one test: every path of one with everything lost takes less.
pub const LONGEST: Duration = Duration::from_secs(300);

/// Least time between two tests, and between two refusals.
const BETWEEN: Duration = Duration::from_secs(2);
const BETWEEN_REFUSALS: Duration = Duration::from_millis(200);

/// How long the pods may take to be detached.
const END: Duration = Duration::from_secs(5);

/// Hosts whose requests wait; others are not answered.
const MOST_WAITING: usize = 64;

/// Two pods, for as long as the program that holds them is attended.
pub struct HeldTestPods {
    pub pods: Vec<Vec<IpAddr>>,
    pub program: AttendedProgram,
}

/// Attaches them; an error is the answer instead.
pub type TestPodSource = Arc<dyn Fn() -> Result<HeldTestPods, TestPodsState> + Send + Sync>;

/// Shared by the agent and the connection with etcd.
#[derive(Default)]
pub struct TestAnswers {
    /// The last request of each host that waits for its turn.
    waiting: latest::Sender<BTreeMap<NodeName, i64>>,
    source: OnceLock<TestPodSource>,
    held: Mutex<Option<HeldTestPods>>,
}

impl TestAnswers {
    /// This host answers with what `source` gives. Without one it does not.
    pub fn answer_with(&self, source: TestPodSource) {
        // Once, at the start.
        drop(self.source.set(source));
    }

    /// A host asks. Returns at once.
    pub fn ask(&self, request: TestRequest) {
        self.waiting.send_if_modified(|waiting| {
            let has_room = waiting.len() < MOST_WAITING || waiting.contains_key(&request.from);
            has_room && waiting.insert(request.from, request.revision) != Some(request.revision)
        });
    }

    /// Detaches the pods; waits for that.
    pub fn end(&self) {
        if let Some(held) = self.take() {
            held.program.end(END);
        }
    }

    fn hold(&self, held: HeldTestPods) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
    }

    fn take(&self) -> Option<HeldTestPods> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for a request that `is_wanted`, and takes the first one.
    async fn next(&self, is_wanted: impl Fn(&NodeName) -> bool) -> TestRequest {
        let mut waiting = self.waiting.subscribe();
        loop {
            let found = next_of(&waiting.borrow_and_update(), &is_wanted);
            if let Some(request) = found {
                self.waiting.send_if_modified(|waiting| {
                    waiting.remove(&request.from);
                    false
                });
                return request;
            }
            if waiting.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Another request of the same host waits: `request` is gone.
    fn is_replaced(&self, request: &TestRequest) -> bool {
        let revision = self.waiting.borrow().get(&request.from).copied();
        revision.is_some_and(|revision| revision != request.revision)
    }
}

impl fmt::Debug for TestAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestAnswers")
    }
}

fn next_of(
    waiting: &BTreeMap<NodeName, i64>,
    is_wanted: impl Fn(&NodeName) -> bool,
) -> Option<TestRequest> {
    let (from, revision) = waiting.iter().find(|(from, _)| is_wanted(from))?;
    Some(TestRequest { from: from.clone(), revision: *revision })
}

/// Answers forever. `etcd_lease`: that of the alive key.
pub async fn serve(
    etcd: &Etcd,
    answers: &TestAnswers,
    name: &NodeName,
    etcd_lease: &latest::Receiver<Option<i64>>,
) -> Infallible {
    let mut last: Option<NodeName> = None;
    loop {
        // A host that asks all the time lets others have their turn.
        let others = answers.next(|from| Some(from) != last.as_ref());
        let request = tokio::select! { biased;
            request = others => request,
            request = answers.next(|_| true) => request,
        };
        let turn = TestTurn { etcd, answers, name, etcd_lease, request };
        tokio::select! {
            () = turn.run() => {}
            never = turn.refuse_others() => match never {},
        }
        last = Some(turn.request.from);
        sleep(BETWEEN).await;
    }
}

/// The pods of one request.
struct TestTurn<'a> {
    etcd: &'a Etcd,
    answers: &'a TestAnswers,
    name: &'a NodeName,
    etcd_lease: &'a latest::Receiver<Option<i64>>,
    request: TestRequest,
}

impl TestTurn<'_> {
    async fn run(&self) {
        let Some(source) = self.answers.source.get().cloned() else { return };
        if !self.answer(&self.request, TestPodsState::Preparing).await {
            return;
        }
        log::info!("{} asks for two pods to test the paths to them", self.request.from);
        let attached = spawn_blocking(move || source()).await.unwrap_or(Err(TestPodsState::Failed));
        let state = match attached {
            Err(state) => state,
            Ok(held) => {
                let pods = held.pods.clone();
                self.answers.hold(held);
                TestPodsState::Pods(pods)
            }
        };
        if self.answer(&self.request, state).await {
            self.wait().await;
        }
        if let Some(held) = self.answers.take() {
            // A failure is that of the thread, with the process.
            drop(spawn_blocking(move || held.program.end(END)).await);
        }
    }

    /// Until no request needs the pods any more, if there are some.
    async fn wait(&self) {
        let end = Instant::now() + LONGEST;
        let is_held = || self.answers.held.lock().is_ok_and(|held| held.is_some());
        while is_held() && Instant::now() < end && !self.answers.is_replaced(&self.request) {
            sleep(LOOK).await;
            if self.is_over().await {
                break;
            }
        }
    }

    /// The request is gone. While etcd does not answer that is not known.
    async fn is_over(&self) -> bool {
        matches!(self.etcd.is_test_requested(&self.request, self.name).await, Ok(false))
    }

    async fn refuse_others(&self) -> Infallible {
        loop {
            let holder = &self.request.from;
            let other = self.answers.next(|from| from != holder).await;
            if self.is_over().await {
                // It is the next one.
                self.answers.ask(other);
                return std::future::pending().await;
            }
            self.answer(&other, TestPodsState::Busy(holder.clone())).await;
            sleep(BETWEEN_REFUSALS).await;
        }
    }

    /// False: the request is gone, or nothing can be answered.
    async fn answer(&self, request: &TestRequest, state: TestPodsState) -> bool {
        let Some(alive) = *self.etcd_lease.borrow() else { return false };
        let answer = TestAnswer::new(state);
        let answered = self.etcd.answer_test(self.name, request, &answer, alive).await;
        answered.unwrap_or_else(|error| {
            log::debug!("pods of this host for a test of another one: {error}");
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_one_request_and_a_flood_of_hosts_finds_no_room() {
        let answers = TestAnswers::default();
        let _session = answers.waiting.subscribe();
        let ask = |from: &str, revision| {
            answers.ask(TestRequest { from: from.parse().unwrap(), revision });
        };
        for revision in 1..1000 {
            ask("h1", revision);
            ask(&format!("x{revision}"), revision);
        }
        let waiting = answers.waiting.borrow().clone();
        assert_eq!(waiting.len(), MOST_WAITING);
        assert_eq!(waiting.get("h1"), Some(&999), "the last one counts");
        let first = next_of(&waiting, |from| from.as_str() != "h1").unwrap();
        assert_eq!(first, TestRequest { from: "x1".parse().unwrap(), revision: 1 });
        let request = TestRequest { from: "h1".parse().unwrap(), revision: 998 };
        assert!(answers.is_replaced(&request));
        assert!(!answers.is_replaced(&TestRequest { revision: 999, ..request }));
    }
}
