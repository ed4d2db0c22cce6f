//! Where snapshots come from and reports go.

use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

use crate::control::{Command, CommandError, ControllerHandle};
use crate::protocol::DemandReport;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, EtcdStore, Held, HttpStore, Store, StoreError};

/// Where snapshots come from and reports go.
#[derive(Clone)]
pub enum Source {
    /// The controller runs in this process.
    Local(ControllerHandle),
    /// The controller's HTTP endpoint.
    Http(HttpStore),
    /// An etcd that is shared with the controllers.
    Etcd(EtcdStore),
    /// The controller's own directory, and the last sign of life that was seen there. Nothing is
    /// reported through it.
    Dir(DirStore, Arc<Mutex<Option<Vec<u8>>>>),
}

/// Why a report was not taken.
#[derive(Debug, Error)]
pub enum ReportError {
    #[error(transparent)]
    Controller(#[from] CommandError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Source {
    /// Waits for a snapshot that is newer than `held`; `None` when there was none for the length of
    /// a long poll.
    pub(super) async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        match self {
            Self::Local(controller) => controller.newer_than(held).await,
            Self::Http(store) => store.newer_than(held).await,
            Self::Etcd(store) => store.newer_than(held).await,
            Self::Dir(store, _) => store.newer_than(held).await,
        }
    }

    /// The newest kept snapshot between two generations that is addressed to `cluster`.
    pub(super) async fn last_for(&self, cluster: &str, above: u64, below: u64) -> Option<Snapshot> {
        match self {
            Self::Local(controller) => last_for(controller, cluster, above, below).await,
            Self::Http(store) => last_for(store, cluster, above, below).await,
            Self::Etcd(store) => last_for(store, cluster, above, below).await,
            Self::Dir(store, _) => last_for(store, cluster, above, below).await,
        }
    }

    /// Whether a controller stands behind a source that has just answered.
    pub(super) async fn has_controller(&self) -> bool {
        match self {
            Self::Local(_) | Self::Http(_) => true,
            // An etcd answers with or without one.
            Self::Etcd(store) => store.is_led().await.unwrap_or(false),
            Self::Dir(store, seen) => {
                let life = store.life();
                life.is_some() && std::mem::replace(&mut *seen.lock(), life.clone()) != life
            }
        }
    }

    pub(super) async fn report(&self, report: DemandReport) -> Result<(), ReportError> {
        match self {
            Self::Local(controller) => controller.ask(|done| Command::Report(report, done)).await?,
            Self::Http(store) => store.report(&report).await?,
            Self::Etcd(store) => store.report(&report).await?,
            Self::Dir(..) => {}
        }
        Ok(())
    }
}

async fn last_for(store: &impl Store, cluster: &str, above: u64, below: u64) -> Option<Snapshot> {
    let kept = store.generations().await.ok()?;
    for generation in kept.into_iter().rev().filter(|generation| (above + 1..below).contains(&generation.0)) {
        if let Ok(snapshot) = store.read(generation).await
            && snapshot.is_for(cluster)
        {
            return Some(snapshot);
        }
    }
    None
}
