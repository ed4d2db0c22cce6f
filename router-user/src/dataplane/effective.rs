//! The effective weights: the published snapshot, less what this data plane knows better. Pure.

use std::sync::Arc;

use crate::dataplane::staleness::decayed_snapshot;
use crate::model::{ClusterId, Fleet};
use crate::publish::failover::{applied, matching};
use crate::publish::snapshot::Snapshot;

/// What this data plane knows better than the published snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOverrides {
    /// Share of the plan that still counts, 0 to 1: below 1 once the controller has been silent for
    /// long.
    pub plan_share: f64,
    /// Names of the engines that are down as seen from here.
    pub down: Vec<String>,
}

/// What the overrides leave of a snapshot.
#[derive(Clone, Debug)]
pub struct Effective {
    pub snapshot: Arc<Snapshot>,
    /// Names of the engines whose failover weights are in use; empty if none are.
    pub failed_over: Vec<String>,
}

impl Default for LocalOverrides {
    fn default() -> Self {
        Self { plan_share: 1.0, down: Vec::new() }
    }
}

impl LocalOverrides {
    /// Applies the overrides to `published` for `cluster`: failover weights for engines that are
    /// down, then staleness decay.
    ///
    /// `fleet` is the configuration of this process, which knows the distances.
    pub fn apply(&self, published: &Arc<Snapshot>, cluster: ClusterId, fleet: &Fleet) -> Effective {
        let mut snapshot = Arc::clone(published);
        let mut failed_over = Vec::new();
        if let Some(failover) = matching(published, cluster, |engine| self.down.iter().any(|name| name == engine)) {
            failed_over = failover.lost.iter().map(|engine| published.engines[engine.index()].name.clone()).collect();
            snapshot = Arc::new(applied(published, cluster, failover));
        }
        if self.plan_share < 1.0 {
            let name = &published.clusters[cluster.index()].name;
            snapshot = Arc::new(decayed_snapshot(&snapshot, name, fleet, self.plan_share));
        }
        Effective { snapshot, failed_over }
    }
}
