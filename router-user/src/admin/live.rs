//! What the data plane's counters say, in the words of the admin API.

use std::collections::HashMap;
use std::sync::PoisonError;

use crate::admin::{LiveEngine, ProxyView};
use crate::dataplane::{DataRole, InForce};
use crate::policy::health::HealthState;

impl DataRole {
    /// What is in force other than it was published.
    pub fn in_force(&self) -> InForce {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner).in_force.clone()
    }

    pub fn view(&self) -> ProxyView {
        let stats = self.plane.stats();
        let in_force = self.in_force();
        ProxyView {
            passed_over: self
                .passed_over
                .load()
                .as_ref()
                .map(|held| held.generation.0)
                .filter(|&passed| self.published.load().as_ref().is_none_or(|published| published.generation < passed)),
            alternate: in_force.replaced,
            trust: in_force.trust,
            cluster: self.cluster.clone(),
            listen: self.listen.clone(),
            io: self.io.clone(),
            outcomes: stats.outcomes.iter().map(|(&outcome, &count)| (outcome.to_owned(), count)).collect(),
            retries: stats.retries.iter().map(|(&reason, &count)| (reason.to_owned(), count)).collect(),
            controller_error: self.controller_error.load().as_ref().map(|error| error.to_string()),
        }
    }

    /// Engines by name.
    pub fn live_engines(&self) -> HashMap<String, LiveEngine> {
        (self.plane.stats().engines.into_iter())
            .map(|engine| {
                let live = LiveEngine {
                    in_flight: engine.in_flight,
                    picks: engine.picks,
                    failures: engine.failures(),
                    ttft_ms: engine.ttft.mean_ms(),
                    itl_ms: engine.itl.mean_ms(),
                    latency_ms: engine.e2e.mean_ms(),
                    available: engine.health != Some(HealthState::Out),
                    ttft_ms_sum: engine.ttft.sum_ms(),
                    ttft_count: engine.ttft.count(),
                    itl_ms_sum: engine.itl.sum_ms(),
                    itl_count: engine.itl.count(),
                    latency_ms_sum: engine.e2e.sum_ms(),
                    latency_count: engine.e2e.count(),
                    events: engine.events,
                };
                (engine.engine, live)
            })
            .collect()
    }

    /// Picks by (class, engine).
    pub fn picks(&self) -> HashMap<(String, String), u64> {
        (self.plane.stats().classes.into_iter())
            .flat_map(|class| class.picks.into_iter().map(move |(engine, picks)| ((class.class.clone(), engine), picks)))
            .collect()
    }

    pub fn kernel_status(&self) -> Option<serde_json::Value> {
        let status = self.kernel.as_ref()?.status()?;
        Some(serde_json::to_value(status).expect("a status has only string keys and finite numbers"))
    }
}
