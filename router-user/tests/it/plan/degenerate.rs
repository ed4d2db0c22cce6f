//! No plan is ever illegal, however odd the fleet: judged by arithmetic of its own, not by the
//! planner's check.

use std::time::Duration;

use router_user::model::{EngineId, Fleet, Tags};
use router_user::plan::{Inputs, Optimiser, Pin, Plan, PlanError, Route, RouteWeights, nearest, plan_greedily};

use crate::plan::fleet::{class, cluster, engine, profile, tag};
use crate::plan::flow::{most, wanted};
use crate::plan::laws::{Dice, seeds};

const BUDGET: Duration = Duration::from_secs(20);

/// Share of an amount, and requests/s, that are rounding.
const ROUNDING: f64 = 2e-6;

/// A small fleet in which anything goes that configuration and measurement let through, and weights
/// that may be held.
fn odd(dice: &mut Dice) -> (Fleet, Inputs, Option<Vec<RouteWeights>>) {
    let (clusters, engines, classes) = (1 + dice.below(3), 1 + dice.below(4), 1 + dice.below(3));
    // From a request in months to millions in a second.
    let size = [1e-7, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e7][dice.below(7)];
    let profiles = (0..2).map(|at| odd_profile(dice, at, size)).collect();
    let is_uniform = dice.one_in(3);
    let mut fleet = Fleet {
        clusters: (0..clusters).map(|at| cluster(&format!("c{at}"), "r", &[])).collect(),
        engines: (0..engines).map(|at| engine(&format!("e{at}"), "r", if is_uniform { 0 } else { dice.below(2) })).collect(),
        classes: (0..classes)
            .map(|at| class(&format!("k{at}"), [1.0, 60.0, 60.0, 1e5][dice.below(4)], dice.below(3) as u8))
            .collect(),
        profiles,
        rtt_ms: vec![vec![0.0; engines]; clusters],
    };
    let far = [0.0, 1.0, 100.0, 1e5][dice.below(4)];
    for row in &mut fleet.rtt_ms {
        let same = dice.real(0.0, far + 1e-9);
        row.iter_mut().for_each(|rtt| *rtt = if is_uniform || dice.one_in(3) { same } else { dice.real(0.0, far + 1e-9) });
    }
    for engine in &mut fleet.engines {
        engine.replicas = [1, 1, 3, 1_000][dice.below(4)];
        engine.tags = if is_uniform || dice.one_in(2) { tag("residency", "eu") } else { Tags::new() };
        if dice.one_in(8) {
            engine.models = vec!["another".to_owned()];
        }
    }
    for class in &mut fleet.classes {
        match dice.below(8) {
            0 => class.require = tag("residency", "nowhere"),
            1 | 2 => class.require = tag("residency", "eu"),
            3 => class.model = "nobody's".to_owned(),
            _ => {}
        }
        class.move_price_ms = [0.0, 5.0, 5.0, 1e6][dice.below(4)];
        class.work = [0.01, 1.0, 1.0, 100.0][dice.below(4)];
        if dice.one_in(4) {
            (class.ttft_weight, class.decode_weight) = (dice.real(0.0, 2.0), dice.real(0.0, 2.0));
        }
        if dice.one_in(6) {
            class.rtt_cap_ms = Some(far * dice.real(0.0, 1.0));
        }
    }
    let capacity: f64 = fleet.engine_ids().map(|engine| fleet.profile_of(engine).capacity_rps).sum();
    let load = capacity * [0.0, 1e-9, 0.3, 0.9, 1.0, 1.1, 10.0, 1e6][dice.below(8)] / (clusters * classes) as f64;
    for cluster in &mut fleet.clusters {
        let of = |class: &router_user::model::Class| if dice.one_in(5) { 0.0 } else { load * dice.real(0.0, 2.0) / class.work };
        cluster.demand_rps = fleet.classes.iter().map(of).collect();
    }
    let mut inputs = Inputs::from_fleet(&fleet);
    let are_down = dice.one_in(12);
    for (ready, engine) in inputs.ready.iter_mut().zip(&fleet.engines) {
        *ready = if are_down || dice.one_in(5) { 0 } else { 1 + dice.below(engine.replicas as usize) as u32 };
    }
    inputs.headroom_frac = [0.0, 0.0, 0.1, 0.999_999][dice.below(4)];
    inputs.move_limit_frac = [1e-9, 1e-3, 0.1, 1.0][dice.below(4)];
    for cluster in fleet.cluster_ids() {
        for class in fleet.class_ids() {
            let eligible: Vec<EngineId> =
                fleet.engine_ids().filter(|&e| inputs.ineligible(&fleet, cluster, class, e).is_none()).collect();
            if dice.one_in(10) && !eligible.is_empty() {
                let weights = eligible.iter().map(|&e| (e, [0.0, 1e-9, 1.0, 1e9][dice.below(4)])).collect::<Vec<_>>();
                if weights.iter().any(|&(_, weight)| weight > 0.0) {
                    inputs.pins.push(Pin { cluster, class, weights });
                }
            }
        }
    }
    let current = dice.one_in(2).then(|| odd_weights(dice, &fleet, &inputs));
    (fleet, inputs, current)
}

