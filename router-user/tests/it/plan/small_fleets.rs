//! Planning on small fleets whose answer is known or can be found by brute force.

use router_user::model::{Class, ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::explain::weights;
use router_user::plan::verify;
use router_user::plan::{Inputs, Pin, Plan, RouteWeights, Status, evaluate, nearest, plan};

use crate::plan::fleet::{class, engine, profile, tag, three_regions};
use crate::plan::oracle;

fn planned(fleet: &Fleet, inputs: &Inputs) -> Plan {
    let plan = plan(fleet, inputs, None).expect("a plan");
    verify::legal(fleet, inputs, &plan.weights()).expect("a returned plan is legal");
    plan
}

#[test]
fn three_regions_send_what_does_not_fit_to_the_engine_with_room() {
    let fleet = three_regions();
    let inputs = Inputs::from_fleet(&fleet);
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Optimal);
    for route in &plan.routes {
        let routed: f64 = route.weights.iter().map(|share| share.rps).sum();
        assert!((routed - route.demand_rps).abs() < 1e-6 && route.shed_rps == 0.0, "{route:?}");
    }
    for load in &plan.engines {
        assert!(load.load_rps <= load.capacity_rps && load.utilisation <= 1.0, "{load:?}");
    }
    let rps = |cluster: u16, engine: u16| {
        let route = &plan.routes[usize::from(cluster)];
        route.weights.iter().find(|share| share.engine == EngineId(engine)).map_or(0.0, |share| share.rps)
    };
    let away = rps(1, 0) + rps(1, 2);
    assert!(away >= 20.0 && rps(1, 2) > 0.5 * away, "b sends {away} away, {} of it to e3", rps(1, 2));
    let optimum = oracle::least_mean_ms(&fleet, &inputs);
    assert!(plan.objective_ms <= optimum * 1.001, "{} ms, the optimum is {optimum} ms", plan.objective_ms);
    assert!(plan.objective_ms >= optimum * (1.0 - 1e-6), "{} ms is better than the optimum {optimum} ms", plan.objective_ms);
    assert!(plan.certificate.gap_frac < 1e-5, "{:?}", plan.certificate);
}

#[test]
fn nearest_overloads_what_the_plan_does_not() {
    let fleet = three_regions();
    let inputs = Inputs::from_fleet(&fleet);
    let plan = planned(&fleet, &inputs);
    let optimal = evaluate(&fleet, &inputs, &plan.weights());
    let nearest = evaluate(&fleet, &inputs, &nearest(&fleet, &inputs));
    assert!((optimal.mean_ms - plan.objective_ms).abs() < 1e-9 && !optimal.is_overloaded);
    assert!(nearest.is_overloaded && nearest.mean_ms.is_finite());
    assert!(nearest.mean_ms > 10.0 * optimal.mean_ms, "{} against {}", nearest.mean_ms, optimal.mean_ms);
    assert_eq!(nearest.engines.iter().map(|engine| engine.is_overloaded).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn evaluation_of_one_engine_is_the_profile() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![70.0], vec![0.0], vec![0.0]];
    let all_to_e2 =
        [RouteWeights { cluster: ClusterId(0), class: ClassId(0), shed_frac: 0.5, weights: vec![(EngineId(1), 1.0)] }];
    let evaluation = evaluate(&fleet, &inputs, &all_to_e2);
    // 35/s: TTFT 120 + 0.6 x 35, TBOT 8 + 0.12 x 35, over 30 ms of network.
    assert!((evaluation.mean_ms - (30.0 + 141.0 + 50.0 * 12.2)).abs() < 1e-9, "{evaluation:?}");
    assert!((evaluation.served_rps - 35.0).abs() < 1e-9 && (evaluation.shed_rps - 35.0).abs() < 1e-9);
}

