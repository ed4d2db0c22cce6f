//! Access to a running controller from elsewhere in the process.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::control::controller::command::{Command, CommandError};
use crate::control::controller::status::{ControlStatus, Explained};
use crate::protocol::LONG_POLL;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{DirStore, Held, Store, StoreError};

/// Access to a running controller.
#[derive(Clone, Debug)]
pub struct ControllerHandle {
    pub commands: mpsc::Sender<Command>,
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub status: watch::Receiver<ControlStatus>,
    /// `None` until the first plan of this controller.
    pub explained: watch::Receiver<Option<Arc<Explained>>>,
    pub config: Arc<Config>,
    pub(super) seen: watch::Sender<Generation>,
    /// The snapshots on this controller's own disk.
    pub dir: DirStore,
}

impl ControllerHandle {
    /// Sends a command made from the sender for its answer, and waits for that answer.
    ///
    /// Errors: those of the command, or the controller has ended.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, CommandError>>) -> Command,
    ) -> Result<T, CommandError> {
        let (done, answer) = oneshot::channel();
        self.commands.send(command(done)).await.map_err(|_| CommandError::Gone)?;
        answer.await.map_err(|_| CommandError::Gone)?
    }

    /// Gives up the lead, so that another controller takes over at once.
    pub async fn resign(&self) {
        if self.ask(Command::Resign).await.is_err() {
            tracing::debug!("the control plane has ended before it could resign");
        }
    }
}

/// The controller of this very process as a store.
impl Store for ControllerHandle {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let mut snapshots = self.snapshots.clone();
        let published = snapshots.borrow().as_deref().map(Held::of).unwrap_or_default();
        // The same generation with another digest means that a store was lost, as a higher
        // generation does.
        let is_foreign = held.generation == published.generation && held.digest != published.digest && !held.digest.is_empty();
        record_seen(&self.seen, Generation(held.generation.0.saturating_add(u64::from(is_foreign))));
        let newer = |s: &Option<Arc<Snapshot>>| s.as_ref().is_some_and(|s| s.generation > held.generation.0);
        match tokio::time::timeout(LONG_POLL, snapshots.wait_for(newer)).await {
            Ok(Ok(snapshot)) => Ok(snapshot.clone()),
            _ => Ok(None),
        }
    }

    async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        self.dir.read(generation).await
    }

    async fn generations(&self) -> Result<Vec<Generation>, StoreError> {
        self.dir.generations().await
    }
}

/// Records a generation that a data plane or a controller reports.
pub(super) fn record_seen(seen: &watch::Sender<Generation>, generation: Generation) {
    if !generation.is_plausible() {
        tracing::warn!(generation = generation.0, "a peer reports a generation that no controller publishes; ignored");
        return;
    }
    seen.send_if_modified(|highest| std::mem::replace(highest, generation.max(*highest)) < generation);
}
