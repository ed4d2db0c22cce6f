//! Distances of engines, from the measurements of data planes. Pure. docs/model.md, section 10.
//!
//! A distance is the median over a cluster's data planes. It replaces the current value only when
//! several measurements in a row differ from that value, and in bounded steps. So one wrong number
//! changes nothing, and a series of them changes little at a time.

use std::collections::HashMap;
use std::time::Duration;

use crate::control::estimate::deadband::SteadyRtt;
use crate::model::{ClusterId, EngineId, Fleet};
use crate::numeric::lower_median;

/// Longest plausible round trip, in ms: halfway round the world by satellite takes below a second.
const RTT_MAX_MS: f64 = 10_000.0;
/// Number of measurements in a row that must differ from the current value before it changes.
const CONFIRMATIONS: u32 = 3;
/// Largest change in one step: to this many times the current value plus this many ms, or
/// correspondingly less.
const STEP_FACTOR: f64 = 2.0;
const STEP_MS: f64 = 25.0;
/// Time for which a data plane's measurement counts.
const FRESH_FOR: Duration = Duration::from_secs(120);
/// Time for which `ilb status` shows an impossible measurement.
const SHOWN_FOR: Duration = Duration::from_secs(60);

/// Distances, one per (cluster, engine): the configured value until repeated measurements differ
/// from it.
#[derive(Clone, Debug)]
pub(crate) struct Distances {
    steady: SteadyRtt,
    clusters: Vec<Measurements>,
}

/// Measurements of the data planes of one cluster.
#[derive(Clone, Debug, Default)]
struct Measurements {
    /// Per data plane and engine: time of the measurement, and its value in ms.
    instances: HashMap<String, HashMap<EngineId, (Duration, f64)>>,
    /// Number of measurements in a row that differ from the current value.
    doubts: HashMap<EngineId, u32>,
    refused: Option<(Duration, EngineId, f64)>,
}

impl Distances {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        Self {
            steady: SteadyRtt::new(fleet.rtt_ms.clone()),
            clusters: fleet.clusters.iter().map(|_| Measurements::default()).collect(),
        }
    }

    /// Takes the measurements of one data plane since its last report.
    pub(crate) fn take(&mut self, now: Duration, cluster: ClusterId, instance: &str, measured_ms: &[(EngineId, f64)]) {
        let known = &mut self.clusters[cluster.index()];
        for measured in known.instances.values_mut() {
            measured.retain(|_, (at, _)| now.saturating_sub(*at) <= FRESH_FOR);
        }
        known.instances.retain(|name, measured| name == instance || !measured.is_empty());
        for &(engine, ms) in measured_ms {
            // An exchange of 0 ms is impossible.
            if !(ms > 0.0 && ms <= RTT_MAX_MS) {
                known.refused = Some((now, engine, ms));
                continue;
            }
            known.instances.entry(instance.to_owned()).or_default().insert(engine, (now, ms));
            // The lower median, since measurements err more often upwards.
            let measured = known.instances.values().filter_map(|measured| measured.get(&engine).map(|&(_, ms)| ms));
            let median_ms = lower_median(measured).unwrap_or(ms);
            let current = self.steady.rtt_ms()[cluster.index()][engine.index()];
            if !SteadyRtt::has_left(current, median_ms) {
                known.doubts.remove(&engine);
                continue;
            }
            let doubts = known.doubts.entry(engine).or_insert(0);
            *doubts += 1;
            if *doubts >= CONFIRMATIONS {
                *doubts = 0;
                let step =
                    median_ms.clamp((current / STEP_FACTOR).min(current - STEP_MS).max(0.0), current * STEP_FACTOR + STEP_MS);
                self.steady.observe_one(cluster.index(), engine.index(), step);
            }
        }
    }

    /// The distances to plan with.
    pub(crate) fn rtt_ms(&self) -> &[Vec<f64>] {
        self.steady.rtt_ms()
    }

    /// Anomalies of the measurements of a cluster, in words.
    pub(crate) fn anomalies(&self, now: Duration, fleet: &Fleet, cluster: ClusterId) -> Vec<String> {
        let known = &self.clusters[cluster.index()];
        let mut details = Vec::new();
        if let Some((at, engine, ms)) = known.refused
            && now.saturating_sub(at) < SHOWN_FOR
        {
            let name = &fleet.engines[engine.index()].name;
            details.push(format!("measures {ms} ms to engine {name}; not believed, the distance stays as it is"));
        }
        let mut doubted: Vec<&str> = known.doubts.keys().map(|engine| fleet.engines[engine.index()].name.as_str()).collect();
        doubted.sort_unstable();
        if let [first, more @ ..] = &doubted[..] {
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            details
                .push(format!("measures another distance to engine {first}{more}; believed when it is measured again and again"));
        }
        details
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: ClusterId = ClusterId(1);
    const E1: EngineId = EngineId(0);

    fn fleet() -> Fleet {
        crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal").fleet
    }

    fn current(distances: &Distances) -> f64 {
        distances.rtt_ms()[B.index()][E1.index()]
    }

    #[test]
    fn one_spike_moves_nothing_and_a_real_change_arrives_in_steps() {
        let fleet = fleet();
        let mut distances = Distances::new(&fleet);
        let mut take = |ms: f64, times: u64| {
            for nth in 0..times {
                distances.take(Duration::from_secs(10 * nth), B, "p", &[(E1, ms)]);
            }
            current(&distances)
        };
        assert_eq!(take(31.0, 5), 30.0, "noise in the band");
        assert_eq!(take(300.0, 2), 30.0, "a spike");
        assert_eq!(take(30.0, 1), 30.0);
        assert_eq!((take(300.0, 3), take(300.0, 3)), (85.0, 195.0), "in steps of twice and 25");
        assert_eq!(take(300.0, 3), 300.0);
        assert_eq!(take(0.4, 30), 0.0, "and back down to what it is, in whole ms");
    }

    #[test]
    fn what_is_no_distance_changes_nothing_and_is_named() {
        let fleet = fleet();
        let mut distances = Distances::new(&fleet);
        for bad in [0.0, -5.0, f64::NAN, f64::INFINITY, 1e9] {
            for _ in 0..10 {
                distances.take(Duration::ZERO, B, "p", &[(E1, bad)]);
            }
            assert_eq!(current(&distances), 30.0);
            assert!(distances.anomalies(Duration::ZERO, &fleet, B)[0].contains("not believed"));
        }
        assert!(distances.anomalies(Duration::from_secs(61), &fleet, B).is_empty());
    }

    #[test]
    fn the_data_planes_of_a_cluster_outvote_one_that_is_wrong() {
        let fleet = fleet();
        let mut distances = Distances::new(&fleet);
        for nth in 0..20 {
            for (instance, ms) in [("a", 30.2), ("b", 29.7), ("c", 3_000.0)] {
                distances.take(Duration::from_secs(10 * nth), B, instance, &[(E1, ms)]);
            }
        }
        assert_eq!(current(&distances), 30.0);
    }
}
