//! The reason for each weight, and for each engine without one.
//!
//! At the optimum all engines that a (cluster, class) uses cost the same at the margin, its price,
//! and every other engine costs more. So each weight is explained by a sum of five terms that comes
//! to the price, and each zero by a mask or by the amount it is dearer.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use crate::plan::engine_cost::EngineCost;
use crate::plan::load::Load;
use crate::plan::{EngineLoad, Inputs, NEGLIGIBLE_RPS, Plan, ROUNDING_FRAC, Route};

pub use super::types::{
    EngineExplanation, Explanation, Hold, PriceLimit, RouteExplanation, Share, TERM_TOLERANCE_MS, Terms, WeightReason,
};

/// Explains `plan`, which must have been made for `fleet` and `inputs`.
pub fn explain(fleet: &Fleet, inputs: &Inputs, plan: &Plan) -> Explanation {
    explain_routes(fleet, inputs, plan, |_| true)
}

/// The same for the routes that are `wanted`.
pub fn explain_routes(fleet: &Fleet, inputs: &Inputs, plan: &Plan, wanted: impl Fn(&Route) -> bool) -> Explanation {
    Explanation {
        status: plan.status.name().to_owned(),
        objective_ms: plan.objective_ms,
        latency_ms: plan.latency_ms,
        gap_frac: plan.certificate.gap_frac,
        is_mix_frozen: !Load::has_one_mix(fleet),
        routes: plan.routes.iter().filter(|route| wanted(route)).map(|route| explain_route(fleet, inputs, plan, route)).collect(),
    }
}

/// How many weights above `least_weight`, and eligible zeros, have no reason whose terms come to
/// the price within [`TERM_TOLERANCE_MS`]. Engines that were planned as one are asked once. What a
/// controller can afford to ask of every plan.
pub fn unexplained(fleet: &Fleet, inputs: &Inputs, plan: &Plan, least_weight: f64) -> usize {
    let pools: Vec<&EngineLoad> = plan.engines.iter().filter(|load| load.pool == load.engine).collect();
    let usable_of: Vec<Vec<&EngineLoad>> = fleet
        .class_ids()
        .map(|class| {
            let may =
                |load: &&EngineLoad| inputs.ready[load.engine.index()] > 0 && fleet.ineligible(class, load.engine).is_none();
            pools.iter().copied().filter(may).collect()
        })
        .collect();
    let mut rps_of = vec![(0.0, 0.0); fleet.engines.len()];
    let mut count = 0;
    for route in plan.routes.iter().filter(|route| !route.is_pinned && route.demand_rps > NEGLIGIBLE_RPS) {
        route.weights.iter().for_each(|share| rps_of[share.engine.index()] = (share.weight, share.rps));
        let class = &fleet.classes[route.class.index()];
        for load in &usable_of[route.class.index()] {
            if class.too_far(inputs.rtt_ms[route.cluster.index()][load.engine.index()]).is_some() {
                continue;
            }
            let (weight, rps) = rps_of[load.engine.index()];
            let off = terms(fleet, inputs, route, load, rps).sum_ms() - route.price_ms;
            let is_explained = if weight > 0.0 {
                off.abs() <= TERM_TOLERANCE_MS || rps <= NEGLIGIBLE_RPS || weight <= least_weight
            } else {
                off >= -TERM_TOLERANCE_MS || route.pruned.contains(&load.engine) || load.is_filled_by_pins()
            };
            count += usize::from(!is_explained);
        }
        route.weights.iter().for_each(|share| rps_of[share.engine.index()] = (0.0, 0.0));
    }
    count
}

fn explain_route(fleet: &Fleet, inputs: &Inputs, plan: &Plan, route: &Route) -> RouteExplanation {
    let mut engines: Vec<EngineExplanation> =
        plan.engines.iter().map(|load| explain_engine(fleet, inputs, plan, route, load)).collect();
    let last = f64::INFINITY;
    engines.sort_by(|a, b| {
        let by_cost = || a.delivered_ms.unwrap_or(last).total_cmp(&b.delivered_ms.unwrap_or(last));
        b.weight.total_cmp(&a.weight).then_with(by_cost).then_with(|| a.engine.cmp(&b.engine))
    });
    let limit = price_limit(plan, route, fleet.classes[route.class.index()].work, &engines);
    let is_alike = fleet.classes.iter().all(|class| class.work == 1.0);
    RouteExplanation {
        cluster: fleet.clusters[route.cluster.index()].name.clone(),
        class: fleet.classes[route.class.index()].name.clone(),
        demand_rps: route.demand_rps,
        shed_rps: route.shed_rps,
        price_ms: route.price_ms,
        is_price_of_shed: limit.is_some_and(|limit| limit != PriceLimit::DetourBudget),
        limit,
        load_unit: if is_alike { "requests/s" } else { "reference requests/s" }.to_owned(),
        engines,
    }
}

