//! No plan costs more than the exact optimum by more than it admits, and none more than 0.05 %.

use router_user::model::EngineId;
use router_user::plan::{Inputs, Optimiser, RouteWeights};

use crate::plan::exact::{cost_of, least_cost};
use crate::plan::laws::{Dice, Recipe, explained, fleet, planned, seeds};

/// The gap that is promised.
const GAP_FRAC: f64 = 5e-4;
/// What two sums of the same amounts may differ by, in this and in the least cost.
const ROUNDING_FRAC: f64 = 1e-6;

/// Some weights to hold, legal or not: what was right for another demand, or none for a route.
fn current(dice: &mut Dice, fleet: &router_user::model::Fleet, inputs: &Inputs) -> Vec<RouteWeights> {
    let mut other = inputs.clone();
    other.demand_rps.iter_mut().flatten().for_each(|demand| *demand *= dice.real(0.3, 1.7));
    let mut weights = Optimiser::new(std::time::Duration::from_secs(20)).plan(fleet, &other, None).expect("planned").weights();
    weights.retain(|_| !dice.one_in(8));
    weights
}

#[test]
fn cost_is_the_optimum_of_a_convex_flow() {
    let recipe = Recipe { clusters: 6, engines: 8, classes: 3, has_lengths: false, has_faults: true, has_work: false, load: 1.2 };
    let (mut worst, mut most_edges) = (0.0_f64, 0);
    for seed in seeds(1_000) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, recipe.of(seed));
        inputs.move_limit_frac = 1.0;
        let current = dice.one_in(2).then(|| current(&mut dice, &fleet, &inputs));
        let plan = match &current {
            None => planned(seed, &fleet, &inputs),
            Some(current) => Optimiser::new(std::time::Duration::from_secs(20))
                .plan(&fleet, &inputs, Some(current))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}")),
        };
        explained(seed, &fleet, &inputs, &plan);
        let mut served = vec![vec![0.0; fleet.classes.len()]; fleet.clusters.len()];
        for route in &plan.routes {
            served[route.cluster.index()][route.class.index()] = route.demand_rps - route.shed_rps;
        }
        let cost = cost_of(&fleet, &inputs, &plan.weights(), current.as_deref());
        if cost == 0.0 {
            continue;
        }
        let exact = least_cost(&fleet, &inputs, &served, current.as_deref());
        let gap = cost / exact.cost - 1.0;
        worst = worst.max(gap);
        most_edges = most_edges.max(fleet.clusters.len() * fleet.classes.len() * fleet.engines.len());
        assert!(gap <= GAP_FRAC, "seed {seed}: costs {cost}, {} is possible", exact.cost);
        assert!(exact.slack <= ROUNDING_FRAC * exact.cost, "seed {seed}: the optimum is only known to {}", exact.slack);
        assert!(gap >= -ROUNDING_FRAC, "seed {seed}: costs {cost}, below the optimum of {}", exact.cost);
        let admitted = plan.certificate.gap_frac;
        assert!(gap <= admitted + ROUNDING_FRAC, "seed {seed}: the plan admits {admitted:e}, its gap is {gap:e}");
        assert!(admitted <= GAP_FRAC, "seed {seed}: {:?}", plan.certificate);
    }
    println!("largest gap to the optimum {worst:e}, at most {most_edges} flows");
    assert!(most_edges > 100, "only fleets of up to {most_edges} flows");
}

/// The method itself, where the answer is known: all demand at its own engine, until that is dearer
/// than the other one.
#[test]
fn the_exact_method_finds_what_can_be_computed_by_hand() {
    let mut fleet = crate::plan::fleet::three_regions();
    fleet.clusters.truncate(1);
    fleet.engines.truncate(2);
    fleet.rtt_ms = vec![vec![1.0, 30.0]];
    // `L (10 + L)` each: L1 + 10 + L1 + 1 = L2 + 10 + L2 + 30 at 30 requests/s in all gives 22.25
    // and 7.75.
    fleet.profiles[0].ttft_ms = crate::plan::fleet::curve(&[(0.0, 10.0), (100.0, 110.0)]);
    fleet.profiles[0].tbot_ms = crate::plan::fleet::curve(&[(0.0, 0.0)]);
    let inputs = Inputs::from_fleet(&fleet);
    let exact = least_cost(&fleet, &inputs, &[vec![30.0]], None);
    let wanted = 22.25 * (1.0 + 10.0 + 22.25) + 7.75 * (30.0 + 10.0 + 7.75);
    assert!((exact.cost - wanted).abs() < 1e-6, "{exact:?}, wanted {wanted}");
    // Held at one half each with 5 ms to move: L1 + 10 + L1 + 1 + 5 = L2 + 10 + L2 + 30 gives 21
    // and 9.
    let current = RouteWeights {
        cluster: router_user::model::ClusterId(0),
        class: router_user::model::ClassId(0),
        shed_frac: 0.0,
        weights: vec![(EngineId(0), 0.5), (EngineId(1), 0.5)],
    };
    let inputs = Inputs { demand_rps: vec![vec![30.0]], ..inputs };
    let exact = least_cost(&fleet, &inputs, &[vec![30.0]], Some(&[current]));
    let wanted = 21.0 * (1.0 + 10.0 + 21.0) + 6.0 * 5.0 + 9.0 * (30.0 + 10.0 + 9.0);
    assert!((exact.cost - wanted).abs() < 1e-6, "{exact:?}, wanted {wanted}");
}
