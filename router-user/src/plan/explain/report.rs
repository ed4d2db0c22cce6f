//! The output of `ilb solve`: a plan as JSON with stable keys, or as a table.

use std::fmt::Write as _;

use serde::Serialize;

use crate::model::{ClusterId, EngineId, Fleet};

use crate::plan::decide::regions::{RegionLoss, region_losses};
use crate::plan::explain::shed::shed_bill;
use crate::plan::load::Load;
use crate::plan::{Inputs, NEGLIGIBLE_RPS, Plan, Status};

/// Share by which a mean round trip may be above its budget: what the solver's own tolerance makes
/// of it.
const BUDGET_TOLERANCE: f64 = 1e-4;

/// A plan with names in place of indexes, as `ilb solve --json` prints it. Units: requests/s, ms,
/// shares of 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solution {
    /// `optimal` or `degraded`.
    pub status: &'static str,
    /// Mean cost of a served request: its latency, each part times its class's weight.
    pub objective_ms: f64,
    /// Mean latency of a served request.
    pub latency_ms: f64,
    pub weights: Vec<Weight>,
    /// Routes that shed; empty unless degraded.
    pub shed: Vec<Shed>,
    /// The shed report: each refused amount, its cause and its remedy, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shed_bill: Vec<String>,
    /// Clusters whose mean round trip is above their budget, because less would shed requests, or
    /// move too many at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub detours: Vec<DetourRow>,
    /// The fleet after the loss of each region.
    pub regions: Vec<RegionLoss>,
    pub engines: Vec<EngineRow>,
    pub solve_ms: f64,
    /// The failure of the optimiser, if this is the greedy plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub solver_failure: Option<String>,
    pub certificate: CertificateRow,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    pub cluster: String,
    pub class: String,
    pub engine: String,
    pub weight: f64,
    pub rps: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shed {
    pub cluster: String,
    pub class: String,
    pub rps: f64,
}

/// A budget of detours that is exceeded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DetourRow {
    pub cluster: String,
    pub mean_rtt_ms: f64,
    pub budget_ms: f64,
    pub cause: DetourCause,
}

/// Why a plan exceeds a budget of detours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DetourCause {
    /// Keeping the budget would shed requests.
    Shed,
    /// Keeping it would move more requests at once than one plan may.
    MoveLimit,
    /// The plan is greedy, and greedy plans do not look at budgets.
    Greedy,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineRow {
    pub engine: String,
    pub load_rps: f64,
    pub capacity_rps: f64,
    pub utilisation: f64,
    pub latency_ms: f64,
    pub price_ms: f64,
    /// Share of its KV memory that its requests take; only where its size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_frac: Option<f64>,
}

/// See [`crate::plan::Certificate`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CertificateRow {
    pub gap_frac: f64,
    pub stability_frac: f64,
    pub residual_rps: f64,
    pub reduced_cost_ms: f64,
    pub mix_error_ms: f64,
    pub rounds: u32,
    pub components: u32,
}

impl Status {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Degraded => "degraded",
        }
    }
}

/// The JSON form of a plan.
pub fn solution(fleet: &Fleet, inputs: &Inputs, plan: &Plan) -> Solution {
    let names = |route: &crate::plan::Route| {
        (fleet.clusters[route.cluster.index()].name.clone(), fleet.classes[route.class.index()].name.clone())
    };
    let engine_name = |engine: EngineId| fleet.engines[engine.index()].name.clone();
    let weights = plan.routes.iter().flat_map(|route| {
        let (cluster, class) = names(route);
        route.weights.iter().map(move |share| Weight {
            cluster: cluster.clone(),
            class: class.clone(),
            engine: engine_name(share.engine),
            weight: share.weight,
            rps: share.rps,
        })
    });
    let shed = plan.routes.iter().filter(|route| route.shed_rps > 0.0).map(|route| {
        let (cluster, class) = names(route);
        Shed { cluster, class, rps: route.shed_rps }
    });
    let engines = plan.engines.iter().map(|load| EngineRow {
        engine: engine_name(load.engine),
        load_rps: load.load_rps,
        capacity_rps: load.capacity_rps,
        utilisation: load.utilisation,
        latency_ms: load.latency_ms,
        price_ms: load.price_ms,
        memory_frac: (load.memory_rps > 0.0 && load.capacity_rps > 0.0).then(|| load.memory_rps / load.capacity_rps),
    });
    let certificate = plan.certificate;
    Solution {
        status: plan.status.name(),
        objective_ms: plan.objective_ms,
        latency_ms: plan.latency_ms,
        weights: weights.collect(),
        shed: shed.collect(),
        shed_bill: shed_bill(fleet, inputs, plan),
        detours: detours(fleet, inputs, plan),
        regions: region_losses(fleet, inputs),
        engines: engines.collect(),
        solve_ms: plan.solve_ms,
        solver_failure: plan.solver_failure.clone(),
        certificate: CertificateRow {
            gap_frac: certificate.gap_frac,
            stability_frac: certificate.stability_frac,
            residual_rps: certificate.residual_rps,
            reduced_cost_ms: certificate.reduced_cost_ms,
            mix_error_ms: certificate.mix_error_ms,
            rounds: certificate.rounds,
            components: certificate.components,
        },
    }
}

impl std::fmt::Display for DetourRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, mean_rtt_ms, budget_ms, cause } = self;
        let why = match cause {
            DetourCause::Shed => "keeping it would shed requests",
            DetourCause::MoveLimit => "keeping it would move too many requests at once",
            DetourCause::Greedy => "a plan without the optimiser does not look at budgets",
        };
        write!(f, "cluster {cluster}: {mean_rtt_ms:.1} ms mean round trip, above its budget of {budget_ms} ms; {why}")
    }
}