#[test]
fn zero_demand_has_the_weights_of_a_first_request() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![99.9], vec![0.0], vec![0.0]];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Optimal);
    // Its near engine would be busy with what a sends: each has an idle one at the same or a lesser
    // distance.
    let chosen =
        |cluster: usize| plan.routes[cluster].weights.iter().map(|share| (share.engine, share.weight)).collect::<Vec<_>>();
    assert_eq!((chosen(1), chosen(2)), (vec![(EngineId(1), 1.0)], vec![(EngineId(2), 1.0)]));
    inputs.demand_rps = vec![vec![0.0]; 3];
    let plan = planned(&fleet, &inputs);
    assert_eq!((plan.status, plan.objective_ms), (Status::Optimal, 0.0));
    assert!(plan.routes.iter().all(|route| route.weights.len() == 1 && route.weights[0].weight == 1.0));
}

#[test]
fn demand_above_capacity_sheds_exactly_what_does_not_fit() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    // Marginal latency near saturation is above any price of shed one would guess: it must not shed
    // early, nor one request less.
    for (demand, wanted) in [(29.9, 0.0), (69.9, 0.0), (75.0, 5.0), (400.0, 330.0)] {
        inputs.demand_rps[2][0] = demand;
        let plan = planned(&fleet, &inputs);
        let shed: f64 = plan.routes.iter().map(|route| route.shed_rps).sum();
        assert!((shed - wanted).abs() < 1e-6, "sheds {shed} at demand {demand}, wanted {wanted}");
        assert_eq!(plan.status, if wanted > 0.0 { Status::Degraded } else { Status::Optimal });
    }
}

#[test]
fn an_engine_that_is_not_ready_gets_nothing_and_part_of_its_replicas_their_part() {
    let mut fleet = three_regions();
    fleet.engines[0].replicas = 4;
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![60.0], vec![60.0], vec![40.0]];
    inputs.ready = vec![2, 0, 1];
    inputs.headroom_frac = 0.1;
    let plan = planned(&fleet, &inputs);
    let capacities: Vec<f64> = plan.engines.iter().map(|load| load.capacity_rps).collect();
    assert!(capacities.iter().zip([45.0, 0.0, 72.0]).all(|(found, wanted)| (found - wanted).abs() < 1e-9), "{capacities:?}");
    assert_eq!(plan.engines[1].load_rps, 0.0);
    let shed: f64 = plan.routes.iter().map(|route| route.shed_rps).sum();
    assert!((shed - 43.0).abs() < 1e-6, "{shed}");
    // Half the replicas at 45/s answer as all of them would at 90/s.
    assert!((plan.engines[0].latency_ms - 1340.0).abs() < 1e-3, "{:?}", plan.engines[0]);
    inputs.ready = vec![0, 0, 0];
    let plan = planned(&fleet, &inputs);
    assert!(plan.routes.iter().all(|route| route.weights.is_empty() && route.shed_rps == route.demand_rps));
}

#[test]
fn pins_are_kept_and_the_rest_is_planned_around_them() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    let pin = |weights: &[(u16, f64)]| Pin {
        cluster: ClusterId(1),
        class: ClassId(0),
        weights: weights.iter().map(|&(engine, weight)| (EngineId(engine), weight)).collect(),
    };
    inputs.pins = vec![pin(&[(1, 1.0), (2, 1.0)])];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Optimal);
    assert_eq!(plan.routes[1].weights.iter().map(|share| share.rps).collect::<Vec<_>>(), [60.0, 60.0]);
    let free = &plan.routes[2];
    assert!(free.weights.len() > 1, "e3 has room for 20 of c's 40 requests/s: {free:?}");
    assert!(plan.engines.iter().all(|load| load.utilisation <= 1.0 + 1e-9), "{:?}", plan.engines);
    // A pin that drowns e3: nobody else is sent there, and all the rest is still planned.
    inputs.pins = vec![pin(&[(2, 1.0)])];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Degraded);
    assert!((plan.engines[2].load_rps - 120.0).abs() < 1e-9 && plan.engines[2].utilisation > 1.49);
    assert!([0, 2].iter().all(|&cluster| plan.routes[cluster].weights.iter().all(|share| share.engine != EngineId(2))));
    assert!(plan.routes.iter().all(|route| route.shed_rps == 0.0), "e1 and e2 carry a's 90 and c's 40");
}

