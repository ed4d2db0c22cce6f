//! Demand estimation: demand of each (cluster, class), from the reports of data planes. Pure.
//! docs/model.md, section 10.
//!
//! Data planes count arrivals, not served requests, so that shed does not lower the demand. Plans
//! use a slow mean; a fast mean moves it as soon as it is farther away than the stream's own
//! burstiness explains.
//!
//! A controller that has just started knows only the last published snapshot. It plans with the
//! demand in that snapshot, not with the configured one, until a cluster has reported for a time
//! constant of the fast mean.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::estimate::arrivals::{FAST, Instance, Rate};
use crate::control::estimate::dispersion::{BUCKET, Dispersion};
use crate::model::{ClusterId, Fleet};

/// Largest number of data planes of one cluster; more are refused, so that reports with changing
/// instance names cannot grow the table.
const MAX_INSTANCES: usize = 1_024;
/// Longest window of one report; a longer one comes from a clock that jumped.
const MAX_WINDOW: Duration = Duration::from_secs(600);
/// Largest rate of one class at one data plane, in requests/s: more than any machine accepts, so
/// more means a broken counter.
const MAX_RPS: f64 = 1e6;
/// Age of the last report, in report periods, from which a cluster counts as late, and from which
/// it counts as silent.
const LATE_PERIODS: u32 = 2;
const SILENT_PERIODS: u32 = 6;
/// Shortest period for these limits: a busy machine is late by hundreds of milliseconds.
const PERIOD_LEAST: Duration = Duration::from_secs(1);
/// Growth of demand to allow for without reports: standard deviation after one second, as a
/// fraction, and number of standard deviations. Growth is proportional to sqrt(time), as for a
/// random walk.
const DRIFT_FRAC: f64 = 0.01;
const DRIFT_DEVIATIONS: f64 = 2.0;
/// Time without reports after which a cluster's last demand tells no more than its configured one.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Longest time for which zeros from a cluster that had demand are suspect while its neighbours
/// have arrivals.
const ZERO_DOUBT: Duration = Duration::from_secs(120);
/// Smallest number of missing requests for which zeros are suspect: fewer are chance.
const ZERO_MISSING: f64 = 20.0;

/// Demand estimates, one per (cluster, class): the configured value until something is measured.
#[derive(Clone, Debug)]
pub struct DemandEstimate {
    clusters: Vec<Known>,
    period: Duration,
}

/// State of one cluster.
#[derive(Clone, Debug)]
struct Known {
    configured_rps: Vec<f64>,
    /// Demand to plan with until this controller has heard enough of the cluster itself.
    published: Option<PublishedDemand>,
    instances: HashMap<String, Instance>,
    /// Time of the first report of the oldest known data plane, and time of the last report of any.
    heard_since: Option<Duration>,
    heard: Option<Duration>,
    /// Since when no data plane has had arrivals.
    zero_since: Option<Duration>,
    dispersion: Vec<Dispersion>,
    bucket: Bucket,
}

/// A cluster's demand in the last snapshot of an earlier controller.
#[derive(Clone, Debug)]
struct PublishedDemand {
    /// When this controller read it.
    at: Duration,
    /// By class.
    rps: Vec<f64>,
}

/// Arrivals of the whole cluster in one window of fixed length.
#[derive(Clone, Debug, Default)]
struct Bucket {
    since: Option<Duration>,
    /// Planned demand when the window began, by class: a burst must not be compared with itself.
    expected_rps: Vec<f64>,
    counts: Vec<f64>,
}

/// Freshness of a cluster's demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Freshness {
    /// No report yet, or none for too long: the configured demand is planned.
    #[default]
    Configured,
    /// This controller has not heard enough of the cluster yet: the last published demand is
    /// planned.
    Published,
    Fresh,
    /// Reports are late: somewhat more than the last demand is planned.
    Late,
    /// No more reports: the last demand stays reserved.
    Stale,
}

/// Why a report is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error("window of {window_ms} ms; wanted 1 to {} ms", MAX_WINDOW.as_millis())]
    Window { window_ms: u64 },
    #[error("{count} requests in {window_ms} ms; wanted at most {MAX_RPS} a second")]
    Count { count: u64, window_ms: u64 },
    #[error("more than {MAX_INSTANCES} data planes report for one cluster")]
    Instances,
}

