//! What is refused when not everything fits: the least there is, the lowest priorities first, the
//! same share for all within one.

use router_user::model::Fleet;
use router_user::plan::{Inputs, Plan, Status};

use crate::plan::flow::{fairest, most, wanted};
use crate::plan::laws::{Dice, Recipe, explained, fleet, planned, seeds};

/// How far shed may be from the least, as a share of demand, and how far a share of demand that is
/// served from the fair one.
const SHED_FRAC: f64 = 1e-3;
const FAIR_FRAC: f64 = 0.01;

/// The first fleet of a seed that has to shed.
fn overloaded(seed: u64, recipe: Recipe) -> (Fleet, Inputs) {
    (0..)
        .map(|nth| fleet(&mut Dice(seed * 1_000 + nth), recipe.of(seed)))
        .find(|(fleet, inputs)| {
            let all = wanted(fleet, inputs, |_| true);
            let demand: f64 = all.iter().map(|one| one.rps).sum();
            most(fleet, inputs, &all) < 0.99 * demand
        })
        .expect("some fleet is too small for its demand")
}

fn served(plan: &Plan, fleet: &Fleet, counts: impl Fn(u8) -> bool) -> f64 {
    let counted = plan.routes.iter().filter(|route| counts(fleet.classes[route.class.index()].priority));
    counted.map(|route| (route.demand_rps - route.shed_rps) * fleet.classes[route.class.index()].work).sum()
}

#[test]
fn shed_is_least_by_priority_and_fair() {
    let recipe = Recipe { clusters: 4, engines: 5, classes: 4, has_lengths: true, has_faults: true, has_work: false, load: 2.5 };
    let (mut unequal, mut worst_share, mut worst_shed) = (0, 0.0_f64, 0.0_f64);
    for seed in seeds(1_000) {
        let (fleet, inputs) = overloaded(seed, recipe);
        let plan = planned(seed, &fleet, &inputs);
        assert_eq!(plan.status, Status::Degraded, "seed {seed}");
        if seed % 4 == 0 {
            explained(seed, &fleet, &inputs, &plan);
        }
        let demand: f64 = wanted(&fleet, &inputs, |_| true).iter().map(|one| one.rps).sum();
        // Everything of the first priorities that can be served is, for each priority: nobody later
        // has what they could have had.
        for limit in 0..3 {
            let most = most(&fleet, &inputs, &wanted(&fleet, &inputs, |priority| priority <= limit));
            let served = served(&plan, &fleet, |priority| priority <= limit);
            worst_shed = worst_shed.max((most - served).abs() / demand);
            assert!(
                (served - most).abs() <= SHED_FRAC * (demand - most).max(1e-3 * demand),
                "seed {seed}: serves {served} of priority <= {limit}, {most} is possible"
            );
        }
        let fair = fairest(&fleet, &inputs);
        for route in plan.routes.iter().filter(|route| route.demand_rps > 0.0) {
            let wanted = fair[route.cluster.index()][route.class.index()] / route.demand_rps;
            let found = 1.0 - route.shed_rps / route.demand_rps;
            unequal += u32::from(wanted > 0.0 && wanted < 1.0);
            worst_share = worst_share.max((found - wanted).abs());
            assert!((found - wanted).abs() <= FAIR_FRAC, "seed {seed}: serves {found} of {route:?}, {wanted} is fair");
        }
    }
    println!("off the least shed by at most {worst_shed:e} of demand, off the fair share by at most {worst_share:e}");
    assert!(unequal > 500, "only {unequal} routes are served in part");
}

/// The fair division of a case that can be done in the head, so that the law above rests on
/// something.
#[test]
fn the_fair_division_is_the_known_one() {
    let mut fleet = crate::plan::fleet::three_regions();
    // b's requests must stay in the EU, where only e2 is: 100 for 200 wanted. a and c share what e1
    // and e3 can carry: 180 for 360.
    fleet.engines[1].tags = crate::plan::fleet::tag("residency", "eu");
    fleet.classes.push(crate::plan::fleet::class("eu", 50.0, 0));
    fleet.classes[1].require = crate::plan::fleet::tag("residency", "eu");
    fleet.clusters[0].demand_rps = vec![300.0, 0.0];
    fleet.clusters[1].demand_rps = vec![0.0, 400.0];
    fleet.clusters[2].demand_rps = vec![60.0, 0.0];
    let inputs = Inputs::from_fleet(&fleet);
    let fair = fairest(&fleet, &inputs);
    for (found, wanted) in [(fair[0][0], 150.0), (fair[1][1], 100.0), (fair[2][0], 30.0)] {
        assert!((found - wanted).abs() < 1e-4, "{fair:?}");
    }
}

/// What slows pinned requests down is paid for, but never by refusing what fits: pinned answers are
/// long, the others short.
#[test]
fn nothing_is_refused_that_fits_beside_pins() {
    let mut fleet = crate::plan::fleet::three_regions();
    fleet.classes = vec![crate::plan::fleet::class("long", 20_000.0, 0), crate::plan::fleet::class("short", 1.0, 0)];
    fleet.clusters.iter_mut().for_each(|cluster| cluster.demand_rps = vec![0.0, 0.0]);
    fleet.clusters[0].demand_rps = vec![60.0, 60.0];
    let (cluster, class) = (router_user::model::ClusterId(0), router_user::model::ClassId(0));
    let weights = fleet.engine_ids().map(|engine| (engine, 1.0)).collect();
    let pins = vec![router_user::plan::Pin { cluster, class, weights }];
    let inputs = Inputs { pins, ..Inputs::from_fleet(&fleet) };
    let plan = planned(0, &fleet, &inputs);
    assert_eq!(plan.routes.iter().map(|route| route.shed_rps).sum::<f64>(), 0.0, "{plan:#?}");
}
