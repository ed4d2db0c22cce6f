//! Whatever data planes and engines say: plans stay legal, movement bounded, and what is odd has a
//! name. A failure names its seed.

use std::sync::Arc;
use std::time::Duration;

use router_user::config::{self, Config};
use router_user::control::{Anomaly, Answer, Measured, Probe};
use router_user::model::{EngineId, Fleet};
use router_user::plan::decide::gate::{Decision, decide};
use router_user::plan::verify;
use router_user::plan::{Inputs, Optimiser, RouteWeights};
use router_user::probe::{Scrape, ScrapeError, from_metrics};
use router_user::protocol::{DemandReport, EngineReport};

use crate::plan::laws::{Dice, Recipe, fleet, seeds};

const TICKS: u64 = 60;
/// What a weight may lose when it is summed in another order.
const ROUNDING: f64 = 1e-4;

fn example() -> Config {
    config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal")
}

fn odd_number(dice: &mut Dice) -> f64 {
    [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300, 30.0, 3_000.0][dice.below(8)]
}

fn odd_count(dice: &mut Dice, usual: u64) -> u64 {
    match dice.below(8) {
        0 => 0,
        1 => usual * 10,
        2 => u64::MAX,
        3 => 7,
        _ => usual + dice.below(usual as usize / 4 + 2) as u64,
    }
}

fn odd_report(dice: &mut Dice, fleet: &Fleet, cluster: usize) -> DemandReport {
    let usual = |class: usize| (2.0 * fleet.clusters[cluster].demand_rps[class]) as u64;
    let arrivals = fleet.classes.iter().enumerate().map(|(at, class)| (class.name.clone(), odd_count(dice, usual(at)))).collect();
    let engine = |dice: &mut Dice, at: usize| EngineReport {
        engine: if dice.one_in(9) { "nobody".to_owned() } else { fleet.engines[at].name.clone() },
        attempts: odd_count(dice, 50),
        failures: odd_count(dice, 20),
        answers: odd_count(dice, 50),
        latency_ms_sum: if dice.one_in(3) { odd_number(dice) } else { dice.real(0.0, 1e6) },
        rtt_ms: dice.one_in(2).then(|| if dice.one_in(3) { odd_number(dice) } else { dice.real(0.1, 300.0) }),
        multiplier: [None, Some(1.0), Some(0.0), Some(f64::NAN), Some(0.3), Some(-1.0)][(cluster + 2 * at) % 6],
    };
    DemandReport {
        cluster: fleet.clusters[cluster].name.clone(),
        instance: format!("p{}", dice.below(3)),
        window_ms: [2_000, 2_000, 2_000, 1, 60_000, u64::MAX][dice.below(6)],
        arrivals,
        engines: (0..fleet.engines.len()).map(|at| engine(dice, at)).collect(),
        ..DemandReport::default()
    }
}

fn odd_scrape(dice: &mut Dice, engine: EngineId) -> Scrape {
    let page = format!(
        "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\nvllm:inter_token_latency_seconds_count 5\n\
         vllm:inter_token_latency_seconds_sum 1\nsmg_worker_health{{worker=\"a\"}} {}\n",
        odd_number(dice),
        odd_number(dice),
        dice.below(2)
    );
    Scrape { engine, outcome: from_metrics(page.as_bytes()).ok_or(ScrapeError::NoSignals) }
}

