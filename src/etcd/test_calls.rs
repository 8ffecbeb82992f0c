//! Calls of etcd for the pods of connectivity tests: a request lives as long as the host that asks keeps it alive.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, ResponseHeader, Txn, TxnOp,
};

use crate::etcd::client::Etcd;
use crate::etcd::connection::MemberConnection;
use crate::lease::EtcdError;
use crate::lease::records::{Key, NodeName, TestAnswer, TestRequest};

/// How long a request outlives the program that asks.
pub const REQUEST_TTL: Duration = Duration::from_secs(10);

/// How long an answer stays: the host that asks reads it at once.
const ANSWER_TTL: Duration = Duration::from_secs(30);

impl Etcd {
    /// Writes the request of `host` to `other`; gives the etcd lease that it goes with, and its revision. `None`: there
    /// is one already.
    pub async fn request_test(
        &self,
        host: &NodeName,
        other: &NodeName,
    ) -> Result<Option<(i64, i64)>, EtcdError> {
        let (lease, key) = (self.grant(REQUEST_TTL).await?, self.roots().test_request(host, other));
        let request = async |mut member: MemberConnection| {
            let absent = [Compare::version(key.as_str(), CompareOp::Equal, 0)];
            let options = PutOptions::new().with_lease(lease);
            let put = TxnOp::put(key.as_str(), "", Some(options));
            member.kv.txn(Txn::new().when(absent).and_then([put])).await
        };
        let answer = self.members().call(&format!("write {key}"), request).await?;
        if answer.succeeded() {
            return Ok(Some((lease, answer.header().map_or(0, ResponseHeader::revision))));
        }
        self.revoke(lease).await.map(|()| None)
    }

    /// Whether `request` to `name` is still there.
    pub async fn is_test_requested(
        &self,
        request: &TestRequest,
        name: &NodeName,
    ) -> Result<bool, EtcdError> {
        let key = self.roots().test_request(&request.from, name);
        // Its value may be long, and is not read.
        let options = GetOptions::new().with_keys_only();
        let get = async |mut member: MemberConnection| {
            member.kv.get(key.as_str(), Some(options.clone())).await
        };
        let found = self.members().call(&format!("read {key}"), get).await?;
        Ok(found.kvs().first().is_some_and(|pair| pair.create_revision() == request.revision))
    }

    /// Answers `request` in the name of `name`, with an etcd lease of its own. False: the request is gone, or the
    /// alive key has another etcd lease than `alive`, so that the name may be another machine's.
    pub async fn answer_test(
        &self,
        name: &NodeName,
        request: &TestRequest,
        answer: &TestAnswer,
        alive: i64,
    ) -> Result<bool, EtcdError> {
        let (lease, text) = (self.grant(ANSWER_TTL).await?, answer.to_json());
        let (key, asked) = (
            self.roots().test_answer(name, &request.from),
            self.roots().test_request(&request.from, name),
        );
        let held = self.roots().key(&Key::Alive(name.clone()));
        let call = async |mut member: MemberConnection| {
            let conditions = [
                Compare::lease(held.as_str(), CompareOp::Equal, alive),
                Compare::create_revision(asked.as_str(), CompareOp::Equal, request.revision),
            ];
            let options = PutOptions::new().with_lease(lease);
            let put = TxnOp::put(key.as_str(), text.as_str(), Some(options));
            member.kv.txn(Txn::new().when(conditions).and_then([put])).await
        };
        Ok(self.members().call(&format!("write {key}"), call).await?.succeeded())
    }

    /// What `other` has answered `host` since `revision`; an error is why it is no answer.
    pub async fn test_answer(
        &self,
        other: &NodeName,
        host: &NodeName,
        revision: i64,
    ) -> Result<Option<Result<TestAnswer, String>>, EtcdError> {
        let key = self.roots().test_answer(other, host);
        let get = async |mut member: MemberConnection| member.kv.get(key.as_str(), None).await;
        let found = self.members().call(&format!("read {key}"), get).await?;
        let answer = found.kvs().first().filter(|pair| pair.mod_revision() > revision);
        let parse = |pair: &KeyValue| TestAnswer::parse(pair.value());
        Ok(answer.map(|pair| parse(pair).map_err(|error| error.to_string())))
    }
}
