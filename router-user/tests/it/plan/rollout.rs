//! From current weights to new ones, and what is left when a region is lost.

use router_user::model::{ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::decide::gate::{Decision, PublishReason, decide};
use router_user::plan::decide::regions::region_losses;
use router_user::plan::decide::rollout::{passage, towards};
use router_user::plan::verify::legal;
use router_user::plan::{Inputs, RouteWeights, plan};

use crate::plan::fleet::{class, tag, three_regions};
use crate::plan::laws::{Dice, Recipe, fleet, seeds};

/// Most that each engine can get while some follow `before` and some `after`, as work.
fn mixed(fleet: &Fleet, inputs: &Inputs, before: &[RouteWeights], after: &[RouteWeights]) -> Vec<f64> {
    let flow = |routes: &[RouteWeights], cluster, class, engine: EngineId| {
        let route = routes.iter().find(|route| (route.cluster, route.class) == (cluster, class)).expect("one route each");
        let weight = route.weights.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, weight)| weight);
        weight * (1.0 - route.shed_frac) * inputs.demand(cluster, class) * fleet.classes[class.index()].work
    };
    let of_engine = |engine| {
        let routes = before.iter().map(|route| (route.cluster, route.class));
        routes.map(|(cluster, class)| flow(before, cluster, class, engine).max(flow(after, cluster, class, engine))).sum()
    };
    fleet.engine_ids().map(of_engine).collect()
}

fn all_to(fleet: &Fleet, engines: &[u16]) -> Vec<RouteWeights> {
    let route = |(cluster, &engine): (ClusterId, &u16)| RouteWeights {
        cluster,
        class: ClassId(0),
        shed_frac: 0.0,
        weights: vec![(EngineId(engine), 1.0)],
    };
    fleet.cluster_ids().zip(engines).map(route).collect()
}

#[test]
fn a_swap_goes_as_far_as_both_engines_have_room() {
    let fleet = three_regions();
    // 60 here and 70 there change places: 130 at once is too much for either, 30 of 70 is what e1
    // has room for.
    let inputs = Inputs { demand_rps: vec![vec![60.0], vec![70.0], vec![0.0]], ..Inputs::from_fleet(&fleet) };
    let (before, after) = (all_to(&fleet, &[0, 1, 2]), all_to(&fleet, &[1, 0, 2]));
    let found = passage(&fleet, &inputs, &before, &after);
    assert!((found.frac - 40.0 / 70.0).abs() < 1e-5 || (found.frac - 30.0 / 60.0).abs() < 1e-5, "{found:?}");
    assert_eq!(found.engine, Some(EngineId(1)), "30 of 60 is less than 40 of 70");
    let step = towards(&fleet, &before, &after, found.frac);
    legal(&fleet, &inputs, &step).expect("on the way between legal weights");
    let loads = mixed(&fleet, &inputs, &before, &step);
    assert!((loads[1] - 100.0).abs() < 1e-3 && loads[0] <= 100.001, "{loads:?}");
    // Headroom is there to be used on the way: the capacity that counts is the one without it.
    let inputs = Inputs { headroom_frac: 0.2, ..inputs };
    assert!((passage(&fleet, &inputs, &before, &after).frac - found.frac).abs() < 1e-5);
    assert_eq!(passage(&fleet, &inputs, &before, &before).frac, 1.0);
}

#[test]
fn what_would_overfill_an_engine_on_the_way_is_published_in_steps_until_it_is_there() {
    let fleet = three_regions();
    let inputs = Inputs { demand_rps: vec![vec![60.0], vec![70.0], vec![0.0]], ..Inputs::from_fleet(&fleet) };
    let (mut current, mut steps) = (all_to(&fleet, &[1, 0, 2]), 0);
    let best = plan(&fleet, &inputs, None).expect("a plan");
    loop {
        let decision = decide(&fleet, &inputs, Some(&current), &best);
        let Some(published) = decision.publishes(&best) else {
            assert!(matches!(decision, Decision::Keep { .. }), "{decision}");
            break;
        };
        let next = published.weights();
        legal(&fleet, &inputs, &next).expect("every step is legal");
        let loads = mixed(&fleet, &inputs, &current, &next);
        assert!(loads.iter().zip(&best.engines).all(|(load, engine)| *load <= engine.capacity_rps + 1e-3), "{loads:?}");
        if let Decision::Step { reason, frac, engine, .. } = &decision {
            assert!(matches!(reason, PublishReason::Better { .. }) && *frac < 1.0, "{decision}");
            assert!(decision.to_string().contains(&format!("% of the way, as more could overfill {engine}")), "{decision}");
        }
        (current, steps) = (next, steps + 1);
        assert!(steps < 10, "{decision}");
    }
    assert!(steps >= 2, "{steps}");
}

