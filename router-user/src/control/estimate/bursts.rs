//! Burst delay per engine, from the dispersion of arrivals. Pure. docs/model.md, section 10.

use std::time::Duration;

use crate::control::estimate::demand::DemandEstimate;
use crate::control::estimate::dispersion::BUCKET;
use crate::model::{EngineId, Fleet};

/// Index of dispersion up to which a stream counts as free of bursts. An estimate from ten minutes
/// is no more accurate, and profiles are not measured with perfectly regular arrivals either.
const INDEX_WITHOUT_BURSTS: f64 = 2.0;
/// Largest delay, in ms at half load: a larger cost of one engine would hide the differences that
/// the plan is about.
const DELAY_MAX_MS: f64 = 500.0;
/// Relative and absolute (ms) half-width of the deadband: a new estimate replaces the current one
/// when it differs by more than the larger of the two.
const DEADBAND_FRAC: f64 = 0.25;
const DEADBAND_MS: f64 = 2.0;

/// Burst delay of each engine, in ms at half load, with a deadband against noise.
#[derive(Clone, Debug)]
pub(crate) struct BurstWaits {
    current_ms: Vec<f64>,
    due: Duration,
}

impl BurstWaits {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        Self { current_ms: vec![0.0; fleet.engines.len()], due: Duration::ZERO }
    }

    /// Updates the delays, as often as the estimates change. `demand_rps` is the planned demand,
    /// `[cluster][class]`.
    pub(crate) fn renew(&mut self, now: Duration, fleet: &Fleet, demand: &DemandEstimate, demand_rps: &[Vec<f64>]) -> &[f64] {
        if now >= self.due {
            self.due = now + BUCKET;
            for (engine, measured) in fleet.engine_ids().zip(waits_ms(fleet, demand, demand_rps)) {
                let current = &mut self.current_ms[engine.index()];
                if (measured - *current).abs() >= DEADBAND_MS.max(DEADBAND_FRAC * *current) {
                    *current = if measured < DEADBAND_MS { 0.0 } else { measured.round() };
                }
            }
        }
        &self.current_ms
    }
}

/// Burst delay of each engine, in ms at half load: `(D - 1) / 2C`, where `D` is the mean over the
/// streams that the engine may serve, weighted by demand. An engine is assumed to get as much of
/// each stream as fills it. Its part of a larger stream is thinned, and the more so the smaller the
/// part. All in units of work.
fn waits_ms(fleet: &Fleet, demand: &DemandEstimate, demand_rps: &[Vec<f64>]) -> Vec<f64> {
    let mut bursty = Vec::new();
    let mut class_rps = vec![0.0; fleet.classes.len()];
    for (cluster, rps) in fleet.cluster_ids().zip(demand_rps) {
        for ((class, &rps), index) in fleet.class_ids().zip(rps).zip(demand.dispersion(cluster)) {
            let work = fleet.classes[class.index()].work;
            class_rps[class.index()] += work * rps;
            if index > INDEX_WITHOUT_BURSTS && rps > 0.0 {
                bursty.push((class, work * rps, work * (index - 1.0)));
            }
        }
    }
    let wait = |engine: EngineId| {
        let serves: Vec<bool> = fleet.class_ids().map(|class| fleet.ineligible(class, engine).is_none()).collect();
        let all: f64 = class_rps.iter().zip(&serves).filter(|&(_, &serves)| serves).map(|(rps, _)| rps).sum();
        let capacity = fleet.profile_of(engine).capacity_rps;
        let of_stream = |&(_, rps, excess): &(_, f64, f64)| rps * excess / (2.0 * rps.max(capacity));
        let sum: f64 = bursty.iter().filter(|&&(class, ..)| serves[class.index()]).map(of_stream).sum();
        if all > 0.0 { (1e3 * sum / all).min(DELAY_MAX_MS) } else { 0.0 }
    };
    if bursty.is_empty() { vec![0.0; fleet.engines.len()] } else { fleet.engine_ids().map(wait).collect() }
}