#[test]
fn classes_share_engines_by_residency_priority_and_length() {
    let mut fleet = three_regions();
    fleet.classes = vec![class("chat", 50.0, 0), class("batch", 200.0, 3), class("eu", 50.0, 1)];
    fleet.classes[2].require = tag("residency", "eu");
    for (engine, residency) in fleet.engines.iter_mut().zip(["eu", "us", "us"]) {
        engine.tags = tag("residency", residency);
    }
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![60.0, 20.0, 40.0], vec![70.0, 40.0, 50.0], vec![40.0, 30.0, 0.0]];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Degraded);
    let shed = |class: u16| {
        let of_class = plan.routes.iter().filter(|route| route.class == ClassId(class));
        of_class.map(|route| route.shed_rps).sum::<f64>()
    };
    // 350 requests/s meet 280: batch goes first, 70 of its 90; chat and what must stay in the eu
    // are served whole.
    assert!((shed(1) - 70.0).abs() < 1e-6 && shed(0) == 0.0 && shed(2) == 0.0, "{} {} {}", shed(0), shed(1), shed(2));
    for route in plan.routes.iter().filter(|route| route.class == ClassId(2)) {
        assert!(route.weights.iter().all(|share| share.engine == EngineId(0)), "{route:?}");
    }
    assert!(plan.certificate.mix_error_ms < 1.0, "{:?}", plan.certificate);
    assert!(plan.routes.iter().all(|route| !route.weights.is_empty()), "what is shed whole still has weights");
}

#[test]
fn equal_engines_share_equally_and_ties_follow_names() {
    let mut fleet = three_regions();
    fleet.profiles[1] = fleet.profiles[0].clone();
    fleet.rtt_ms = vec![vec![5.0; 3]; 3];
    let inputs = Inputs::from_fleet(&fleet);
    let plan = planned(&fleet, &inputs);
    assert!(plan.engines.iter().all(|load| (load.load_rps - 250.0 / 3.0).abs() < 0.01), "{:?}", plan.engines);
    // Flat curves: nothing but the name decides, and a file in another order changes nothing.
    fleet.profiles = vec![profile("flat", 100.0, &[(0.0, 200.0)], &[(0.0, 10.0)])];
    fleet.engines = vec![engine("z", "r1", 0), engine("m", "r2", 0), engine("b", "r3", 0)];
    let plan = planned(&fleet, &inputs);
    let loads: Vec<f64> = plan.engines.iter().map(|load| load.load_rps).collect();
    assert!(loads.iter().zip([50.0, 100.0, 100.0]).all(|(found, wanted)| (found - wanted).abs() < 1e-6), "{loads:?}");
    let idle = Inputs { demand_rps: vec![vec![0.0]; 3], ..inputs };
    let chosen: Vec<EngineId> = planned(&fleet, &idle).routes.iter().map(|route| route.weights[0].engine).collect();
    assert_eq!(chosen, [EngineId(2); 3]);
    assert!(nearest(&fleet, &idle).iter().all(|route| route.weights == [(EngineId(2), 1.0)]));
}

#[test]
fn identical_engines_share_by_what_they_can_take() {
    let mut fleet = three_regions();
    fleet.engines = ["e1", "e2", "e3", "e4"].map(|name| engine(name, "r1", 0)).to_vec();
    fleet.engines[3].replicas = 4;
    fleet.rtt_ms = vec![vec![5.0; 4]; 3];
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.ready[3] = 2;
    let plan = planned(&fleet, &inputs);
    let loads: Vec<f64> = plan.engines.iter().map(|load| load.load_rps).collect();
    assert!(loads.iter().zip([2.0, 2.0, 2.0, 1.0]).all(|(load, share)| (load - 250.0 * share / 7.0).abs() < 1e-6), "{loads:?}");
    assert!(plan.certificate.gap_frac < 1e-9 && plan.engines.windows(2).all(|pair| pair[0].price_ms == pair[1].price_ms));
}

