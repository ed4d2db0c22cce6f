//! The connection to an etcd, and reading from it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, KeyValue, WatchOptions, WatchStream};
use tokio::sync::Mutex;

use crate::protocol::LONG_POLL;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{Held, Store, StoreError};

/// Longest wait for one answer. A slower etcd counts as unresponsive; every request is repeated
/// later.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pings tell a connection that hangs from one that is quiet. etcd closes connections that ping
/// more often than every 5 s, or while nothing is asked.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Keys per page of a listing: the names of this many fit one answer with room to spare.
pub(super) const PAGE: i64 = 1_000;
/// Number of attempts to read a snapshot that is replaced and deleted during the read.
const READS: usize = 3;
/// The value of the head before anything was published. A head must exist, since etcd compares no
/// value with a missing one.
pub(super) const NO_HEAD: &str = "0000000000000000 0";

/// A prefix in an etcd. Cheap to clone: all clones share the connections.
#[derive(Clone)]
pub struct EtcdStore {
    pub(super) client: Arc<Client>,
    prefix: String,
    /// The lease of this process's demand reports.
    pub(super) lease: Arc<Mutex<Option<i64>>>,
}

/// The value of the key `head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) generation: Generation,
    pub(super) pieces: usize,
}

impl EtcdStore {
    /// A store under `prefix` of the etcd at `addresses`. Connections are made when they are first
    /// needed, and again when they break.
    ///
    /// Errors: an address is none.
    pub async fn connect(addresses: &[String], prefix: &str) -> Result<Self, StoreError> {
        let options = ConnectOptions::new().with_connect_timeout(PATIENCE).with_keep_alive(PING_EVERY, PATIENCE);
        let client = within("connect", Client::connect(addresses, Some(options))).await?;
        Ok(Self { client: Arc::new(client), prefix: prefix.trim_end_matches('/').to_owned(), lease: Arc::default() })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(super) fn piece(&self, generation: Generation, piece: usize) -> String {
        self.key(&format!("snapshots/{:016x}/{piece:04}", generation.0))
    }

    /// The newest generation, and the revision at which it was so.
    pub(super) async fn head(&self) -> Result<(Head, i64), StoreError> {
        let mut answer = within("read the head", self.client.kv_client().get(self.key("head"), None)).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let head = answer.take_kvs().first().map_or(Ok(Head::NONE), |kv| self.parse(kv))?;
        Ok((head, revision))
    }

    /// The newest snapshot, if there is one.
    ///
    /// Errors: etcd does not answer, or what it has is no legal snapshot.
    pub async fn newest(&self) -> Result<Option<Snapshot>, StoreError> {
        let mut reads = 0;
        loop {
            let (head, _) = self.head().await?;
            if head == Head::NONE {
                return Ok(None);
            }
            match self.fetch(head).await {
                Err(StoreError::Unknown(_)) if reads < READS => reads += 1,
                outcome => return outcome.map(Some),
            }
        }
    }

    pub(super) fn parse(&self, kv: &KeyValue) -> Result<Head, StoreError> {
        let text = String::from_utf8_lossy(kv.value());
        let head = text.split_once(' ').and_then(|(generation, pieces)| {
            Some(Head { generation: Generation(u64::from_str_radix(generation, 16).ok()?), pieces: pieces.parse().ok()? })
        });
        head.ok_or_else(|| StoreError::Foreign {
            key: self.key("head"),
            found: text.chars().take(60).collect(),
            wanted: "a generation and a number of pieces",
        })
    }

    pub(super) async fn fetch(&self, Head { generation, pieces }: Head) -> Result<Snapshot, StoreError> {
        let mut json = Vec::new();
        for piece in 0..pieces {
            let key = self.piece(generation, piece);
            let mut answer = within("read a snapshot", self.client.kv_client().get(key, None)).await?;
            let kv = answer.take_kvs().pop().ok_or(StoreError::Unknown(generation))?;
            json.extend_from_slice(kv.value());
        }
        let place = || format!("etcd: {} {generation}", self.key("snapshots"));
        let snapshot = Snapshot::from_json(&json).map_err(|source| StoreError::illegal(place(), source))?;
        if snapshot.generation != generation.0 {
            let found = Generation(snapshot.generation).to_string();
            return Err(StoreError::Foreign { key: place(), found, wanted: "the generation in its key" });
        }
        Ok(snapshot)
    }

    /// Keys of all pieces of all snapshots, as (generation, piece).
    pub(super) async fn pieces(&self) -> Result<Vec<(Generation, usize)>, StoreError> {
        let start = self.key("snapshots/");
        let (mut from, end) = (start.clone(), after_all(&start));
        let mut found = Vec::new();
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_keys_only().with_limit(PAGE);
            let mut answer = within("list snapshots", self.client.kv_client().get(from.clone(), Some(options))).await?;
            let kvs = answer.take_kvs();
            for kv in &kvs {
                let key = String::from_utf8_lossy(kv.key()).into_owned();
                let parts = key.strip_prefix(&start).and_then(|rest| rest.split_once('/'));
                found.extend(parts.and_then(|(generation, piece)| {
                    Some((Generation(u64::from_str_radix(generation, 16).ok()?), piece.parse().ok()?))
                }));
                // The next page starts at the key right after this one.
                from = key + "\0";
            }
            if !answer.more() || kvs.is_empty() {
                return Ok(found);
            }
        }
    }

