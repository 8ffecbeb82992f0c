//! Calls of etcd, with the types of `lease`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, Error, GetOptions, KeyValue, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tokio::time::{sleep, timeout};

use crate::etcd::connection::MemberConnection;
use crate::etcd::failure::reason;
use crate::etcd::members::EtcdMembers;
use crate::etcd::settings::EtcdSettings;
use crate::etcd::urgent::UrgentKeys;
use crate::etcd::watch::{self, KeyWatch, WatchPosition, after, raw};
use crate::lease::EtcdError;
use crate::lease::blocks::FoundBlocks;
use crate::lease::blocks::held::HeldBlock;
use crate::lease::records::{HostPods, Key, NodeName, ReachabilityReport, Roots};
use crate::lease::snapshot::{EtcdCluster, Raw, Snapshot};
use crate::lease::tenant_pools::{NetworkReader, TenantPools};
use crate::lease::transaction::{Condition, Transaction, Write};

/// Keys requested at once.
const PAGE: i64 = 1000;

/// Reachability reports that are read, and their bytes: those of 10,000 hosts have 4 MB.
const REPORTS: usize = 20_000;
const REPORTS_BYTES: usize = 16 << 20;

/// Answers with pods that are read, in bytes: those of 1,000 hosts with 250 pods each have 30 MB.
const PODS_BYTES: usize = 64 << 20;

/// How long requests for pods and their answers stay in etcd.
const ANSWER_TTL: Duration = Duration::from_secs(30);

/// Characters of an error that may quote a value.
const WHY: usize = 200;

/// Reachability reports by host.
#[derive(Debug, Default)]
pub struct FoundReports {
    pub reports: BTreeMap<NodeName, ReachabilityReport>,
    /// Keys without a valid report, and the error of one of them.
    pub bad: usize,
    pub why: Option<String>,
    /// There are more than were read.
    pub cut: bool,
}

/// The pods of hosts, as they answered.
#[derive(Debug, Default)]
pub struct FoundPods {
    /// The answer, or why it is none.
    pub by_host: BTreeMap<NodeName, Result<HostPods, String>>,
    /// There are more than were read.
    pub cut: bool,
}

impl FoundPods {
    pub fn has(&self, host: &NodeName) -> bool {
        self.by_host.contains_key(host)
    }
}

/// etcd, by any member.
pub struct Etcd {
    members: EtcdMembers,
    roots: Roots,
    timeout: Cell<Duration>,
}

impl Etcd {
    pub fn new(settings: EtcdSettings, roots: Roots) -> Etcd {
        let timeout = Cell::new(settings.timeout);
        let probe = roots.key(&Key::Config);
        Etcd { members: EtcdMembers::new(settings, probe), roots, timeout }
    }

    pub fn members(&self) -> &EtcdMembers {
        &self.members
    }

    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    pub fn endpoint(&self) -> String {
        self.members.endpoint()
    }

    /// Applies other settings from the next call on.
    pub fn reconnect(&self, settings: EtcdSettings) {
        self.timeout.set(settings.timeout);
        self.members.replace(settings);
    }

