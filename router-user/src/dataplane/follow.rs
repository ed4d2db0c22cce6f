//! Follows the controller: each new snapshot is checked, kept on disk, and applied to kernel and proxy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::control::{Command, ControllerHandle};
use crate::dataplane::DataRole;
use crate::dataplane::effective::install;
use crate::model::Fleet;
use crate::plan::{Inputs, plan_or_greedy};
use crate::publish::snapshot::{Snapshot, SnapshotError};
use crate::publish::store::{DemandReport, DirStore, EtcdStore, Held, HttpStore, Store, StoreError};
use crate::publish::{Generation, build};

/// First and longest wait before the controller is asked again after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

/// Where snapshots come from and reports go.
#[derive(Clone)]
pub enum Source {
    /// The controller runs in this process.
    Local(ControllerHandle),
    /// The controller's HTTP endpoint.
    Http(HttpStore),
    /// An etcd that is shared with the controllers.
    Etcd(EtcdStore),
    /// The controller's own directory, and the last sign of life that was seen there. Nothing is reported through it.
    Dir(DirStore, Arc<Mutex<Option<Vec<u8>>>>),
}

impl Source {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        match self {
            Self::Local(controller) => controller.newer_than(held).await,
            Self::Http(store) => store.newer_than(held).await,
            Self::Etcd(store) => store.newer_than(held).await,
            Self::Dir(store, _) => store.newer_than(held).await,
        }
    }

    /// The newest kept snapshot between two generations that `cluster` is to apply.
    async fn last_for(&self, cluster: &str, above: u64, below: u64) -> Option<Snapshot> {
        match self {
            Self::Local(controller) => last_for(controller, cluster, above, below).await,
            Self::Http(store) => last_for(store, cluster, above, below).await,
            Self::Etcd(store) => last_for(store, cluster, above, below).await,
            Self::Dir(store, _) => last_for(store, cluster, above, below).await,
        }
    }

    /// Whether a controller stands behind a source that has just answered.
    pub(crate) async fn has_controller(&self) -> bool {
        match self {
            Self::Local(_) | Self::Http(_) => true,
            // An etcd answers with or without one.
            Self::Etcd(store) => store.is_led().await.unwrap_or(false),
            Self::Dir(store, seen) => {
                let life = store.life();
                life.is_some()
                    && std::mem::replace(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner), life.clone()) != life
            }
        }
    }

    pub(crate) async fn report(&self, report: DemandReport) -> anyhow::Result<()> {
        match self {
            Self::Local(controller) => controller.ask(|done| Command::Report(report, done)).await?,
            Self::Http(store) => store.report(&report).await?,
            Self::Etcd(store) => store.report(&report).await?,
            Self::Dir(..) => {}
        }
        Ok(())
    }
}

/// What a data plane starts from: the newest snapshot on its own disk, or else generation 0, planned here from the configuration, so
/// that it serves before it has ever met a controller.
///
/// Errors: neither can be had.
pub fn first_snapshot(fleet: &Fleet, store: &DirStore, cluster: &str) -> anyhow::Result<Snapshot> {
    if let Some(stored) = store.latest_for(cluster)? {
        tracing::info!(generation = %Generation(stored.generation), "starting from the stored snapshot");
        return Ok(stored);
    }
    let plan = plan_or_greedy(fleet, &Inputs::from_fleet(fleet), None).context("plan a first snapshot from the configuration")?;
    if let Some(failure) = &plan.solver_failure {
        tracing::error!(failure, "the optimiser failed; the first snapshot is the greedy plan");
    }
    tracing::info!("no stored snapshot; starting from the configuration's own plan, generation 0");
    Ok(build::snapshot(fleet, &plan, 0, crate::clock::unix_ms(), "planned by the data plane from its own configuration").sealed())
}