#[test]
fn every_step_between_legal_weights_is_legal_and_overfills_nothing() {
    let recipe = Recipe { clusters: 4, engines: 6, classes: 3, has_lengths: true, has_faults: true, has_work: true, load: 1.6 };
    let mut stepped = 0;
    for seed in seeds(300) {
        let mut dice = Dice(seed);
        let (fleet, inputs) = fleet(&mut dice, recipe);
        let mut other = inputs.clone();
        other.rtt_ms.iter_mut().flatten().for_each(|rtt| *rtt *= dice.real(0.1, 1.0));
        let current = plan(&fleet, &other, None).expect("a plan").weights();
        let next = plan(&fleet, &inputs, None).expect("a plan");
        // What is nearer by the other distances may be too far by these.
        if legal(&fleet, &inputs, &current).is_err() {
            continue;
        }
        let found = passage(&fleet, &inputs, &current, &next.weights());
        let step = towards(&fleet, &current, &next.weights(), found.frac);
        legal(&fleet, &inputs, &step).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        stepped += u32::from(found.frac < 1.0);
        let loads = mixed(&fleet, &inputs, &current, &step);
        for (load, engine) in loads.iter().zip(&next.engines) {
            let nominal = engine.capacity_rps / (1.0 - inputs.headroom_frac);
            assert!(*load <= nominal * (1.0 + 1e-5) + 1e-5, "seed {seed}: {load} of {nominal}");
        }
    }
    assert!(stepped > 30, "only {stepped} had to stop on the way");
}

#[test]
fn the_loss_of_a_region_is_counted_by_what_the_others_can_carry() {
    let mut fleet = three_regions();
    let found = |fleet: &Fleet, inputs: &Inputs| region_losses(fleet, inputs);
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![60.0], vec![70.0], vec![40.0]];
    inputs.headroom_frac = 0.3;
    let losses = found(&fleet, &inputs);
    // 170 requests/s: 180 are left without r1 or r2, 200 without r3; what headroom keeps free
    // counts.
    assert_eq!(losses.iter().map(|loss| loss.region.as_str()).collect::<Vec<_>>(), ["r1", "r2", "r3"]);
    for (loss, left) in losses.iter().zip([180.0, 180.0, 200.0]) {
        assert!(loss.shortfall_rps == 0.0 && (loss.spare_frac - (left / 170.0 - 1.0)).abs() < 1e-6, "{loss:?}");
    }
    inputs.demand_rps[1][0] = 100.0;
    let losses = found(&fleet, &inputs);
    assert!((losses[0].shortfall_rps - 20.0).abs() < 1e-5 && (losses[0].spare_frac + 0.1).abs() < 1e-6, "{losses:?}");
    assert!(losses[0].to_string().contains("without region r1 20.0 requests/s would be shed"));
    // What must stay in r1 has nowhere else to go, and is of twice the work.
    fleet.classes.push(class("eu", 50.0, 0));
    (fleet.classes[1].require, fleet.classes[1].work) = (tag("residency", "eu"), 2.0);
    fleet.engines[0].tags = tag("residency", "eu");
    let inputs = Inputs { demand_rps: vec![vec![10.0, 5.0]; 3], ..Inputs::from_fleet(&fleet) };
    let losses = found(&fleet, &inputs);
    assert!((losses[0].shortfall_rps - 15.0).abs() < 1e-5 && losses[0].spare_frac == -1.0, "{losses:?}");
    assert!(losses[1].shortfall_rps == 0.0 && (losses[1].spare_frac - 2.0).abs() < 1e-6, "180 for 60: {losses:?}");
}
