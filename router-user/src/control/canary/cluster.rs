//! The cluster in which plans are tried, and the trial that runs there. Pure.
//!
//! During a trial one cluster uses the new weights and the other clusters use the old ones. Both
//! together are legal, or there is no trial. At the end the results of the cluster's requests are
//! compared with the plan's expectation. Profiles are never exact, so the change counts: latency
//! may not have grown by much more than the plan expected.

use std::f64::consts::LN_2;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::model::{ClusterId, Fleet};
use crate::numeric::decay;
use crate::plan::decide::gate;
use crate::plan::verify;
use crate::plan::{Inputs, RouteWeights, evaluate};
use crate::protocol::DemandReport;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;

/// Smallest number of answers that a mean is judged by. With a standard deviation as large as the
/// mean, its error is then 14 %.
const ANSWERS_LEAST: f64 = 50.0;
/// Fraction by which latency may exceed the expected latency.
const DEARER_FRAC: f64 = 0.25;
/// Allowed increase of the fraction of requests that fail.
const FAILED_FRAC: f64 = 0.01;
/// A plan that failed its trial is not tried again for this many trial lengths.
const HELD_BACK_TRIALS: u32 = 20;
/// Fraction of the demand below which a move makes no difference: two plans that differ by less are
/// the same plan.
const SAME_FRAC: f64 = 0.02;
/// Smallest fraction of the demand that a plan must move in the cluster to be tried there.
const TRIED_FRAC: f64 = 1e-4;
/// Half-life of the results before a trial.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// Results of the cluster's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Met {
    attempts: f64,
    failures: f64,
    answers: f64,
    latency_ms_sum: f64,
}

/// The trial that runs.
#[derive(Debug)]
pub(super) struct Trial {
    /// The generation of its snapshot.
    pub(super) generation: u64,
    /// The snapshots for all clusters after a good and after a bad trial.
    pub(super) content: Snapshot,
    pub(super) before: Arc<Snapshot>,
    /// The weights of all clusters during the trial.
    pub(super) mix: Vec<RouteWeights>,
    /// Beginning and end of the counting. Requests that began before the trial settled do not
    /// count.
    counts_from: Duration,
    until: Duration,
    met: Met,
    met_before: Met,
    foreseen_ms: f64,
    foreseen_before_ms: f64,
}

/// The result of a trial, with its figures in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    Good(String),
    Bad(String),
}

/// A cluster in which plans are tried.
#[derive(Debug)]
pub(super) struct CanaryCluster {
    cluster: ClusterId,
    pub(super) name: String,
    length: Duration,
    settles: Duration,
    met: Met,
    pub(super) trial: Option<Trial>,
    failed: Option<Failed>,
}

/// A plan that failed its trial, the time until which it is not tried again, and the reason.
#[derive(Debug)]
struct Failed {
    weights: Vec<RouteWeights>,
    until: Duration,
    why: String,
}