/// The budgets that `plan` exceeds. What operators have pinned is not counted.
pub fn detours(fleet: &Fleet, inputs: &Inputs, plan: &Plan) -> Vec<DetourRow> {
    let row = |cluster: ClusterId| {
        let budget_ms = fleet.clusters[cluster.index()].detour_budget_ms?;
        let routes = || plan.routes.iter().filter(|route| route.cluster == cluster && !route.is_pinned);
        let cause = if plan.is_greedy {
            DetourCause::Greedy
        } else if routes().any(|route| route.move_limit_price_ms > 0.0) {
            DetourCause::MoveLimit
        } else {
            DetourCause::Shed
        };
        let (mut rps, mut rtt_ms) = (0.0, 0.0);
        for share in routes().flat_map(|route| &route.weights) {
            rps += share.rps;
            rtt_ms += share.rps * inputs.rtt_ms[cluster.index()][share.engine.index()];
        }
        let mean_rtt_ms = if rps > NEGLIGIBLE_RPS { rtt_ms / rps } else { 0.0 };
        let cluster = fleet.clusters[cluster.index()].name.clone();
        (mean_rtt_ms > budget_ms * (1.0 + BUDGET_TOLERANCE)).then_some(DetourRow { cluster, mean_rtt_ms, budget_ms, cause })
    };
    fleet.cluster_ids().filter_map(row).collect()
}

/// The table form of a plan. `nearest` is what nearest-only routing would give under the same
/// inputs.
pub fn table(fleet: &Fleet, inputs: &Inputs, plan: &Plan, nearest: &crate::plan::Evaluation) -> String {
    let solution = solution(fleet, inputs, plan);
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(args); // a String takes everything
        text.push('\n');
    };
    let weighted = if has_weights(fleet) {
        format!(", which costs {:.1} ms by the classes' weights", solution.objective_ms)
    } else {
        String::new()
    };
    line(format_args!("{}: {:.1} ms mean latency of a served request{weighted}", solution.status, solution.latency_ms));
    let served = nearest.mean_ms;
    let full: Vec<&str> = nearest
        .engines
        .iter()
        .zip(&fleet.engines)
        .filter(|(engine, _)| engine.is_overloaded)
        .map(|(_, engine)| engine.name.as_str())
        .collect();
    if full.is_empty() {
        line(format_args!("nearest engine only: {served:.1} ms"));
    } else {
        line(format_args!("nearest engine only: overloads {}; its queue would grow without end", full.join(", ")));
    }
    let gap = gap_percent(plan.certificate.gap_frac);
    let mixes = if Load::has_one_mix(fleet) { "" } else { ONE_MIX_EACH };
    let planned_in = format!("planned in {:.1} ms", plan.solve_ms);
    match &plan.solver_failure {
        None => line(format_args!("certified: no weights are better by more than {gap}{mixes} ({planned_in})")),
        Some(failure) => {
            line(format_args!("planned without the optimiser: other weights may be better by up to {gap}{mixes} ({planned_in})"));
            line(format_args!("the optimiser failed: {failure}"));
        }
    }
    let widest = |names: &mut dyn Iterator<Item = usize>, title: &str| names.fold(title.len(), usize::max);
    let cluster = widest(&mut fleet.clusters.iter().map(|cluster| cluster.name.len()), "cluster");
    let class = widest(&mut fleet.classes.iter().map(|class| class.name.len()), "class");
    let engine = widest(&mut fleet.engines.iter().map(|engine| engine.name.len()), "engine");
    line(format_args!(
        "\n{:cluster$}  {:class$}  {:engine$}  {:>7}  {:>10}",
        "cluster", "class", "engine", "weight", "requests/s"
    ));
    for row in &solution.weights {
        let percent = row.weight * 100.0;
        let names = format!("{:cluster$}  {:class$}  {:engine$}", row.cluster, row.class, row.engine);
        line(format_args!("{names}  {percent:>6.2}%  {:>10.2}", row.rps));
    }
    for row in &solution.shed {
        line(format_args!("{:cluster$}  {:class$}  {:engine$}  {:>7}  {:>10.2}", row.cluster, row.class, "(shed)", "", row.rps));
    }
    solution.detours.iter().for_each(|row| line(format_args!("\n{row}")));
    if !solution.shed_bill.is_empty() {
        line(format_args!("\n{}", solution.shed_bill.join("\n")));
    }
    line(format_args!(""));
    solution.regions.iter().for_each(|loss| line(format_args!("{loss}")));
    let head =
        format!("{:>10}  {:>10}  {:>11}  {:>10}  {:>9}", "requests/s", "capacity", "utilisation", "latency ms", "price ms");
    line(format_args!("\n{:engine$}  {head}", "engine"));
    for row in &solution.engines {
        let percent = row.utilisation * 100.0;
        let loads = format!("{:>10.2}  {:>10.2}  {percent:>10.1}%", row.load_rps, row.capacity_rps);
        line(format_args!("{:engine$}  {loads}  {:>10.1}  {:>9.1}", row.engine, row.latency_ms, row.price_ms));
    }
    text
}

/// The limit of a gap where the program is not convex, as part of a sentence.
pub(crate) const ONE_MIX_EACH: &str = ", as long as each engine keeps its mix of classes";

/// Whether a ms counts for anything but a ms.
pub(crate) fn has_weights(fleet: &Fleet) -> bool {
    fleet.classes.iter().any(|class| (class.ttft_weight, class.decode_weight) != (1.0, 1.0))
}

/// A gap as a percentage, rounded up.
pub(crate) fn gap_percent(gap_frac: f64) -> String {
    format!("{:.4} %", (gap_frac * 1e6).ceil().max(1.0) / 1e4)
}
