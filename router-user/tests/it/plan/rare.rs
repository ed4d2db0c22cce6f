//! Demands that lie far apart: a class that is asked for once a day beside one that is asked for
//! thousands of times a second.

use router_user::model::{Class, Fleet, Profile};
use router_user::plan::verify;
use router_user::plan::{Inputs, Optimiser, Plan, plan, plan_or_greedy};

use crate::plan::fleet::{class, cluster, engine, profile};
use crate::plan::laws::{Dice, seeds};

/// Share of the fleets whose plan the optimiser may leave to the greedy one.
const GREEDY_MOST: f64 = 0.002;

/// A convex curve that rises by up to a factor of 1,000, most of it in the last few percent before
/// capacity.
fn steep(dice: &mut Dice, capacity: f64, start: f64) -> Vec<(f64, f64)> {
    let mut knots = vec![(0.0, start)];
    let (mut at, mut value, mut slope) = (0.0, start, 0.0);
    for _ in 0..dice.below(5) {
        let next = at + (capacity - at) * dice.real(0.2, 0.95);
        slope += 10_f64.powf(dice.real(-2.0, 2.5)) * start / capacity;
        value += slope * (next - at);
        at = next;
        knots.push((at, value));
    }
    knots
}

fn steep_profile(dice: &mut Dice, at: usize) -> Profile {
    let capacity = 10_f64.powf(dice.real(0.0, 4.0));
    let (ttft, tbot) = (dice.real(20.0, 600.0), dice.real(3.0, 60.0));
    profile(&format!("p{at}"), capacity, &steep(dice, capacity, ttft), &steep(dice, capacity, tbot))
}

/// Models on engines of their own and on engines that serve several, demands from 1e-12 to 1e4
/// requests/s.
fn far_apart(dice: &mut Dice) -> Fleet {
    let (clusters, engines, models) = (1 + dice.below(3), 2 + dice.below(5), 1 + dice.below(3));
    let classes = models + dice.below(3);
    let is_uniform = dice.one_in(2);
    let class_of = |dice: &mut Dice, at: usize| Class {
        model: format!("m{}", at % models),
        work: if dice.one_in(2) { 1.0 } else { dice.real(0.1, 10.0) },
        ..class(&format!("k{at}"), if is_uniform { 200.0 } else { dice.real(1.0, 2_000.0) }, dice.below(2) as u8)
    };
    let mut fleet = Fleet {
        clusters: (0..clusters).map(|at| cluster(&format!("c{at}"), "r", &[])).collect(),
        engines: (0..engines).map(|at| engine(&format!("e{at}"), "r", dice.below(3))).collect(),
        classes: (0..classes).map(|at| class_of(dice, at)).collect(),
        profiles: (0..3).map(|at| steep_profile(dice, at)).collect(),
        rtt_ms: (0..clusters).map(|_| (0..engines).map(|_| dice.real(0.1, 200.0)).collect()).collect(),
    };
    for (at, engine) in fleet.engines.iter_mut().enumerate() {
        engine.models = (0..models).filter(|model| at % models == *model || dice.one_in(3)).map(|m| format!("m{m}")).collect();
    }
    for cluster in &mut fleet.clusters {
        let rps = |dice: &mut Dice| if dice.one_in(10) { 0.0 } else { 10_f64.powf(dice.real(-12.0, 4.0)) };
        cluster.demand_rps = (0..classes).map(|_| rps(dice)).collect();
    }
    fleet
}

/// Every class that an engine serves has weights, whatever its demand.
fn assert_all_routed(fleet: &Fleet, inputs: &Inputs, plan: &Plan, case: &str) {
    verify::legal(fleet, inputs, &plan.weights()).unwrap_or_else(|error| panic!("{case}: {error}"));
    for route in &plan.routes {
        let is_served = fleet.engine_ids().any(|engine| inputs.ineligible(fleet, route.cluster, route.class, engine).is_none());
        assert_eq!(is_served, !route.weights.is_empty(), "{case}: {route:?}");
    }
}

