//! The rows of the reachability matrix: this host's is told to the others, theirs are read when
//! somebody asks. Nothing else depends on either: what fails is remarked once and tried again seldom.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch as latest};
use tokio::time::sleep;

use crate::etcd::client::Etcd;
use crate::lease::EtcdError;
use crate::lease::records::{NodeName, Row};
use crate::os::random;

/// What was read serves everybody who asks within this time.
const FRESH: Duration = Duration::from_secs(5);

/// Wait before a row that could not be told is told again: the sign of life comes first, twice as long
/// each time, up to [`REFUSED`] …
const NO_LIFE: Duration = Duration::from_secs(10);
/// … etcd is away: so long, and then as after a new etcd lease …
const AWAY: Duration = Duration::from_secs(60);
/// … or does not let this host do that.
const REFUSED: Duration = Duration::from_secs(3600);

/// What is told to the other hosts and read of them.
#[derive(Debug, Default)]
pub struct Rows {
    own: latest::Sender<Own>,
    read: latest::Sender<Option<Arc<Read>>>,
    wanted: Notify,
    /// Why this host's row is not told.
    untold: Mutex<Option<String>>,
}

/// This host's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Own {
    row: Option<String>,
    /// Within so much time hosts that have a new etcd lease put their rows again.
    spread: Duration,
}

/// What was read.
#[derive(Debug)]
pub struct Read {
    at: Instant,
    /// The rows, or why there are none.
    pub found: Result<Found, String>,
}

/// The rows of all hosts that told one.
#[derive(Debug, Default)]
pub struct Found {
    /// The rows.
    pub rows: BTreeMap<NodeName, Row>,
    /// Keys that hold no row, with the reason of one.
    pub bad: usize,
    /// Why one of them is none.
    pub why: Option<String>,
    /// There are more than were read.
    pub cut: bool,
}

impl Rows {
    /// Tells the others this row, or that there is none, as soon as etcd can be reached. Returns at
    /// once. `spread`: see [`crate::lease::publish::gap`].
    pub fn tell(&self, row: Option<&Row>, spread: Duration) {
        let own = Own { row: row.map(Row::to_json), spread };
        self.own.send_if_modified(|told| {
            let changed = told.row != own.row;
            *told = own;
            changed
        });
    }

    /// What the others tell, as of the last few seconds. Waits for etcd: limit it.
    pub async fn read(&self) -> Arc<Read> {
        let mut read = self.read.subscribe();
        loop {
            if let Some(read) = read.borrow_and_update().as_ref().filter(|read| read.is_fresh()) {
                return Arc::clone(read);
            }
            self.wanted.notify_one();
            if read.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why this host's row is not told, if so.
    pub fn untold(&self) -> Option<String> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remarks once what is wrong; that etcd is away is told by others.
    fn remark(&self, error: Option<EtcdError>) {
        let away = matches!(error, Some(EtcdError::Unreachable(_)));
        let why = error.map(|error| error.to_string());
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = why.as_ref().filter(|why| !away && untold.as_ref() != Some(why)) {
            log::info!(
                "other hosts are not told which hosts answer this one: {why} (nothing else depends on it)"
            );
        }
        *untold = why;
    }
}

impl Read {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

/// Tells and reads for ever. `kept`: the etcd lease of the sign of life.
pub async fn keep(
    etcd: &Etcd,
    rows: &Rows,
    name: &NodeName,
    kept: latest::Receiver<Option<i64>>,
) -> Infallible {
    tokio::select! {
        never = tell(etcd, rows, name, kept) => never,
        never = read(etcd, rows) => never,
    }
}

async fn tell(
    etcd: &Etcd,
    rows: &Rows,
    name: &NodeName,
    mut kept: latest::Receiver<Option<i64>>,
) -> Infallible {
    let mut own = rows.own.subscribe();
    let mut put = false;
    let mut lifeless = 0;
    loop {
        let lease = *kept.borrow_and_update();
        let Own { row, spread } = own.borrow_and_update().clone();
        let done = match (lease, row) {
            (Some(lease), Some(row)) => {
                etcd.put_row(name, &row, lease).await.inspect(|_| put = true)
            }
            (Some(lease), None) if put => {
                etcd.remove_row(name, lease).await.inspect(|_| put = false)
            }
            _ => Ok(true),
        };
        let again = again(&done, lifeless, spread);
        lifeless += u32::from(matches!(done, Ok(false)));
        rows.remark(done.err());
        tokio::select! {
            Ok(()) = own.changed() => lifeless = 0,
            Ok(()) = kept.changed() => {
                lifeless = 0;
                let spread = own.borrow().spread;
                sleep(random::up_to(spread)).await;
            }
            () = sleep(again.unwrap_or_default()), if again.is_some() => {}
            else => std::future::pending().await,
        }
    }
}

/// How long to wait before the row is told again; `None` if it was told. `lifeless`: how often it was
/// not, one time after the other, for want of a sign of life: such a write costs etcd as much as one that
/// it carries out. What etcd was away for, the other hosts could not tell either.
fn again(done: &Result<bool, EtcdError>, lifeless: u32, spread: Duration) -> Option<Duration> {
    Some(match done {
        Ok(true) => return None,
        Ok(false) => {
            random::jittered(REFUSED.min(NO_LIFE.saturating_mul(2_u32.saturating_pow(lifeless))))
        }
        Err(EtcdError::Unreachable(_) | EtcdError::NoLease(_)) => {
            random::jittered(AWAY) + random::up_to(spread)
        }
        Err(_) => random::jittered(REFUSED),
    })
}

async fn read(etcd: &Etcd, rows: &Rows) -> Infallible {
    loop {
        rows.wanted.notified().await;
        let fresh = rows.read.borrow().as_ref().is_some_and(|read| read.is_fresh());
        if !fresh {
            let found = etcd.rows().await.map_err(|error| error.to_string());
            rows.read.send_replace(Some(Arc::new(Read { at: Instant::now(), found })));
        }
        // Of ten thousand hosts it is some megabytes, and seldom looked at.
        tokio::select! {
            () = rows.wanted.notified() => rows.wanted.notify_one(),
            () = sleep(FRESH) => drop(rows.read.send_replace(None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_sign_of_life_asks_ever_less_often() {
        let within = |lifeless, least: u64, most: u64| {
            let waits = again(&Ok(false), lifeless, Duration::ZERO).unwrap();
            let limits = Duration::from_secs(least)..=Duration::from_secs(most);
            assert!(limits.contains(&waits), "{lifeless} times: {waits:?}");
        };
        within(0, 5, 10);
        within(1, 10, 20);
        within(8, 1280, 2560);
        within(9, 1800, 3600);
        within(u32::MAX, 1800, 3600);
        assert_eq!(again(&Ok(true), 3, Duration::ZERO), None);
    }

    #[test]
    fn after_an_outage_rows_come_as_slowly_as_without_one() {
        let spread = crate::lease::publish::gap(10_000);
        let away = Err(EtcdError::Unreachable("gone".to_owned()));
        let mut seconds = vec![0; 600];
        for _ in 0..10_000 {
            seconds[again(&away, 0, spread).unwrap().as_secs() as usize] += 1;
        }
        assert!(seconds.iter().all(|count| *count < 60), "{:?}", seconds.iter().max());
    }
}