fn odd_profile(dice: &mut Dice, at: usize, size: f64) -> router_user::model::Profile {
    let capacity = size * dice.real(0.5, 2.0);
    let start = [0.0, 1.0, 100.0, 1e6][dice.below(4)];
    let ttft: Vec<(f64, f64)> = match dice.below(4) {
        // Flat, a cliff at capacity, a bend far beyond it, several bends.
        0 => vec![(0.0, start)],
        1 => vec![(0.0, start), (capacity * 0.999_999, start), (capacity, start + 1e6)],
        2 => vec![(0.0, start), (capacity * 10.0, start + 1.0), (capacity * 20.0, start + 1e3)],
        _ => vec![(0.0, start), (capacity * 0.5, start + 1.0), (capacity * 0.9, start + 10.0), (capacity, start + 100.0)],
    };
    let tbot = if dice.one_in(2) { vec![(0.0, 0.0)] } else { vec![(0.0, 5.0), (capacity, 20.0)] };
    profile(&format!("p{at}"), capacity, &ttft, &tbot)
}

/// Weights as a snapshot could have left them: of any engine, ready or not, eligible today or not,
/// for some of the routes.
fn odd_weights(dice: &mut Dice, fleet: &Fleet, inputs: &Inputs) -> Vec<RouteWeights> {
    let mut current = nearest(fleet, inputs);
    for route in &mut current {
        if dice.one_in(2) {
            let weights: Vec<f64> = fleet.engines.iter().map(|_| [0.0, 1e-12, 0.2, 1.0][dice.below(4)]).collect();
            let sum: f64 = weights.iter().sum();
            let shares = fleet.engine_ids().zip(weights).filter(|&(_, weight)| weight > 0.0);
            route.weights = shares.map(|(engine, weight)| (engine, weight / sum)).collect();
        }
        route.shed_frac = [0.0, 0.0, 0.5, 1.0][dice.below(4)];
    }
    current.retain(|_| !dice.one_in(6));
    current
}