impl DemandEstimate {
    /// `period` is how often data planes report.
    pub fn new(fleet: &Fleet, period: Duration) -> Self {
        let known = |configured_rps: &Vec<f64>| Known {
            configured_rps: configured_rps.clone(),
            published: None,
            instances: HashMap::new(),
            heard_since: None,
            heard: None,
            zero_since: None,
            dispersion: vec![Dispersion::default(); configured_rps.len()],
            bucket: Bucket::default(),
        };
        let clusters = fleet.clusters.iter().map(|cluster| known(&cluster.demand_rps)).collect();
        Self { clusters, period: period.max(PERIOD_LEAST) }
    }

    /// Takes the demand of a cluster from a published snapshot, of another controller or of an
    /// earlier process of this one. It counts until the cluster has reported for long enough, and
    /// is ignored if it has already reported.
    ///
    /// Shape: one entry per class; `None` for a class that the snapshot does not know, which keeps
    /// its configured demand.
    pub fn start_from(&mut self, now: Duration, cluster: ClusterId, published_rps: &[Option<f64>]) {
        let known = &mut self.clusters[cluster.index()];
        if known.instances.is_empty() {
            let rps =
                known.configured_rps.iter().zip(published_rps).map(|(&configured, rps)| rps.unwrap_or(configured)).collect();
            known.published = Some(PublishedDemand { at: now, rps });
        }
    }

