//! The shed report: each refused amount and its cause, in words. Pure.

use crate::model::{EngineId, Fleet};

use crate::plan::wording::rate;
use crate::plan::{Inputs, Plan, ROUNDING_FRAC, Route};

/// Largest number of engines that one sentence names.
const NAMED: usize = 3;

/// One sentence for each (cluster, class) that is refused requests, largest first; empty when
/// nothing is.
///
/// The amount that would remove it is the demand refused of every class that this engine may serve
/// and that is served no later: with so much more of that engine all of them fit.
pub fn shed_bill(fleet: &Fleet, inputs: &Inputs, plan: &Plan) -> Vec<String> {
    let mut routes: Vec<&Route> = plan.routes.iter().filter(|route| route.shed_rps > 0.0).collect();
    routes.sort_by(|a, b| b.shed_rps.total_cmp(&a.shed_rps));
    routes.iter().map(|route| sentence(fleet, (inputs, plan), &routes, route)).collect()
}

fn sentence(fleet: &Fleet, (inputs, plan): (&Inputs, &Plan), shed: &[&Route], route: &Route) -> String {
    let class = &fleet.classes[route.class.index()];
    let eligible: Vec<EngineId> =
        fleet.engine_ids().filter(|&e| inputs.ineligible(fleet, route.cluster, route.class, e).is_none()).collect();
    let replicas = |engine: EngineId| (inputs.ready[engine.index()], fleet.engines[engine.index()].replicas);
    let down: Vec<EngineId> = eligible.iter().copied().filter(|&engine| replicas(engine).0 == 0).collect();
    let part: Vec<EngineId> = eligible.iter().copied().filter(|&e| replicas(e).0 > 0 && replicas(e).0 < replicas(e).1).collect();
    let mut causes = Vec::new();
    if !down.is_empty() {
        causes.push(format!("{} {} down", names(fleet, &down, "and"), if down.len() == 1 { "is" } else { "are" }));
    }
    if let [only] = part[..] {
        let (ready, all) = replicas(only);
        causes.push(format!("{} has {ready} of {all} replicas", fleet.engines[only.index()].name));
    } else if !part.is_empty() {
        causes.push(format!("{} lack replicas", names(fleet, &part, "and")));
    }
    let has_memory_left = |engine: EngineId| plan.engines[engine.index()].memory_price_ms == 0.0;
    if eligible.is_empty() {
        causes.push("no engine may serve it".to_owned());
    } else if causes.is_empty() {
        let is_full = if eligible.iter().copied().all(has_memory_left) { "is full" } else { "is full, or its KV memory is" };
        causes.push(format!("every engine that may serve it {is_full}"));
    }
    let cluster = &fleet.clusters[route.cluster.index()].name;
    let amount = format!("{} requests/s of {} in {cluster} are refused: {}", rate(route.shed_rps), class.name, causes.join(", "));
    let ready: Vec<EngineId> = eligible.iter().copied().filter(|&engine| replicas(engine).0 > 0).collect();
    let more = |engine: EngineId| -> f64 {
        let counts = |other: &&&Route| {
            let of = &fleet.classes[other.class.index()];
            of.priority <= class.priority && inputs.ineligible(fleet, other.cluster, other.class, engine).is_none()
        };
        shed.iter().filter(counts).map(|other| other.shed_rps * fleet.classes[other.class.index()].work).sum()
    };
    // Engines that need the same are named together: those that need the least.
    let least = ready.iter().map(|&engine| more(engine)).fold(f64::INFINITY, f64::min);
    let best: Vec<EngineId> = ready.into_iter().filter(|&engine| more(engine) <= least * (1.0 + ROUNDING_FRAC)).collect();
    if eligible.is_empty() {
        return amount;
    }
    if best.is_empty() {
        return format!("{amount}; no other engine may serve it");
    }
    // Refused demand is in requests, and a lack of capacity is in load: the two differ where
    // requests are unlike those of its profile.
    let is_alike = shed.iter().all(|other| fleet.classes[other.class.index()].work == 1.0);
    let unit = if is_alike { "more requests/s" } else { "more reference requests/s (those of its profile)" };
    format!("{amount}; {} {unit} of {} would remove it", rate(least), names(fleet, &best, "or"))
}

/// A few names: "e1", "e1 and e2", "e1, e2, e3 and 4 more".
fn names(fleet: &Fleet, engines: &[EngineId], last: &str) -> String {
    let mut names: Vec<String> = engines.iter().take(NAMED).map(|e| fleet.engines[e.index()].name.clone()).collect();
    if engines.len() > NAMED {
        names.push(format!("{} more", engines.len() - NAMED));
    }
    match names.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => names.concat(),
    }
}