/// What is wrong with a plan; nothing in a legal one.
fn faults(fleet: &Fleet, inputs: &Inputs, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    let mut load = vec![0.0; fleet.engines.len()];
    let mut pinned = vec![0.0; fleet.engines.len()];
    // An amount that is none is one of requests, whatever work each is.
    let heaviest = fleet.classes.iter().map(|class| class.work).fold(1.0, f64::max);
    let mut at = 0;
    for cluster in 0..fleet.clusters.len() {
        for class in 0..fleet.classes.len() {
            let Some(route) = plan.routes.get(at) else {
                faults.push("a route is missing".to_owned());
                continue;
            };
            at += 1;
            if (route.cluster.index(), route.class.index()) != (cluster, class) {
                faults.push(format!("route {at} is of {:?}, {:?}", route.cluster, route.class));
                continue;
            }
            let demand = inputs.demand_rps[cluster][class];
            let pin = inputs.pins.iter().find(|pin| (pin.cluster, pin.class) == (route.cluster, route.class));
            let kind = &fleet.classes[class];
            if !(route.shed_rps >= 0.0 && route.shed_rps <= demand) {
                faults.push(format!("{} of {demand} are shed", route.shed_rps));
            }
            if ![route.price_ms, route.move_price_ms].iter().all(|price| price.is_finite() && *price >= 0.0) {
                faults.push(format!("prices {} and {}", route.price_ms, route.move_price_ms));
            }
            let mut sum = 0.0;
            for share in &route.weights {
                let engine = &fleet.engines[share.engine.index()];
                if !(share.weight > 0.0 && share.weight <= 1.0 + 1e-12 && share.rps.is_finite()) {
                    faults.push(format!("weight {} with {} requests/s", share.weight, share.rps));
                }
                if !engine.models.contains(&kind.model)
                    || kind.require.iter().any(|(key, value)| engine.tags.get(key) != Some(value))
                {
                    faults.push(format!("{} may not serve {}", engine.name, kind.name));
                }
                if kind.rtt_cap_ms.is_some_and(|cap| inputs.rtt_ms[cluster][share.engine.index()] > cap) {
                    faults.push(format!("{} is too far away for {}", engine.name, kind.name));
                }
                if inputs.ready[share.engine.index()] == 0 && pin.is_none() {
                    faults.push(format!("{} is not ready", engine.name));
                }
                sum += share.weight;
                load[share.engine.index()] += share.weight * (demand - route.shed_rps) * kind.work;
            }
            if (sum - 1.0).abs() > 1e-9 && !(route.weights.is_empty() && demand - route.shed_rps <= ROUNDING) {
                faults.push(format!("weights of {} sum to {sum}", kind.name));
            }
            if let Some(pin) = pin {
                let all: f64 = pin.weights.iter().map(|&(_, weight)| weight).sum();
                for &(engine, weight) in &pin.weights {
                    pinned[engine.index()] += demand * kind.work * weight / all;
                    let found = route.weights.iter().find(|share| share.engine == engine).map_or(0.0, |share| share.weight);
                    if (found - weight / all).abs() > ROUNDING {
                        faults.push(format!("pinned at {}, has {found}", weight / all));
                    }
                }
            }
        }
    }
    for (at, engine) in fleet.engines.iter().enumerate() {
        let ready = f64::from(inputs.ready[at]) / f64::from(engine.replicas);
        let capacity = fleet.profiles[engine.profile].capacity_rps * ready * (1.0 - inputs.headroom_frac);
        if load[at] > capacity.max(pinned[at]) * (1.0 + ROUNDING) + ROUNDING * heaviest * plan.routes.len() as f64 {
            faults.push(format!("{} gets {}, may have {capacity}, {} of it pinned", engine.name, load[at], pinned[at]));
        }
    }
    // Never is anything refused that fits beside what is pinned.
    let free: Vec<_> = plan.routes.iter().filter(|route| !route.is_pinned).collect();
    let work = |rps: f64, route: &Route| rps * fleet.classes[route.class.index()].work;
    let served: f64 = free.iter().map(|route| work(route.demand_rps - route.shed_rps, route)).sum();
    let most = most(fleet, inputs, &wanted(fleet, inputs, |_| true));
    let asked: f64 = free.iter().map(|route| work(route.demand_rps, route)).sum();
    if served < most - ROUNDING * (asked + heaviest * free.len() as f64) {
        faults.push(format!("serves {served}, could serve {most}"));
    }
    if !(plan.objective_ms.is_finite() && plan.objective_ms >= 0.0 && plan.certificate.gap_frac.is_finite()) {
        faults.push(format!("objective {}, {:?}", plan.objective_ms, plan.certificate));
    }
    faults
}