    /// Takes one report: requests of each class that arrived at one data plane within a window that
    /// ended at `now`.
    ///
    /// Shape: `arrivals` has one entry per class. Errors: the window, a count or the number of data
    /// planes is out of bounds; nothing changes.
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
        if let Some(&count) = arrivals.iter().find(|&&count| count as f64 > MAX_RPS * window.as_secs_f64()) {
            return Err(ReportError::Count { count, window_ms });
        }
        let grace = self.period * LATE_PERIODS;
        let known = &mut self.clusters[cluster.index()];
        known.instances.retain(|_, instance| now.saturating_sub(instance.seen) <= FORGOTTEN);
        if known.instances.len() >= MAX_INSTANCES && !known.instances.contains_key(instance) {
            return Err(ReportError::Instances);
        }
        // The first data plane starts from the planned demand of the whole cluster, so that
        // start-up moves nothing.
        let (usual_rps, start) = if known.instances.is_empty() {
            known.heard_since = Some(now);
            (known.assumed_rps().to_vec(), known.assumed_rps().to_vec())
        } else {
            (known.rates(grace).iter().map(|rate| rate.fast_rps).collect(), vec![0.0; arrivals.len()])
        };
        let entry = known.instances.entry(instance.to_owned()).or_insert_with(|| Instance::new(now, &start));
        entry.take(now, window, arrivals, &usual_rps, &known.dispersion);
        known.heard = Some(now);
        known.count(now, window, arrivals);
        if known.heard_since.is_some_and(|since| now.saturating_sub(since) >= FAST) && known.published.take().is_some() {
            known.leave_start();
        }
        let is_zero = known.instances.values().filter(|i| now.saturating_sub(i.seen) <= grace).all(Instance::is_zero);
        known.zero_since = if is_zero { known.zero_since.or(Some(now)) } else { None };
        if self.zero_doubt(now, cluster).is_none() {
            self.clusters[cluster.index()].follow(grace);
        }
        Ok(())
    }

    /// Freshness of a cluster's demand at `now`.
    pub fn freshness(&self, now: Duration, cluster: ClusterId) -> Freshness {
        let known = &self.clusters[cluster.index()];
        let age = known.heard.map(|heard| now.saturating_sub(heard));
        if let Some(published) = &known.published {
            let age = age.unwrap_or(now.saturating_sub(published.at));
            return if age < FORGOTTEN { Freshness::Published } else { Freshness::Configured };
        }
        match age {
            Some(age) if age < self.period * LATE_PERIODS => Freshness::Fresh,
            Some(age) if age < self.period * SILENT_PERIODS => Freshness::Late,
            Some(age) if age < FORGOTTEN => Freshness::Stale,
            Some(_) | None => Freshness::Configured,
        }
    }

    /// Demand to plan with, in requests/s, `[cluster][class]`.
    pub fn demand_rps(&self, now: Duration) -> Vec<Vec<f64>> {
        let ids = (0..self.clusters.len()).map(ClusterId::of);
        ids.map(|cluster| {
            let known = &self.clusters[cluster.index()];
            let freshness = self.freshness(now, cluster);
            match (freshness, &known.published) {
                (Freshness::Configured, _) => return known.configured_rps.clone(),
                (Freshness::Published, Some(published)) => return published.rps.clone(),
                _ => {}
            }
            let is_doubted = self.zero_doubt(now, cluster).is_some();
            // Beyond the limit of silence the allowed growth stays constant.
            let unheard = known.heard.map_or(Duration::ZERO, |heard| now.saturating_sub(heard)).min(self.period * SILENT_PERIODS);
            let mut more = if freshness == Freshness::Fresh { 1.0 } else { drift(unheard) };
            if let Some(frozen) = known.instances.values().filter_map(|instance| instance.frozen(now)).max() {
                more = f64::max(more, drift(frozen.min(self.period * SILENT_PERIODS)));
            }
            let rates = known.rates(self.period * LATE_PERIODS);
            let mean = |rate: &Rate, of: &Dispersion| if is_doubted { rate.slow_rps } else { rate.planned_rps(of.index()) };
            let planned = |(rate, dispersion): (&Rate, &Dispersion)| more * mean(rate, dispersion);
            rates.iter().zip(&known.dispersion).map(planned).collect()
        })
        .collect()
    }

    /// Index of dispersion of a cluster's arrivals, by class.
    pub fn dispersion(&self, cluster: ClusterId) -> impl Iterator<Item = f64> + '_ {
        self.clusters[cluster.index()].dispersion.iter().map(|dispersion| dispersion.index())
    }

    /// Time for which a cluster has reported no arrivals, while it had demand and its neighbours
    /// still do. `None` if that is not so, or has lasted long enough to be accepted.
    pub fn zero_doubt(&self, now: Duration, cluster: ClusterId) -> Option<Duration> {
        let known = &self.clusters[cluster.index()];
        let zero_for = now.saturating_sub(known.zero_since?);
        let usual: f64 = known.rates(self.period * LATE_PERIODS).iter().map(|rate| rate.slow_rps).sum();
        // The first report of zeros covers a period too.
        let missing = usual * (zero_for + self.period).as_secs_f64();
        let others = self.clusters.iter().enumerate().filter(|&(at, _)| at != cluster.index());
        let mut active = others.filter(|(_, other)| other.zero_since.is_none() && !other.instances.is_empty());
        (zero_for < ZERO_DOUBT && missing >= ZERO_MISSING && active.next().is_some()).then_some(zero_for)
    }

    /// Anomalies of the reports of a cluster's data planes, in words.
    pub(crate) fn anomalies(&self, now: Duration, cluster: ClusterId) -> Vec<String> {
        let mut details = Vec::new();
        let known = &self.clusters[cluster.index()];
        // A controller that has just started has no reports yet; for a few periods that is normal.
        let is_unheard =
            |published: &PublishedDemand| now.saturating_sub(known.heard.unwrap_or(published.at)) >= self.period * SILENT_PERIODS;
        match self.freshness(now, cluster) {
            Freshness::Late => details.push("reports are late; planned with more than was last seen".to_owned()),
            Freshness::Published if !known.published.as_ref().is_some_and(is_unheard) => {}
            Freshness::Stale | Freshness::Published => details.push(format!(
                "nothing is heard of it; its last weights are kept, and its load is reserved for {} min",
                FORGOTTEN.as_secs() / 60
            )),
            Freshness::Fresh | Freshness::Configured => {}
        }
        if self.zero_doubt(now, cluster).is_some() {
            let slowly = "while others go on; its demand is let go slowly";
            details.push(format!("reports no arrivals where it just had some, {slowly}"));
        }
        let mut instances: Vec<_> = known.instances.iter().collect();
        instances.sort_by_key(|&(name, _)| name);
        let found =
            |(name, instance): (&String, &Instance)| instance.anomaly(now).map(|detail| format!("data plane {name}: {detail}"));
        details.extend(instances.into_iter().filter_map(found));
        details
    }
}

