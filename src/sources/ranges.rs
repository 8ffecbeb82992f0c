//! Values that hosts share beside their records: some ranges of keys, read and watched on request.

use std::mem;
use std::time::Duration;

use etcd_client::{
    Event, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, WatchOptions,
    WatchResponse, WatchStream,
};

use tokio::time::{Instant, Interval, interval_at, sleep_until};

use crate::etcd::failure::reason;
use crate::etcd::{Etcd, MemberConnection, after, canceled, watch_failed};
use crate::lease::EtcdError;

/// A value, and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenValue {
    pub bytes: Vec<u8>,
    pub revision: i64,
}

/// Changes that come closer together than this are taken together.
const COALESCE: Duration = Duration::from_millis(5);

/// Time between two requests for a sign of life …
const ASK: Duration = Duration::from_secs(10);

/// … and the longest time without one.
const SILENCE: Duration = Duration::from_secs(30);

/// Keys read in one transaction. Source: etcd's `--max-txn-ops`, 128.
const TOGETHER: usize = 64;

impl Etcd {
    /// The keys that begin with each of `ranges`, `None` instead of more than its limit; and a revision from
    /// which on nothing that was read can have been missed.
    pub async fn keys(
        &self,
        ranges: &[(String, usize)],
    ) -> Result<(Vec<Option<Vec<Vec<u8>>>>, i64), EtcdError> {
        let options = |(range, limit): &(String, usize)| {
            let most = i64::try_from(*limit).unwrap_or(i64::MAX - 1) + 1;
            let options = GetOptions::new().with_range(after(range)).with_keys_only();
            (range.clone(), Some(options.with_limit(most)))
        };
        let (found, revision) = self.gets(&ranges.iter().map(options).collect::<Vec<_>>()).await?;
        let keys = |(found, (_, limit)): (Option<GetResponse>, &(String, usize))| {
            let found = found.iter().flat_map(|found| found.kvs());
            let keys: Vec<Vec<u8>> = found.map(|pair| pair.key().to_vec()).collect();
            (keys.len() <= *limit).then_some(keys)
        };
        Ok((found.into_iter().zip(ranges).map(keys).collect(), revision))
    }

    /// The values of `keys` that exist, in their order.
    pub async fn values(&self, keys: &[String]) -> Result<Vec<Option<WrittenValue>>, EtcdError> {
        let keys: Vec<_> = keys.iter().map(|key| (key.clone(), None)).collect();
        let (found, _) = self.gets(&keys).await?;
        let value = |found: Option<GetResponse>| {
            let found = found?;
            let pair = found.kvs().first()?;
            Some(WrittenValue { bytes: pair.value().to_vec(), revision: pair.mod_revision() })
        };
        Ok(found.into_iter().map(value).collect())
    }

    /// Reads all of these, many at once, and gives the first revision at which one was read.
    async fn gets(
        &self,
        all: &[(String, Option<GetOptions>)],
    ) -> Result<(Vec<Option<GetResponse>>, i64), EtcdError> {
        let (mut found, mut together) = (Vec::with_capacity(all.len()), TOGETHER);
        let mut revision = i64::MAX;
        while let Some(rest) = all.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let some = &rest[..together.min(rest.len())];
            let request = async |mut member: MemberConnection| {
                let reads =
                    some.iter().map(|(key, options)| TxnOp::get(key.as_str(), options.clone()));
                member.kv.txn(Txn::new().and_then(reads.collect::<Vec<_>>())).await
            };
            let answer = match self.members().call(&format!("read {}", some[0].0), request).await {
                Err(EtcdError::TooLarge(_)) if together > 1 => {
                    together /= 2;
                    continue;
                }
                answer => answer?,
            };
            revision = revision.min(answer.header().map_or(0, |header| header.revision()));
            found.extend(answer.op_responses().into_iter().map(|response| match response {
                TxnOpResponse::Get(found) => Some(found),
                _ => None,
            }));
        }
        Ok((found, revision))
    }

    /// Watches the keys that begin with one of `ranges`, from `revision` on. At least one range.
    pub async fn watch_ranges(
        &self,
        ranges: &[String],
        revision: i64,
    ) -> Result<RangeWatch<'_>, EtcdError> {
        let (first, id) = (&ranges[0], 1);
        let request = async |mut member: MemberConnection| {
            member.watch.watch(first.as_str(), Some(watch_options(first, id, revision))).await
        };
        let stream = self.members().call("watch", request).await?;
        let received_at = Instant::now();
        let mut watch = RangeWatch {
            etcd: self,
            stream,
            endpoint: self.endpoint(),
            revision: 0,
            watched: vec![(first.clone(), id)],
            last: id,
            received: Vec::new(),
            taken_at: None,
            received_at,
            wait: COALESCE,
            ask: interval_at(received_at + ASK, ASK),
        };
        watch.change(ranges.to_vec(), revision).await?;
        Ok(watch)
    }
}

