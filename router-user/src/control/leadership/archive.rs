//! The stored snapshots, to be read also while one is published.

use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, EtcdStore, Store, StoreError};

/// Reads the stored snapshots, also during a publication.
#[derive(Clone)]
pub(crate) struct Archive {
    pub(super) dir: DirStore,
    pub(super) etcd: Option<EtcdStore>,
}

impl Archive {
    /// Reads an old generation, from this disk or else from etcd.
    ///
    /// Errors: neither has it.
    pub(crate) async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        match (self.dir.read(generation).await, &self.etcd) {
            (Err(_), Some(etcd)) => etcd.read(generation).await,
            (found, _) => found,
        }
    }

    /// The newest snapshot that is for all, from this disk or from etcd.
    pub(crate) async fn last_for_all(&self) -> Option<Snapshot> {
        let own = last_for_all(&self.dir).await;
        let shared = match &self.etcd {
            Some(etcd) => last_for_all(etcd).await,
            None => None,
        };
        own.into_iter().chain(shared).max_by_key(|snapshot| snapshot.generation)
    }

    /// Writes a heartbeat for data planes that share this controller's directory.
    pub(crate) async fn heartbeat(&self) {
        let dir = self.dir.clone();
        match tokio::task::spawn_blocking(move || dir.show_life()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot write the heartbeat to the snapshot directory"),
            Err(error) => tracing::debug!(%error, "cannot write the heartbeat to the snapshot directory"),
        }
    }
}

async fn last_for_all(store: &impl Store) -> Option<Snapshot> {
    for generation in store.generations().await.ok()?.into_iter().rev() {
        if let Ok(snapshot) = store.read(generation).await
            && snapshot.target_clusters.is_empty()
        {
            return Some(snapshot);
        }
    }
    None
}