/// Factor by which demand may have grown since the last report.
fn drift(age: Duration) -> f64 {
    1.0 + DRIFT_DEVIATIONS * DRIFT_FRAC * age.as_secs_f64().sqrt()
}

impl Known {
    /// Demand to plan with while none is measured.
    fn assumed_rps(&self) -> &[f64] {
        self.published.as_ref().map_or(&self.configured_rps, |published| &published.rps)
    }

    /// Removes the initial demand from the means where the reports since then clearly contradict
    /// it: a snapshot may be old.
    fn leave_start(&mut self) {
        for (class, dispersion) in self.dispersion.iter().enumerate() {
            let measured: Vec<f64> = self.instances.values().map(|instance| instance.measured_rps(class)).collect();
            let (sum, slow) =
                (measured.iter().sum::<f64>(), self.instances.values().map(|instance| instance.rates[class].slow_rps).sum());
            if !Rate::is_explained(slow, sum, dispersion.index()) {
                for (instance, rps) in self.instances.values_mut().zip(measured) {
                    (instance.rates[class].fast_rps, instance.rates[class].slow_rps) = (rps, rps);
                }
            }
        }
    }

    /// Sum of the means of all data planes, by class. A data plane that is silent while others
    /// report is assumed to have no arrivals.
    fn rates(&self, grace: Duration) -> Vec<Rate> {
        let mut sums = vec![Rate::default(); self.configured_rps.len()];
        for instance in self.instances.values() {
            let missed = self.heard.unwrap_or_default().saturating_sub(instance.seen).saturating_sub(grace);
            for (sum, rate) in sums.iter_mut().zip(&instance.rates) {
                sum.add(*rate, missed);
            }
        }
        sums
    }

    /// Moves the slow means to the planned demand. A slow mean that stayed behind would pull the
    /// demand back whenever the noise of the fast mean allows it.
    fn follow(&mut self, grace: Duration) {
        let rates = self.rates(grace);
        for (class, (rate, dispersion)) in rates.iter().zip(&self.dispersion).enumerate() {
            let change_rps = rate.planned_rps(dispersion.index()) - rate.slow_rps;
            let all_rps: f64 = self.instances.values().map(|instance| instance.rates[class].fast_rps).sum();
            if change_rps == 0.0 || all_rps <= 0.0 {
                continue;
            }
            for rate in self.instances.values_mut().map(|instance| &mut instance.rates[class]) {
                rate.slow_rps = (rate.slow_rps + change_rps * rate.fast_rps / all_rps).max(0.0);
            }
        }
    }

    /// Counts arrivals for the dispersion; a window longer than a bucket carries no information on
    /// it.
    fn count(&mut self, now: Duration, window: Duration, arrivals: &[u64]) {
        let Some(since) = self.bucket.since.filter(|&since| window <= BUCKET && now.saturating_sub(since) < 3 * BUCKET) else {
            self.dispersion.iter_mut().for_each(Dispersion::interrupt);
            return self.begin_bucket(now);
        };
        for (count, &arrived) in self.bucket.counts.iter_mut().zip(arrivals) {
            *count += arrived as f64;
        }
        // A bucket ends with the report that fills it, so that no report is cut in two.
        let length = now.saturating_sub(since);
        if length >= BUCKET {
            let share = BUCKET.as_secs_f64() / length.as_secs_f64();
            for ((dispersion, rps), count) in self.dispersion.iter_mut().zip(&self.bucket.expected_rps).zip(&self.bucket.counts) {
                dispersion.observe(count * share, rps * BUCKET.as_secs_f64());
            }
            self.begin_bucket(now);
        }
    }

    fn begin_bucket(&mut self, now: Duration) {
        let rates = self.rates(BUCKET);
        let planned = |(rate, dispersion): (&Rate, &Dispersion)| rate.planned_rps(dispersion.index());
        let expected_rps: Vec<f64> = rates.iter().zip(&self.dispersion).map(planned).collect();
        self.bucket = Bucket { since: Some(now), counts: vec![0.0; expected_rps.len()], expected_rps };
    }
}

#[cfg(test)]
mod tests;