impl CanaryCluster {
    /// `None` where the configuration names no cluster for it.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let cluster = config.control.canary?;
        let (period, periods) = (config.control.period, config.control.canary_periods);
        Some(Self {
            cluster,
            name: config.fleet.clusters[cluster.index()].name.clone(),
            length: period * periods,
            settles: period.min(period * periods / 2),
            met: Met::default(),
            trial: None,
            failed: None,
        })
    }

    /// Takes a data plane's report.
    pub(super) fn observe(&mut self, now: Duration, report: &DemandReport) {
        if report.cluster != self.name {
            return;
        }
        let mut met = Met::default();
        for engine in &report.engines {
            met.attempts += engine.attempts as f64;
            met.failures += engine.failures as f64;
            met.answers += engine.answers as f64;
            met.latency_ms_sum += engine.latency_ms_sum;
        }
        // A report is not believed to be right, only to be a report.
        if !(met.latency_ms_sum.is_finite() && met.latency_ms_sum >= 0.0) {
            return;
        }
        match &mut self.trial {
            Some(trial) if report.generation >= trial.generation && now >= trial.counts_from => trial.met.add(met),
            Some(_) => {}
            None => {
                let window = Duration::from_millis(report.window_ms);
                self.met.fade(decay(window, HALF_LIFE.div_f64(LN_2)));
                self.met.add(met);
            }
        }
    }

    /// The weights of all clusters if only the canary's cluster moves from `current` to `new`.
    /// `None` where a trial makes no sense: nothing changes there, or both together break a rule.
    pub(super) fn mix(
        &self,
        fleet: &Fleet,
        inputs: &Inputs,
        current: &[RouteWeights],
        new: &[RouteWeights],
    ) -> Option<Vec<RouteWeights>> {
        let route = |old: &RouteWeights| match new.iter().find(|new| (new.cluster, new.class) == (old.cluster, old.class)) {
            Some(new) if new.cluster == self.cluster => new.clone(),
            _ => old.clone(),
        };
        let mix: Vec<RouteWeights> = current.iter().map(route).collect();
        let is_legal = verify::legal(fleet, inputs, &mix).is_ok();
        (is_legal && gate::moved_frac(inputs, current, &mix) > TRIED_FRAC).then_some(mix)
    }

    /// Begins a trial of `content`, which was published for this cluster alone as `generation`.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        fleet: &Fleet,
        inputs: &Inputs,
        current: &[RouteWeights],
        mix: Vec<RouteWeights>,
        (generation, content, before): (u64, Snapshot, Arc<Snapshot>),
    ) {
        self.trial = Some(Trial {
            generation,
            content,
            before,
            counts_from: now + self.settles,
            until: now + self.length,
            met: Met::default(),
            met_before: std::mem::take(&mut self.met),
            foreseen_ms: self.foreseen_ms(fleet, inputs, &mix),
            foreseen_before_ms: self.foreseen_ms(fleet, inputs, current),
            mix,
        });
    }

    /// Expected mean latency of the cluster's requests, in ms.
    fn foreseen_ms(&self, fleet: &Fleet, inputs: &Inputs, weights: &[RouteWeights]) -> f64 {
        let evaluation = evaluate(fleet, inputs, weights);
        let (mut sum, mut served_rps) = (0.0, 0.0);
        for route in weights.iter().filter(|route| route.cluster == self.cluster) {
            let rps = inputs.demand(route.cluster, route.class) * (1.0 - route.shed_frac);
            for &(engine, weight) in &route.weights {
                let network_ms = inputs.rtt_ms[self.cluster.index()][engine.index()];
                sum += rps * weight * (network_ms + evaluation.engines[engine.index()].latency_ms);
                served_rps += rps * weight;
            }
        }
        if served_rps > 0.0 { sum / served_rps } else { 0.0 }
    }

    /// True if the snapshot of this generation is on trial.
    pub(super) fn is_trying(&self, generation: u64) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.generation == generation)
    }

    /// The result of the trial, once its time is over.
    pub(super) fn result(&self, now: Duration) -> Option<TrialResult> {
        self.trial.as_ref().filter(|trial| now >= trial.until).map(Trial::result)
    }

    /// Ends the trial, if one runs; a plan that `has_failed` for a reason is held back for a while.
    pub(super) fn end(&mut self, now: Duration, has_failed: Option<(Vec<RouteWeights>, String)>) -> Option<Trial> {
        if let Some((weights, why)) = has_failed {
            self.failed = Some(Failed { weights, until: now + self.length * HELD_BACK_TRIALS, why });
        }
        self.trial.take()
    }

    /// Why a plan that is not urgent has to wait.
    pub(super) fn holds_back(&self, now: Duration, inputs: &Inputs, weights: &[RouteWeights]) -> Option<String> {
        if self.trial.is_some() {
            return Some(format!("keep: a plan is on trial in cluster {}", self.name));
        }
        let failed = self.failed.as_ref().filter(|failed| now < failed.until)?;
        let is_same = gate::moved_frac(inputs, &failed.weights, weights) <= SAME_FRAC;
        is_same.then(|| format!("keep: held back, as it failed its trial: {}", failed.why))
    }

    /// The trial in words, for operators.
    pub(super) fn describe(&self, now: Duration) -> Option<String> {
        let trial = self.trial.as_ref()?;
        let (left, generation) = (trial.until.saturating_sub(now).as_secs_f64(), Generation(trial.generation));
        Some(format!("generation {generation} is on trial in cluster {} for {left:.1} s more: {}", self.name, trial.figures()))
    }
}

impl Met {
    fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.failures += other.failures;
        self.answers += other.answers;
        self.latency_ms_sum += other.latency_ms_sum;
    }

    fn fade(&mut self, keep: f64) {
        for sum in [&mut self.attempts, &mut self.failures, &mut self.answers, &mut self.latency_ms_sum] {
            *sum *= keep;
        }
    }

    /// `None` from too few answers.
    fn mean_ms(self) -> Option<f64> {
        (self.answers >= ANSWERS_LEAST).then(|| self.latency_ms_sum / self.answers)
    }

    fn failed_frac(self) -> f64 {
        if self.attempts > 0.0 { self.failures / self.attempts } else { 0.0 }
    }
}

impl Trial {
    /// Latency that is to be met, in ms: what was met before, changed as the plan says it changes.
    fn expected_ms(&self) -> f64 {
        match self.met_before.mean_ms() {
            Some(before) if self.foreseen_before_ms > 0.0 => before * self.foreseen_ms / self.foreseen_before_ms,
            _ => self.foreseen_ms,
        }
    }

    fn figures(&self) -> String {
        let met = self.met.mean_ms().map_or_else(|| "too few answers to tell".to_owned(), |ms| format!("{ms:.1} ms met"));
        format!(
            "{:.1} ms expected, {met} by {:.0} answers, {:.1} % failed",
            self.expected_ms(),
            self.met.answers,
            self.met.failed_frac() * 100.0
        )
    }