/// The limit that sets the price of a route, by the largest part of what its cheapest engine
/// charges; `None` where latency alone does.
fn price_limit(plan: &Plan, route: &Route, work: f64, engines: &[EngineExplanation]) -> Option<PriceLimit> {
    if route.shed_rps <= 0.0 && route.price_ms <= plan.price_limit_ms * work {
        return None;
    }
    let cheapest = engines.iter().filter_map(|row| row.terms).min_by(|a, b| a.sum_ms().total_cmp(&b.sum_ms()));
    let Some(terms) = cheapest else { return (route.shed_rps > 0.0).then_some(PriceLimit::NoEngine) };
    let parts = [
        (terms.capacity_ms, PriceLimit::Capacity),
        (terms.memory_ms, PriceLimit::Memory),
        (terms.detour_ms, PriceLimit::DetourBudget),
    ];
    let largest = parts.into_iter().filter(|&(part_ms, _)| part_ms > 0.0).max_by(|a, b| a.0.total_cmp(&b.0));
    // Only a full engine causes shed, even where its price does not show it.
    largest.map(|(_, limit)| limit).or((route.shed_rps > 0.0).then_some(PriceLimit::Capacity))
}

fn explain_engine(fleet: &Fleet, inputs: &Inputs, plan: &Plan, route: &Route, load: &EngineLoad) -> EngineExplanation {
    let share = route.weights.iter().find(|share| share.engine == load.engine);
    let (weight, rps) = share.map_or((0.0, 0.0), |share| (share.weight, share.rps));
    let usable = usable(fleet, inputs, route.cluster, route.class, load.engine);
    let terms = usable.is_ok().then(|| terms(fleet, inputs, route, load, rps));
    let delivered_ms = terms.map(|terms| terms.sum_ms());
    let dearer_ms = delivered_ms.map(|delivered| delivered - route.price_ms);
    let churn_ms = terms.map_or(0.0, |terms| terms.churn_ms);
    let reason = match usable {
        _ if route.is_pinned && weight > 0.0 => WeightReason::Pinned,
        Err(reason) => reason,
        Ok(()) if route.is_pinned => WeightReason::Pinned,
        Ok(()) if weight == 0.0 && load.is_filled_by_pins() => WeightReason::FilledByPins,
        Ok(()) if weight > 0.0 && route.demand_rps <= NEGLIGIBLE_RPS => WeightReason::CheapestForFirst,
        Ok(()) if weight > 0.0 && rps <= NEGLIGIBLE_RPS => WeightReason::AllShed,
        Ok(()) if weight > 0.0 => match dearer_ms {
            Some(by_ms) if plan.is_greedy && by_ms.abs() > TERM_TOLERANCE_MS => WeightReason::Hurried { by_ms },
            _ => WeightReason::AtPrice,
        },
        Ok(()) => match dearer_ms {
            Some(by_ms) if by_ms > TERM_TOLERANCE_MS && churn_ms - by_ms > TERM_TOLERANCE_MS => {
                WeightReason::NotWorthMoving { saves_ms: churn_ms - by_ms, price_ms: churn_ms }
            }
            Some(by_ms) if by_ms > TERM_TOLERANCE_MS => WeightReason::Dearer { by_ms },
            Some(by_ms) if by_ms < -TERM_TOLERANCE_MS && route.pruned.contains(&load.engine) => WeightReason::Sliver,
            Some(by_ms) if by_ms < -TERM_TOLERANCE_MS => WeightReason::Unresolved { by_ms: -by_ms },
            _ => WeightReason::NotNeeded,
        },
    };
    let shared_with = if weight > 0.0 { shared_with(fleet, plan, route, load.engine) } else { Vec::new() };
    let held_by = if rps > NEGLIGIBLE_RPS { held_by(fleet, inputs, route, load, rps) } else { None };
    let engine = fleet.engines[load.engine.index()].name.clone();
    EngineExplanation { engine, weight, rps, reason, terms, delivered_ms, dearer_ms, held_by, shared_with }
}