    /// Both key ranges at one revision.
    pub async fn read(&self) -> Result<Snapshot, EtcdError> {
        let mut snapshot = Snapshot::default();
        // Those of now: a reload may replace them while this reads.
        let addresses = self.members.addresses();
        let (mut revision, mut cluster) = (0, 0);
        for range in [self.roots.hosts_range(), self.roots.humanz_range()] {
            let mut put = |raw: Raw<'_>| {
                snapshot.put(&self.roots, raw);
                true
            };
            let before = cluster;
            (revision, cluster) = self.read_range(&range, revision, &mut put).await?;
            if before != 0 && before != cluster {
                return Err(EtcdError::Unreachable("the etcd cluster changed meanwhile".into()));
            }
        }
        snapshot.revision = revision;
        snapshot.cluster = Some(EtcdCluster { id: cluster, addresses });
        Ok(snapshot)
    }

    /// The same; `None`: these credentials may not read it.
    pub async fn read_if_permitted(&self) -> Result<Option<Snapshot>, EtcdError> {
        match self.read().await {
            Err(EtcdError::Denied(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Nothing but the host keys, now.
    pub async fn read_hosts(&self) -> Result<Snapshot, EtcdError> {
        let mut snapshot = Snapshot::default();
        let mut put = |raw: Raw<'_>| {
            snapshot.put(&self.roots, raw);
            true
        };
        self.read_range(&self.roots.hosts_range(), 0, &mut put).await?;
        Ok(snapshot)
    }

    /// Reads `range` at `revision` (0: now) while `take` returns true; gives the revision and the id of the
    /// cluster. Compiled once, not for each of its callers.
    pub async fn read_range(
        &self,
        range: &str,
        revision: i64,
        take: &mut dyn FnMut(Raw<'_>) -> bool,
    ) -> Result<(i64, u64), EtcdError> {
        let end = after(range);
        let what = format!("read {range}");
        let (mut revision, mut limit) = (revision, PAGE);
        let mut from = range.as_bytes().to_vec();
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_sort(SortTarget::Key, SortOrder::Ascend)
                .with_limit(limit)
                .with_revision(revision);
            let request = async |mut member: MemberConnection| {
                member.kv.get(from.clone(), Some(options.clone())).await
            };
            let page = match self.members.call(&what, request).await {
                Err(EtcdError::TooLarge(_)) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            if revision == 0 {
                revision = page.header().map_or(0, ResponseHeader::revision);
            }
            let taken = page.kvs().iter().all(|pair| take(raw(pair)));
            match page.kvs().last() {
                Some(last) if taken && page.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok((revision, page.header().map_or(0, ResponseHeader::cluster_id))),
            }
        }
    }

    /// The blocks of all hosts, and the revision of etcd.
    pub async fn blocks(&self) -> Result<(FoundBlocks, i64), EtcdError> {
        let mut found = FoundBlocks::default();
        let mut take = |raw: Raw<'_>| {
            found.put(&self.roots, raw.key, raw.created);
            true
        };
        let (revision, _) = self.read_range(&self.roots.blocks_range(), 0, &mut take).await?;
        Ok((found, revision))
    }

    /// The pools of tenants' networks, as `read` finds them in their objects.
    pub async fn tenant_pools(&self, read: NetworkReader) -> Result<TenantPools, EtcdError> {
        let (mut found, below) = (Vec::new(), self.roots.policies_range().len());
        let mut take = |raw: Raw<'_>| {
            found.push((raw.key[below..].to_vec(), raw.value.to_vec()));
            true
        };
        let (revision, _) = self.read_range(&self.roots.networks_range(), 0, &mut take).await?;
        Ok(TenantPools { pools: read(&found), revision, denied: None })
    }

    /// The blocks of all hosts with what they were taken for, and the revision of etcd.
    pub async fn held_blocks(&self) -> Result<(Vec<HeldBlock>, i64), EtcdError> {
        let mut found = Vec::new();
        let mut take = |raw: Raw<'_>| {
            found.extend(HeldBlock::read(&self.roots, raw.key, raw.value));
            true
        };
        let (revision, _) = self.read_range(&self.roots.blocks_range(), 0, &mut take).await?;
        Ok((found, revision))
    }

    /// The keys of the blocks of `host`, and those by which it publishes members of groups, each with the revision of its last change.
    pub async fn members_of(&self, host: &NodeName) -> Result<Vec<(String, i64)>, EtcdError> {
        let (own, announced) = (self.roots.members_of(host), self.roots.announcements_range());
        let blocks = self.roots.blocks_of(host);
        let mut found = Vec::new();
        let is_its = |key: &[u8]| {
            key.starts_with(own.as_bytes())
                || key.starts_with(blocks.as_bytes())
                || self.roots.announced(key).is_some_and(|(_, announcing)| announcing == *host)
        };
        for range in [&own, &blocks, &announced] {
            let mut take = |raw: Raw<'_>| {
                if let Ok(key) = std::str::from_utf8(raw.key)
                    && is_its(raw.key)
                {
                    found.push((key.to_owned(), raw.modified));
                }
                true
            };
            self.read_range(range, 0, &mut take).await?;
        }
        Ok(found)
    }

    /// Revision of the network settings; 0: none.
    pub async fn config_modified(&self) -> Result<i64, EtcdError> {
        self.modified("read the network settings", &Key::Config).await
    }

    /// Revision of the alive key of `host`; 0: none.
    pub async fn alive_modified(&self, host: &NodeName) -> Result<i64, EtcdError> {
        self.modified("read the alive key", &Key::Alive(host.clone())).await
    }

    async fn modified(&self, what: &str, key: &Key) -> Result<i64, EtcdError> {
        let key = self.roots.key(key);
        let request = async |mut member: MemberConnection| member.kv.get(key.as_str(), None).await;
        let answer = self.members.call(what, request).await?;
        Ok(answer.kvs().first().map_or(0, KeyValue::mod_revision))
    }

    /// The revision of the transaction; `None` if a condition did not hold.
    ///
    /// After [`EtcdError::Unreachable`] it may have been committed: read again.
    pub async fn commit(
        &self,
        what: &str,
        transaction: &Transaction,
    ) -> Result<Option<i64>, EtcdError> {
        let request = async |mut member: MemberConnection| member.kv.txn(as_txn(transaction)).await;
        let answer = match self.members.call(what, request).await {
            Err(EtcdError::Denied(why)) => {
                return Err(EtcdError::Denied(format!("{why} ({})", transaction.needs())));
            }
            answer => answer?,
        };
        Ok(answer.header().filter(|_| answer.succeeded()).map(ResponseHeader::revision))
    }

    /// A number that no other host gets: the version of the counter key after a put.
    pub async fn allocate_ticket(&self) -> Result<i64, EtcdError> {
        let key = self.roots.counter.as_str();
        let request = async |mut member: MemberConnection| {
            let operations = [TxnOp::put(key, "", None), TxnOp::get(key, None)];
            member.kv.txn(Txn::new().and_then(operations)).await
        };
        let answer = self.members.call(&format!("count up {key}"), request).await?;
        let version = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(range) => range.kvs().first().map(KeyValue::version),
            _ => None,
        });
        version.ok_or_else(|| {
            EtcdError::Refused(format!("count up {key}: no version came back").into())
        })
    }

    /// The reports of all hosts, within the limits.
    pub async fn reports(&self) -> Result<FoundReports, EtcdError> {
        let (mut found, mut bytes) = (FoundReports::default(), 0);
        let mut take = |raw: Raw<'_>| {
            bytes += raw.key.len() + raw.value.len();
            found.cut = bytes > REPORTS_BYTES || found.reports.len() + found.bad >= REPORTS;
            if found.cut {
                return false;
            }
            match (self.roots.host_of_report(raw.key), ReachabilityReport::parse(raw.value)) {
                (Some(host), Ok(report)) => drop(found.reports.insert(host, report)),
                (_, report) => {
                    found.bad += 1;
                    let what = report.err().map_or("no host's key".to_owned(), |e| e.to_string());
                    let why = || format!("{:?}: {what}", String::from_utf8_lossy(raw.key));
                    found.why.get_or_insert_with(|| why().chars().take(WHY).collect());
                }
            }
            true
        };
        self.read_range(&self.roots.reports_range(), 0, &mut take).await?;
        Ok(found)
    }

    /// Writes (or deletes) a host's report with `lease`, the etcd lease of its alive key; false if the
    /// alive key has another one: then the name may be another machine's.
    pub async fn set_report(
        &self,
        name: &NodeName,
        report: Option<&str>,
        lease: i64,
    ) -> Result<bool, EtcdError> {
        let (key, alive) = (self.roots.report(name), self.roots.key(&Key::Alive(name.clone())));
        let request = async |mut member: MemberConnection| {
            let held = [Compare::lease(alive.as_str(), CompareOp::Equal, lease)];
            let options = PutOptions::new().with_lease(lease);
            let change = match report {
                Some(report) => TxnOp::put(key.as_str(), report, Some(options)),
                None => TxnOp::delete(key.as_str(), None),
            };
            member.kv.txn(Txn::new().when(held).and_then([change])).await
        };
        Ok(self.members.call(&format!("write {key}"), request).await?.succeeded())
    }

    /// Writes a request for the pods of all hosts, which `host` makes; gives the etcd lease that it goes with, and the
    /// revision that later answers are for.
    pub async fn ask_for_pods(&self, host: &NodeName) -> Result<(i64, i64), EtcdError> {
        let (lease, key) = (self.grant(ANSWER_TTL).await?, self.roots.pods_request(host));
        let request = async |mut member: MemberConnection| {
            let options = PutOptions::new().with_lease(lease);
            member.kv.put(key.as_str(), "", Some(options)).await
        };
        let answer = self.members.call(&format!("write {key}"), request).await?;
        Ok((lease, answer.header().map_or(0, ResponseHeader::revision)))
    }

    /// Writes the pods of `name` with an etcd lease of their own; not while its alive key has another one than
    /// `alive`: then the name may be another machine's.
    pub async fn answer_pods(
        &self,
        name: &NodeName,
        pods: &HostPods,
        alive: i64,
    ) -> Result<(), EtcdError> {
        let (lease, text) = (self.grant(ANSWER_TTL).await?, pods.to_json());
        let (key, held) = (self.roots.pods(name), self.roots.key(&Key::Alive(name.clone())));
        let request = async |mut member: MemberConnection| {
            let held = [Compare::lease(held.as_str(), CompareOp::Equal, alive)];
            let options = PutOptions::new().with_lease(lease);
            let put = TxnOp::put(key.as_str(), text.as_str(), Some(options));
            member.kv.txn(Txn::new().when(held).and_then([put])).await
        };
        self.members.call(&format!("write {key}"), request).await.map(drop)
    }

    /// The answers after `revision`, within the limits.
    pub async fn pods_since(&self, revision: i64) -> Result<FoundPods, EtcdError> {
        let (mut found, mut bytes) = (FoundPods::default(), 0);
        let mut take = |raw: Raw<'_>| {
            bytes += raw.key.len() + raw.value.len();
            found.cut = bytes > PODS_BYTES;
            if let Some(host) = self.roots.host_of_pods(raw.key)
                && raw.modified > revision
            {
                let pods = HostPods::parse(raw.value);
                found.by_host.insert(host, pods.map_err(|error| error.to_string()));
            }
            !found.cut
        };
        self.read_range(&self.roots.pods_range(), 0, &mut take).await?;
        Ok(found)
    }

    pub async fn grant(&self, ttl: Duration) -> Result<i64, EtcdError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let request = async |mut member: MemberConnection| member.lease.grant(seconds, None).await;
        Ok(self.members.call("grant an etcd lease", request).await?.id())
    }

    pub async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let request = async |mut member: MemberConnection| member.lease.revoke(lease).await;
        self.members.call("revoke the etcd lease", request).await.map(drop)
    }

    /// Keeps an etcd lease alive until that fails; returns the error.
    pub async fn keep_alive(&self, lease: i64, every: Duration) -> EtcdError {
        let what = "keep the etcd lease alive";
        let request = async |mut member: MemberConnection| member.lease.keep_alive(lease).await;
        let (mut keeper, mut answers) = match self.members.call(what, request).await {
            Ok(streams) => streams,
            Err(error) => return error,
        };
        loop {
            match timeout(self.timeout.get(), renew(&mut keeper, &mut answers)).await {
                Ok(Ok(ttl)) if ttl > 0 => sleep(every).await,
                Ok(Ok(_)) => return EtcdError::NoLease(format!("{what}: it expired")),
                Ok(Err(error)) => return EtcdError::Unreachable(reason(&error).into()),
                Err(_) => return EtcdError::Unreachable(format!("{what}: no answer").into()),
            }
        }
    }

    /// A watch of `host`, from what was seen: of its urgent keys, and of both key ranges once it resumes.
    pub async fn watch(&self, host: &NodeName, seen: WatchPosition) -> Result<KeyWatch, EtcdError> {
        let urgent = UrgentKeys::of(host);
        let [(first, options), others @ ..] = watch::urgent_requests(&urgent, &self.roots, seen);
        let request = async |mut member: MemberConnection| {
            let mut stream = member.watch.watch(first.as_str(), Some(options.clone())).await?;
            for (key, options) in &others {
                stream.watch(key.as_str(), Some(options.clone())).await?;
            }
            Ok(stream)
        };
        let stream = self.members.call("watch", request).await?;
        Ok(KeyWatch::new(stream, seen, urgent, self.roots.clone(), self.endpoint()))
    }

    /// Changes to the next member.
    pub fn next_member(&self) {
        self.members.next();
    }
}

