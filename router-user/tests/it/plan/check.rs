//! The rules that weights must obey, one broken at a time.

use router_user::model::{ClassId, ClusterId, EngineId, Fleet};
use router_user::plan::verify::{Violation, legal};
use router_user::plan::{Inputs, Pin, RouteWeights};

use crate::plan::fleet::{tag, three_regions};

fn route(cluster: u16, shed_frac: f64, weights: &[(u16, f64)]) -> RouteWeights {
    let weights = weights.iter().map(|&(engine, weight)| (EngineId(engine), weight)).collect();
    RouteWeights { cluster: ClusterId(cluster), class: ClassId(0), shed_frac, weights }
}

fn legal_weights() -> Vec<RouteWeights> {
    vec![route(0, 0.0, &[(0, 1.0)]), route(1, 0.0, &[(1, 0.75), (2, 0.25)]), route(2, 0.0, &[(2, 1.0)])]
}

fn check(change: impl Fn(&mut Fleet, &mut Inputs, &mut Vec<RouteWeights>), is_wanted: impl Fn(&Violation) -> bool) {
    let (mut fleet, mut weights) = (three_regions(), legal_weights());
    let mut inputs = Inputs::from_fleet(&fleet);
    legal(&fleet, &inputs, &weights).expect("legal before the change");
    change(&mut fleet, &mut inputs, &mut weights);
    let violation = legal(&fleet, &inputs, &weights).expect_err("illegal after the change");
    assert!(is_wanted(&violation), "{violation}");
}

#[test]
fn each_rule_is_kept() {
    check(|_, _, weights| drop(weights.pop()), |v| matches!(v, Violation::Routes { cluster, found: 0, .. } if cluster == "c"));
    check(|_, _, weights| weights.push(route(0, 0.0, &[(0, 1.0)])), |v| matches!(v, Violation::Routes { found: 2, .. }));
    check(|_, _, weights| weights[1] = route(1, 0.0, &[(1, 0.75), (2, 0.24)]), |v| matches!(v, Violation::Sum { .. }));
    check(|_, _, weights| weights[1] = route(1, 0.0, &[(1, 1.25), (2, -0.25)]), |v| matches!(v, Violation::Weight { .. }));
    check(|_, _, weights| weights[1] = route(1, 0.0, &[(1, f64::NAN)]), |v| matches!(v, Violation::Weight { .. }));
    check(|_, _, weights| weights[1].shed_frac = -0.1, |v| matches!(v, Violation::Shed { .. }));
    check(|_, _, weights| weights[1].shed_frac = f64::NAN, |v| matches!(v, Violation::Shed { .. }));
    check(|_, _, weights| weights[2].weights.clear(), |v| matches!(v, Violation::Unrouted { found, .. } if *found == 40.0));
    check(|_, inputs, _| inputs.ready[2] = 0, |v| matches!(v, Violation::NotReady { engine, .. } if engine == "e3"));
    check(|_, inputs, _| inputs.demand_rps[2][0] = 50.1, |v| matches!(v, Violation::Capacity { engine, .. } if engine == "e3"));
    check(|_, inputs, _| inputs.headroom_frac = 0.11, |v| matches!(v, Violation::Capacity { engine, .. } if engine == "e1"));
    let needs_eu =
        |fleet: &mut Fleet, _: &mut Inputs, _: &mut Vec<RouteWeights>| fleet.classes[0].require = tag("residency", "eu");
    check(needs_eu, |v| matches!(v, Violation::Ineligible { engine, .. } if engine == "e1"));
}

#[test]
fn pins_may_overfill_but_must_be_kept() {
    let pin = |engine: u16| Pin { cluster: ClusterId(0), class: ClassId(0), weights: vec![(EngineId(engine), 3.0)] };
    check(|_, inputs, _| inputs.pins = vec![pin(1)], |v| matches!(v, Violation::Pin { engine, .. } if engine == "e2"));
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps[0][0] = 150.0;
    inputs.pins = vec![pin(0)];
    let overfilled = legal(&fleet, &inputs, &legal_weights()).expect("a pin alone overfills e1");
    let evaluation = overfilled.evaluation();
    assert!(evaluation.is_overloaded && evaluation.mean_ms.is_finite());
    // Beside the pin there is no place for anybody else.
    let mut weights = legal_weights();
    weights[2] = route(2, 0.0, &[(0, 0.01), (2, 0.99)]);
    assert!(matches!(legal(&fleet, &inputs, &weights), Err(Violation::Capacity { engine, .. }) if engine == "e1"));
}
