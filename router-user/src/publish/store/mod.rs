//! Where snapshots live between the controller and the data planes.
//!
//! [`DirStore`] keeps them on disk: the controller's own memory across restarts, and a data plane's when everything else is gone.
//! [`HttpStore`] is the controller's endpoint. [`EtcdStore`] is an etcd that controllers and data planes share; it also elects the one
//! controller that publishes. All three are read through [`Store`], and pass the same tests.

mod dir;
mod error;
mod etcd;
mod http;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use dir::DirStore;
pub(crate) use dir::write_whole;
pub use error::StoreError;
pub use etcd::{Election, EtcdStore, Reports, Term};
pub use http::HttpStore;
pub(crate) use http::{etag, held_by};

use super::Generation;
use crate::publish::snapshot::Snapshot;

/// How long a store is waited for when it has nothing newer.
pub const LONG_POLL: Duration = Duration::from_secs(20);

/// The reader's side of a store. A snapshot that comes out of it is whole (its digest was checked) and legal.
pub trait Store {
    /// Waits for a snapshot above the one `held`; `None` when there was none within [`LONG_POLL`].
    ///
    /// Errors: the store cannot be reached, or what it gave is no legal snapshot or not above `held`.
    fn newer_than(&self, held: Held) -> impl Future<Output = Result<Option<Arc<Snapshot>>, StoreError>> + Send;

    /// Reads one generation.
    ///
    /// Errors: it is not there any more, the store cannot be reached, or it is no legal snapshot.
    fn read(&self, generation: Generation) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Generations that are kept, lowest first.
    ///
    /// Errors: the store cannot be reached.
    fn generations(&self) -> impl Future<Output = Result<Vec<Generation>, StoreError>> + Send;
}

/// What a reader has already: its generation, and the digest that tells whether it is the same content under that number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub generation: Generation,
    pub digest: String,
}

impl Held {
    pub fn of(snapshot: &Snapshot) -> Self {
        Self { generation: Generation(snapshot.generation), digest: snapshot.digest.clone() }
    }
}

/// What one data plane saw since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandReport {
    pub cluster: String,
    /// Tells the data planes of one cluster apart; their demand is summed.
    pub instance: String,
    /// Length of time the counts cover, in ms; > 0.
    pub window_ms: u64,
    /// Requests that arrived, by class name, refused ones included; retries are not arrivals.
    pub arrivals: Vec<(String, u64)>,
    /// Generation in force there: a controller that has lost its store learns from it above what it must publish.
    #[serde(default)]
    pub generation: u64,
    /// Engines that had requests, or whose distance was measured.
    #[serde(default)]
    pub engines: Vec<EngineReport>,
}

/// What one data plane saw of an engine since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineReport {
    pub engine: String,
    /// Requests sent to it, retries included, and those that failed there: not connected, reset, broken off, or a status of 500 and above.
    pub attempts: u64,
    pub failures: u64,
    /// Whole answers, and the sum of the times from sending a request to the last byte of its answer, in ms.
    pub answers: u64,
    pub latency_ms_sum: f64,
    /// Round-trip time, in ms, where it was measured.
    pub rtt_ms: Option<f64>,
}