/// One plan and its decision, as the controller makes them; the current weights afterwards.
fn planned(
    seed: u64,
    fleet: &Fleet,
    optimiser: &mut Optimiser,
    inputs: &Inputs,
    current: Option<Vec<RouteWeights>>,
) -> Vec<RouteWeights> {
    let plan = optimiser.plan(fleet, inputs, current.as_deref()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let weights = plan.weights();
    verify::legal(fleet, inputs, &weights).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let sheds = |weights: &[RouteWeights]| weights.iter().any(|route| route.shed_frac > 0.0);
    if let Some(current) = &current
        && verify::legal(fleet, inputs, current).is_ok()
        && !sheds(current)
        && !sheds(&weights)
    {
        assert!(plan.moved_frac <= inputs.move_limit_frac + ROUNDING, "seed {seed}: moves {}", plan.moved_frac);
    }
    match (decide(fleet, inputs, current.as_deref(), &plan), current) {
        (Decision::Keep { .. }, Some(current)) => current,
        _ => weights,
    }
}

#[test]
fn no_report_probe_or_page_makes_an_illegal_plan_or_a_wild_move() {
    let recipe = Recipe { clusters: 4, engines: 6, classes: 2, has_lengths: true, has_work: true, has_faults: false, load: 0.9 };
    for seed in seeds(60) {
        let mut dice = Dice(seed);
        let mut config = example();
        config.fleet = fleet(&mut dice, recipe).0;
        config.control.measured_rtt = true;
        let (config, fleet) = (Arc::new(config.clone()), config.fleet);
        let mut measured = Measured::new(Arc::clone(&config));
        let mut optimiser = Optimiser::new(Duration::from_secs(20));
        let (mut now, mut current) = (Duration::ZERO, None);
        for _ in 0..TICKS {
            now += Duration::from_millis([2_000, 2_000, 2_000, 500, 9_000, 40_000][dice.below(6)]);
            for cluster in 0..fleet.clusters.len() {
                if !dice.one_in(4) {
                    // A report may be refused; what it leaves behind is what counts.
                    let _refused = measured.report(now, &odd_report(&mut dice, &fleet, cluster));
                }
            }
            for engine in fleet.engine_ids() {
                let answer =
                    [Answer::Healthy, Answer::Healthy, Answer::Refused, Answer::TimedOut, Answer::TimedOut][dice.below(5)];
                measured.probe(Probe { engine, answer });
                measured.scrape(now, odd_scrape(&mut dice, engine));
            }
            let (inputs, _) = measured.inputs(now, Vec::new(), current.as_deref());
            current = Some(planned(seed, &fleet, &mut optimiser, &inputs, current));
        }
    }
}

/// A fleet of the example that goes well for a while, and then is fed by `odd` in the place of what
/// cluster `b` reports.
fn told(odd: impl Fn(u64) -> Option<DemandReport>) -> Vec<Anomaly> {
    let config = Arc::new(Config { control: config::Control { measured_rtt: true, ..example().control }, ..example() });
    let fleet = config.fleet.clone();
    let mut measured = Measured::new(Arc::clone(&config));
    let mut optimiser = Optimiser::new(Duration::from_secs(20));
    let mut current = None;
    let mut told: Vec<Anomaly> = Vec::new();
    for tick in 0..120 {
        let now = Duration::from_secs(2 * tick);
        for (at, cluster) in fleet.clusters.iter().enumerate() {
            let usual = DemandReport {
                cluster: cluster.name.clone(),
                instance: "p".to_owned(),
                window_ms: 2_000,
                arrivals: vec![("chat".to_owned(), (1.6 * cluster.demand_rps[0]) as u64 + tick % 2)],
                ..DemandReport::default()
            };
            let report = if at == 1 && tick >= 60 { odd(tick) } else { Some(usual) };
            if let Some(report) = report {
                let _refused = measured.report(now, &report);
            }
        }
        fleet.engine_ids().for_each(|engine| _ = measured.probe(Probe { engine, answer: Answer::Healthy }));
        let (inputs, anomalies) = measured.inputs(now, Vec::new(), current.as_deref());

        assert!(tick >= 60 || anomalies.is_empty(), "before anything is odd: {anomalies:?}");
        current = Some(planned(tick, &fleet, &mut optimiser, &inputs, current));
        anomalies.into_iter().filter(|found| !told.contains(found)).collect::<Vec<_>>().into_iter().for_each(|f| told.push(f));
    }
    told
}

fn report(count: u64, window_ms: u64, engines: Vec<EngineReport>) -> Option<DemandReport> {
    let arrivals = vec![("chat".to_owned(), count)];
    let (cluster, instance) = ("b".to_owned(), "p".to_owned());
    Some(DemandReport { cluster, instance, window_ms, arrivals, engines, ..DemandReport::default() })
}

#[track_caller]
fn names(odd: impl Fn(u64) -> Option<DemandReport>, subject: &str, part: &str) {
    let told = told(odd);
    assert!(told.iter().any(|found| found.subject == subject && found.detail.contains(part)), "{told:#?}");
}

#[test]
fn each_kind_of_odd_input_is_named() {
    let usual = |tick: u64| 192 + tick % 2;
    let at_e1 = |engine: EngineReport| vec![EngineReport { engine: "e1".to_owned(), ..engine }];
    names(|_| None, "cluster b", "nothing is heard");
    names(|_| report(0, 2_000, Vec::new()), "cluster b", "no arrivals");
    names(|_| report(192, 2_000, Vec::new()), "cluster b", "again and again");
    names(|tick| report(if tick == 70 { 1_920 } else { usual(tick) }, 2_000, Vec::new()), "cluster b", "many times");
    names(|tick| report(usual(tick), 60_000, Vec::new()), "cluster b", "more time than has passed");
    names(|tick| report(usual(tick), 0, Vec::new()), "cluster b", "refused: window of 0 ms");
    names(|_| report(u64::MAX, 2_000, Vec::new()), "cluster b", "refused: 18446744073709551615 requests");
    let far = |tick| report(usual(tick), 2_000, at_e1(EngineReport { rtt_ms: Some(f64::NAN), ..EngineReport::default() }));
    names(far, "cluster b", "measures NaN ms to engine e1");
    let spike = |tick| report(usual(tick), 2_000, at_e1(EngineReport { rtt_ms: Some(300.0), ..EngineReport::default() }));
    names(spike, "cluster b", "another distance to engine e1");
    let failing = EngineReport { attempts: 20, failures: 19, answers: 1, latency_ms_sum: 500.0, ..EngineReport::default() };
    names(|tick| report(usual(tick), 2_000, at_e1(failing.clone())), "engine e1", "fails requests");
    let slow = EngineReport { attempts: 20, answers: 20, latency_ms_sum: 2e6, ..EngineReport::default() };
    names(|tick| report(usual(tick), 2_000, at_e1(slow.clone())), "engine e1", "many times what its profile says");
    let impossible = EngineReport { attempts: 1, latency_ms_sum: f64::NAN, ..EngineReport::default() };
    names(|tick| report(usual(tick), 2_000, at_e1(impossible.clone())), "cluster b", "impossible numbers for engine e1");
}
