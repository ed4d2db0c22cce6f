//! Publish or keep: is a new plan worth moving traffic for? Pure.
//!
//! Moved traffic loses its caches, so current weights stay unless a plan beats them by more than
//! measurement noise, or they are no longer legal. The answer carries its reason.

use std::borrow::Cow;
use std::fmt;

use crate::model::{EngineId, Fleet};

use crate::plan::decide::rollout;
use crate::plan::decide::rollout::Passage;
use crate::plan::solve::assemble::with_weights;
use crate::plan::verify::{self, LegalWeights, Violation};
use crate::plan::{Evaluation, Inputs, Plan, RouteWeights};

/// Share of the mean latency by which a plan must be better than the current weights.
pub const EPSILON_FRAC: f64 = 1e-3;

/// The same for a plan that reverses a recent move. Demand that wanders and returns gains less than
/// this; a real fault gains more. So for the ten plans of a cooldown the current weights cost at
/// most this fraction more than the best.
pub const REVERSAL_EPSILON_FRAC: f64 = 1e-2;

/// Share of all demand by which shed must differ before it counts: the resolution of a measured
/// demand.
const SHED_FRAC: f64 = 1e-3;

/// Smallest step that is worth a snapshot, as a fraction of the way.
const LEAST_STEP_FRAC: f64 = 0.02;

/// The same for a change of shed. A full fleet without headroom has no room for a large step. An
/// engine that is overfilled until all data planes have pulled is better than many plans that
/// refuse requests for which there is room, or the wrong requests.
const LEAST_SHED_STEP_FRAC: f64 = 0.5;

/// The decision about a new plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Publish(PublishReason),
    /// There is a reason to publish the plan, but the whole change would overfill an engine while
    /// some data planes have made it and some have not. These weights are a step of the change; the
    /// next plan starts from them.
    Step {
        reason: PublishReason,
        engine: String,
        frac: f64,
        weights: LegalWeights,
    },
    /// The current weights stay, although the plan is better: not even a step towards it has room
    /// at this engine.
    Blocked {
        reason: PublishReason,
        engine: String,
    },
    /// The current weights stay: the plan's mean latency is better by only `gain_frac` of theirs.
    Keep {
        gain_frac: f64,
    },
    /// The current weights stay: the plan is better by `gain_frac`, which is not enough to turn
    /// back a weight that has just moved.
    Cooldown {
        gain_frac: f64,
        route: String,
        engine: String,
    },
}

/// Why a plan is published.
#[derive(Clone, Debug, PartialEq)]
pub enum PublishReason {
    /// There are no weights yet.
    First,
    /// The current weights break a rule under the present inputs.
    Illegal(Violation),
    /// The plan refuses another amount of demand, in requests/s, than the current weights would.
    Shed { current_rps: f64, plan_rps: f64 },
    /// The plan's mean latency is better by this share.
    Better { current_ms: f64, plan_ms: f64, gain_frac: f64 },
}

/// Decides between the `current` weights and `plan`, both under the `inputs` that the plan was made
/// for.
///
/// Current weights that break a rule which the plan cannot keep either (a pin beyond an engine's
/// capacity) are judged by their cost.
pub fn decide(fleet: &Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>, plan: &Plan) -> Decision {
    compare(fleet, inputs, current.map(|current| verify::legal(fleet, inputs, current)).as_ref(), plan)
}

/// The same for weights that were checked before.
pub(crate) fn compare(
    fleet: &Fleet,
    inputs: &Inputs,
    current: Option<&Result<LegalWeights, Violation>>,
    plan: &Plan,
) -> Decision {
    let current = match current {
        None => return Decision::Publish(PublishReason::First),
        Some(Err(violation)) => return Decision::Publish(PublishReason::Illegal(violation.clone())),
        Some(Ok(current)) => current,
    };
    let (before, after) = (current.evaluation(), plan.legal().evaluation());
    if let Some(reason) = shed_differs(fleet, inputs, current.routes(), plan, before, after) {
        return safely(fleet, inputs, current, plan, reason);
    }
    let gain_frac = if before.cost_ms > 0.0 { 1.0 - after.cost_ms / before.cost_ms } else { 0.0 };
    // A plan in a hurry replaces what cannot stay, and nothing else.
    if gain_frac > EPSILON_FRAC && !plan.is_greedy {
        if let Some(reversal) = plan.reversal.filter(|_| gain_frac <= REVERSAL_EPSILON_FRAC) {
            let (cluster, class) = (&fleet.clusters[reversal.cluster.index()].name, &fleet.classes[reversal.class.index()].name);
            let engine = fleet.engines[reversal.engine.index()].name.clone();
            return Decision::Cooldown { gain_frac, route: format!("{cluster} {class}"), engine };
        }
        let reason = PublishReason::Better { current_ms: before.cost_ms, plan_ms: after.cost_ms, gain_frac };
        return safely(fleet, inputs, current, plan, reason);
    }
    Decision::Keep { gain_frac }
}