/// Those of the watch `id` of a range, from `revision` on.
fn watch_options(range: &str, id: i64, revision: i64) -> WatchOptions {
    WatchOptions::new()
        .with_range(after(range))
        .with_start_revision(revision)
        .with_progress_notify()
        .with_watch_id(id)
}

/// A key that was put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: Vec<u8>,
    /// `None`: it was deleted.
    pub value: Option<Vec<u8>>,
    /// The revision of its creation.
    pub created: i64,
    /// That of this change.
    pub modified: i64,
}

impl KeyChange {
    /// A deleted key has version 0.
    fn of(pair: &KeyValue) -> KeyChange {
        let value = (pair.version() != 0).then(|| pair.value().to_vec());
        KeyChange {
            key: pair.key().to_vec(),
            value,
            created: pair.create_revision(),
            modified: pair.mod_revision(),
        }
    }
}

/// A watch of ranges. It is never resumed: when it ends, everything is read again.
pub struct RangeWatch<'a> {
    etcd: &'a Etcd,
    stream: WatchStream,
    endpoint: String,
    /// That of etcd at the last answer; 0 before the first one.
    pub revision: i64,
    /// The number of the watch of each range on the stream …
    watched: Vec<(String, i64)>,
    /// … and the last one.
    last: i64,
    received: Vec<KeyChange>,
    /// When what was received is taken.
    taken_at: Option<Instant>,
    received_at: Instant,
    /// How long what was received waits for more.
    pub wait: Duration,
    ask: Interval,
}

impl RangeWatch<'_> {
    /// Watches `ranges` alone from now on, those that it did not watch yet from `revision` on. What was received of
    /// others may still come.
    ///
    /// # Errors
    /// The watch has ended.
    pub async fn change(
        &mut self,
        mut ranges: Vec<String>,
        revision: i64,
    ) -> Result<(), EtcdError> {
        ranges.sort_unstable();
        let mut ids = vec![0; ranges.len()];
        for (range, id) in mem::take(&mut self.watched) {
            match ranges.binary_search(&range) {
                Ok(at) => ids[at] = id,
                Err(_) => self.stream.cancel(id).await.map_err(watch_failed)?,
            }
        }
        for (range, mut id) in ranges.into_iter().zip(ids) {
            if id == 0 {
                self.last += 1;
                id = self.last;
                let options = watch_options(&range, id, revision);
                self.stream.watch(range.as_str(), Some(options)).await.map_err(watch_failed)?;
            }
            self.watched.push((range, id));
        }
        Ok(())
    }

    /// The watch `id` ended because its range is not to be watched any more. A watch that was refused has none.
    fn was_left(&self, id: i64) -> bool {
        id > 0 && !self.watched.iter().any(|(_, watched)| *watched == id)
    }

    /// What was put or deleted, whole transactions, those that come while the first one waits together; nothing: a sign
    /// of life. Cancel-safe.
    ///
    /// # Errors
    /// The watch ended or was refused, or its member says nothing any more: the next request uses another one.
    pub async fn next(&mut self) -> Result<Vec<KeyChange>, EtcdError> {
        loop {
            let taken_at = self.taken_at;
            tokio::select! {
                answer = self.stream.message() => {
                    if !self.receive(answer)? {
                        return Ok(Vec::new());
                    }
                }
                () = sleep_until(taken_at.unwrap_or(self.received_at)), if taken_at.is_some() => {
                    self.taken_at = None;
                    return Ok(mem::take(&mut self.received));
                }
                _ = self.ask.tick() => self.request_progress().await?,
            }
        }
    }

    /// Takes an answer; false if that was nothing but a sign of life.
    fn receive(
        &mut self,
        answer: Result<Option<WatchResponse>, etcd_client::Error>,
    ) -> Result<bool, EtcdError> {
        let ended = |why: String| format!("watch: etcd {}: {why}", self.endpoint);
        let answer = match answer {
            Ok(Some(answer)) if answer.canceled() && !self.was_left(answer.watch_id()) => {
                return Err(canceled(&answer, ended));
            }
            Ok(Some(answer)) => answer,
            Ok(None) => {
                return Err(EtcdError::Unreachable(ended("the stream ended".to_owned()).into()));
            }
            Err(error) => return Err(EtcdError::Unreachable(ended(reason(&error)).into())),
        };
        self.received_at = Instant::now();
        self.revision = answer.header().map_or(0, |it| it.revision()).max(self.revision);
        self.received.extend(answer.events().iter().filter_map(Event::kv).map(KeyChange::of));
        if !self.received.is_empty() {
            self.taken_at.get_or_insert(self.received_at + self.wait);
        }
        Ok(!self.received.is_empty())
    }

    /// Requests a sign of life.
    async fn request_progress(&mut self) -> Result<(), EtcdError> {
        if self.received_at.elapsed() > SILENCE {
            self.etcd.next_member();
            let why = format!("watch: no response for {SILENCE:?}");
            return Err(EtcdError::Unreachable(why.into()));
        }
        self.stream.request_progress().await.map_err(watch_failed)
    }
}
