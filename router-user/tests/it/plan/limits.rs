//! Laws of memory and of budgets of detours, on random fleets whose classes differ in the amount of
//! work.

use router_user::model::{EngineId, Fleet};
use router_user::plan::explain::report;
use router_user::plan::verify;
use router_user::plan::{Inputs, Plan, plan_greedily};

use crate::plan::laws::{Dice, Recipe, explained, fleet, planned, seeds};

/// A fleet whose engines' memory is known for most profiles, and whose clusters have budgets, half
/// of them.
fn limited(seed: u64) -> (Fleet, Inputs) {
    let recipe = Recipe { clusters: 4, engines: 6, classes: 3, has_lengths: false, has_faults: true, has_work: true, load: 1.4 };
    let mut dice = Dice(seed);
    let (mut fleet, inputs) = fleet(&mut dice, recipe);
    fleet.classes.iter_mut().for_each(|class| class.prompt_tokens = dice.real(0.0, 3_000.0));
    let classes = fleet.classes.clone();
    for profile in &mut fleet.profiles {
        if dice.one_in(3) {
            continue;
        }
        // So that the first class fills memory before capacity, or long after it.
        profile.kv_tokens = Some(1.0);
        let memory = profile.memory(&classes[0]).expect("known");
        profile.kv_tokens = Some(memory / (classes[0].work * dice.real(0.3, 3.0)));
    }
    for (cluster, row) in fleet.clusters.iter_mut().zip(&inputs.rtt_ms) {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        cluster.detour_budget_ms = dice.one_in(2).then(|| mean * dice.real(0.2, 1.2));
    }
    (fleet, inputs)
}

fn is_full(plan: &Plan, engine: EngineId) -> bool {
    let load = &plan.engines[engine.index()];
    load.load_rps.max(load.memory_rps) >= load.capacity_rps * (1.0 - 1e-3) - 1e-3
}

#[test]
fn memory_holds_budgets_yield_and_both_explain_themselves() {
    let (mut short_of_memory, mut kept, mut exceeded) = (0, 0, 0);
    for seed in seeds(500) {
        let (fleet, inputs) = limited(seed);
        let plan = planned(seed, &fleet, &inputs);
        explained(seed, &fleet, &inputs, &plan);
        assert!(plan.certificate.gap_frac <= 5e-4, "seed {seed}: {:?}", plan.certificate);
        let greedy = plan_greedily(&fleet, &inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify::legal(&fleet, &inputs, &greedy.weights()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        short_of_memory += u32::from(plan.engines.iter().any(|load| load.memory_price_ms > 0.0));
        let over: Vec<String> = report::detours(&fleet, &inputs, &plan).into_iter().map(|row| row.cluster).collect();
        exceeded += over.len();
        for route in plan.routes.iter().filter(|route| route.demand_rps > 1e-3) {
            let usable = |&engine: &EngineId| {
                inputs.ready[engine.index()] > 0 && inputs.ineligible(&fleet, route.cluster, route.class, engine).is_none()
            };
            let rtt = |engine: EngineId| inputs.rtt_ms[route.cluster.index()][engine.index()];
            if route.shed_rps > 1e-3 * route.demand_rps {
                let free = fleet.engine_ids().filter(usable).find(|&engine| !is_full(&plan, engine));
                assert_eq!(free, None, "seed {seed}: {route:?} is refused what this engine has room for");
            }
            // Where a budget is exceeded nothing that is used has a nearer engine with room.
            if over.contains(&fleet.clusters[route.cluster.index()].name) {
                let used = route.weights.iter().filter(|share| share.rps > 1e-2 * route.demand_rps);
                for far in used.map(|share| share.engine) {
                    let near =
                        fleet.engine_ids().filter(usable).find(|&near| rtt(near) < rtt(far) - 1.0 && !is_full(&plan, near));
                    assert_eq!(near, None, "seed {seed}: {route:?} uses {far:?}");
                }
            }
            kept += u32::from(route.detour_price_ms > 0.0);
        }
    }
    println!("memory binds in {short_of_memory}, budgets bind {kept} routes, {exceeded} are exceeded");
    assert!(short_of_memory > 50 && kept > 50 && exceeded > 20, "{short_of_memory} {kept} {exceeded}");
}