    pub(super) async fn watch(&self, key: String, after: i64, options: WatchOptions) -> Result<WatchStream, StoreError> {
        let options = options.with_start_revision(after + 1);
        within("watch", self.client.watch_client().watch(key, Some(options))).await
    }
}

impl Head {
    pub(super) const NONE: Self = Self { generation: Generation(0), pieces: 0 };

    pub(super) fn to_value(self) -> String {
        format!("{:016x} {}", self.generation.0, self.pieces)
    }
}

impl Store for EtcdStore {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let give_up = tokio::time::Instant::now() + LONG_POLL;
        let mut reads = 0;
        // Nothing is kept from one call to the next: a watch that was compacted away or a
        // connection that was lost costs one error.
        let (mut head, mut revision) = self.head().await?;
        loop {
            if head.generation <= held.generation {
                let watch = self.watch(self.key("head"), revision, WatchOptions::new()).await?;
                match next_put(watch, give_up).await? {
                    None => return Ok(None),
                    Some(kv) => (head, revision) = (self.parse(&kv)?, kv.mod_revision()),
                }
                continue;
            }
            match self.fetch(head).await {
                Ok(snapshot) => return Ok(Some(Arc::new(snapshot))),
                // Replaced and deleted meanwhile.
                Err(StoreError::Unknown(_)) if reads < READS => reads += 1,
                Err(error) => return Err(error),
            }
            (head, revision) = self.head().await?;
        }
    }

    async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        let (head, _) = self.head().await?;
        let pieces = self.pieces().await?.into_iter().filter(|&(found, _)| found == generation).count();
        if generation > head.generation || pieces == 0 {
            return Err(StoreError::Unknown(generation));
        }
        self.fetch(Head { generation, pieces }).await
    }

    async fn generations(&self) -> Result<Vec<Generation>, StoreError> {
        let (head, _) = self.head().await?;
        let mut generations: Vec<Generation> = self.pieces().await?.into_iter().map(|(generation, _)| generation).collect();
        // Generations above the head are being published now, or were when their leader died.
        generations.retain(|&generation| generation <= head.generation);
        generations.dedup();
        Ok(generations)
    }
}

/// Waits until `give_up` for the next put.
async fn next_put(mut watch: WatchStream, give_up: tokio::time::Instant) -> Result<Option<KeyValue>, StoreError> {
    loop {
        let Ok(message) = tokio::time::timeout_at(give_up, watch.message()).await else { return Ok(None) };
        let message = message.map_err(|source| failed("watch", source))?;
        let message = message.filter(|m| !m.canceled()).ok_or_else(|| ended("watch"))?;
        let put = message.events().iter().rev().find(|event| event.event_type() == etcd_client::EventType::Put);
        if let Some(kv) = put.and_then(|event| event.kv()) {
            return Ok(Some(kv.clone()));
        }
    }
}

/// The first key after all that start with `prefix`, which ends in a slash.
pub(super) fn after_all(prefix: &str) -> String {
    // '0' follows '/' in ASCII.
    format!("{}0", prefix.strip_suffix('/').expect("a prefix that ends in a slash"))
}

pub(super) fn failed(doing: &'static str, source: etcd_client::Error) -> StoreError {
    StoreError::Etcd { doing, source: source.into() }
}

pub(super) fn ended(doing: &'static str) -> StoreError {
    failed(doing, etcd_client::Error::WatchError("etcd ended it: it restarted, or compacted what was asked for".to_owned()))
}

/// Waits for an answer for a bounded time.
pub(super) async fn within<T>(
    doing: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|source| failed(doing, source)),
        Err(_) => Err(StoreError::Slow { doing, limit: PATIENCE }),
    }
}
