//! Follows the controller: each new snapshot is checked, put in use, and kept on disk.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::backoff::Backoff;
use crate::dataplane::role::DataRole;
use crate::dataplane::source::Source;
use crate::model::Fleet;
use crate::plan::{Inputs, PlanError, plan_or_greedy};
use crate::publish::snapshot::{Snapshot, SnapshotError};
use crate::publish::store::{DirStore, StoreError};
use crate::publish::{Generation, build};

/// First and longest pause before the controller is asked again after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

/// Why a data plane has no snapshot to start from.
#[derive(Debug, Error)]
pub enum FirstSnapshotError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to plan a first snapshot from the configuration: {0}")]
    Plan(#[from] PlanError),
}

/// Why a snapshot was not put in use; nothing has changed then.
#[derive(Debug, Error)]
pub enum ApplyError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("generation {generation} does not know cluster {cluster:?}")]
    UnknownCluster { generation: Generation, cluster: String },
    #[error("the task that builds its tables ended early: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The snapshot that a data plane starts from: the newest one on its own disk, or else generation
/// 0, planned here from the configuration, so that it serves before it has ever met a controller.
///
/// Errors: the disk cannot be read, or there is no legal plan.
pub fn first_snapshot(fleet: &Fleet, store: &DirStore, cluster: &str) -> Result<Snapshot, FirstSnapshotError> {
    if let Some(stored) = store.latest_for(cluster)? {
        tracing::info!(generation = %Generation(stored.generation), "starting from the stored snapshot");
        return Ok(stored);
    }
    let plan = plan_or_greedy(fleet, &Inputs::from_fleet(fleet), None)?;
    if let Some(failure) = &plan.solver_failure {
        tracing::error!(failure, "the optimiser failed; the first snapshot is the greedy plan");
    }
    tracing::info!("no stored snapshot; starting from the configuration's own plan, generation 0");
    Ok(build::snapshot(fleet, &plan, 0, crate::clock::unix_ms(), "planned by the data plane from its own configuration").sealed())
}

/// Applies every snapshot that the source publishes, until the process ends.
///
/// After a failure the source is asked again with growing pauses; the snapshot in use keeps serving
/// meanwhile.
pub async fn follow(role: Arc<DataRole>, source: Source) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    loop {
        match source.newer_than(role.held()).await {
            Ok(newer) => {
                if source.has_controller().await {
                    role.renew_contact();
                }
                role.controller_answers();
                backoff.reset();
                let Some(snapshot) = newer else { continue };
                let Some(snapshot) = addressed(&role, &source, snapshot).await else { continue };
                if let Err(error) = apply(&role, snapshot).await {
                    tracing::error!(%error, "failed to apply a snapshot; the previous one stays in use");
                    tokio::time::sleep(BACKOFF_MOST).await;
                }
            }
            Err(error) => {
                role.controller_fails(error.to_string());
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// The snapshot to apply: `newest`, or if it is not addressed to this cluster, the newest one that
/// is and that is not in use yet.
///
/// A data plane that has just started, or was away, may have missed a snapshot that the others of
/// its cluster hold.
async fn addressed(role: &DataRole, source: &Source, newest: Arc<Snapshot>) -> Option<Arc<Snapshot>> {
    let cluster = &role.setup().cluster;
    if newest.is_for(cluster) {
        return Some(newest);
    }
    let generation = Generation(newest.generation);
    tracing::info!(%generation, "a snapshot is not addressed to this cluster; it is not applied");
    role.mark_not_addressed(&newest);
    let above = role.published().map_or(0, |published| published.generation);
    source.last_for(cluster, above, generation.0).await.map(Arc::new)
}

/// Checks a snapshot, puts it in use (the kernel first, then the proxy) and keeps it on disk.
///
/// A disk that cannot keep it and a kernel that cannot take it are logged: requests do not need
/// either.
///
/// Errors: the snapshot is illegal, not above the one in use, or does not know this cluster.
pub async fn apply(role: &Arc<DataRole>, snapshot: Arc<Snapshot>) -> Result<(), ApplyError> {
    snapshot.validate()?;
    if let Some(current) = role.published().map(|newest| newest.generation)
        && snapshot.generation <= current
    {
        return Err(SnapshotError::Stale { found: snapshot.generation, current }.into());
    }
    let cluster = &role.setup().cluster;
    if snapshot.cluster(cluster).is_none() {
        return Err(ApplyError::UnknownCluster { generation: Generation(snapshot.generation), cluster: cluster.clone() });
    }
    let role = Arc::clone(role);
    // Off the runtime's thread: tables of many engines take milliseconds, the disk and the kernel
    // may block.
    Ok(tokio::task::spawn_blocking(move || apply_blocking(&role, snapshot)).await?)
}

fn apply_blocking(role: &DataRole, snapshot: Arc<Snapshot>) {
    let generation = Generation(snapshot.generation);
    role.install(Arc::clone(&snapshot));
    let store = &role.setup().store;
    // Every data plane can make its own generation 0 again.
    if generation > Generation(0)
        && store.load(generation).ok().as_ref() != Some(&snapshot)
        && let Err(error) = store.publish(&snapshot)
    {
        tracing::warn!(%error, %generation, "the snapshot is in use but could not be kept on disk");
    }
    tracing::info!(%generation, objective_ms = snapshot.objective_ms, "applied");
}
