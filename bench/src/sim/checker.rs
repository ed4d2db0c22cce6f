//! What must hold in every second of a life, whatever happens: the first breach ends it, with the
//! command that replays it.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use router_user::control::Anomaly;
use router_user::model::{EngineId, Fleet};
use router_user::plan::decide::gate::{Decision, moved_frac};
use router_user::plan::explain::weights;
use router_user::plan::verify;
use router_user::plan::{Inputs, Plan, RouteWeights};
use router_user::publish::build;
use router_user::publish::slots::engine_key;
use router_user::publish::snapshot::Snapshot;

use super::scenario::Scenario;
use super::types::Split;

/// Certified gap that a plan may have.
const GAP_FRAC: f64 = 5e-4;
/// Weights above this, and zeros, need a reason that adds up.
const EXPLAINED_WEIGHT: f64 = 1e-3;
/// What pruned slivers may move beyond the limit of movement.
const SLIVERS_FRAC: f64 = 1e-3;
/// Load above capacity that counts.
const OVERLOAD_FRAC: f64 = 1e-3;
/// Error of a sum of shares.
const SUM: f64 = 1e-6;

/// A plan, and what was decided on it.
#[derive(Debug)]
pub(super) struct Judged<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) current: Option<&'a [RouteWeights]>,
    pub(super) plan: &'a Plan,
    pub(super) decision: &'a Decision,
}

#[derive(Debug)]
pub(super) struct Checker {
    fleet: Fleet,
    replay: String,
    overload_s: u32,
    /// Whether this life is held to anything: a policy that is only compared with is not.
    is_strict: bool,
    generation: u64,
    /// Seconds in a row that each engine has had more than it can serve.
    over: Vec<u32>,
    excused_until_s: u32,
    sheds: bool,
    pub(super) digest: u64,
    pub(super) plans: u32,
    pub(super) published: u32,
    pub(super) gap_max: f64,
    /// Largest load by capacity that an engine could have had while some data planes still followed
    /// the weights before.
    pub(super) mixed_max: f64,
    pub(super) anomalies: Vec<String>,
}

impl Checker {
    pub(super) fn new(fleet: &Fleet, scenario: &Scenario, is_strict: bool) -> Self {
        let Scenario { name, seed, duration_s, .. } = scenario;
        Self {
            fleet: fleet.clone(),
            replay: format!("ilb-bench sim --scenario {name} --seed {seed} --duration {duration_s}s --policy optimiser"),
            overload_s: scenario.expect.overload_s,
            is_strict,
            generation: 0,
            over: vec![0; fleet.engines.len()],
            excused_until_s: 0,
            sheds: false,
            digest: 0,
            plans: 0,
            published: 0,
            gap_max: 0.0,
            mixed_max: 0.0,
            anomalies: Vec::new(),
        }
    }

    /// Says where a life ended, and how to see it again.
    pub(super) fn at(&self, at_s: u32, error: &anyhow::Error) -> anyhow::Error {
        anyhow::anyhow!("second {at_s}: {error:#}; replay: {}", self.replay)
    }

    pub(super) fn note_anomalies(&mut self, anomalies: &[Anomaly]) {
        for Anomaly { subject, detail } in anomalies {
            let text = format!("{subject}: {detail}");
            if !self.anomalies.contains(&text) {
                self.anomalies.push(text);
            }
        }
    }

    /// Judges a plan, and the snapshot if it is published. Returns the share of demand that it
    /// moves.
    ///
    /// Errors: what is wrong with it.
    pub(super) fn plan(&mut self, now: Duration, judged: &Judged<'_>, snapshot: Option<&Snapshot>) -> Result<f64> {
        let Judged { inputs, current, plan, decision } = *judged;
        self.plans += 1;
        self.gap_max = self.gap_max.max(plan.certificate.gap_frac);
        self.sheds = plan.routes.iter().any(|route| route.shed_rps > 0.0);
        let generation = snapshot.map_or(0, |snapshot| snapshot.generation);
        let digest = snapshot.map_or("", |snapshot| snapshot.digest.as_str());
        self.digest = engine_key(&format!("{:016x} {now:?} {generation} {digest} {decision}", self.digest));
        ensure!(!plan.is_greedy, "a plan was made without the solver");
        ensure!(
            plan.certificate.gap_frac <= GAP_FRAC,
            "certified gap is {}, wanted at most {GAP_FRAC}",
            plan.certificate.gap_frac
        );
        let weights = plan.weights();
        verify::legal(&self.fleet, inputs, &weights)?;
        let unexplained = weights::unexplained(&self.fleet, inputs, plan, EXPLAINED_WEIGHT);
        ensure!(unexplained == 0, "{unexplained} weights or zeros have no reason that adds up");
        let Some(snapshot) = snapshot else { return Ok(0.0) };
        self.published += 1;
        snapshot.validate()?;
        ensure!(snapshot.generation > self.generation, "generation {} after {}", snapshot.generation, self.generation);
        self.generation = snapshot.generation;
        let published = build::current_weights(&self.fleet, snapshot);
        let published = published.ok_or_else(|| anyhow::anyhow!("the snapshot is of another fleet"))?;
        verify::legal(&self.fleet, inputs, &published)?;
        let Some(current) = current else { return Ok(0.0) };
        self.note_mixed(inputs, current, &published);
        let moved = moved_frac(inputs, current, &published);
        let is_bound =
            verify::legal(&self.fleet, inputs, current).is_ok() && !self.sheds && current.iter().all(|r| r.shed_frac == 0.0);
        let limit = inputs.move_limit_frac + SLIVERS_FRAC;
        ensure!(!is_bound || moved <= limit, "moves {moved} of the demand, wanted at most {limit}");
        Ok(moved)
    }

