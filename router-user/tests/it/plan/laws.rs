//! Laws that every plan obeys, on random fleets. A failure names the seed that replays it.

use router_user::model::{Cluster, Curve, EngineId, Fleet, Profile};
use router_user::plan::decide::gate;
use router_user::plan::decide::gate::Decision;
use router_user::plan::explain::weights;
use router_user::plan::explain::weights::{TERM_TOLERANCE_MS, WeightReason};
use router_user::plan::verify;
use router_user::plan::{Inputs, Pin, Plan, evaluate, nearest, plan, plan_greedily};

use crate::plan::fleet::{class, cluster, engine, profile, tag};
use crate::plan::oracle;

/// A small generator (splitmix64), so that a seed is a whole test case.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [low, high).
    pub(crate) fn real(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// In 0..bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The seeds of one law: `count` of them, or `ILB_SEEDS` times as many for a soak; or `ILB_SEED`
/// alone, to replay it.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("ILB_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    let times = std::env::var("ILB_SEEDS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    0..count * times
}

/// What a random fleet may contain.
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) clusters: usize,
    pub(crate) engines: usize,
    pub(crate) classes: usize,
    pub(crate) has_lengths: bool,
    pub(crate) has_faults: bool,
    /// Work, weights and caps on distance; where lengths do not differ, classes then differ in
    /// nothing but the amount of work.
    pub(crate) has_work: bool,
    /// Demand of everybody together, as a share of all capacity, at most.
    pub(crate) load: f64,
}

impl Recipe {
    /// Every other seed has work, weights and caps.
    pub(crate) fn of(self, seed: u64) -> Self {
        Self { has_work: self.has_work || seed % 2 == 1, ..self }
    }
}

fn knots(dice: &mut Dice, capacity: f64, start: f64) -> Vec<(f64, f64)> {
    let (mut knots, mut load, mut value, mut slope) = (vec![(0.0, start)], 0.0, start, 0.0);
    for _ in 0..dice.below(5) {
        let width = capacity * dice.real(0.05, 0.5);
        slope += dice.real(0.0, 4.0) * start / capacity;
        (load, value) = (load + width, value + slope * width);
        knots.push((load, value));
    }
    knots
}

pub(crate) fn fleet(dice: &mut Dice, recipe: Recipe) -> (Fleet, Inputs) {
    let count = |dice: &mut Dice, most: usize| 1 + dice.below(most);
    let (clusters, engines, classes) = (count(dice, recipe.clusters), count(dice, recipe.engines), count(dice, recipe.classes));
    // From engines that take a request every few seconds to such that take thousands in one.
    let size = [0.01, 1.0, 1.0, 50.0][dice.below(4)];
    let profiles = (0..3)
        .map(|at| {
            let capacity = size * dice.real(10.0, 200.0);
            let (ttft, tbot) = (dice.real(30.0, 300.0), dice.real(3.0, 40.0));
            profile(&format!("p{at}"), capacity, &knots(dice, capacity, ttft), &knots(dice, capacity, tbot))
        })
        .collect();
    let mut fleet = Fleet {
        clusters: (0..clusters).map(|at| cluster(&format!("c{at}"), "r", &[])).collect(),
        engines: (0..engines).map(|at| engine(&format!("e{at}"), "r", dice.below(3))).collect(),
        classes: (0..classes)
            .map(|at| {
                let tokens = if recipe.has_lengths { dice.real(1.0, 400.0) } else { 60.0 };
                class(&format!("k{at}"), tokens.round(), dice.below(3) as u8)
            })
            .collect(),
        profiles,
        rtt_ms: (0..clusters).map(|_| (0..engines).map(|_| dice.real(0.2, 250.0)).collect()).collect(),
    };
    if recipe.has_faults {
        for engine in &mut fleet.engines {
            engine.replicas = 1 + dice.below(3) as u32;
            engine.tags = tag("residency", if dice.one_in(2) { "eu" } else { "us" });
        }
        for class in &mut fleet.classes {
            if dice.one_in(3) {
                class.require = tag("residency", "eu");
            }
        }
    }
    if recipe.has_work {
        for class in &mut fleet.classes {
            class.work = dice.real(0.3, 3.0);
            let weight = |dice: &mut Dice| if recipe.has_lengths { dice.real(0.0, 3.0) } else { class.work };
            (class.ttft_weight, class.decode_weight) = (weight(dice), weight(dice));
            class.rtt_cap_ms = dice.one_in(3).then(|| dice.real(40.0, 250.0));
        }
    }
    let capacity: f64 = fleet.engine_ids().map(|engine| fleet.profile_of(engine).capacity_rps).sum();
    let routes = (clusters * classes) as f64;
    let load = dice.real(0.05, recipe.load);
    for cluster in &mut fleet.clusters {
        for class in 0..classes {
            let share = if dice.one_in(8) { 0.0 } else { dice.real(0.2, 1.8) };
            cluster.demand_rps.push(capacity * load / routes * share / fleet.classes[class].work);
        }
    }
    let mut inputs = Inputs::from_fleet(&fleet);
    if recipe.has_faults {
        for (ready, engine) in inputs.ready.iter_mut().zip(&fleet.engines) {
            *ready = if dice.one_in(6) { 0 } else { 1 + dice.below(engine.replicas as usize) as u32 };
        }
        inputs.headroom_frac = if dice.one_in(2) { dice.real(0.0, 0.3) } else { 0.0 };
    }
    (fleet, inputs)
}

