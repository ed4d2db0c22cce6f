//! What is in force here: the newest published snapshot, less what this data plane knows better.

use std::sync::{Arc, PoisonError};

use crate::dataplane::DataRole;
use crate::dataplane::staleness::doubted;
use crate::model::{ClusterId, Fleet};
use crate::publish::Generation;
use crate::publish::failover::{applied, standing_in};
use crate::publish::routes::Routes;
use crate::publish::snapshot::Snapshot;

/// What this data plane holds against the published weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservations {
    /// How much of the plan of a silent controller is left, 0 to 1.
    pub trust: f64,
    /// Names of engines that cannot be reached.
    pub lost: Vec<String>,
    pub in_force: InForce,
}

/// What has come of the reservations.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    pub trust: f64,
    /// Names of the lost engines that the alternate in force stands in for; empty without one.
    pub replaced: Vec<String>,
}

impl Default for Reservations {
    fn default() -> Self {
        Self { trust: 1.0, lost: Vec::new(), in_force: InForce { trust: 1.0, replaced: Vec::new() } }
    }
}

impl Reservations {
    /// What they leave of `published` for `cluster`, and the names of the lost engines that an alternate then stands in for. Pure.
    /// `fleet` is this process's own: it knows the distances.
    pub fn leave(&self, published: &Arc<Snapshot>, cluster: ClusterId, fleet: &Fleet) -> (Arc<Snapshot>, Vec<String>) {
        let mut snapshot = Arc::clone(published);
        let mut replaced = Vec::new();
        if let Some(alternate) = standing_in(published, cluster, |engine| self.lost.iter().any(|name| name == engine)) {
            replaced = alternate.lost.iter().map(|engine| published.engines[engine.index()].name.clone()).collect();
            snapshot = Arc::new(applied(published, cluster, alternate));
        }
        if self.trust < 1.0 {
            snapshot = Arc::new(doubted(&snapshot, &published.clusters[cluster.index()].name, fleet, self.trust));
        }
        (snapshot, replaced)
    }
}

/// Changes the reservations, and where that changes them indeed, what is in force.
pub(crate) async fn change(role: &Arc<DataRole>, change: impl FnOnce(&mut Reservations) -> bool) {
    if !change(&mut role.reservations.lock().unwrap_or_else(PoisonError::into_inner)) {
        return;
    }
    let role = Arc::clone(role);
    // Tables of many engines take milliseconds, and the kernel may block: none of it belongs on the runtime's thread.
    if let Err(error) = tokio::task::spawn_blocking(move || install(&role)).await {
        tracing::error!(%error, "what is in force stays as it is");
    }
}

/// Swaps in the tables of what is to be in force, the kernel's first, then the proxy's.
pub(crate) fn install(role: &DataRole) {
    // A panic in here leaves whole tables in force, old or new. What is read below is read under the lock, so that an older state
    // never overtakes a newer one.
    let _order = role.installing.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(published) = role.published.load_full() else { return };
    let Some(cluster) = published.cluster(&role.cluster) else { return };
    let reservations = role.reservations.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (snapshot, replaced) = reservations.leave(&published, cluster, &role.fleet);
    tell(&published, &reservations.in_force.replaced, &replaced);
    let routes = Routes::build(snapshot, cluster, role.plane.routes.load().as_deref());
    if let Some(kernel) = &role.kernel {
        kernel.apply(&routes);
    }
    role.plane.apply(routes);
    role.reservations.lock().unwrap_or_else(PoisonError::into_inner).in_force = InForce { trust: reservations.trust, replaced };
}

fn tell(published: &Snapshot, before: &[String], replaced: &[String]) {
    let generation = Generation(published.generation);
    if before != replaced {
        match replaced.join(", ") {
            none if none.is_empty() => tracing::info!(%generation, "the weights are in force as they were published"),
            lost => tracing::warn!(%generation, lost, "engines cannot be reached; the alternate for their loss is in force"),
        }
    }
}
