//! Doubts the weights of a controller that has been silent for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::dataplane::DataRole;
use crate::dataplane::effective::change;
use crate::model::{EngineId, Fleet};
use crate::policy::decay::{Stale, decayed, trust};
use crate::publish::snapshot::{Share, Snapshot};

/// How often the silence is measured; limits are minutes.
const LOOK: Duration = Duration::from_secs(1);

/// When the controller was last known to live.
#[derive(Debug)]
pub struct Contact {
    clock: Clock,
    /// In ms since that clock's start.
    last_ms: AtomicU64,
}

impl Contact {
    /// Counts from now: a data plane that starts without a controller gives it its time.
    pub fn new(clock: Clock) -> Self {
        let contact = Self { clock, last_ms: AtomicU64::new(0) };
        contact.renew();
        contact
    }

    pub(crate) fn renew(&self) {
        self.last_ms.store(self.clock.now().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long the controller has been silent.
    pub fn silence(&self) -> Duration {
        self.clock.now().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

/// Lets the weights of a silent controller decay, and restores them when it speaks again, for as long as the process runs.
pub async fn doubt(role: Arc<DataRole>, stale_after: Duration) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let left = trust(role.contact.silence(), stale_after);
        change(&role, |now| {
            let before = std::mem::replace(&mut now.trust, left);
            if before == 1.0 && left < 1.0 {
                tracing::warn!("the controller has been silent for too long; weights go over to capacity within the RTT ring");
            } else if before < 1.0 && left == 1.0 {
                tracing::info!("the controller is back; its weights are in force again");
            }
            before != left
        })
        .await;
    }
}

/// The snapshot with the weights of `cluster` as they are after `trust` has gone down. Under the same generation: nobody else sees it.
pub(crate) fn doubted(published: &Snapshot, cluster: &str, fleet: &Fleet, trust: f64) -> Snapshot {
    let mut snapshot = published.clone();
    let (Some(own), Some(configured)) = (published.cluster(cluster), fleet.cluster(cluster)) else { return snapshot };
    // A distance that this configuration does not know is out of every ring.
    let rtt_ms = |engine: EngineId| {
        let known = fleet.engine(&published.engines[engine.index()].name);
        known.map_or(f64::INFINITY, |known| fleet.rtt_ms[configured.index()][known.index()])
    };
    for route in snapshot.routes.iter_mut().filter(|route| route.cluster == own && !route.pinned) {
        let class = route.class;
        let eligible = (0..published.engines.len()).map(EngineId::of);
        let eligible = eligible.filter(|&e| published.ineligible(class, e).is_none() && !route.is_too_far(e));
        let engines: Vec<(EngineId, Stale)> = eligible
            .map(|engine| {
                let weight = route.weights.iter().find(|share| share.engine == engine).map_or(0.0, |share| share.weight);
                let capacity_rps = published.engines[engine.index()].capacity_rps;
                (engine, Stale { weight, capacity_rps, rtt_ms: rtt_ms(engine) })
            })
            .collect();
        let stale: Vec<Stale> = engines.iter().map(|&(_, stale)| stale).collect();
        let weights = engines.iter().map(|&(engine, _)| engine).zip(decayed(&stale, trust));
        route.weights = weights.filter(|&(_, weight)| weight > 0.0).map(|(engine, weight)| Share { engine, weight }).collect();
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Inputs, plan};
    use crate::publish::build;

    #[test]
    fn stale_weights_are_legal_and_only_those_of_this_cluster() {
        let fleet = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let plan = plan(&fleet, &Inputs::from_fleet(&fleet), None).expect("planned");
        let published = build::snapshot(&fleet, &plan, 7, 0, "test");
        for trust in [0.75, 0.5, 0.0] {
            let stale = doubted(&published, "b", &fleet, trust);
            stale.validate().expect("legal");
            assert_eq!((&stale.routes[0], &stale.routes[2]), (&published.routes[0], &published.routes[2]));
            assert_ne!(stale.routes[1].weights, published.routes[1].weights);
        }
    }
}