fn held_by(fleet: &Fleet, inputs: &Inputs, route: &Route, load: &EngineLoad, rps: f64) -> Option<Hold> {
    if route.move_price_ms > 0.0 && keeps(route, load.engine, rps) == Keeps::All {
        return Some(Hold::Current { at_rps: rps, price_ms: route.move_price_ms });
    }
    let cost = EngineCost::new(fleet, inputs, load.engine);
    if load.load_rps >= load.capacity_rps * (1.0 - ROUNDING_FRAC) {
        return Some(Hold::Capacity { at_rps: load.capacity_rps });
    }
    if load.memory_price_ms > 0.0 && load.memory_rps >= load.capacity_rps * (1.0 - ROUNDING_FRAC) {
        return Some(Hold::Memory { at_rps: load.load_rps });
    }
    let (at_rps, jump_ms) = cost.knee(load.load_rps, load.mix)?;
    let beyond = cost.marginal_ms(at_rps, load.mix);
    (jump_ms > TERM_TOLERANCE_MS).then_some(Hold::Knee { at_rps, more_ms: (beyond - load.price_ms).max(0.0) })
}

/// The part of the current flow to an engine that a plan keeps.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    /// Less than all of it.
    Part,
    All,
    /// All of it and more, or any amount without current weights.
    More,
}

fn keeps(route: &Route, engine: EngineId, rps: f64) -> Keeps {
    let current = route.current_rps.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, current)| current);
    let rounding = NEGLIGIBLE_RPS.max(ROUNDING_FRAC * route.demand_rps);
    if current == 0.0 || rps > current + rounding {
        Keeps::More
    } else if rps < current - rounding {
        Keeps::Part
    } else {
        Keeps::All
    }
}

/// Splits the marginal cost of one more request into its terms. They add up to what the plan priced
/// it at, exactly.
fn terms(fleet: &Fleet, inputs: &Inputs, route: &Route, load: &EngineLoad, rps: f64) -> Terms {
    let class = &fleet.classes[route.class.index()];
    let request = Load::of(class);
    let own_latency_ms = EngineCost::new(fleet, inputs, load.engine).cost_ms(load.load_rps, request);
    let rtt_ms = inputs.rtt_ms[route.cluster.index()][load.engine.index()];
    let network_ms = request.ttft * rtt_ms;
    let detour = |budget_ms: f64| rtt_ms / budget_ms - 1.0;
    let detour_ms = route.detour_price_ms * fleet.clusters[route.cluster.index()].detour_budget_ms.map_or(0.0, detour);
    let memory_ms = fleet.profile_of(load.engine).memory(class).unwrap_or(0.0) * load.memory_price_ms;
    let class_ms = load.class_price_ms[route.class.index()];
    let capacity_ms = request.work * load.capacity_price_ms;
    let churn_ms = match keeps(route, load.engine, rps) {
        Keeps::More => route.move_price_ms,
        Keeps::All => (route.price_ms - network_ms - class_ms - detour_ms).clamp(0.0, route.move_price_ms),
        Keeps::Part => 0.0,
    };
    Terms {
        network_ms,
        own_latency_ms,
        externality_ms: class_ms - capacity_ms - memory_ms - own_latency_ms,
        capacity_ms,
        memory_ms,
        detour_ms,
        churn_ms,
    }
}

fn usable(fleet: &Fleet, inputs: &Inputs, cluster: ClusterId, class: ClassId, engine: EngineId) -> Result<(), WeightReason> {
    if let Some(why) = inputs.ineligible(fleet, cluster, class, engine) {
        return Err(WeightReason::NotEligible { why: why.to_string() });
    }
    if inputs.ready[engine.index()] == 0 {
        return Err(WeightReason::NotReady);
    }
    Ok(())
}

fn shared_with(fleet: &Fleet, plan: &Plan, route: &Route, engine: EngineId) -> Vec<Share> {
    let others = plan.routes.iter().filter(|other| (other.cluster, other.class) != (route.cluster, route.class));
    let mut shares: Vec<Share> = others
        .flat_map(|other| other.weights.iter().map(move |share| (other, share)))
        .filter(|(_, share)| share.engine == engine && share.rps > NEGLIGIBLE_RPS)
        .map(|(other, share)| Share {
            cluster: fleet.clusters[other.cluster.index()].name.clone(),
            class: fleet.classes[other.class.index()].name.clone(),
            rps: share.rps,
        })
        .collect();
    shares.sort_by(|a, b| b.rps.total_cmp(&a.rps).then_with(|| (&a.cluster, &a.class).cmp(&(&b.cluster, &b.class))));
    shares
}