    fn result(&self) -> TrialResult {
        let is_dearer = self.met.mean_ms().is_some_and(|met| met > self.expected_ms() * (1.0 + DEARER_FRAC));
        // Failures need no answers to count.
        let fails = self.met.attempts >= ANSWERS_LEAST && self.met.failed_frac() > self.met_before.failed_frac() + FAILED_FRAC;
        if is_dearer || fails { TrialResult::Bad(self.figures()) } else { TrialResult::Good(self.figures()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::protocol::EngineReport;
    use crate::publish::build;

    const PERIOD: Duration = Duration::from_secs(2);

    fn report(generation: u64, attempts: u64, failures: u64, mean_ms: f64) -> DemandReport {
        let answers = attempts - failures;
        let engine = EngineReport {
            engine: "e1".to_owned(),
            attempts,
            failures,
            answers,
            latency_ms_sum: mean_ms * answers as f64,
            ..EngineReport::default()
        };
        DemandReport { cluster: "b".to_owned(), window_ms: 2_000, generation, engines: vec![engine], ..DemandReport::default() }
    }

    /// A trial after which requests have met `after`, where they met `before` until then.
    fn result(before: &[DemandReport], after: &[DemandReport]) -> (TrialResult, f64) {
        let mut config = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        config.control.canary = config.fleet.cluster("b");
        config.control.canary_periods = 5;
        let fleet = &config.fleet;
        let mut canary = CanaryCluster::new(&config).expect("there is one");
        let inputs = Inputs::from_fleet(fleet);
        let less = Inputs { demand_rps: vec![vec![60.0], vec![80.0], vec![40.0]], ..inputs.clone() };
        let current = plan(fleet, &less, None).expect("a plan").weights();
        let next = plan(fleet, &Inputs { demand_rps: vec![vec![20.0], vec![80.0], vec![10.0]], ..less.clone() }, None);
        let next = next.expect("a plan");
        before.iter().for_each(|report| canary.observe(Duration::ZERO, report));
        let mix = canary.mix(fleet, &less, &current, &next.weights()).expect("b changes, and nothing breaks");
        assert_eq!((&mix[0], &mix[2]), (&current[0], &current[2]), "the others stay");
        assert_eq!(mix[1], next.weights()[1]);
        let content = build::snapshot(fleet, &next, 7, 0, "test");
        let published = (7, content.clone(), Arc::new(content));
        canary.begin(Duration::ZERO, fleet, &less, &current, mix, published);
        assert!(canary.holds_back(PERIOD, &less, &current).is_some(), "one at a time");
        let ratio = canary.trial.as_ref().map_or(0.0, |trial| trial.foreseen_ms / trial.foreseen_before_ms);
        after.iter().for_each(|report| canary.observe(2 * PERIOD, report));
        assert_eq!(canary.result(4 * PERIOD), None, "its time is not over");
        let result = canary.result(5 * PERIOD).expect("it is now");
        let failed = matches!(result, TrialResult::Bad(_)).then(|| (next.weights(), "test".to_owned()));
        let has_failed = failed.is_some();
        canary.end(5 * PERIOD, failed);
        assert_eq!(canary.holds_back(6 * PERIOD, &less, &next.weights()).is_some(), has_failed);
        assert!(canary.holds_back(6 * PERIOD, &less, &current).is_none(), "another plan may be tried");
        assert!(canary.holds_back(500 * PERIOD, &less, &next.weights()).is_none(), "in the end it may be tried again");
        (result, ratio)
    }

    fn is_good(before: &[DemandReport], after: &[DemandReport]) -> bool {
        matches!(result(before, after).0, TrialResult::Good(_))
    }

    #[test]
    fn what_counts_is_the_change_against_what_was_foreseen() {
        let ratio = result(&[], &[]).1;
        // Everything takes three times what the profiles say, before and after.
        let before = [report(6, 400, 0, 3_000.0)];
        assert!(is_good(&before, &[report(7, 400, 0, 3_000.0 * ratio * 1.2)]));
        assert!(!is_good(&before, &[report(7, 400, 0, 3_000.0 * ratio * 1.3)]));
        assert!(is_good(&before, &[report(7, 400, 0, 1_000.0 * ratio)]));
    }

    #[test]
    fn failures_count_and_too_few_answers_do_not() {
        let before = [report(6, 1_000, 20, 1_000.0)];
        assert!(is_good(&before, &[report(7, 1_000, 25, 1_000.0)]));
        assert!(!is_good(&before, &[report(7, 1_000, 35, 1_000.0)]));
        assert!(!is_good(&[], &[report(7, 100, 100, 0.0)]), "everything fails");
        assert!(is_good(&before, &[report(7, 30, 0, 1e9)]));
        assert!(is_good(&before, &[report(6, 1_000, 0, 1e9)]), "of data planes that do not have it yet");
        let elsewhere = DemandReport { cluster: "a".to_owned(), ..report(7, 1_000, 0, 1e9) };
        assert!(is_good(&before, &[elsewhere]));
        assert!(is_good(&before, &[report(7, 1_000, 0, f64::NAN)]), "nonsense");
    }
}
