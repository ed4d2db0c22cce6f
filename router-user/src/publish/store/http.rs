//! The data plane's side of the controller's endpoint: wait for the next snapshot, report demand.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::publish::snapshot::{Snapshot, SnapshotError};

/// How long the controller holds a request open when it has nothing newer.
pub const LONG_POLL: Duration = Duration::from_secs(20);
/// Time for everything else about a request; a controller that is slower than this is treated as gone.
const SLACK: Duration = Duration::from_secs(5);
/// Largest snapshot accepted: 100 clusters x 5 classes x 2,000 engines fit many times.
const MAX_SNAPSHOT_BYTES: usize = 256 << 20;

/// What one data plane saw arrive since its last report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandReport {
    pub cluster: String,
    /// Tells the data planes of one cluster apart; their demand is summed.
    pub instance: String,
    /// Length of time the counts cover, in ms; > 0.
    pub window_ms: u64,
    /// Requests that arrived, by class name; retries are not arrivals.
    pub arrivals: Vec<(String, u64)>,
}

/// A controller's HTTP endpoint.
#[derive(Clone, Debug)]
pub struct HttpSource {
    url: String,
    client: Client,
}

/// Why the controller gave no snapshot.
#[derive(Debug, Error)]
pub enum SourceError {
    #[error("{url}: {source}")]
    Http { url: String, source: reqwest::Error },
    #[error("{url}: answered {status}: {body}")]
    Refused { url: String, status: StatusCode, body: String },
    #[error("{url}: is not a snapshot: {source}")]
    Json { url: String, source: serde_json::Error },
    #[error("{url}: {source}")]
    Illegal { url: String, source: Box<SnapshotError> },
    #[error("{url}: snapshot of more than {MAX_SNAPSHOT_BYTES} bytes")]
    TooLarge { url: String },
}

impl HttpSource {
    /// A source at `url`, the controller's base URL.
    pub fn new(url: &str) -> Self {
        let client = Client::builder().timeout(LONG_POLL + SLACK).connect_timeout(SLACK).no_proxy().build();
        Self { url: url.to_owned(), client: client.expect("a client without TLS needs nothing that can be missing") }
    }

    /// Waits for a snapshot above `generation`; `None` when there was none within [`LONG_POLL`].
    ///
    /// Errors: the controller is gone or refuses, or what it sent is no legal snapshot.
    pub async fn newer_than(&self, generation: u64) -> Result<Option<Snapshot>, SourceError> {
        let url = format!("{}/v1/snapshot?after={generation}", self.url);
        let failed = |source| SourceError::Http { url: url.clone(), source };
        let mut response = self.client.get(&url).send().await.map_err(failed)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NO_CONTENT => return Ok(None),
            status => {
                let body = response.text().await.unwrap_or_default();
                return Err(SourceError::Refused { url, status, body: body.chars().take(200).collect() });
            }
        }
        let mut json = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if json.len() + chunk.len() > MAX_SNAPSHOT_BYTES {
                return Err(SourceError::TooLarge { url });
            }
            json.extend_from_slice(&chunk);
        }
        let snapshot: Snapshot =
            serde_json::from_slice(&json).map_err(|source| SourceError::Json { url: url.clone(), source })?;
        snapshot.validate().map_err(|source| SourceError::Illegal { url: url.clone(), source: source.into() })?;
        if snapshot.generation <= generation {
            let source = SnapshotError::Stale { found: snapshot.generation, current: generation };
            return Err(SourceError::Illegal { url, source: source.into() });
        }
        Ok(Some(snapshot))
    }

    /// Sends a demand report.
    ///
    /// Errors: the controller is gone or refuses.
    pub async fn report(&self, report: &DemandReport) -> Result<(), SourceError> {
        let url = format!("{}/v1/demand", self.url);
        let failed = |source| SourceError::Http { url: url.clone(), source };
        let response = self.client.post(&url).json(report).timeout(SLACK).send().await.map_err(failed)?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => {
                let body = response.text().await.unwrap_or_default();
                Err(SourceError::Refused { url, status, body: body.chars().take(200).collect() })
            }
        }
    }
}