/// The plan, or as much of the way to it as overfills no engine while data planes differ.
fn safely(fleet: &Fleet, inputs: &Inputs, current: &LegalWeights, plan: &Plan, reason: PublishReason) -> Decision {
    let (current, next) = (current.routes(), plan.legal().routes());
    let Passage { frac, engine: Some(engine) } = rollout::passage(fleet, inputs, current, next) else {
        return Decision::Publish(reason);
    };
    // A change of shed does not wait for room: a full fleet without headroom never has any.
    let least = if matches!(reason, PublishReason::Shed { .. }) { LEAST_SHED_STEP_FRAC } else { 0.0 };
    let (frac, engine) = (frac.max(least), fleet.engines[engine.index()].name.clone());
    if frac < LEAST_STEP_FRAC {
        return Decision::Blocked { reason, engine };
    }
    // Every rule is convex in flows, so weights between two legal ones are legal. The check makes
    // the proof that publishing needs.
    match verify::legal(fleet, inputs, &rollout::towards(fleet, current, next, frac)) {
        Ok(weights) => Decision::Step { reason, engine, frac, weights },
        Err(_) => Decision::Blocked { reason, engine },
    }
}

impl Decision {
    /// The weights to publish: those of `plan`, a step towards them, or none.
    pub fn publishes<'p>(&self, plan: &'p Plan) -> Option<Cow<'p, Plan>> {
        match self {
            Self::Publish(_) => Some(Cow::Borrowed(plan)),
            Self::Step { weights, .. } => Some(Cow::Owned(with_weights(plan, weights.clone()))),
            Self::Blocked { .. } | Self::Keep { .. } | Self::Cooldown { .. } => None,
        }
    }
}

/// The reason to publish if the plan sheds a noticeably different amount, in all or of one
/// priority.
fn shed_differs(
    fleet: &Fleet,
    inputs: &Inputs,
    current: &[RouteWeights],
    plan: &Plan,
    before: &Evaluation,
    after: &Evaluation,
) -> Option<PublishReason> {
    let threshold = SHED_FRAC * (before.served_rps + before.shed_rps);
    let by_priority = |weights: &[RouteWeights]| {
        let mut shed = vec![0.0; usize::from(u8::MAX) + 1];
        for route in weights {
            let priority = fleet.classes[route.class.index()].priority;
            shed[usize::from(priority)] += route.shed_frac * inputs.demand(route.cluster, route.class);
        }
        shed
    };
    let (current_shed, plan_shed) = (by_priority(current), by_priority(plan.legal().routes()));
    let differs = current_shed.iter().zip(&plan_shed).any(|(current, plan)| (current - plan).abs() > threshold);
    (differs && threshold > 0.0).then_some(PublishReason::Shed { current_rps: before.shed_rps, plan_rps: after.shed_rps })
}

/// Fraction of the demand that moves when `after` replaces `before`: half the sum of all
/// differences, shed included.
pub fn moved_frac(inputs: &Inputs, before: &[RouteWeights], after: &[RouteWeights]) -> f64 {
    let rps = |route: &RouteWeights, engine: EngineId| route.weight(engine) * (1.0 - route.shed_frac);
    let mut moved = 0.0;
    for new in after {
        let demand = inputs.demand(new.cluster, new.class);
        let Some(old) = before.iter().find(|old| (old.cluster, old.class) == (new.cluster, new.class)) else {
            moved += 2.0 * demand;
            continue;
        };
        let mut engines: Vec<EngineId> = new.weights.iter().chain(&old.weights).map(|&(engine, _)| engine).collect();
        engines.sort_unstable();
        engines.dedup();
        let differences: f64 = engines.into_iter().map(|engine| (rps(new, engine) - rps(old, engine)).abs()).sum();
        moved += demand * (differences + (new.shed_frac - old.shed_frac).abs());
    }
    let total: f64 = inputs.demand_rps.iter().flatten().sum();
    if total > 0.0 { moved / 2.0 / total } else { 0.0 }
}

impl Decision {
    /// The reason to publish, also of a plan that is not published; empty if nothing is gained.
    pub fn reason(&self) -> String {
        match self {
            Self::Publish(reason) | Self::Blocked { reason, .. } => reason.to_string(),
            Self::Step { reason, frac, .. } => format!("{:.0} % of the way: {reason}", frac * 100.0),
            Self::Keep { .. } | Self::Cooldown { .. } => String::new(),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(reason) => write!(f, "publish: {reason}"),
            Self::Step { reason, engine, frac, .. } => {
                let percent = frac * 100.0;
                write!(
                    f,
                    "publish {percent:.0} % of the way, as more could overfill {engine} until all have the weights: {reason}"
                )
            }
            Self::Blocked { reason, engine } => write!(f, "keep: {engine} has no room to change over, though {reason}"),
            Self::Keep { gain_frac } => {
                let limit = EPSILON_FRAC * 100.0;
                write!(f, "keep: the new plan is better by {:.3} %, moving traffic wants {limit} %", gain_frac * 100.0)
            }
            Self::Cooldown { gain_frac, route, engine } => {
                let (gain, limit) = (gain_frac * 100.0, REVERSAL_EPSILON_FRAC * 100.0);
                write!(
                    f,
                    "keep: the new plan is better by {gain:.2} %, turning back what {route} has just moved at {engine} wants {limit} %"
                )
            }
        }
    }
}

impl fmt::Display for PublishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "there were no weights before"),
            Self::Illegal(Violation::Pin { cluster, class, .. }) => {
                write!(f, "the weights of class {class} in cluster {cluster} are set by hand")
            }
            Self::Illegal(violation) => write!(f, "the current weights are no longer legal: {violation}"),
            Self::Shed { current_rps, plan_rps } => {
                write!(f, "the current weights refuse {current_rps:.1} requests/s, the plan {plan_rps:.1}")
            }
            Self::Better { current_ms, plan_ms, gain_frac } => {
                write!(f, "mean latency falls by {:.2} %, from {current_ms:.1} to {plan_ms:.1} ms", gain_frac * 100.0)
            }
        }
    }
}
