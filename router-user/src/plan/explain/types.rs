//! The parts of an explanation, as plain data.

use serde::{Deserialize, Serialize};

/// Error of a sum of terms against its price, in ms, that an explanation may have.
pub const TERM_TOLERANCE_MS: f64 = 0.01;

/// The whole plan explained: what `ilb explain --json` prints. Units: ms and requests/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub status: String,
    pub objective_ms: f64,
    /// Mean latency of a served request, in ms: the objective where no class has weights.
    pub latency_ms: f64,
    pub gap_frac: f64,
    /// True if the gap holds only as long as each engine keeps its mix of classes, as where classes
    /// differ in more than work.
    #[serde(default)]
    pub is_mix_frozen: bool,
    pub routes: Vec<RouteExplanation>,
}

/// One (cluster, class): its price, and every engine of the fleet measured against it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteExplanation {
    pub cluster: String,
    pub class: String,
    pub demand_rps: f64,
    pub shed_rps: f64,
    /// Marginal cost of one more request, in ms.
    pub price_ms: f64,
    /// True if that request would be shed, so that the price is set by priority and not by latency.
    pub is_price_of_shed: bool,
    /// The limit that sets the price, if it is one.
    #[serde(default)]
    pub limit: Option<PriceLimit>,
    /// The unit of an engine's load: `requests/s`, or `reference requests/s` where classes are
    /// other than those of profiles.
    #[serde(default)]
    pub load_unit: String,
    /// Used engines first, by weight, then the rest, the cheapest first.
    pub engines: Vec<EngineExplanation>,
}

/// A limit that keeps one more request from being served at the cost of latency alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceLimit {
    /// No engine may serve the class, or none that may has a ready replica.
    NoEngine,
    /// The engines that may serve the class are full.
    Capacity,
    /// Their KV memory is full.
    Memory,
    /// The cluster's mean round trip is at its detour budget.
    DetourBudget,
}

/// One engine for one (cluster, class).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineExplanation {
    pub engine: String,
    pub weight: f64,
    pub rps: f64,
    pub reason: WeightReason,
    /// The terms of the delivered marginal cost; none for an engine that cannot serve the class.
    pub terms: Option<Terms>,
    /// Their sum, in ms.
    pub delivered_ms: Option<f64>,
    /// That sum less the price of the (cluster, class), in ms: 0 for what is used, at least 0 for
    /// what is not.
    pub dearer_ms: Option<f64>,
    /// The one limit that keeps the engine's load from growing, if there is one; otherwise the
    /// balance of prices does.
    pub held_by: Option<Hold>,
    /// The other clusters and classes that load the engine, largest first.
    pub shared_with: Vec<Share>,
}

/// Cost of one more request of a class from a cluster at an engine, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// One round trip. This and the next two count each ms as often as the class's weights say.
    pub network_ms: f64,
    /// Time of the request itself in the engine: TTFT and its tokens.
    pub own_latency_ms: f64,
    /// Cost for all other requests of the engine, which becomes slower.
    pub externality_ms: f64,
    /// Cost of the full engine: another request has to give way.
    pub capacity_ms: f64,
    /// Cost of the engine's full KV memory.
    pub memory_ms: f64,
    /// Cost, or saving, of a round trip that is above, or below, the mean that its cluster has as a
    /// budget.
    pub detour_ms: f64,
    /// Cost of moving: requests that went elsewhere before lose their caches. At an engine that
    /// gets exactly what the current weights send it, anything from nothing (one request less would
    /// free nothing) to the whole price of moving (one more would have to move) is consistent: the
    /// part that its price has room for.
    pub churn_ms: f64,
}

/// The limit at which an engine's load stops.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Hold {
    /// Its capacity.
    Capacity { at_rps: f64 },
    /// The KV caches of its requests fill its memory.
    Memory { at_rps: f64 },
    /// Its latency grows faster from here on: beyond, a request costs this much more than the price
    /// it has now.
    Knee { at_rps: f64, more_ms: f64 },
    /// It has what the current weights send it: neither more nor less is worth the price of moving.
    Current { at_rps: f64, price_ms: f64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub cluster: String,
    pub class: String,
    pub rps: f64,
}

/// Why an engine has its weight, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WeightReason {
    /// Used: it delivers at the price.
    AtPrice,
    /// Used though it costs this much more than the cheapest: the plan was made in a hurry, without
    /// the solver.
    Hurried { by_ms: f64 },
    /// An operator set the weight, or set others and so left none.
    Pinned,
    /// The class has no demand here: the first request would go to the cheapest engine, which is
    /// this one.
    CheapestForFirst,
    /// All demand is shed, being worth less than what the engines serve; should any come through,
    /// it goes where it costs least.
    AllShed,
    /// Eligible, but dearer than what is used.
    Dearer { by_ms: f64 },
    /// Cheaper than what is used, but by less than the price of moving requests there.
    NotWorthMoving { saves_ms: f64, price_ms: f64 },
    /// Eligible and as cheap as what is used: the amounts happen to fit without it.
    NotNeeded,
    /// Cheaper than what is used, by less than the rounds of the optimiser resolved before they
    /// ended; the plan's gap bounds the loss.
    Unresolved { by_ms: f64 },
    /// Pins of others take all it may be given.
    FilledByPins,
    /// Cheaper, but its share would have been too small to be worth a way of its own.
    Sliver,
    /// Cannot serve the class, whatever it costs.
    NotEligible { why: String },
    /// None of its replicas is ready.
    NotReady,
    /// An operator has withdrawn it: `drained by alice since …`.
    Withdrawn { order: String },
}

impl Terms {
    pub fn sum_ms(&self) -> f64 {
        self.network_ms
            + self.own_latency_ms
            + self.externality_ms
            + self.capacity_ms
            + self.memory_ms
            + self.detour_ms
            + self.churn_ms
    }
}

impl Explanation {
    /// Keeps only what concerns the named cluster, class and engine; `None` keeps all.
    pub fn only(mut self, cluster: Option<&str>, class: Option<&str>, engine: Option<&str>) -> Self {
        let is = |wanted: Option<&str>, name: &str| wanted.is_none_or(|wanted| wanted == name);
        self.routes.retain(|route| is(cluster, &route.cluster) && is(class, &route.class));
        for route in &mut self.routes {
            route.engines.retain(|row| is(engine, &row.engine));
        }
        self
    }
}
