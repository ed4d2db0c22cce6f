//! The controller's endpoint as a store: wait for the next snapshot, read old ones, report demand.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::IF_NONE_MATCH;
use reqwest::{Client, RequestBuilder, Response, StatusCode};

use super::{Held, Store, StoreError};
use crate::protocol::DemandReport;
use crate::protocol::endpoint::{DEMAND, LONG_POLL, SNAPSHOT, SNAPSHOT_BYTES_MAX, SNAPSHOTS, etag};
use crate::publish::Generation;
use crate::publish::snapshot::{Snapshot, SnapshotError};

/// Time for everything else about a request; a controller that is slower than this is treated as
/// gone.
const SLACK: Duration = Duration::from_secs(5);

/// A controller's HTTP endpoint.
#[derive(Clone, Debug)]
pub struct HttpStore {
    url: String,
    client: Client,
}

impl HttpStore {
    /// A store at `url`, the controller's base URL.
    pub fn new(url: &str) -> Self {
        let client = Client::builder().timeout(LONG_POLL + SLACK).connect_timeout(SLACK).no_proxy().build();
        Self { url: url.to_owned(), client: client.expect("a client without TLS needs nothing that can be missing") }
    }

    /// Sends a demand report.
    ///
    /// Errors: the controller is gone or refuses.
    pub async fn report(&self, report: &DemandReport) -> Result<(), StoreError> {
        let url = format!("{}{DEMAND}", self.url);
        answer(self.client.post(&url).json(report).timeout(SLACK), &url).await.map(drop)
    }
}

impl Store for HttpStore {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let url = format!("{}{SNAPSHOT}?after={}", self.url, held.generation.0);
        let response = answer(self.client.get(&url).header(IF_NONE_MATCH, etag(held.generation, &held.digest)), &url).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let snapshot = snapshot(response, &url).await?;
        if Generation(snapshot.generation) <= held.generation {
            let stale = SnapshotError::Stale { found: snapshot.generation, current: held.generation.0 };
            return Err(StoreError::illegal(url, stale));
        }
        Ok(Some(Arc::new(snapshot)))
    }

    async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        let url = format!("{}{SNAPSHOTS}/{}", self.url, generation.0);
        match answer(self.client.get(&url), &url).await {
            Ok(response) => snapshot(response, &url).await,
            Err(StoreError::Refused { status: StatusCode::NOT_FOUND, .. }) => Err(StoreError::Unknown(generation)),
            Err(error) => Err(error),
        }
    }

    async fn generations(&self) -> Result<Vec<Generation>, StoreError> {
        let url = format!("{}{SNAPSHOTS}", self.url);
        let body = body(answer(self.client.get(&url), &url).await?, &url).await?;
        let numbers: Vec<u64> = serde_json::from_slice(&body).map_err(|source| StoreError::Json { place: url, source })?;
        Ok(numbers.into_iter().map(Generation).collect())
    }
}

/// Sends a request; anything but success is an error.
async fn answer(request: RequestBuilder, url: &str) -> Result<Response, StoreError> {
    let response = request.send().await.map_err(|source| StoreError::Http { place: url.to_owned(), source })?;
    match response.status() {
        status if status.is_success() => Ok(response),
        status => {
            let body = response.text().await.unwrap_or_default();
            Err(StoreError::Refused { place: url.to_owned(), status, body: body.chars().take(200).collect() })
        }
    }
}

async fn snapshot(response: Response, url: &str) -> Result<Snapshot, StoreError> {
    Snapshot::from_json(&body(response, url).await?).map_err(|source| StoreError::illegal(url, source))
}

async fn body(mut response: Response, url: &str) -> Result<Vec<u8>, StoreError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|source| StoreError::Http { place: url.to_owned(), source })? {
        if body.len() + chunk.len() > SNAPSHOT_BYTES_MAX {
            return Err(StoreError::TooLarge { place: url.to_owned(), most: SNAPSHOT_BYTES_MAX });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
