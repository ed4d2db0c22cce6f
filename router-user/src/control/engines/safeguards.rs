//! Limits on what may be planned for engines and clusters with stale or suspect data: such an
//! engine gets no additional load, and such a cluster keeps its weights. Pure.
//!
//! docs/model.md, section 10. Suspect data alone takes no load away: an engine keeps its load, so
//! current weights stay legal and no plan must move. Only failing requests do.

use std::sync::Arc;
use std::time::Duration;

use crate::control::engines::anomaly::{Anomaly, anomaly_of};
use crate::control::engines::health::{MOST_SILENT_FRAC, Verdict};
use crate::control::estimate::demand::Freshness;
use crate::control::estimate::state::Measured;
use crate::model::{EngineId, Fleet};
use crate::plan::{Inputs, NEGLIGIBLE_RPS, Pin, RouteWeights, evaluate};

/// Largest fraction of its capacity that an engine may be given beyond its load: if its probe or
/// metrics are late, and if its verdict is not ready but the plan still uses it.
const LATE_FRAC: f64 = 0.95;
const UNKNOWN_FRAC: f64 = 0.5;
/// Smallest fraction of its capacity that an engine with failing or stalled requests keeps as its
/// limit: enough to see it recover.
const FAILING_FRAC: f64 = 0.05;
/// Tolerance, as a fraction of the capacity: rounding in sums of loads that fill an engine, and of
/// capacities that are half of all.
const ROUNDING_FRAC: f64 = 1e-6;
/// Step of the limit of a failing engine, as a fraction of its capacity, so that a plan does not
/// follow every failure.
const FAILING_STEP_FRAC: f64 = 0.1;

impl Measured {
    /// Sets load limits on engines with stale or contradictory data, or with failing or slow
    /// requests.
    pub(crate) fn limit_engines(
        &mut self,
        now: Duration,
        current: &[RouteWeights],
        inputs: &mut Inputs,
        anomalies: &mut Vec<Anomaly>,
    ) {
        let config = Arc::clone(&self.config);
        let fleet = &config.fleet;
        let evaluation = evaluate(fleet, inputs, current);
        let farthest = |engine: EngineId| inputs.rtt_ms.iter().map(|row| row[engine.index()]).fold(0.0, f64::max);
        let mut limits: Vec<Option<f64>> = vec![None; fleet.engines.len()];
        let mut failing = Vec::new();
        for engine in fleet.engine_ids().filter(|engine| inputs.ready[engine.index()] > 0) {
            let (at, planned) = (engine.index(), &evaluation.engines[engine.index()]);
            let (load, capacity) = (planned.load_rps, planned.capacity_rps);
            if self.health[at].verdict() != Verdict::Ready {
                limits[at] = Some(load.max(UNKNOWN_FRAC * capacity));
            } else if let Some(late) = self.is_late(now, engine) {
                limits[at] = Some(load.max(LATE_FRAC * capacity));
                let detail = format!("{late} late; it gets no more than most of its capacity");
                anomalies.push(anomaly_of(fleet, engine, detail));
            }
            if let Some(detail) = self.progress[at].anomaly(now) {
                limits[at] = Some(load.max(FAILING_FRAC * capacity));
                anomalies.push(anomaly_of(fleet, engine, format!("{detail}; it gets no more than it has")));
            }
            if let Some(ms) = self.outcomes[at].slow_ms(now, planned.latency_ms + farthest(engine)) {
                limits[at] = Some(load.max(FAILING_FRAC * capacity));
                let detail =
                    format!("takes many times what its profile says, about {}; it gets no more than it has", rounded(ms));
                anomalies.push(anomaly_of(fleet, engine, detail));
            }
            let answered = self.outcomes[at].failing_frac(now).map(|failing| 1.0 - failing);
            let left = [answered, self.outcomes[at].reduced_share(now)].into_iter().flatten().reduce(f64::min);
            if let Some(share) = left {
                let stays = (share / FAILING_STEP_FRAC).floor() * FAILING_STEP_FRAC;
                failing.push((engine, stays.max(FAILING_FRAC) * capacity));
            }
        }
        for &(engine, limit) in &failing {
            let is_believed = is_minority(fleet, inputs, engine, &failing);
            let made = if is_believed { "it gets only what it answers" } else { "as at most other engines; planned as it was" };
            if is_believed {
                limits[engine.index()] = Some(limit);
            }
            anomalies.push(anomaly_of(fleet, engine, format!("answers its probe, but fails requests: {made}")));
        }
        inputs.load_limit_rps = limits;
    }