/// Whether the numbers are too far apart for the solver: engines that may be given next to nothing
/// or answer in no time, demand that is next to nothing or beyond everything. A plan that its check
/// refuses is then replaced by the one without a solver, as in the controller.
fn is_extreme(fleet: &Fleet, inputs: &Inputs) -> bool {
    let capacity: Vec<f64> = fleet.engine_ids().map(|engine| inputs.capacity_rps(fleet, engine)).collect();
    let all: f64 = capacity.iter().sum();
    let work = |demand: &Vec<f64>| demand.iter().zip(&fleet.classes).map(|(rps, class)| rps * class.work).sum::<f64>();
    let demand: f64 = inputs.demand_rps.iter().map(work).sum();
    let answers_in_no_time = |&profile: &usize| {
        let profile = &fleet.profiles[profile];
        profile.ttft_ms.value(0.0) + profile.tbot_ms.value(0.0) < 0.1
    };
    capacity.iter().any(|&rps| rps > 0.0 && rps < 1e-5)
        || demand > 1e4 * all
        || demand < 1e-5_f64.max(1e-8 * all)
        || fleet.engines.iter().any(|engine| answers_in_no_time(&engine.profile))
}

/// What is wrong with the plans of one fleet, and how many were refused by their own check where
/// that may be.
fn wrong(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>) -> (Vec<String>, u32) {
    let mut refused = 0;
    let mut optimiser = Optimiser::new(BUDGET);
    let mut wrong = Vec::new();
    let mut plan = |current: Option<&[RouteWeights]>, how: &str| match optimiser.plan(fleet, inputs, current) {
        Ok(plan) => {
            wrong.extend(faults(fleet, inputs, &plan).into_iter().map(|fault| format!("{how}: {fault}")));
            Some(plan)
        }
        // A solver that gives up is as rare as that, and not of its caller's making.
        Err(PlanError::Solve(_)) => {
            refused += 1;
            None
        }
        Err(_) if is_extreme(fleet, inputs) => {
            refused += 1;
            None
        }
        Err(error) => {
            wrong.push(format!("{how}: {error}"));
            None
        }
    };
    let first = plan(None, "from nothing");
    if let Some(current) = current {
        plan(Some(current), "from current weights");
    } else if let Some(again) = first.and_then(|first| plan(Some(&first.weights()), "from its own weights")) {
        // What costs nothing to move may.
        if again.moved_frac > 1e-3 && inputs.move_price_ms.iter().all(|&price| price > 0.0) {
            wrong.push(format!("moves {} of what it would plan anyway", again.moved_frac));
        }
    }
    match plan_greedily(fleet, inputs, current) {
        Ok(plan) => wrong.extend(faults(fleet, inputs, &plan).into_iter().map(|fault| format!("greedy: {fault}"))),
        Err(error) => wrong.push(format!("greedy: {error}")),
    }
    (wrong, refused)
}

#[test]
fn no_plan_is_illegal_however_odd_the_fleet() {
    let (mut bad, mut refused, mut count) = (Vec::new(), 0, 0);
    for seed in seeds(5_000) {
        let (fleet, inputs, current) = odd(&mut Dice(seed));
        if std::env::var_os("ILB_SEED").is_some() {
            println!("{:?}\n{:?}\n{:?}\n{inputs:?}\n{current:?}", fleet.profiles, fleet.engines, fleet.classes);
        }
        let (wrong, few) = wrong(&fleet, &inputs, current.as_deref());
        (count, refused) = (count + 1, refused + few);
        if !wrong.is_empty() {
            bad.push(format!("seed {seed}: {}", wrong.join("; ")));
        }
    }
    println!("{count} fleets, {refused} plans refused by their own check and made without a solver");
    let shown = bad.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(bad.is_empty(), "{} of {count} fleets have illegal plans:\n{shown}", bad.len());
    assert!(refused <= count / 50, "{refused} plans of {count} fleets were refused");
}
