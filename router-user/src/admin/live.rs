//! Views of the data plane, from its status and its counters.

use std::collections::HashMap;

use crate::admin::view::{LiveEngine, ProxyView};
use crate::dataplane::DataRole;

/// Picks by (class, engine).
pub(super) type Picks = HashMap<(String, String), u64>;

pub(super) fn proxy(role: &DataRole) -> ProxyView {
    let (setup, status) = (role.setup(), role.status());
    let stats = setup.plane.stats();
    ProxyView {
        cluster: setup.cluster.clone(),
        listen: setup.listen.clone(),
        io: setup.io.clone(),
        outcomes: stats.outcomes.iter().map(|(&outcome, &count)| (outcome.to_owned(), count)).collect(),
        retries: stats.retries.iter().map(|(&reason, &count)| (reason.to_owned(), count)).collect(),
        waiting: stats.queue.lengths.to_vec(),
        full_engines: stats.queue.limits,
        controller_error: status.controller_error,
        not_addressed: status.not_addressed,
        failover: status.failed_over,
        plan_share: status.plan_share,
    }
}

/// Engines by name.
pub(super) fn engines(role: &DataRole) -> HashMap<String, LiveEngine> {
    let live = |engine: crate::proxy::EngineStats| {
        let live = LiveEngine {
            in_flight: engine.in_flight,
            picks: engine.picks,
            failures: engine.failed(),
            ttft_ms: engine.ttft.mean_ms(),
            itl_ms: engine.itl.mean_ms(),
            latency_ms: engine.e2e.mean_ms(),
            available: engine.multiplier > 0.0,
            state: engine.state,
            multiplier: engine.multiplier,
            reason: engine.reason,
            ttft_ms_sum: engine.ttft.sum_ms(),
            ttft_count: engine.ttft.count(),
            itl_ms_sum: engine.itl.sum_ms(),
            itl_count: engine.itl.count(),
            latency_ms_sum: engine.e2e.sum_ms(),
            latency_count: engine.e2e.count(),
            events: engine.events,
        };
        (engine.engine, live)
    };
    role.setup().plane.stats().engines.into_iter().map(live).collect()
}

pub(super) fn picks(role: &DataRole) -> Picks {
    let of_class = |class: crate::proxy::ClassStats| {
        class.picks.into_iter().map(move |(engine, picks)| ((class.class.clone(), engine), picks))
    };
    role.setup().plane.stats().classes.into_iter().flat_map(of_class).collect()
}

pub(super) fn kernel(role: &DataRole) -> Option<serde_json::Value> {
    let status = role.setup().kernel.as_ref()?.status()?;
    Some(serde_json::to_value(status).expect("a status has only string keys and finite numbers"))
}
