//! Laws of the weights that are made for losses, on random fleets. A failure names the seed that
//! replays it.

use router_user::plan::decide::failover::{Failover, LOSSES_MOST, failovers};
use router_user::plan::verify;
use router_user::plan::{Inputs, RouteWeights, plan, plan_greedily};

use crate::plan::fleet::three_regions;
use crate::plan::laws::{Dice, Recipe, fleet, seeds};

const RECIPE: Recipe =
    Recipe { clusters: 4, engines: 8, classes: 3, has_lengths: true, has_faults: true, has_work: true, load: 1.2 };

fn with(weights: &[RouteWeights], failover: &Failover) -> Vec<RouteWeights> {
    let replaced = |old: &RouteWeights| failover.routes.iter().find(|new| (new.cluster, new.class) == (old.cluster, old.class));
    weights.iter().map(|old| replaced(old).unwrap_or(old).clone()).collect()
}

#[test]
fn failover_weights_are_legal_without_what_is_lost_and_shed_no_more_than_has_to_be() {
    let mut made = 0;
    for seed in seeds(250) {
        let (fleet, inputs) = fleet(&mut Dice(seed), RECIPE);
        let weights = plan(&fleet, &inputs, None).expect("a plan").weights();
        let found = failovers(&fleet, &inputs, &weights);
        assert!(found.len() <= LOSSES_MOST);
        for failover in &found {
            made += 1;
            let mut without = Inputs { headroom_frac: inputs.headroom_frac, ..inputs.clone() };
            failover.lost.iter().for_each(|engine| without.ready[engine.index()] = 0);
            for route in &failover.routes {
                assert!(inputs.pin(route.cluster, route.class).is_none(), "seed {seed}: a pin is the operator's");
                assert!(route.weights.iter().all(|(engine, _)| !failover.lost.contains(engine)), "seed {seed}");
            }
            let mut after = with(&weights, failover);
            // Routes that nothing else can serve are left as they are: they have no failover
            // weights.
            for route in after.iter_mut().filter(|route| route.weights.iter().any(|(e, w)| *w > 0.0 && failover.lost.contains(e)))
            {
                if inputs.pin(route.cluster, route.class).is_none() {
                    let is_out = |e| without.ineligible(&fleet, route.cluster, route.class, e).is_some();
                    assert!(fleet.engine_ids().all(|e| without.ready[e.index()] == 0 || is_out(e)), "seed {seed}");
                    (route.shed_frac, route.weights) = (1.0, Vec::new());
                }
            }
            // A share that changed by less than a hundredth of a percent is left as it was.
            without.headroom_frac = (without.headroom_frac - 1e-3).max(0.0);
            let is_full = inputs.headroom_frac == 0.0;
            let evaluation = match verify::legal(&fleet, &without, &after) {
                Err(verify::Violation::Capacity { found, allowed, .. }) if is_full && found <= allowed * 1.001 => continue,
                outcome => outcome.unwrap_or_else(|violation| panic!("seed {seed}, without {:?}: {violation}", failover.lost)),
            };
            without.headroom_frac = inputs.headroom_frac;
            let least: f64 = plan_greedily(&fleet, &without, None).expect("a plan").routes.iter().map(|r| r.shed_rps).sum();
            let demand: f64 = inputs.demand_rps.iter().flatten().sum();
            assert!(
                (evaluation.evaluation().shed_rps - least).abs() <= 1e-3 * demand + 1e-6,
                "seed {seed}, without {:?}: sheds {} and need only {least}",
                failover.lost,
                evaluation.evaluation().shed_rps
            );
        }
    }
    assert!(made > 500, "only {made} losses were prepared for");
}

#[test]
fn what_is_not_lost_stays_where_it_is_as_long_as_there_is_room() {
    let fleet = three_regions();
    let inputs = Inputs { demand_rps: vec![vec![40.0], vec![50.0], vec![20.0]], ..Inputs::from_fleet(&fleet) };
    let weights = plan(&fleet, &inputs, None).expect("a plan").weights();
    let found = failovers(&fleet, &inputs, &weights);
    let lost: Vec<Vec<u16>> = found.iter().map(|a| a.lost.iter().map(|engine| engine.0).collect()).collect();
    assert_eq!(lost, [[1], [0], [2]], "the greatest load first; a region of one engine is that engine");
    for failover in &found {
        let moved: Vec<u16> = failover.routes.iter().map(|route| route.cluster.0).collect();
        let used: Vec<u16> =
            weights.iter().filter(|r| r.weights.iter().any(|(e, _)| failover.lost.contains(e))).map(|r| r.cluster.0).collect();
        assert_eq!(moved, used, "only who used it moves");
    }
}