    /// Engines whose probe and metrics contradict each other. The plan uses the worse of the two.
    pub(crate) fn contradictions(&self, now: Duration) -> Vec<Anomaly> {
        let fleet = &self.config.fleet;
        let detail = |engine: EngineId| {
            let is_working = self.signals(now, engine).and_then(|signals| signals.running).is_some_and(|running| running >= 1.0);
            match self.health[engine.index()].verdict() {
                Verdict::Ready if self.ready_replicas(now, engine) == Some(0) => {
                    Some("answers its probe and counts no live replica; planned without it")
                }
                Verdict::Down if is_working => Some("refuses its probe and works on requests; planned without it"),
                _ => None,
            }
        };
        let found = fleet.engine_ids().filter_map(|engine| Some((engine, detail(engine)?)));
        found.map(|(engine, detail)| anomaly_of(fleet, engine, detail.to_owned())).collect()
    }

    /// Which source of an engine's data is late, while the engine is ready.
    fn is_late(&self, now: Duration, engine: EngineId) -> Option<&'static str> {
        if self.health[engine.index()].is_late() {
            return Some("its probe is");
        }
        // An engine without any reading is not late.
        let age = now.saturating_sub(self.readings[engine.index()].at()?);
        (age > self.signals_max_age()).then_some("its metrics are")
    }

    /// Pins the weights of clusters without recent reports: their data planes continue to use them.
    pub(crate) fn keep_silent_clusters(&self, now: Duration, current: &[RouteWeights], inputs: &mut Inputs) {
        let fleet = &self.config.fleet;
        let mut load = vec![0.0; fleet.engines.len()];
        for pin in &inputs.pins {
            add_load(&mut load, fleet, inputs, pin);
        }
        let is_unheard = |cluster| matches!(self.demand.freshness(now, cluster), Freshness::Stale | Freshness::Published);
        for route in current.iter().filter(|route| is_unheard(route.cluster)) {
            let is_free = inputs.pin(route.cluster, route.class).is_none() && route.shed_frac == 0.0;
            if !is_free || route.weights.is_empty() || inputs.demand(route.cluster, route.class) <= NEGLIGIBLE_RPS {
                continue;
            }
            let pin = Pin { cluster: route.cluster, class: route.class, weights: route.weights.clone() };
            let mut with_it = load.clone();
            add_load(&mut with_it, fleet, inputs, &pin);
            // Current weights that would break a rule are replanned.
            let fits = |&(engine, weight): &(EngineId, f64)| {
                let is_usable =
                    inputs.ready[engine.index()] > 0 && inputs.ineligible(fleet, route.cluster, route.class, engine).is_none();
                weight == 0.0
                    || is_usable && with_it[engine.index()] <= inputs.capacity_rps(fleet, engine) * (1.0 + ROUNDING_FRAC)
            };
            if route.weights.iter().all(fits) {
                load = with_it;
                inputs.pins.push(pin);
            }
        }
    }
}

/// A time rounded to one digit, so that the text does not change with every request.
fn rounded(ms: f64) -> String {
    let digits = 10.0_f64.powf(ms.max(1.0).log10().floor());
    format!("{} ms", (ms / digits).round() * digits)
}

/// Adds the work of a pin to each engine.
fn add_load(load: &mut [f64], fleet: &Fleet, inputs: &Inputs, pin: &Pin) {
    let work = inputs.demand(pin.cluster, pin.class) * fleet.classes[pin.class.index()].work;
    let total: f64 = pin.weights.iter().map(|&(_, weight)| weight).sum();
    for &(engine, weight) in &pin.weights {
        load[engine.index()] += work * weight / total;
    }
}