    /// What an engine gets at worst while each data plane follows the old or the new weights.
    fn note_mixed(&mut self, inputs: &Inputs, current: &[RouteWeights], new: &[RouteWeights]) {
        let mut load = vec![0.0; self.fleet.engines.len()];
        for cluster in self.fleet.cluster_ids() {
            let of = |weights: &[RouteWeights]| {
                let mut load = vec![0.0; self.fleet.engines.len()];
                for route in weights.iter().filter(|route| route.cluster == cluster) {
                    let work = self.fleet.classes[route.class.index()].work * (1.0 - route.shed_frac);
                    let rps = inputs.demand(cluster, route.class) * work;
                    route.weights.iter().for_each(|&(engine, weight)| load[engine.index()] += rps * weight);
                }
                load
            };
            let most = of(current).into_iter().zip(of(new)).map(|(old, new)| old.max(new));
            load.iter_mut().zip(most).for_each(|(load, most)| *load += most);
        }
        for engine in self.fleet.engine_ids().filter(|engine| inputs.ready[engine.index()] > 0) {
            let capacity = inputs.capacity_rps(&self.fleet, engine);
            self.mixed_max = self.mixed_max.max(load[engine.index()] / capacity);
        }
    }

    /// Looks at where a data plane sends its requests.
    ///
    /// Errors: to an engine that may not serve them, or some are sent nowhere and counted nowhere.
    pub(super) fn split(&self, split: &Split, eligible: &[EngineId]) -> Result<()> {
        for &(engine, share) in &split.sent {
            ensure!(eligible.contains(&engine), "{} may not serve what it is sent", self.fleet.engines[engine.index()].name);
            ensure!(share.is_finite() && share >= 0.0, "{share} of a class is sent to an engine");
        }
        let sum = split.sent.iter().map(|&(_, share)| share).sum::<f64>() + split.shed + split.full + split.unreachable;
        ensure!((sum - 1.0).abs() <= SUM, "{sum} of the requests of a class are accounted for");
        Ok(())
    }

    /// Looks at a second: `utilisation` of every engine, and whether there is a controller that is
    /// told the truth. Returns how many engines have more than they can serve.
    ///
    /// Errors: one has had for too long.
    pub(super) fn second(&mut self, at_s: u32, utilisation: &[f64], is_known: bool) -> Result<u32> {
        // Then it gets as long as after any other event to put right what happened meanwhile, and
        // so it does where not all can be served.
        if !is_known || self.sheds {
            self.excused_until_s = at_s + self.overload_s;
        }
        let mut count = 0;
        for (engine, &utilisation) in utilisation.iter().enumerate() {
            let is_over = utilisation > 1.0 + OVERLOAD_FRAC;
            self.over[engine] = if is_over { self.over[engine] + 1 } else { 0 };
            count += u32::from(is_over);
            if self.is_strict && self.over[engine] > self.overload_s && at_s >= self.excused_until_s {
                let name = &self.fleet.engines[engine].name;
                bail!("{name} gets {utilisation:.3} of what it can serve, for {} s", self.over[engine]);
            }
        }
        Ok(count)
    }

    /// Looks back at the whole life.
    ///
    /// Errors: more was refused or published than expected.
    pub(super) fn end(&self, scenario: &Scenario, requests: u64, refused: u64) -> Result<()> {
        if !self.is_strict {
            return Ok(());
        }
        let (refused, allowed) = (refused as f64 / requests.max(1) as f64, scenario.expect.refused_frac);
        ensure!(refused <= allowed, "{refused} of all requests found no engine, wanted at most {allowed}");
        let (published, allowed) = (f64::from(self.published) / f64::from(scenario.duration_s), scenario.expect.published_frac);
        ensure!(published <= allowed, "something is published in {published} of all seconds, wanted at most {allowed}");
        Ok(())
    }
}