#[test]
fn no_demand_however_small_leaves_a_fleet_without_a_plan() {
    let (mut count, mut failures) = (0, Vec::new());
    for seed in seeds(2_000) {
        let mut dice = Dice(seed);
        let fleet = far_apart(&mut dice);
        let mut inputs = Inputs::from_fleet(&fleet);
        let mut optimiser = Optimiser::new(std::time::Duration::from_secs(20));
        let first = optimiser.plan_or_greedy(&fleet, &inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_all_routed(&fleet, &inputs, &first, &format!("seed {seed}"));
        // The traffic of some classes ends: a demand that is forgotten by half every few minutes
        // goes through every size.
        inputs.demand_rps.iter_mut().flatten().for_each(|rps| *rps *= if dice.one_in(2) { 1e-5 } else { 1.0 });
        let current = first.weights();
        let next =
            optimiser.plan_or_greedy(&fleet, &inputs, Some(&current)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_all_routed(&fleet, &inputs, &next, &format!("seed {seed}, again"));
        for plan in [first, next] {
            count += 1;
            failures.extend(plan.solver_failure.map(|failure| format!("seed {seed}: {failure}")));
        }
    }
    println!("{} of {count} plans were left to the greedy one", failures.len());
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.len() as f64 <= GREEDY_MOST * count as f64, "{} of {count}:\n{shown}", failures.len());
}

#[test]
fn a_rare_class_with_engines_of_its_own_changes_nothing_for_the_others() {
    let p0 = profile("p0", 870.0, &[(0.0, 412.0), (522.0, 1_120.0), (870.0, 8_251.0)], &[(0.0, 22.0), (870.0, 80.0)]);
    let p1 = profile("p1", 25.0, &[(0.0, 72.0), (15.0, 80.0), (25.0, 215.0)], &[(0.0, 27.0), (25.0, 32.0)]);
    let classes = ["busy", "rare"].map(|name| Class { model: name.to_owned(), ..class(name, 200.0, 0) });
    let mut fleet = Fleet {
        clusters: vec![cluster("a", "r1", &[20.0, 0.0])],
        engines: ["e1", "e2", "e3", "e4"].iter().enumerate().map(|(at, name)| engine(name, "r1", at % 2)).collect(),
        classes: classes.to_vec(),
        profiles: vec![p0, p1],
        rtt_ms: vec![vec![1.0; 4]],
    };
    for (at, engine) in fleet.engines.iter_mut().enumerate() {
        engine.models = vec![if at < 2 { "busy" } else { "rare" }.to_owned()];
    }
    let alone = plan(&fleet, &Inputs::from_fleet(&fleet), None).expect("nothing is rare");
    for exponent in -120..=10 {
        let rps = 10_f64.powf(f64::from(exponent) / 10.0);
        fleet.clusters[0].demand_rps[1] = rps;
        let inputs = Inputs::from_fleet(&fleet);
        let plan = plan(&fleet, &inputs, None).unwrap_or_else(|error| panic!("{rps} requests/s: {error}"));
        assert_all_routed(&fleet, &inputs, &plan, &format!("{rps} requests/s"));
        assert_eq!(plan.routes[0], alone.routes[0], "{rps} requests/s");
    }
}

#[test]
fn where_the_optimiser_fails_the_greedy_plan_stands_in_and_says_why() {
    let mut fleet = far_apart(&mut Dice(1));
    fleet.clusters.iter_mut().for_each(|cluster| cluster.demand_rps.iter_mut().for_each(|rps| *rps = 5.0));
    let inputs = Inputs::from_fleet(&fleet);
    let mut hurried = Optimiser::new(std::time::Duration::ZERO);
    let plan = hurried.plan_or_greedy(&fleet, &inputs, None).expect("the greedy plan");
    assert!(plan.is_greedy && plan.solver_failure.is_some_and(|failure| failure.contains("within 0 s")));
    assert!(hurried.plan(&fleet, &inputs, None).is_err());
    let other = Inputs { demand_rps: Vec::new(), ..inputs };
    let error = plan_or_greedy(&fleet, &other, None).expect_err("inputs of another fleet").to_string();
    assert!(error.contains("demand has 0 entries"), "{error}");
}