/// Whether, for every class that `engine` may serve, no more than half of the capacity is at
/// `failing` engines. Otherwise the network or the requests are the likelier fault. One of two
/// equal engines is half: the other one is well, so neither the network nor the requests are at
/// fault.
fn is_minority(fleet: &Fleet, inputs: &Inputs, engine: EngineId, failing: &[(EngineId, f64)]) -> bool {
    fleet.class_ids().filter(|&class| fleet.ineligible(class, engine).is_none()).all(|class| {
        let eligible = || fleet.engine_ids().filter(|&other| fleet.ineligible(class, other).is_none());
        let capacity = |other: EngineId| inputs.capacity_rps(fleet, other);
        let of_failing = |&other: &EngineId| failing.iter().any(|&(at, _)| at == other);
        let bad: f64 = eligible().filter(of_failing).map(capacity).sum();
        bad <= (MOST_SILENT_FRAC + ROUNDING_FRAC) * eligible().map(capacity).sum::<f64>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Config};
    use crate::control::engines::health::{Answer, Probe};
    use crate::model::{ClassId, ClusterId};
    use crate::plan::plan;
    use crate::protocol::{DemandReport, EngineReport};
    use crate::publish::build;

    const E2: EngineId = EngineId(1);

    /// The example with more room at the second engine, its weights, and a minute of usual reports.
    fn world() -> (Arc<Config>, Measured, Vec<RouteWeights>) {
        let mut config = config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        config.fleet.clusters[1].demand_rps = vec![100.0];
        let config = Arc::new(config);
        let current = plan(&config.fleet, &Inputs::from_fleet(&config.fleet), None).expect("a plan").weights();
        let mut measured = Measured::new(Arc::clone(&config));
        (0..30).for_each(|tick| report(&mut measured, 2 * tick, &["a", "b", "c"], None));
        (config, measured, current)
    }

    fn report(measured: &mut Measured, at_s: u64, clusters: &[&str], engine: Option<EngineReport>) {
        for (cluster, count) in [("a", 180), ("b", 200), ("c", 80)].into_iter().filter(|(cluster, _)| clusters.contains(cluster))
        {
            let report = DemandReport {
                cluster: cluster.to_owned(),
                instance: "p".to_owned(),
                window_ms: 2_000,
                arrivals: vec![("chat".to_owned(), count + at_s / 2 % 2)],
                engines: engine.clone().into_iter().collect(),
                ..DemandReport::default()
            };
            measured.report(Duration::from_secs(at_s), &report).expect("legal");
        }
    }

    #[test]
    fn a_restarted_controller_keeps_the_weights_of_every_cluster_it_has_not_heard_for_long_enough() {
        let (config, _, current) = world();
        let fleet = &config.fleet;
        let truth = Inputs { demand_rps: vec![vec![20.0], vec![150.0], vec![20.0]], ..Inputs::from_fleet(fleet) };
        let published = plan(fleet, &truth, Some(&current)).expect("a plan");
        let snapshot = build::snapshot(fleet, &published, 7, 0, "test");
        let current = published.weights();
        let mut restarted = Measured::new(Arc::clone(&config));
        restarted.start_from(Duration::ZERO, &snapshot);
        let pinned = |measured: &mut Measured, at_s| {
            let (inputs, _) = measured.inputs(Duration::from_secs(at_s), Vec::new(), Some(&current));
            let next = plan(fleet, &inputs, Some(&current)).expect("a legal plan");
            (inputs.pins.iter().map(|pin| pin.cluster.0).collect::<Vec<_>>(), next.moved_frac)
        };
        assert_eq!(pinned(&mut restarted, 0), (vec![0, 1, 2], 0.0));
        report(&mut restarted, 2, &["a", "c"], None);
        assert_eq!(pinned(&mut restarted, 2), (vec![0, 1, 2], 0.0), "one report is not enough");
        (1..7).for_each(|tick| report(&mut restarted, 2 * tick, &["a", "c"], None));
        assert_eq!(pinned(&mut restarted, 12).0, [1], "the one that is not heard");
    }

    #[test]
    fn a_silent_cluster_keeps_its_weights_until_it_is_forgotten_or_its_engine_dies() {
        let (config, mut measured, current) = world();
        let pins = |measured: &mut Measured, at_s| {
            report(measured, at_s, &["a", "c"], None);
            let (inputs, _) = measured.inputs(Duration::from_secs(at_s), Vec::new(), Some(&current));
            plan(&config.fleet, &inputs, Some(&current)).expect("a legal plan");
            inputs.pins
        };
        assert_eq!(pins(&mut measured, 66), []);
        let kept = pins(&mut measured, 80);
        let route = current.iter().find(|route| route.cluster == ClusterId(1)).expect("a route");
        assert_eq!(kept, [Pin { cluster: ClusterId(1), class: ClassId(0), weights: route.weights.clone() }]);
        let mut broken = Measured::new(Arc::clone(&config));
        report(&mut broken, 0, &["b"], None);
        (0..2).for_each(|_| _ = broken.probe(Probe { engine: E2, answer: Answer::Refused }));
        assert_eq!(pins(&mut broken, 80), [], "one of its engines is gone");
        assert_eq!(pins(&mut measured, 700), [], "forgotten");
    }

    #[test]
    fn an_engine_that_fails_is_given_what_it_answers_unless_most_do() {
        let (config, mut measured, current) = world();
        let engine = |name: &str, failures| {
            Some(EngineReport { engine: name.to_owned(), attempts: 100, failures, ..EngineReport::default() })
        };
        report(&mut measured, 60, &["a"], engine("e2", 75));
        let (inputs, anomalies) = measured.inputs(Duration::from_secs(60), Vec::new(), Some(&current));
        assert_eq!(inputs.load_limit_rps, [None, Some(20.0), None], "{anomalies:?}");
        plan(&config.fleet, &inputs, Some(&current)).expect("a legal plan");
        for name in ["e1", "e3"] {
            report(&mut measured, 60, &["a"], engine(name, 90));
        }
        let (inputs, anomalies) = measured.inputs(Duration::from_secs(60), Vec::new(), Some(&current));
        assert_eq!((inputs.load_limit_rps, anomalies.len()), (vec![None; 3], 3));
        assert!(anomalies.iter().all(|found| found.detail.contains("planned as it was")), "{anomalies:?}");
    }

    #[test]
    fn one_of_two_engines_that_fails_is_given_what_it_answers_and_both_are_planned_as_they_were() {
        let (config, mut measured, current) = world();
        // Two equal engines are left, in two regions.
        (0..2).for_each(|_| _ = measured.probe(Probe { engine: EngineId(2), answer: Answer::Refused }));
        let mut limits = |name: &str| {
            let failing = EngineReport { engine: name.to_owned(), attempts: 100, failures: 100, ..EngineReport::default() };
            report(&mut measured, 60, &["a"], Some(failing));
            let (inputs, _) = measured.inputs(Duration::from_secs(60), Vec::new(), Some(&current));
            let planned = plan(&config.fleet, &inputs, None).expect("a legal plan");
            let load = |engine: usize| planned.engines[engine].load_rps;
            (inputs.load_limit_rps.clone(), load(0) > load(1))
        };
        assert_eq!(limits("e2"), (vec![None, Some(5.0), None], true));
        assert_eq!(limits("e1").0, [None; 3]);
    }

    #[test]
    fn what_is_not_known_well_gets_no_more_and_keeps_what_it_has() {
        let (_, mut measured, current) = world();
        let limits = |measured: &mut Measured, engine: u16, silences: usize| {
            (0..silences).for_each(|_| _ = measured.probe(Probe { engine: EngineId(engine), answer: Answer::TimedOut }));
            measured.inputs(Duration::from_secs(60), Vec::new(), Some(&current)).0.load_limit_rps
        };
        let first = limits(&mut measured, 1, 2);
        assert_eq!((first[0], first[2]), (None, None));
        assert!(first[1].is_some_and(|limit| limit >= 95.0), "{first:?}");
        limits(&mut measured, 1, 3);
        let most = limits(&mut measured, 0, 5);
        assert!(most[..2].iter().all(|limit| limit.is_some_and(|limit| (50.0..100.0).contains(&limit))), "{most:?}");
    }
}