/// Applies every snapshot that the source publishes, for as long as the process runs.
///
/// A source that fails is asked again with growing pauses; what is applied meanwhile keeps serving.
pub async fn follow(role: Arc<DataRole>, source: Source, store: DirStore) {
    let mut backoff = BACKOFF_FIRST;
    loop {
        let published = role.published.load().as_deref().map(Held::of).unwrap_or_default();
        let passed_over = role.passed_over.load().as_deref().cloned().unwrap_or_default();
        let held = if passed_over.generation > published.generation { passed_over } else { published };
        match source.newer_than(held).await {
            Ok(newer) => {
                if source.has_controller().await {
                    role.contact.renew();
                }
                if role.controller_error.swap(None).is_some() {
                    tracing::info!("the controller answers again");
                }
                backoff = BACKOFF_FIRST;
                let Some(mut snapshot) = newer else { continue };
                if !snapshot.is_for(&role.cluster) {
                    let generation = Generation(snapshot.generation);
                    tracing::info!(%generation, audience = ?snapshot.audience, "passing over a snapshot for other clusters");
                    role.passed_over.store(Some(Arc::new(Held::of(&snapshot))));
                    // Who has just come, or was away, has not seen what the others hold.
                    let above = role.published.load().as_ref().map_or(0, |published| published.generation);
                    let last = source.last_for(&role.cluster, above, generation.0).await;
                    let Some(last) = last else { continue };
                    snapshot = Arc::new(last);
                }
                if let Err(error) = apply(&role, &store, snapshot).await {
                    tracing::error!(error = format!("{error:#}"), "a snapshot was not applied; the previous one stays");
                    tokio::time::sleep(BACKOFF_MOST).await;
                }
            }
            Err(error) => {
                let error = error.to_string();
                if role.controller_error.swap(Some(Arc::new(error.clone()))).is_none() {
                    tracing::warn!(error, "the controller does not answer; the last snapshot keeps serving");
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MOST);
            }
        }
    }
}

async fn last_for(store: &impl Store, cluster: &str, above: u64, below: u64) -> Option<Snapshot> {
    let between =
        store.generations().await.ok()?.into_iter().rev().filter(|generation| (above + 1..below).contains(&generation.0));
    for generation in between {
        if let Ok(snapshot) = store.read(generation).await
            && snapshot.is_for(cluster)
        {
            return Some(snapshot);
        }
    }
    None
}

/// Checks a snapshot, keeps it on disk and swaps it in: the kernel first, then the proxy.
///
/// Errors: the snapshot is illegal, not above the one in force, or not for this cluster; nothing has changed then. A disk that cannot keep it and a kernel that
/// cannot take it are logged, as requests can do without both.
pub async fn apply(role: &Arc<DataRole>, store: &DirStore, snapshot: Arc<Snapshot>) -> anyhow::Result<()> {
    snapshot.validate()?;
    if let Some(current) = role.published.load().as_ref().map(|newest| newest.generation)
        && snapshot.generation <= current
    {
        return Err(SnapshotError::Stale { found: snapshot.generation, current }.into());
    }
    if snapshot.cluster(&role.cluster).is_none() {
        bail!("generation {} does not know cluster {:?}", Generation(snapshot.generation), role.cluster);
    }
    let (role, store) = (Arc::clone(role), store.clone());
    // Tables of many engines take milliseconds, the disk and the kernel may block: none of it belongs on the runtime's thread.
    tokio::task::spawn_blocking(move || apply_blocking(&role, &store, snapshot)).await.context("apply a snapshot")
}

fn apply_blocking(role: &DataRole, store: &DirStore, snapshot: Arc<Snapshot>) {
    let generation = Generation(snapshot.generation);
    role.published.store(Some(Arc::clone(&snapshot)));
    // It is fresh: whatever is doubted of it is found out anew.
    role.reservations.lock().unwrap_or_else(PoisonError::into_inner).trust = 1.0;
    install(role);
    // Generation 0 is nobody's: every data plane can make its own again.
    if generation > Generation(0)
        && store.load(generation).ok().as_ref() != Some(&snapshot)
        && let Err(error) = store.publish(&snapshot)
    {
        tracing::warn!(%error, %generation, "the snapshot is in force but could not be kept on disk");
    }
    tracing::info!(%generation, objective_ms = snapshot.objective_ms, "applied");
}
