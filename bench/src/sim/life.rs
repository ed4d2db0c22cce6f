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
use super::plane::Plane;
use super::policy::Policy;
use super::report::{Life, Tally};
use super::scenario::{Kind, Lie, Scenario};
use super::types::Availability;
use router_user::rng::Rng;

/// Requests that may wait at an engine that gets more than it can serve, before data planes find it
/// full: what the default configuration lets each have in flight.
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
/// Errors: a breach of what the scenario and the checker expect, with the command that replays it;
/// or no plan can be made.
pub fn live(scenario: &Scenario, policy: Policy) -> Result<Life> {
    let mut world = World::new(scenario, policy)?;
    let mut had_controller = true;
    for at_s in 0..scenario.duration_s {
        let truth = Truth::new(scenario, &world.fleet, at_s);
        world.tally.enter(&truth.phase, at_s);
        if truth.has_controller && !had_controller {
            world.controller.restart(seconds(at_s));
        }
        had_controller = truth.has_controller;
        world.second(&truth, at_s).map_err(|error| world.checker.at(at_s, &error))?;
    }
    world.end()
}

/// The state of one life.
struct World<'s> {
    scenario: &'s Scenario,
    policy: Policy,
    fleet: Fleet,
    config: Arc<Config>,
    demand: Demand,
    controller: Controller,
    checker: Checker,
    planes: Vec<Plane>,
    /// Engines that may serve a route, by cluster, then class.
    eligible: Vec<Vec<Vec<EngineId>>>,
    looks: Rng,
    draws: Rng,
    /// Requests that wait, by engine.
    waiting: Vec<f64>,
    /// Work that arrived in this second, in requests/s, by engine.
    load_rps: Vec<f64>,
    tally: Tally,
}

impl<'s> World<'s> {
    fn new(scenario: &'s Scenario, policy: Policy) -> Result<Self> {
        let demand = Demand::new(scenario);
        let fleet = demand.fleet().clone();
        check_names(scenario, &fleet)?;
        let config = Arc::new(configuration(scenario, &fleet));
        let first = Arc::new(Controller::first(&config, policy)?);
        Ok(Self {
            scenario,
            policy,
            demand,
            controller: Controller::new(&config, policy),
            checker: Checker::new(&fleet, scenario, policy == Policy::Optimiser),
            planes: fleet.cluster_ids().map(|cluster| Plane::new(cluster, &fleet, &first)).collect(),
            eligible: eligible(&fleet),
            looks: Rng::stream(scenario.seed, LOOKS),
            draws: Rng::stream(scenario.seed, DRAWS),
            waiting: vec![0.0; fleet.engines.len()],
            load_rps: vec![0.0; fleet.engines.len()],
            tally: Tally::default(),
            config,
            fleet,
        })
    }

    /// One second: requests first, then reports and probes, then a plan.
    fn second(&mut self, truth: &Truth, at_s: u32) -> Result<()> {
        self.break_engines(truth);
        let flows = self.route(truth, at_s)?;
        self.serve(flows);
        let capacity = |engine: EngineId| self.fleet.profile_of(engine).capacity_rps;
        let utilisation: Vec<f64> =
            self.fleet.engine_ids().map(|engine| self.load_rps[engine.index()] / capacity(engine)).collect();
        let is_known = truth.has_controller && truth.lies.iter().all(Option::is_none);
        let over = self.checker.second(at_s, &utilisation, is_known)?;
        self.tally.second(over, utilisation.iter().copied().fold(0.0, f64::max));
        self.report(truth, at_s)?;
        if truth.has_controller { self.control(truth, at_s) } else { Ok(()) }
    }

    /// Ends the requests at engines that are lost.
    fn break_engines(&mut self, truth: &Truth) {
        for engine in self.fleet.engine_ids().filter(|engine| !truth.is_up[engine.index()]) {
            let at = engine.index();
            let times = self.fleet.profile_of(engine).latency_ms(self.load_rps[at], self.fleet.classes[0].output_tokens);
            self.tally.broken(self.load_rps[at] * times / 1e3 + self.waiting[at]);
            (self.load_rps[at], self.waiting[at]) = (0.0, 0.0);
        }
    }

