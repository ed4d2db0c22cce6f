//! Publish or keep: the reasons for which current weights are replaced.

use router_user::model::{ClassId, ClusterId, EngineId};
use router_user::plan::decide::gate::{Decision, PublishReason, decide, moved_frac};
use router_user::plan::verify::Violation;
use router_user::plan::{Inputs, Pin, RouteWeights, plan};

use crate::plan::fleet::three_regions;

fn check(change: impl Fn(&mut Inputs), wanted: impl Fn(&Decision) -> bool) {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![80.0], vec![100.0], vec![40.0]];
    let current = plan(&fleet, &inputs, None).expect("a plan").weights();
    change(&mut inputs);
    let next = plan(&fleet, &inputs, None).expect("a plan");
    let decision = decide(&fleet, &inputs, Some(&current), &next);
    assert!(wanted(&decision), "{decision}; moves {}", moved_frac(&inputs, &current, &next.weights()));
}

#[test]
fn first_weights_are_published() {
    let fleet = three_regions();
    let inputs = Inputs::from_fleet(&fleet);
    let plan = plan(&fleet, &inputs, None).expect("a plan");
    assert_eq!(decide(&fleet, &inputs, None, &plan), Decision::Publish(PublishReason::First));
}

#[test]
fn noise_in_demand_and_distance_keeps_the_weights() {
    let kept = |decision: &Decision| matches!(decision, Decision::Keep { gain_frac } if (0.0..1e-3).contains(gain_frac));
    check(|_| {}, |decision| matches!(decision, Decision::Keep { gain_frac } if gain_frac.abs() < 1e-9));
    check(|inputs| inputs.demand_rps[0][0] *= 1.01, kept);
    check(|inputs| inputs.rtt_ms.iter_mut().flatten().for_each(|rtt| *rtt *= 1.02), kept);
}

#[test]
fn a_better_plan_is_published_with_its_gain() {
    let better = |decision: &Decision| {
        matches!(decision, Decision::Publish(PublishReason::Better { current_ms, plan_ms, gain_frac })
            if *gain_frac > 1e-3 && plan_ms < current_ms && (1.0 - plan_ms / current_ms - gain_frac).abs() < 1e-12)
    };
    check(|inputs| inputs.demand_rps[2][0] = 5.0, better);
}

#[test]
fn weights_that_became_illegal_are_replaced() {
    let illegal = |decision: &Decision, is: fn(&Violation) -> bool| matches!(decision, Decision::Publish(PublishReason::Illegal(violation)) if is(violation));
    let capacity: fn(&Violation) -> bool = |violation| matches!(violation, Violation::Capacity { .. });
    check(|inputs| inputs.demand_rps[1][0] = 150.0, |decision| illegal(decision, capacity));
    check(|inputs| inputs.headroom_frac = 0.205, |decision| illegal(decision, capacity));
    check(
        |inputs| inputs.ready[0] = 0,
        |decision| illegal(decision, |v| matches!(v, Violation::NotReady { engine, .. } if engine == "e1")),
    );
    let pin = Pin { cluster: ClusterId(0), class: ClassId(0), weights: vec![(EngineId(2), 1.0)] };
    check(|inputs| inputs.pins = vec![pin.clone()], |decision| illegal(decision, |v| matches!(v, Violation::Pin { .. })));
}

#[test]
fn shed_that_is_no_longer_needed_is_taken_back() {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps[2][0] = 90.0;
    let current = plan(&fleet, &inputs, None).expect("a plan").weights();
    inputs.demand_rps[2][0] = 60.0;
    let next = plan(&fleet, &inputs, None).expect("a plan");
    let decision = decide(&fleet, &inputs, Some(&current), &next);
    assert!(
        matches!(&decision, Decision::Publish(reason) | Decision::Step { reason, .. }
            if matches!(reason, PublishReason::Shed { current_rps, plan_rps } if *current_rps > 5.0 && *plan_rps < 1e-6)),
        "{decision}"
    );
}

#[test]
fn moved_traffic_is_counted_once() {
    let inputs = Inputs { demand_rps: vec![vec![30.0], vec![10.0]], ..Inputs::from_fleet(&three_regions()) };
    let route = |cluster: u16, shed_frac: f64, weights: &[(u16, f64)]| RouteWeights {
        cluster: ClusterId(cluster),
        class: ClassId(0),
        shed_frac,
        weights: weights.iter().map(|&(engine, weight)| (EngineId(engine), weight)).collect(),
    };
    let before = [route(0, 0.0, &[(0, 1.0)]), route(1, 0.0, &[(1, 0.5), (2, 0.5)])];
    let after = [route(0, 0.0, &[(0, 0.8), (1, 0.2)]), route(1, 0.5, &[(1, 1.0)])];
    // 6 of a's 30 go to another engine, 5 of b's 10 are shed: 11 of 40.
    assert!((moved_frac(&inputs, &before, &after) - 11.0 / 40.0).abs() < 1e-12);
}
