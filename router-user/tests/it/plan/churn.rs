//! Calm: what is held stays unless leaving it is worth more than it costs. A failure names the seed
//! that replays it.

use router_user::model::{EngineId, Fleet};
use router_user::plan::decide::gate::{Decision, decide, moved_frac};
use router_user::plan::explain::weights;
use router_user::plan::explain::weights::{Explanation, Hold, WeightReason};
use router_user::plan::verify;
use router_user::plan::{Inputs, Optimiser, Plan, RouteWeights, plan};

use crate::plan::fleet::three_regions;
use crate::plan::laws::{Dice, Recipe, explained, fleet, seeds};

const RECIPE: Recipe =
    Recipe { clusters: 5, engines: 7, classes: 3, has_lengths: false, has_faults: true, has_work: false, load: 0.85 };

fn next_plan(seed: u64, fleet: &Fleet, inputs: &Inputs, current: &[RouteWeights]) -> Plan {
    let plan = plan(fleet, inputs, Some(current)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    verify::legal(fleet, inputs, &plan.weights()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    explained(seed, fleet, inputs, &plan);
    assert!(plan.certificate.gap_frac <= 2.2e-4, "seed {seed}: {:?}", plan.certificate);
    plan
}

/// Every number of `values` times a factor within `share` of 1.
fn noise<'v>(dice: &mut Dice, share: f64, values: impl Iterator<Item = &'v mut f64>) {
    values.for_each(|value| *value *= dice.real(1.0 - share, 1.0 + share));
}

#[test]
fn the_same_inputs_move_nothing() {
    for seed in seeds(300) {
        let (fleet, inputs) = fleet(&mut Dice(seed), RECIPE);
        let current = plan(&fleet, &inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}")).weights();
        let plan = plan(&fleet, &inputs, Some(&current)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        explained(seed, &fleet, &inputs, &plan);
        if current.iter().any(|route| route.shed_frac > 0.0) {
            continue;
        }
        let moved = moved_frac(&inputs, &current, &plan.weights());
        assert!(moved < 1e-9, "seed {seed}: moves {moved}");
        let decision = decide(&fleet, &inputs, Some(&current), &plan);
        assert!(matches!(decision, Decision::Keep { .. }), "seed {seed}: {decision}");
    }
}

#[test]
fn noise_in_distances_below_the_price_moves_nothing() {
    for seed in seeds(300) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, RECIPE);
        let current = plan(&fleet, &inputs, None).expect("a plan").weights();
        // Distances are up to 250 ms: one of them may grow and another shrink by 2.4 ms, which is
        // less than the price of 5.
        noise(&mut dice, 0.0096, inputs.rtt_ms.iter_mut().flatten());
        let plan = next_plan(seed, &fleet, &inputs, &current);
        let moved = moved_frac(&inputs, &current, &plan.weights());
        let is_shedding = current.iter().any(|route| route.shed_frac > 0.0);
        assert!(moved < 1e-9 || is_shedding, "seed {seed}: moves {moved}");
    }
}

#[test]
fn moving_is_bounded_and_arrives_all_the_same() {
    let mut limited = 0;
    for seed in seeds(100) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, Recipe { has_faults: false, load: 0.7, ..RECIPE });
        let mut current = plan(&fleet, &inputs, None).expect("a plan").weights();
        if current.iter().any(|route| route.shed_frac > 0.0) {
            continue;
        }
        inputs.rtt_ms.iter_mut().flatten().for_each(|rtt| *rtt = dice.real(0.2, 250.0));
        inputs.move_limit_frac = 0.2;
        let mut last = f64::INFINITY;
        for _ in 0..12 {
            let plan = next_plan(seed, &fleet, &inputs, &current);
            let moved = moved_frac(&inputs, &current, &plan.weights());
            assert!(moved <= 0.2 + 1e-6, "seed {seed}: moves {moved}");
            assert!((moved - plan.moved_frac).abs() < 1e-6, "seed {seed}: moves {moved}, says {}", plan.moved_frac);
            limited += u32::from(moved > 0.199);
            // A move must pay for itself, and slivers may cost 0.02 %.
            assert!(plan.objective_ms <= last * (1.0 + 2.2e-4), "seed {seed}: {} after {last}", plan.objective_ms);
            (last, current) = (plan.objective_ms, plan.weights());
        }
        let free = plan(&fleet, &inputs, None).expect("a plan").objective_ms;
        assert!(last - free <= 5.0 + 2.2e-4 * free, "seed {seed}: ends at {last} ms, {free} ms is possible");
    }
    assert!(limited > 50, "the limit was reached {limited} times");
}

