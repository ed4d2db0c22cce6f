//! Errors of all stores.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::StatusCode;
use thiserror::Error;

use crate::publish::snapshot::SnapshotError;

/// The error of a store. The weights in use stay in use after every one of them.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{place}: {source}")]
    Illegal { place: String, source: Box<SnapshotError> },
    #[error("{place}: {source}")]
    Http { place: String, source: reqwest::Error },
    #[error("{place}: answered {status}: {body}")]
    Refused { place: String, status: StatusCode, body: String },
    #[error("{place}: is not what was asked for: {source}")]
    Json { place: String, source: serde_json::Error },
    #[error("{place}: more than {most} bytes; wanted a snapshot")]
    TooLarge { place: String, most: usize },
    #[error("etcd: {doing}: {source}")]
    Etcd { doing: &'static str, source: Box<etcd_client::Error> },
    #[error("etcd: {doing}: no answer within {} s", limit.as_secs_f64())]
    Slow { doing: &'static str, limit: Duration },
    #[error("etcd: {key}: holds {found:?}; wanted {wanted}")]
    Foreign { key: String, found: String, wanted: &'static str },
    #[error("generation {0} is not in the store")]
    Unknown(crate::publish::Generation),
    #[error("no generation is left after {0}")]
    Numbers(crate::publish::Generation),
    #[error("another controller leads by now; nothing was published")]
    Deposed,
}

impl StoreError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    pub(crate) fn illegal(place: impl Into<String>, source: SnapshotError) -> Self {
        Self::Illegal { place: place.into(), source: source.into() }
    }
}