pub(crate) fn planned(seed: u64, fleet: &Fleet, inputs: &Inputs) -> Plan {
    let plan = plan(fleet, inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    verify::legal(fleet, inputs, &plan.weights()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    plan
}

fn total_ms(plan: &Plan) -> f64 {
    plan.objective_ms * plan.routes.iter().map(|route| route.demand_rps - route.shed_rps).sum::<f64>()
}

/// Every weight and every zero has a reason, and terms that come to the price.
pub(crate) fn explained(seed: u64, fleet: &Fleet, inputs: &Inputs, plan: &Plan) {
    let explanation = weights::explain(fleet, inputs, plan);
    assert_eq!(explanation.routes.len(), fleet.clusters.len() * fleet.classes.len(), "seed {seed}");
    for route in &explanation.routes {
        assert_eq!(route.engines.len(), fleet.engines.len(), "seed {seed}");
        for row in &route.engines {
            let off = row.dearer_ms.unwrap_or(f64::INFINITY);
            let holds = match &row.reason {
                WeightReason::AtPrice | WeightReason::CheapestForFirst => row.weight > 0.0 && off.abs() <= TERM_TOLERANCE_MS,
                WeightReason::Hurried { .. } => plan.is_greedy,
                WeightReason::AllShed => row.weight > 0.0 && row.rps == 0.0 && off >= -TERM_TOLERANCE_MS && route.shed_rps > 0.0,
                WeightReason::Dearer { by_ms } => row.weight == 0.0 && *by_ms > TERM_TOLERANCE_MS && *by_ms == off,
                WeightReason::NotWorthMoving { saves_ms, price_ms } => {
                    row.weight == 0.0 && *saves_ms > 0.0 && (price_ms - saves_ms - off).abs() < 1e-9 && off > 0.0
                }
                WeightReason::NotNeeded => row.weight == 0.0 && off.abs() <= TERM_TOLERANCE_MS,
                // Only several output lengths leave a gap large enough to see.
                WeightReason::Unresolved { by_ms } => *by_ms == -off && row.weight == 0.0 && plan.certificate.gap_frac > 1e-9,
                WeightReason::Sliver => row.weight == 0.0 && off < 0.0,
                WeightReason::FilledByPins => row.weight == 0.0 && off.is_finite(),
                WeightReason::Pinned => plan.routes.iter().any(|route| route.is_pinned),
                WeightReason::NotEligible { .. } | WeightReason::NotReady | WeightReason::Withdrawn { .. } => {
                    row.weight == 0.0 && row.terms.is_none()
                }
            };
            assert!(holds, "seed {seed}: {row:?} in {route:?}");
            let sum = row.terms.map(|terms| terms.sum_ms());
            assert_eq!(sum, row.delivered_ms, "seed {seed}");
        }
    }
    assert!(!explanation.to_string().is_empty());
}

#[test]
fn every_plan_is_legal_explained_and_certified() {
    let recipe = Recipe { clusters: 5, engines: 7, classes: 3, has_lengths: false, has_faults: true, has_work: false, load: 1.4 };
    let mut worst = 0.0_f64;
    for seed in seeds(1_000) {
        let (fleet, inputs) = fleet(&mut Dice(seed), recipe.of(seed));
        let plan = planned(seed, &fleet, &inputs);
        explained(seed, &fleet, &inputs, &plan);
        assert!(plan.certificate.gap_frac <= 2.1e-4, "seed {seed}: {:?}", plan.certificate);
        worst = worst.max(plan.certificate.gap_frac);
    }
    println!("largest gap {worst:e}");
}

#[test]
fn output_lengths_may_differ() {
    let recipe = Recipe { clusters: 4, engines: 5, classes: 4, has_lengths: true, has_faults: true, has_work: false, load: 1.3 };
    let (mut gap, mut mix) = (Vec::new(), Vec::new());
    for seed in seeds(500) {
        let (fleet, inputs) = fleet(&mut Dice(seed), recipe.of(seed));
        let plan = planned(seed, &fleet, &inputs);
        explained(seed, &fleet, &inputs, &plan);
        gap.push(plan.certificate.gap_frac);
        mix.push(plan.certificate.mix_error_ms / plan.objective_ms.max(1.0));
    }
    gap.sort_by(f64::total_cmp);
    mix.sort_by(f64::total_cmp);
    // Where the mix of lengths leaves the program without an optimum that is one of its corners,
    // the rounds end short of it.
    let at = |values: &[f64], share: f64| values[(share * (values.len() - 1) as f64) as usize];
    assert!(at(&gap, 0.98) < 1e-5 && at(&gap, 1.0) < 1e-2, "gap: 98 % below {:e}, largest {:e}", at(&gap, 0.98), at(&gap, 1.0));
    assert!(at(&mix, 0.98) < 1e-6 && at(&mix, 1.0) < 1e-3, "mix: 98 % below {:e}, largest {:e}", at(&mix, 0.98), at(&mix, 1.0));
}

#[test]
fn cost_is_the_optimum_of_exhaustive_search() {
    let recipe =
        Recipe { clusters: 3, engines: 3, classes: 1, has_lengths: false, has_faults: false, has_work: false, load: 0.95 };
    let mut compared = 0;
    for seed in seeds(60) {
        let (fleet, inputs) = fleet(&mut Dice(seed), recipe.of(seed));
        let plan = planned(seed, &fleet, &inputs);
        let shed: f64 = plan.routes.iter().map(|route| route.shed_rps).sum();
        if shed > 0.0 || plan.objective_ms == 0.0 {
            continue;
        }
        compared += 1;
        let optimum = oracle::least_mean_ms(&fleet, &inputs);
        let off = plan.objective_ms / optimum - 1.0;
        assert!((-1e-6..2.5e-4).contains(&off), "seed {seed}: {} ms, the optimum is {optimum} ms", plan.objective_ms);
    }
    assert!(compared > 30, "only {compared} instances could be compared");
}

#[test]
fn a_plan_without_a_solver_is_legal_sheds_no_more_and_proves_how_good_it_is() {
    let recipe = Recipe { clusters: 5, engines: 7, classes: 4, has_lengths: true, has_faults: true, has_work: false, load: 1.8 };
    let mut dearer = Vec::new();
    for seed in seeds(1_000) {
        let (fleet, inputs) = fleet(&mut Dice(seed), recipe.of(seed));
        let greedy = plan_greedily(&fleet, &inputs, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify::legal(&fleet, &inputs, &greedy.weights()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if seed % 10 != 0 {
            continue;
        }
        let best = planned(seed, &fleet, &inputs);
        for (a, b) in greedy.routes.iter().zip(&best.routes) {
            assert!((a.shed_rps - b.shed_rps).abs() < 1e-4, "seed {seed}: sheds {} instead of {}", a.shed_rps, b.shed_rps);
        }
        if best.objective_ms > 0.0 {
            dearer.push(greedy.objective_ms / best.objective_ms - 1.0);
        }
    }
    dearer.sort_by(f64::total_cmp);
    let (median, most) = (dearer[dearer.len() / 2], dearer[dearer.len() - 1]);
    println!("without a solver: median {median:.4} dearer, at most {most:.4}");
    assert!(median < 0.05, "{median}");
}

#[test]
fn a_smaller_demand_never_costs_more() {
    let recipe = Recipe { clusters: 4, engines: 5, classes: 2, has_lengths: false, has_faults: true, has_work: false, load: 0.8 };
    for seed in seeds(300) {
        let mut dice = Dice(seed);
        let (fleet, inputs) = fleet(&mut dice, recipe.of(seed));
        let before = planned(seed, &fleet, &inputs);
        let mut less = inputs.clone();
        let (cluster, class) = (dice.below(fleet.clusters.len()), dice.below(fleet.classes.len()));
        less.demand_rps[cluster][class] *= dice.real(0.0, 1.0);
        let after = planned(seed, &fleet, &less);
        let shed = |plan: &Plan| plan.routes.iter().map(|route| route.shed_rps).sum::<f64>();
        assert!(shed(&after) <= shed(&before) + 1e-6, "seed {seed}: sheds {} after {}", shed(&after), shed(&before));
        if shed(&before) == 0.0 {
            // A pruned sliver may cost up to 0.02 %.
            let (before, after) = (total_ms(&before), total_ms(&after));
            assert!(after <= before * (1.0 + 2.1e-4), "seed {seed}: {after} after {before}");
        }
    }
}

#[test]
fn the_order_of_a_file_does_not_matter() {
    let recipe = Recipe { clusters: 4, engines: 6, classes: 3, has_lengths: true, has_faults: true, has_work: false, load: 1.2 };
    for seed in seeds(200) {
        let (fleet, inputs) = fleet(&mut Dice(seed), recipe.of(seed));
        let plan = planned(seed, &fleet, &inputs);
        assert_eq!(plan, planned(seed, &fleet, &inputs), "seed {seed}: the same inputs give the same plan");
        let (mut turned, mut turned_inputs) = (fleet.clone(), inputs.clone());
        turned.clusters.reverse();
        turned.engines.reverse();
        turned.classes.reverse();
        turned_inputs.ready.reverse();
        turned.clusters.iter_mut().for_each(|cluster: &mut Cluster| cluster.demand_rps.reverse());
        turned_inputs.demand_rps.reverse();
        turned_inputs.demand_rps.iter_mut().for_each(|of_cluster| of_cluster.reverse());
        turned_inputs.rtt_ms.reverse();
        turned_inputs.rtt_ms.iter_mut().for_each(|of_cluster| of_cluster.reverse());
        turned.rtt_ms = turned_inputs.rtt_ms.clone();
        let other = planned(seed, &turned, &turned_inputs);
        let last = |at: usize| fleet.engines.len() - 1 - at;
        for (route, mirror) in plan.routes.iter().zip(other.routes.iter().rev()) {
            let mut weights: Vec<_> = route.weights.iter().map(|share| (share.engine.index(), share.weight)).collect();
            let mut mirrored: Vec<_> = mirror.weights.iter().map(|share| (last(share.engine.index()), share.weight)).collect();
            weights.sort_by_key(|&(engine, _)| engine);
            mirrored.sort_by_key(|&(engine, _)| engine);
            let same = weights.len() == mirrored.len()
                && weights.iter().zip(&mirrored).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-9);
            assert!(same, "seed {seed}: {weights:?} turned into {mirrored:?}");
        }
    }
}

/// An engine that is slower than its profile is planned as one whose profile is that slow.
#[test]
fn slowdown_is_a_slower_profile() {
    let recipe = Recipe { clusters: 4, engines: 6, classes: 1, has_lengths: false, has_faults: true, has_work: false, load: 0.9 };
    for seed in seeds(200) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, recipe);
        for slowdown in &mut inputs.slowdown {
            *slowdown = if dice.one_in(2) { dice.real(1.0, 4.0) } else { 1.0 };
        }
        let mut slower = fleet.clone();
        slower.profiles.clear();
        for (engine, &slowdown) in fleet.engine_ids().zip(&inputs.slowdown) {
            let of = fleet.profile_of(engine);
            let scaled = |curve: &Curve| {
                Curve::new(curve.knots().iter().map(|&(load, ms)| (load, ms * slowdown)).collect()).expect("still convex")
            };
            slower.engines[engine.index()].profile = slower.profiles.len();
            slower.profiles.push(Profile { ttft_ms: scaled(&of.ttft_ms), tbot_ms: scaled(&of.tbot_ms), ..of.clone() });
        }
        let (found, wanted) = (
            planned(seed, &fleet, &inputs),
            planned(seed, &slower, &Inputs { slowdown: vec![1.0; inputs.slowdown.len()], ..inputs.clone() }),
        );
        let (found_ms, wanted_ms) = (total_ms(&found), total_ms(&wanted));
        assert!((found_ms - wanted_ms).abs() <= 1e-6 * wanted_ms.max(1.0), "seed {seed}: {found_ms}, wanted {wanted_ms}");
    }
}

#[test]
fn pins_are_kept_whatever_they_do() {
    let recipe = Recipe { clusters: 4, engines: 5, classes: 3, has_lengths: true, has_faults: true, has_work: false, load: 1.2 };
    let mut pinned = 0;
    for seed in seeds(300) {
        let mut dice = Dice(seed);
        let (fleet, mut inputs) = fleet(&mut dice, recipe.of(seed));
        for cluster in fleet.cluster_ids() {
            for class in fleet.class_ids() {
                let may = |&engine: &EngineId| inputs.ineligible(&fleet, cluster, class, engine).is_none();
                let eligible: Vec<EngineId> = fleet.engine_ids().filter(may).collect();
                if dice.one_in(3) && !eligible.is_empty() {
                    let weights = eligible.iter().map(|&engine| (engine, dice.real(0.0, 2.0))).collect();
                    inputs.pins.push(Pin { cluster, class, weights });
                    pinned += 1;
                }
            }
        }
        let plan = planned(seed, &fleet, &inputs);
        explained(seed, &fleet, &inputs, &plan);
        let pins = plan.routes.iter().filter(|route| route.is_pinned).count();
        assert_eq!(pins, inputs.pins.len(), "seed {seed}");
    }
    assert!(pinned > 300);
}

#[test]
fn no_plan_is_worse_than_nearest_only_and_a_held_plan_is_kept() {
    let recipe =
        Recipe { clusters: 4, engines: 5, classes: 2, has_lengths: false, has_faults: false, has_work: false, load: 0.9 };
    for seed in seeds(300) {
        let mut dice = Dice(seed);
        let (fleet, inputs) = fleet(&mut dice, recipe.of(seed));
        let plan = planned(seed, &fleet, &inputs);
        let nearest = nearest(&fleet, &inputs);
        let naive = evaluate(&fleet, &inputs, &nearest);
        if !naive.is_overloaded {
            assert!(plan.objective_ms <= naive.cost_ms * (1.0 + 2.1e-4), "seed {seed}: {} {}", plan.objective_ms, naive.cost_ms);
        }
        let weights = plan.weights();
        let again = gate::decide(&fleet, &inputs, Some(&weights), &plan);
        assert!(matches!(again, Decision::Keep { .. }), "seed {seed}: {again}");
        assert_eq!(gate::moved_frac(&inputs, &weights, &weights), 0.0);
        match gate::decide(&fleet, &inputs, Some(&nearest), &plan) {
            Decision::Cooldown { route, .. } => panic!("seed {seed}: a first plan turns {route} back"),
            Decision::Keep { gain_frac } => assert!(!naive.is_overloaded && gain_frac <= gate::EPSILON_FRAC, "seed {seed}"),
            Decision::Blocked { .. } => assert!(!naive.is_overloaded, "seed {seed}"),
            Decision::Publish(_) | Decision::Step { .. } => {
                assert!(gate::moved_frac(&inputs, &nearest, &weights) > 0.0, "seed {seed}")
            }
        }
    }
}
