//! Helpers for the keys of an etcd.

use std::time::{Duration, Instant};

use etcd_client::{
    AlarmAction, AlarmType, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions,
    KeyValue, Txn, TxnOp,
};

/// Runs a task where etcd can be reached.
pub type Network = Box<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// The keys of one member, by connections of the test's own, one for each call.
pub struct Keys {
    pub url: String,
    pub options: ConnectOptions,
    network: Network,
}

impl Keys {
    pub fn new(url: String, network: Network) -> Self {
        let options = ConnectOptions::new();
        Self { url, options, network }
    }

    /// Does something with a connection.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub fn try_call<T: Send>(
        &self,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        self.try_call_with(self.options.clone(), request)
    }

    /// [`Keys::try_call`] as the user `user`.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub fn try_call_as<T: Send>(
        &self,
        (user, password): (&str, &str),
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        self.try_call_with(self.options.clone().with_user(user, password), request)
    }

    /// [`Keys::try_call`] with other options.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub fn try_call_with<T: Send>(
        &self,
        options: ConnectOptions,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let mut request = Some(request);
        let mut answer = None;
        (self.network)(&mut || {
            answer = request.take().map(|request| self.block_on(options.clone(), request));
        });
        answer.expect("the task ran")
    }

    /// [`Keys::try_call`] that must succeed.
    pub fn call<T: Send>(
        &self,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> T {
        self.try_call(request).unwrap_or_else(|error| panic!("etcd {}: {error}", self.url))
    }

    /// Puts a value; gives the moment just before the request left.
    pub fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Instant {
        let value = value.into();
        self.timed(async |client| match client.put(key, value.clone(), None).await {
            // etcd gives up after five seconds and two elections, as where its disk is slow; the same value again does no harm.
            Err(Error::GRpcStatus(status)) if status.message().contains("request timed out") => {
                client.put(key, value, None).await.map(drop)
            }
            put => put.map(drop),
        })
    }

    /// Puts a value, if there is a leader.
    pub fn try_put(&self, key: &str, value: &str) -> Result<(), Error> {
        self.try_call(async |client| client.put(key, value, None).await.map(drop))
    }

    /// Puts a value if there is none; says whether it did.
    pub fn create(&self, key: &str, value: &str) -> bool {
        self.call(async |client| {
            let absent = Compare::version(key, CompareOp::Equal, 0);
            let put = TxnOp::put(key, value, None);
            Ok(client.txn(Txn::new().when([absent]).and_then([put])).await?.succeeded())
        })
    }

    /// Deletes a key that is there; gives the moment just before the request left.
    pub fn delete(&self, key: &str) -> Instant {
        self.timed(async |client| {
            let deleted = client.delete(key, None).await?.deleted();
            assert_eq!(deleted, 1, "{key} was there");
            Ok(())
        })
    }

    /// Deletes every key that begins with `prefix`; says how many.
    pub fn delete_all(&self, prefix: &str) -> i64 {
        let options = etcd_client::DeleteOptions::new().with_prefix();
        self.call(async |client| Ok(client.delete(prefix, Some(options)).await?.deleted()))
    }

    /// Keys below a prefix with their values, in the order of the keys.
    pub fn list(&self, prefix: &str) -> Vec<(String, String)> {
        let pairs = self.pairs(prefix);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.iter().map(|pair| (text(pair.key()), text(pair.value()))).collect()
    }

    pub fn pairs(&self, prefix: &str) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix();
        self.call(async |client| Ok(client.get(prefix, Some(options)).await?.take_kvs()))
    }

    pub fn get(&self, key: &str) -> Option<String> {
        self.list(key).into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// How often a key has been put since it was created.
    pub fn version(&self, key: &str) -> i64 {
        let pairs = self.pairs(key);
        let pair = pairs.iter().find(|pair| pair.key() == key.as_bytes());
        pair.map_or(0, KeyValue::version)
    }

    /// Compacts all history: earlier watches cannot resume.
    pub fn compact(&self) {
        self.call(async |client| {
            // A revision can be compacted once.
            let now = client.put("x", "", None).await?.header().expect("a header").revision();
            client.compact(now, None).await.map(drop)
        });
    }

    /// Raises the alarm of a full etcd, or ends it.
    pub fn set_full(&self, full: bool) {
        let action = if full { AlarmAction::Activate } else { AlarmAction::Deactivate };
        self.call(async |client| client.alarm(action, AlarmType::Nospace, None).await.map(drop));
    }

    fn timed(&self, request: impl AsyncFnOnce(&mut Client) -> Result<(), Error> + Send) -> Instant {
        self.call(async |client| {
            // A connection is made by the first request on it.
            client.get("x", None).await?;
            let start = Instant::now();
            request(client).await?;
            Ok(start)
        })
    }

    fn block_on<T>(
        &self,
        options: ConnectOptions,
        request: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = options.with_timeout(Duration::from_secs(30));
        runtime.block_on(async {
            let mut client = Client::connect([&self.url], Some(options)).await?;
            request(&mut client).await
        })
    }
}
