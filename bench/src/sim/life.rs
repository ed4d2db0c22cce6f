//! The loop: a second of requests, of reports and probes, of planning, and of looking at it all.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use router_user::config::{self, Config};
use router_user::control::{Answer, Probe};
use router_user::model::{ClassId, ClusterId, EngineId, Fleet};

use super::checker::Checker;
use super::control::Controller;
use super::demand::{Demand, draw};
use super::plane::{Plane, Standing};
use super::policy::Policy;
use super::report::{Life, Tally};
use super::scenario::{Kind, Lie, Scenario};
use router_user::rng::Rng;

/// Requests that may wait at an engine that gets more than it can serve, before data planes find it full: what the default
/// configuration lets each have in flight.
const WAITING_MOST: f64 = 512.0;

/// Streams of random numbers; each use has its own, so that policies meet the same requests.
const LOOKS: u64 = 1;
const DRAWS: u64 = 2;

/// Where everything else of the configuration comes from: the defaults.
const DEFAULTS: &str = include_str!("../../../examples/three-regions.toml");

/// What is true in one second, whatever anybody measures.
struct Truth {
    is_up: Vec<bool>,
    is_silent: Vec<bool>,
    has_controller: bool,
    lies: Vec<Option<Lie>>,
    phase: String,
}

impl Truth {
    fn new(scenario: &Scenario, fleet: &Fleet, at_s: u32) -> Self {
        let (mut is_up, mut is_silent) = (vec![true; fleet.engines.len()], vec![false; fleet.engines.len()]);
        let (mut has_controller, mut lies) = (true, vec![None; fleet.clusters.len()]);
        for kind in scenario.active(at_s) {
            match kind {
                Kind::EngineDown { engine } => fleet.engine(engine).into_iter().for_each(|engine| is_up[engine.index()] = false),
                Kind::RegionLost { region } => mark(fleet, region, &mut is_up, false),
                Kind::ProbesSilent { region } => mark(fleet, region, &mut is_silent, true),
                Kind::ControllerDown {} => has_controller = false,
                Kind::Telemetry { cluster, lie } => {
                    fleet.cluster(cluster).into_iter().for_each(|cluster| lies[cluster.index()] = Some(*lie));
                }
                Kind::Demand { .. } => {}
            }
        }
        let names: Vec<String> = scenario.active(at_s).map(Kind::name).collect();
        Self {
            is_up,
            is_silent,
            has_controller,
            lies,
            phase: if names.is_empty() { "calm".to_owned() } else { names.join(", ") },
        }
    }
}

fn mark(fleet: &Fleet, region: &str, marks: &mut [bool], mark: bool) {
    let there = fleet.engines.iter().zip(marks).filter(|(engine, _)| engine.region == region);
    there.for_each(|(_, is)| *is = mark);
}

/// A flow of requests of one class from a cluster to an engine, in one second.
struct Flow {
    cluster: ClusterId,
    class: ClassId,
    engine: EngineId,
    rps: f64,
}