    /// Lets each data plane follow the controller and split its demand among engines.
    fn route(&mut self, truth: &Truth, at_s: u32) -> Result<Vec<Flow>> {
        let Self { fleet, planes, waiting, draws, .. } = self;
        let rates = self.demand.rates_rps(self.scenario, at_s);
        let availability = |engine: EngineId| match (truth.is_up[engine.index()], waiting[engine.index()] >= WAITING_MOST) {
            (false, _) => Availability::Out,
            (true, true) => Availability::Full,
            (true, false) => Availability::Fit,
        };
        let mut flows: Vec<Flow> = Vec::new();
        self.load_rps.fill(0.0);
        for plane in planes {
            if truth.has_controller {
                plane.look(at_s, self.controller.published.as_ref(), fleet, &mut self.looks);
            }
            plane.doubt(at_s, fleet, self.config.store.stale_after, &truth.is_up);
            for class in fleet.class_ids() {
                let eligible = &self.eligible[plane.cluster.index()][class.index()];
                let split = plane.split(class, eligible, availability);
                self.checker.split(&split, eligible)?;
                let asked = rates[plane.cluster.index()][class.index()];
                let [shed, full, unreachable] =
                    [split.shed, split.full, split.unreachable].map(|share| draw(draws, asked * share));
                self.tally.refuse(shed, full, unreachable);
                self.tally.redirected(asked * split.redirected);
                plane.count(class, shed + full + unreachable);
                for (engine, share) in split.sent {
                    self.load_rps[engine.index()] += asked * share * fleet.classes[class.index()].work;
                    flows.push(Flow { cluster: plane.cluster, class, engine, rps: asked * share });
                }
            }
        }
        Ok(flows)
    }

    /// Lets the engines serve up to their capacity; the rest waits.
    fn serve(&mut self, flows: Vec<Flow>) {
        let fleet = &self.fleet;
        for engine in fleet.engine_ids() {
            let at = engine.index();
            let capacity_rps = fleet.profile_of(engine).capacity_rps;
            self.waiting[at] = (self.waiting[at] + self.load_rps[at] - capacity_rps).max(0.0);
        }
        for Flow { cluster, class, engine, rps } in flows {
            let (profile, kind) = (fleet.profile_of(engine), &fleet.classes[class.index()]);
            let served = self.load_rps[engine.index()].min(profile.capacity_rps);
            let queue_ms = self.waiting[engine.index()] / profile.capacity_rps * 1e3;
            let latency_ms = fleet.rtt_ms(cluster, engine) + profile.latency_ms(served, kind.output_tokens) + queue_ms;
            let count = draw(&mut self.draws, rps);
            self.tally.serve(count, latency_ms);
            self.planes[cluster.index()].count(class, count);
        }
    }

    /// Lets data planes report in turn, each once a period.
    fn report(&mut self, truth: &Truth, at_s: u32) -> Result<()> {
        let period = self.config.control.period.as_secs().max(1);
        for plane in &mut self.planes {
            if !(u64::from(at_s) + plane.cluster.index() as u64).is_multiple_of(period) {
                continue;
            }
            let lie = truth.lies[plane.cluster.index()];
            if let Some(report) = plane.report(at_s, &self.fleet, truth.has_controller, lie) {
                self.controller.report(seconds(at_s), &report)?;
            }
        }
        Ok(())
    }

    /// Probes the engines and lets the controller plan.
    fn control(&mut self, truth: &Truth, at_s: u32) -> Result<()> {
        for engine in self.fleet.engine_ids() {
            let answer = match (truth.is_up[engine.index()], truth.is_silent[engine.index()]) {
                (_, true) => Answer::TimedOut,
                (true, false) => Answer::Healthy,
                (false, false) => Answer::Refused,
            };
            self.controller.probe(Probe { engine, answer });
        }
        let step = self.controller.step(seconds(at_s), &mut self.checker)?;
        self.tally.step(step.has_published, step.moved_frac);
        Ok(())
    }

    fn end(self) -> Result<Life> {
        let Self { scenario, policy, checker, tally, .. } = self;
        let (phases, total) = tally.end(scenario.duration_s);
        let end = checker.end(scenario, total.requests, total.full + total.unreachable);
        end.map_err(|error| checker.at(scenario.duration_s, &error))?;
        Ok(Life {
            policy,
            digest: format!("{:016x}", checker.digest),
            plans: checker.plans,
            gap_max: checker.gap_max,
            mixed_max: checker.mixed_max,
            anomalies: checker.anomalies,
            phases,
            total,
        })
    }
}

fn seconds(at_s: u32) -> Duration {
    Duration::from_secs(u64::from(at_s))
}

/// Engines that may serve a route, by cluster, then class.
fn eligible(fleet: &Fleet) -> Vec<Vec<Vec<EngineId>>> {
    let may = |cluster: ClusterId, class: ClassId, engine: EngineId| {
        let is_near = fleet.classes[class.index()].too_far(fleet.rtt_ms(cluster, engine)).is_none();
        is_near && fleet.ineligible(class, engine).is_none()
    };
    let of = |cluster: ClusterId, class: ClassId| fleet.engine_ids().filter(|&e| may(cluster, class, e)).collect();
    fleet.cluster_ids().map(|cluster| fleet.class_ids().map(|class| of(cluster, class)).collect()).collect()
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