/// Renews the lease and returns the seconds left; 0: it does not exist.
async fn renew(keeper: &mut LeaseKeeper, answers: &mut LeaseKeepAliveStream) -> Result<i64, Error> {
    keeper.keep_alive().await?;
    match answers.message().await? {
        Some(answer) => Ok(answer.ttl()),
        None => Err(Error::LeaseKeepAliveError("the stream ended".to_owned())),
    }
}

fn as_txn(transaction: &Transaction) -> Txn {
    let compares: Vec<_> = transaction.conditions.iter().map(as_compare).collect();
    let operations: Vec<_> = transaction.writes.iter().map(as_operation).collect();
    Txn::new().when(compares).and_then(operations)
}

fn as_compare(condition: &Condition) -> Compare {
    match condition {
        // A key that does not exist compares as revision 0.
        Condition::Unchanged { key, modified } => {
            Compare::mod_revision(key.as_str(), CompareOp::Equal, *modified)
        }
        Condition::Created { key, created } => {
            Compare::create_revision(key.as_str(), CompareOp::Equal, *created)
        }
        Condition::Exists { key } => Compare::create_revision(key.as_str(), CompareOp::Greater, 0),
        Condition::RangeUnchanged { prefix, since } => {
            Compare::mod_revision(prefix.as_str(), CompareOp::Less, since + 1)
                .with_range(after(prefix))
        }
        // etcd compares no value in an empty range: then it does not hold.
        Condition::NoneHas { prefix, value } => {
            Compare::value(prefix.as_str(), CompareOp::NotEqual, value.as_str())
                .with_range(after(prefix))
        }
    }
}

fn as_operation(write: &Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = PutOptions::new().with_lease(*lease);
            TxnOp::put(key.as_str(), value.as_str(), Some(options))
        }
        Write::Delete { key } => TxnOp::delete(key.as_str(), None),
        Write::Try(transaction) => TxnOp::txn(as_txn(transaction)),
    }
}
