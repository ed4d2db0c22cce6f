//! How much demand each (cluster, class) offers, estimated from what data planes report.

use std::collections::HashMap;
use std::time::Duration;

use crate::model::{ClusterId, Fleet};

/// Half-life of a measurement. A weight follows demand within a minute, while the noise of a Poisson stream of 100 requests/s shrinks
/// to about 1 %.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// A data plane that is silent for longer is gone: its clients enter elsewhere.
const SILENT: Duration = Duration::from_secs(30);
/// Data planes of one cluster; more are refused, so that a report with changing instances cannot grow the table.
const MAX_INSTANCES: usize = 1_024;
/// Longest window one report may cover; a longer one comes from a clock that jumped.
const MAX_WINDOW: Duration = Duration::from_secs(600);

/// Demand estimates, one per (cluster, class): the configured value until something is measured.
#[derive(Clone, Debug)]
pub struct DemandEstimate {
    configured_rps: Vec<Vec<f64>>,
    instances: Vec<HashMap<String, Instance>>,
}

/// What one data plane has reported.
#[derive(Clone, Debug)]
struct Instance {
    rates_rps: Vec<f64>,
    seen: Duration,
}

/// Why a report is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error("window of {window_ms} ms; wanted 1 to {} ms", MAX_WINDOW.as_millis())]
    Window { window_ms: u64 },
    #[error("more than {MAX_INSTANCES} data planes report for one cluster")]
    Instances,
}

impl DemandEstimate {
    pub fn new(fleet: &Fleet) -> Self {
        Self {
            configured_rps: fleet.clusters.iter().map(|c| c.demand_rps.clone()).collect(),
            instances: vec![HashMap::new(); fleet.clusters.len()],
        }
    }

    /// Takes one report: requests of each class that arrived at one data plane within a window that ended at `now`.
    ///
    /// Shape: `arrivals` has one entry per class. Errors: the window or the number of data planes is out of bounds; nothing changes.
    pub fn report(
        &mut self,
        now: Duration,
        cluster: ClusterId,
        instance: &str,
        window_ms: u64,
        arrivals: &[u64],
    ) -> Result<(), ReportError> {
        let window = Duration::from_millis(window_ms);
        if window.is_zero() || window > MAX_WINDOW {
            return Err(ReportError::Window { window_ms });
        }
        let known = &mut self.instances[cluster.index()];
        known.retain(|_, i| now.saturating_sub(i.seen) <= SILENT);
        if known.len() >= MAX_INSTANCES && !known.contains_key(instance) {
            return Err(ReportError::Instances);
        }
        // The first report of the only data plane starts from the configured value, so that start-up moves nothing.
        let start = if known.is_empty() { self.configured_rps[cluster.index()].clone() } else { vec![0.0; arrivals.len()] };
        let entry = known.entry(instance.to_owned()).or_insert(Instance { rates_rps: start, seen: now });
        let keep = 0.5_f64.powf(window.as_secs_f64() / HALF_LIFE.as_secs_f64());
        for (rate, &count) in entry.rates_rps.iter_mut().zip(arrivals) {
            *rate = *rate * keep + count as f64 / window.as_secs_f64() * (1.0 - keep);
        }
        entry.seen = now;
        Ok(())
    }

    /// Demand in requests/s, `[cluster][class]`. A cluster all of whose data planes are silent has the
    /// configured value.
    pub fn demand_rps(&self, now: Duration) -> Vec<Vec<f64>> {
        (self.configured_rps.iter().zip(&self.instances))
            .map(|(configured, instances)| {
                let mut live = instances.values().filter(|i| now.saturating_sub(i.seen) <= SILENT).peekable();
                if live.peek().is_none() {
                    return configured.clone();
                }
                live.fold(vec![0.0; configured.len()], |mut sum, instance| {
                    sum.iter_mut().zip(&instance.rates_rps).for_each(|(sum, rate)| *sum += rate);
                    sum
                })
            })
            .collect()
    }

    /// True when the demand of this cluster is measured, not configured.
    pub fn is_measured(&self, now: Duration, cluster: ClusterId) -> bool {
        self.instances[cluster.index()].values().any(|i| now.saturating_sub(i.seen) <= SILENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn estimate() -> DemandEstimate {
        let config = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal");
        DemandEstimate::new(&config.fleet)
    }

    const B: ClusterId = ClusterId(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn starts_at_the_configured_value_and_follows_reports_by_half_life() {
        let mut demand = estimate();
        assert_eq!(demand.demand_rps(at(0))[1], [120.0]);
        assert!(!demand.is_measured(at(0), B));
        for tick in 1..=15 {
            demand.report(at(2 * tick), B, "p1", 2_000, &[0]).expect("legal");
        }
        assert!((demand.demand_rps(at(30))[1][0] - 60.0).abs() < 1e-9, "one half-life of silence halves it");
        assert!(demand.is_measured(at(30), B));
        assert_eq!(demand.demand_rps(at(30))[0], [90.0], "others stand still");
    }

    #[test]
    fn data_planes_of_a_cluster_add_up_and_silent_ones_leave() {
        let mut demand = estimate();
        for tick in 1..=400 {
            demand.report(at(tick), B, "p1", 1_000, &[30]).expect("legal");
            demand.report(at(tick), B, "p2", 1_000, &[50]).expect("legal");
        }
        assert!((demand.demand_rps(at(400))[1][0] - 80.0).abs() < 0.1);
        for tick in 401..=440 {
            demand.report(at(tick), B, "p1", 1_000, &[30]).expect("legal");
        }
        assert!((demand.demand_rps(at(440))[1][0] - 30.0).abs() < 0.1);
        assert_eq!(demand.demand_rps(at(1_000))[1], [120.0], "nothing measured any more");
    }

    #[test]
    fn refuses_windows_and_crowds_out_of_bounds() {
        let mut demand = estimate();
        assert_eq!(demand.report(at(1), B, "p", 0, &[1]), Err(ReportError::Window { window_ms: 0 }));
        assert_eq!(demand.report(at(1), B, "p", 600_001, &[1]), Err(ReportError::Window { window_ms: 600_001 }));
        for n in 0..MAX_INSTANCES {
            demand.report(at(1), B, &format!("p{n}"), 1_000, &[0]).expect("within the bound");
        }
        assert_eq!(demand.report(at(1), B, "one more", 1_000, &[0]), Err(ReportError::Instances));
        demand.report(at(100), B, "one more", 1_000, &[0]).expect("the silent ones made room");
    }
}