/// Lives through a scenario under a policy.
///
/// Errors: a breach of what the scenario and the checker expect, with the command that replays it; or no plan can be made.
pub fn live(scenario: &Scenario, policy: Policy) -> Result<Life> {
    let mut demand = Demand::new(scenario);
    let fleet = demand.fleet().clone();
    check_names(scenario, &fleet)?;
    let config = Arc::new(configuration(scenario, &fleet));
    let mut checker = Checker::new(&fleet, scenario, policy == Policy::Optimiser);
    let mut controller = Controller::new(&config, policy);
    let first = Arc::new(Controller::first(&config, policy)?);
    let mut planes: Vec<Plane> = fleet.cluster_ids().map(|cluster| Plane::new(cluster, &fleet, &first)).collect();
    let may = |cluster: ClusterId, class: ClassId, engine: EngineId| {
        let is_near = fleet.classes[class.index()].too_far(fleet.rtt_ms(cluster, engine)).is_none();
        is_near && fleet.ineligible(class, engine).is_none()
    };
    let eligible: Vec<Vec<Vec<EngineId>>> = fleet
        .cluster_ids()
        .map(|cluster| fleet.class_ids().map(|class| fleet.engine_ids().filter(|&e| may(cluster, class, e)).collect()).collect())
        .collect();
    let (mut looks, mut draws) = (Rng::stream(scenario.seed, LOOKS), Rng::stream(scenario.seed, DRAWS));
    let mut waiting = vec![0.0_f64; fleet.engines.len()];
    let mut load = vec![0.0; fleet.engines.len()];
    let mut tally = Tally::default();
    let mut had_controller = true;
    for at_s in 0..scenario.duration_s {
        let now = Duration::from_secs(u64::from(at_s));
        let truth = Truth::new(scenario, &fleet, at_s);
        tally.enter(&truth.phase, at_s);
        if truth.has_controller && !had_controller {
            controller.restart(now);
        }
        had_controller = truth.has_controller;
        for engine in fleet.engine_ids().filter(|engine| !truth.is_up[engine.index()]) {
            let at = engine.index();
            let times = fleet.profile_of(engine).latency_ms(load[at], fleet.classes[0].output_tokens);
            tally.broken(load[at] * times / 1e3 + waiting[at]);
            (load[at], waiting[at]) = (0.0, 0.0);
        }
        let rates = demand.rates_rps(scenario, at_s);
        let standing = |engine: EngineId| match (truth.is_up[engine.index()], waiting[engine.index()] >= WAITING_MOST) {
            (false, _) => Standing::Out,
            (true, true) => Standing::Full,
            (true, false) => Standing::Fit,
        };
        let mut flows: Vec<Flow> = Vec::new();
        load.fill(0.0);
        for plane in &mut planes {
            if truth.has_controller {
                plane.look(at_s, controller.published.as_ref(), &fleet, &mut looks);
            }
            plane.doubt(at_s, &fleet, config.store.stale_after, &truth.is_up);
            for class in fleet.class_ids() {
                let eligible = &eligible[plane.cluster.index()][class.index()];
                let split = plane.split(class, eligible, standing);
                checker.split(&split, eligible).map_err(|error| checker.at(at_s, &error))?;
                let asked = rates[plane.cluster.index()][class.index()];
                let [shed, full, unreachable] =
                    [split.shed, split.full, split.unreachable].map(|share| draw(&mut draws, asked * share));
                tally.refuse(shed, full, unreachable);
                tally.redirected(asked * split.redirected);
                plane.count(class, shed + full + unreachable);
                for (engine, share) in split.sent {
                    load[engine.index()] += asked * share * fleet.classes[class.index()].work;
                    flows.push(Flow { cluster: plane.cluster, class, engine, rps: asked * share });
                }
            }
        }
        let capacity = |engine: EngineId| fleet.profile_of(engine).capacity_rps;
        for engine in fleet.engine_ids() {
            let at = engine.index();
            waiting[at] = (waiting[at] + load[at] - capacity(engine)).max(0.0);
        }
        for Flow { cluster, class, engine, rps } in flows {
            let (profile, kind) = (fleet.profile_of(engine), &fleet.classes[class.index()]);
            let served = load[engine.index()].min(profile.capacity_rps);
            let queue_ms = waiting[engine.index()] / profile.capacity_rps * 1e3;
            let latency_ms = fleet.rtt_ms(cluster, engine) + profile.latency_ms(served, kind.output_tokens) + queue_ms;
            let count = draw(&mut draws, rps);
            tally.serve(count, latency_ms);
            planes[cluster.index()].count(class, count);
        }
        let utilisation: Vec<f64> = fleet.engine_ids().map(|engine| load[engine.index()] / capacity(engine)).collect();
        let is_known = truth.has_controller && truth.lies.iter().all(Option::is_none);
        let over = checker.second(at_s, &utilisation, is_known).map_err(|error| checker.at(at_s, &error))?;
        tally.second(over, utilisation.iter().copied().fold(0.0, f64::max));
        for plane in &mut planes {
            // Data planes report in turn, each once a period.
            let period = config.control.period.as_secs().max(1);
            if (u64::from(at_s) + plane.cluster.index() as u64).is_multiple_of(period) {
                let lie = truth.lies[plane.cluster.index()];
                if let Some(report) = plane.report(at_s, &fleet, truth.has_controller, lie) {
                    controller.report(now, &report).map_err(|error| checker.at(at_s, &error))?;
                }
            }
        }
        if truth.has_controller {
            for engine in fleet.engine_ids() {
                let answer = match (truth.is_up[engine.index()], truth.is_silent[engine.index()]) {
                    (_, true) => Answer::Silent,
                    (true, false) => Answer::Healthy,
                    (false, false) => Answer::Refused,
                };
                controller.probe(Probe { engine, answer });
            }
            let step = controller.step(now, &mut checker).map_err(|error| checker.at(at_s, &error))?;
            tally.step(step.has_published, step.moved_frac);
        }
    }
    let (phases, total) = tally.end(scenario.duration_s);
    let end = checker.end(scenario, total.requests, total.full + total.unreachable);
    end.map_err(|error| checker.at(scenario.duration_s, &error))?;
    Ok(Life {
        policy,
        digest: format!("{:016x}", checker.digest),
        plans: checker.plans,
        gap_max: checker.gap_max,
        mixed_max: checker.mixed_max,
        suspicions: checker.suspicions,
        phases,
        total,
    })
}

/// The configuration that the control plane runs with: defaults, this fleet.
fn configuration(scenario: &Scenario, fleet: &Fleet) -> Config {
    let mut config = config::parse(DEFAULTS).expect("the example is legal");
    config.fleet = fleet.clone();
    config.control.headroom_frac = scenario.fleet.headroom_frac;
    config
}

fn check_names(scenario: &Scenario, fleet: &Fleet) -> Result<()> {
    for event in &scenario.events {
        let found = match &event.kind {
            Kind::EngineDown { engine } => fleet.engine(engine).is_some(),
            Kind::RegionLost { region } | Kind::ProbesSilent { region } => fleet.engines.iter().any(|e| e.region == *region),
            Kind::Telemetry { cluster, .. } | Kind::Demand { cluster: Some(cluster), .. } => fleet.cluster(cluster).is_some(),
            Kind::ControllerDown {} | Kind::Demand { cluster: None, .. } => true,
        };
        found.then_some(()).with_context(|| format!("event {:?} names what the fleet does not have", event.kind.name()))?;
    }
    Ok(())
}