#[test]
fn a_failure_lifts_the_limit() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![70.0], vec![60.0], vec![40.0]];
    let current = plan(&fleet, &inputs, None).expect("a plan").weights();
    (inputs.ready[0], inputs.move_limit_frac) = (0, 0.01);
    let plan = next_plan(0, &fleet, &inputs, &current);
    let left: f64 = plan.routes.iter().flat_map(|route| &route.weights).filter(|w| w.engine == EngineId(0)).map(|w| w.rps).sum();
    assert!(left == 0.0 && plan.moved_frac > 0.3, "{plan:?}");
}

#[test]
fn the_price_of_moving_is_a_term_of_the_explanation() {
    let fleet = three_regions();
    let inputs = Inputs::from_fleet(&fleet);
    let current = plan(&fleet, &inputs, None).expect("a plan").weights();
    let mut nearer = inputs.clone();
    // 3 ms nearer: less than the price of 5, more than nothing.
    nearer.rtt_ms[1][2] -= 3.0;
    let plan = next_plan(0, &fleet, &nearer, &current);
    assert!(plan.moved_frac < 1e-9, "{}", plan.moved_frac);
    assert!(plan.certificate.stability_frac > 0.0 && plan.certificate.stability_frac < 5.0 / plan.objective_ms);
    let explanation = weights::explain(&fleet, &nearer, &plan);
    let rows = || explanation.routes.iter().flat_map(|route| &route.engines);
    assert!(rows().any(|row| matches!(row.held_by, Some(Hold::Current { price_ms: 5.0, .. }))), "{explanation}");
    assert!(explanation.to_string().contains("as before: moving costs 5.0 ms each"), "{explanation}");
    // An engine that a has not used, made a little better than what it uses.
    let mut other = inputs.clone();
    other.demand_rps = vec![vec![40.0], vec![20.0], vec![20.0]];
    other.rtt_ms[0][2] = 100.0;
    let free = router_user::plan::plan(&fleet, &other, None).expect("a plan");
    let before = weights::explain(&fleet, &other, &free);
    let row =
        |explanation: &Explanation| explanation.routes[0].engines.iter().find(|row| row.engine == "e3").cloned().expect("a row");
    other.rtt_ms[0][2] -= row(&before).dearer_ms.expect("eligible") + 10.0;
    other.move_price_ms = vec![50.0];
    let plan = next_plan(0, &fleet, &other, &free.weights());
    let explanation = weights::explain(&fleet, &other, &plan);
    assert!(
        matches!(row(&explanation).reason, WeightReason::NotWorthMoving { saves_ms, price_ms: 50.0 } if (0.0..50.0).contains(&saves_ms)),
        "{explanation}"
    );
}

#[test]
fn a_plan_depends_on_its_arguments_alone() {
    for seed in seeds(60) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, RECIPE);
        let mut current = plan(&fleet, &inputs, None).expect("a plan").weights();
        for _ in 0..5 {
            noise(&mut dice, 0.05, inputs.demand_rps.iter_mut().flatten());
            let mut optimiser = Optimiser::new(std::time::Duration::from_secs(20));
            let again = optimiser.plan(&fleet, &inputs, Some(&current)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let first = next_plan(seed, &fleet, &inputs, &current);
            assert_eq!(again, first, "seed {seed}");
            explained(seed, &fleet, &inputs, &again);
            current = again.weights();
        }
    }
}
