//! Reachability reports: this host's is written, those of all hosts are read on request. Nothing else
//! depends on them: a failure is logged once and retried ever less often.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch as latest};
use tokio::time::sleep;

use crate::etcd::client::{Etcd, FoundReports};
use crate::etcd::pod_answers::PodAnswers;
use crate::etcd::test_answers::TestAnswers;
use crate::lease::records::ReachabilityReport;
use crate::lease::{EtcdError, NodeName};
use crate::os::random;

/// A read serves all requests within this time.
const FRESH: Duration = Duration::from_secs(5);

/// Wait before the first retry; doubled for each further one …
const RETRY: Duration = Duration::from_secs(10);
/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Shared by the agent and the connection with etcd.
#[derive(Debug, Default)]
pub struct Reports {
    own: latest::Sender<OwnReport>,
    read: latest::Sender<Option<Arc<ReadReports>>>,
    requested: Notify,
    /// Why this host's report is not in etcd.
    unpublished: Mutex<Option<String>>,
    /// The answers of this host to requests for pods.
    pub pods: PodAnswers,
    /// Pods of this host for the tests of others.
    pub tests: TestAnswers,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnReport {
    report: Option<String>,
    /// Random wait before a retry, so that not all hosts write at once.
    spread: Duration,
}

#[derive(Debug)]
pub struct ReadReports {
    at: Instant,
    /// The reports, or why they could not be read.
    pub found: Result<FoundReports, String>,
}

impl Reports {
    /// Writes this host's report, or removes it, as soon as etcd answers. Returns at once. `spread`: see
    /// [`crate::lease::publish::spread`].
    pub fn publish(&self, report: Option<&ReachabilityReport>, spread: Duration) {
        let own = OwnReport { report: report.map(ReachabilityReport::to_json), spread };
        self.own.send_if_modified(|published| {
            let changed = published.report != own.report;
            *published = own;
            changed
        });
    }

    /// The reports of all hosts, at most [`FRESH`] old. Waits for etcd without a limit.
    pub async fn read(&self) -> Arc<ReadReports> {
        let mut read = self.read.subscribe();
        loop {
            if let Some(read) = read.borrow_and_update().as_ref().filter(|read| read.is_fresh()) {
                return Arc::clone(read);
            }
            self.requested.notify_one();
            if read.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why this host's report is not in etcd.
    pub fn unpublished(&self) -> Option<String> {
        self.unpublished.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs a new reason, unless etcd is away, which is logged elsewhere.
    fn note(&self, error: Option<EtcdError>) {
        let away = matches!(error, Some(EtcdError::Unreachable(_)));
        let why = error.map(|error| error.to_string());
        let mut unpublished = self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = why.as_ref().filter(|why| !away && unpublished.as_ref() != Some(why)) {
            log::info!("reachability report not published (nothing depends on it): {why}");
        }
        *unpublished = why;
    }
}

impl ReadReports {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

/// Writes and reads forever. `etcd_lease`: that of the alive key.
pub async fn serve(
    etcd: &Etcd,
    reports: &Reports,
    name: &NodeName,
    etcd_lease: latest::Receiver<Option<i64>>,
) -> Infallible {
    tokio::select! {
        never = write(etcd, reports, name, etcd_lease) => never,
        never = read(etcd, reports) => never,
    }
}

async fn write(
    etcd: &Etcd,
    reports: &Reports,
    name: &NodeName,
    mut etcd_lease: latest::Receiver<Option<i64>>,
) -> Infallible {
    let mut own = reports.own.subscribe();
    let (mut written, mut failures) = (false, 0);
    loop {
        let lease = *etcd_lease.borrow_and_update();
        let OwnReport { report, spread } = own.borrow_and_update().clone();
        let result = match lease {
            Some(lease) if written || report.is_some() => {
                etcd.set_report(name, report.as_deref(), lease).await
            }
            _ => Ok(true),
        };
        let done = matches!(result, Ok(true));
        written = if done { report.is_some() } else { written };
        reports.note(result.err());
        tokio::select! {
            Ok(()) = own.changed() => failures = 0,
            Ok(()) = etcd_lease.changed() => {
                failures = 0;
                sleep(random::up_to(spread)).await;
            }
            () = sleep(retry(failures, spread)), if !done => failures += 1,
            else => std::future::pending().await,
        }
    }
}

fn retry(failures: u32, spread: Duration) -> Duration {
    let wait = RETRY.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_RETRY);
    random::jittered(wait) + random::up_to(spread)
}

async fn read(etcd: &Etcd, reports: &Reports) -> Infallible {
    loop {
        reports.requested.notified().await;
        let fresh = reports.read.borrow().as_ref().is_some_and(|read| read.is_fresh());
        if !fresh {
            let found = etcd.reports().await.map_err(|error| error.to_string());
            reports.read.send_replace(Some(Arc::new(ReadReports { at: Instant::now(), found })));
        }
        // Those of ten thousand hosts take some megabytes, and are seldom requested.
        tokio::select! {
            () = reports.requested.notified() => reports.requested.notify_one(),
            () = sleep(FRESH) => drop(reports.read.send_replace(None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_become_rare() {
        let within = |failures, least: u64, most: u64| {
            let wait = retry(failures, Duration::ZERO);
            let limits = Duration::from_secs(least)..=Duration::from_secs(most);
            assert!(limits.contains(&wait), "{failures} failures: {wait:?}");
        };
        within(0, 5, 10);
        within(1, 10, 20);
        within(8, 1280, 2560);
        within(9, 1800, 3600);
        within(u32::MAX, 1800, 3600);
    }

    #[test]
    fn after_an_outage_reports_are_written_as_slowly_as_without_one() {
        let spread = crate::lease::publish::spread(10_000);
        let mut seconds = vec![0; 600];
        for _ in 0..10_000 {
            seconds[retry(0, spread).as_secs() as usize] += 1;
        }
        assert!(seconds.iter().all(|count| *count < 60), "{:?}", seconds.iter().max());
    }
}