#[test]
fn what_no_flow_connects_is_planned_apart() {
    let both = |names: [&str; 2]| {
        let mut fleet = three_regions();
        fleet.classes = names.map(|name| Class { model: name.to_owned(), ..class(name, 50.0, 0) }).to_vec();
        fleet.engines = vec![engine("e1", "r1", 0), engine("e2", "r2", 0), engine("e3", "r3", 1), engine("e4", "r1", 1)];
        for (engine, at) in fleet.engines.iter_mut().zip([0, 0, 1, 1]) {
            engine.models = vec![names[at].to_owned()];
        }
        fleet.rtt_ms.iter_mut().for_each(|row| row.push(row[0]));
        fleet
    };
    let fleet = both(["m", "n"]);
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![60.0, 30.0], vec![70.0, 30.0], vec![40.0, 50.0]];
    let whole = planned(&fleet, &inputs);
    assert_eq!(whole.certificate.components, 2);
    // What one model demands says nothing about the other.
    let mut less = inputs.clone();
    less.demand_rps.iter_mut().for_each(|demand| demand[1] *= 0.5);
    let changed = planned(&fleet, &less);
    for (a, b) in whole.routes.iter().zip(&changed.routes).filter(|(a, _)| a.class == ClassId(0)) {
        assert_eq!((&a.weights, a.price_ms), (&b.weights, b.price_ms));
    }
    assert!(whole.engines[2].load_rps > changed.engines[2].load_rps);
}

#[test]
fn a_sliver_is_pruned_where_that_costs_next_to_nothing() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    // Beyond 90/s the next request costs 3,900 ms more at e1: a's last hundredth would go far away,
    // a's last tenth does.
    for (demand, engines) in [(90.01, 1), (90.1, 2)] {
        inputs.demand_rps[0][0] = demand;
        let plan = planned(&fleet, &inputs);
        assert_eq!(plan.routes[0].weights.len(), engines, "{:?}", plan.routes[0]);
        let optimum = oracle::least_mean_ms(&fleet, &inputs);
        let dearer_frac = plan.objective_ms / optimum - 1.0;
        assert!(dearer_frac < 2e-4 && plan.certificate.gap_frac >= dearer_frac - 1e-9, "{dearer_frac} {:?}", plan.certificate);
        assert_eq!(dearer_frac > 1e-5, engines == 1, "{dearer_frac}");
        let explanation = weights::explain(&fleet, &inputs, &plan);
        let slivers = explanation.routes[0].engines.iter().filter(|row| row.reason == weights::WeightReason::Sliver).count();
        assert_eq!(slivers > 0, engines == 1, "{explanation}");
    }
}

#[test]
fn inputs_of_another_fleet_are_refused_with_what_is_wrong() {
    let fleet = three_regions();
    let check = |change: fn(&mut Inputs), wanted: &str| {
        let mut inputs = Inputs::from_fleet(&fleet);
        change(&mut inputs);
        let error = plan(&fleet, &inputs, None).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
    };
    check(|inputs| inputs.demand_rps[1][0] = f64::NAN, "demand of class \"chat\" in cluster \"b\" is NaN");
    check(|inputs| inputs.rtt_ms[0][2] = -1.0, "from cluster \"a\" to engine \"e3\" is -1");
    check(|inputs| inputs.ready[0] = 2, "engine \"e1\" has 2 ready replicas, wanted 0 to 1");
    check(|inputs| inputs.headroom_frac = 1.0, "headroom is 1");
    check(|inputs| inputs.demand_rps.truncate(2), "demand has 2 entries, wanted 3");
    let pin = |weights| Pin { cluster: ClusterId(1), class: ClassId(0), weights };
    for (pins, wanted) in [
        (vec![pin(vec![])], "sum to 0"),
        (vec![pin(vec![(EngineId(0), 1.0)]), pin(vec![(EngineId(1), 1.0)])], "set twice"),
        (vec![pin(vec![(EngineId(7), 1.0)])], "engine number 7"),
    ] {
        let error = plan(&fleet, &Inputs { pins, ..Inputs::from_fleet(&fleet) }, None).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
    }
}
