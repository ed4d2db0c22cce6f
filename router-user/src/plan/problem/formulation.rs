//! Problem formulation: the fleet and its inputs as demands, pools, and edges between them. Pure
//! and independent of the solver.
//!
//! docs/model.md, section 3. Demands, pools and edges are in the order of names, never of indices.
//! So neither the order of the configuration file nor a new entry in it decides between equal
//! plans.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use crate::plan::load::Load;
use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::pools::{Pool, pools};
use crate::plan::{Inputs, NEGLIGIBLE_RPS, RouteWeights};

/// Largest tie-break cost of an edge, in ms. It is far below any latency, so it decides only
/// between plans of equal latency.
const TIE_MS: f64 = 1e-3;

/// A route (cluster, class) with demand that the linear program distributes.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) cluster: ClusterId,
    pub(crate) class: ClassId,
    pub(crate) rps: f64,
    /// Load that one request puts on an engine.
    pub(crate) request: Load,
    /// Shed that is decided before the program is solved, because no plan can serve it; in
    /// requests/s.
    pub(crate) shed_rps: f64,
    pub(crate) shed_price_ms: f64,
    /// Upper bound on the shed that the program may add to `shed_rps`, in requests/s. It is
    /// infinite until `memory_limits` has determined what can be served.
    pub(crate) shed_most_rps: f64,
    /// Priority of the class: 0 is served first.
    pub(crate) priority: u8,
    /// Index into [`Problem::budgets`].
    pub(crate) budget: Option<usize>,
    /// True if the route has active weights: moving away from them has a price.
    pub(crate) has_current: bool,
}

/// A flow variable of the program: requests of a demand to an eligible, ready pool.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// Index into [`Problem::demands`].
    pub(crate) demand: usize,
    /// Index into [`Problem::pools`].
    pub(crate) pool: usize,
    /// Round-trip time, and the cost of one request for it including the tie-break; both in ms.
    pub(crate) rtt_ms: f64,
    pub(crate) cost_ms: f64,
    /// Part of the current demand that the active weights send here, in requests/s.
    pub(crate) kept_rps: f64,
    /// Price of a request beyond `kept_rps`, in ms.
    pub(crate) move_ms: f64,
    /// True if pruning fixes the flow at 0: the demand has a negligible share, and uses its other
    /// pools only.
    pub(crate) is_pruned: bool,
}

/// Detour budget: upper bound on the mean round-trip time of a cluster's planned traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) cluster: ClusterId,
    pub(crate) mean_ms: f64,
    /// Allowed excess, in requests/s x budgets; 0 unless no plan keeps the budget.
    pub(crate) excess: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) demands: Vec<Demand>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) pools: Vec<Pool<'a>>,
    /// Upper bound on every price that latency alone causes, in ms per unit of work.
    pub(crate) price_limit_ms: f64,
    pub(crate) budgets: Vec<Budget>,
    /// Upper bound on moved requests/s; `None` where only the move price limits movement.
    pub(crate) move_limit_rps: Option<f64>,
}

impl<'a> Problem<'a> {
    /// Builds the problem of the whole fleet. Requests that stay where the `current` weights send
    /// them pay no move price.
    pub(crate) fn new(fleet: &'a Fleet, inputs: &Inputs, current: Option<&[RouteWeights]>, cooldown: &Cooldown) -> Self {
        let pools = pools(fleet, inputs, &pinned(fleet, inputs));
        let current = Current::new(fleet, &pools, current);
        let usable_of = usable_pools(fleet, &pools);
        let class_order = by_name(fleet.class_ids(), |class| &fleet.classes[class.index()].name);
        let mut problem = Self {
            demands: Vec::new(),
            edges: Vec::new(),
            pools,
            price_limit_ms: 0.0,
            budgets: Vec::new(),
            move_limit_rps: None,
        };
        for cluster in by_name(fleet.cluster_ids(), |cluster| &fleet.clusters[cluster.index()].name) {
            let budget = fleet.clusters[cluster.index()].detour_budget_ms.map(|mean_ms| {
                problem.budgets.push(Budget { cluster, mean_ms, excess: 0.0 });
                problem.budgets.len() - 1
            });
            for &class in &class_order {
                let rps = inputs.demand(cluster, class);
                if inputs.pin(cluster, class).is_some() || rps <= NEGLIGIBLE_RPS {
                    continue;
                }
                let kept_rps = current.kept_rps(cluster, class, rps);
                let move_ms = inputs.move_price_ms[class.index()] * cooldown.factor(cluster, class);
                let move_ms = if kept_rps.is_some() { move_ms } else { 0.0 };
                let usable = &usable_of[class.index()];
                problem.push_edges((fleet, inputs), (cluster, class), usable, kept_rps.as_deref(), move_ms);
                problem.demands.push(Demand {
                    cluster,
                    class,
                    rps,
                    request: Load::of(&fleet.classes[class.index()]),
                    shed_rps: 0.0,
                    shed_price_ms: 0.0,
                    shed_most_rps: f64::INFINITY,
                    priority: fleet.classes[class.index()].priority,
                    budget,
                    has_current: kept_rps.is_some(),
                });
            }
        }
        problem.price_shed();
        problem
    }

    /// Adds the edges of the demand that the caller pushes next: one to each usable pool within the
    /// round-trip cap of its class.
    fn push_edges(
        &mut self,
        (fleet, inputs): (&Fleet, &Inputs),
        (cluster, class): (ClusterId, ClassId),
        usable: &[usize],
        kept_rps: Option<&[f64]>,
        move_ms: f64,
    ) {
        let kind = &fleet.classes[class.index()];
        for &pool in usable {
            let rtt_ms = inputs.rtt_ms[cluster.index()][self.pools[pool].first().index()];
            if kind.too_far(rtt_ms).is_some() {
                continue;
            }
            let tie_ms = TIE_MS * pool as f64 / self.pools.len() as f64;
            self.edges.push(Edge {
                demand: self.demands.len(),
                pool,
                rtt_ms,
                cost_ms: Load::of(kind).ttft * rtt_ms + tie_ms,
                kept_rps: kept_rps.map_or(0.0, |kept| kept[pool]),
                move_ms,
                is_pruned: false,
            });
        }
    }

    /// Sets the shed prices: so high that only lack of capacity causes shed, and higher for classes
    /// that are served earlier.
    ///
    /// In units of work: to serve one more unit, the worst case shifts flows along a chain of
    /// engines that visits each demand and each engine once and ends at an engine with room. No
    /// such chain costs more than `price_limit_ms`. So a shed price above that limit never sheds
    /// early, and the same distance between priorities never sheds the wrong priority: the exact
    /// penalty of docs/model.md, section 4.
    fn price_shed(&mut self) {
        let links = self.demands.len().min(self.pools.len()) as f64;
        // Pinned requests are no variables of the program, but their slowdown is part of the cost.
        let pinned = self.pools.iter().filter_map(|pool| pool.pinned.mix());
        let mixes: Vec<Load> = self.demands.iter().filter_map(|demand| demand.request.mix()).chain(pinned).collect();
        let bound = |pick: fn(f64, f64) -> f64| {
            let both = |a: Load, b: Load| Load { ttft: pick(a.ttft, b.ttft), decode: pick(a.decode, b.decode), ..a };
            mixes.iter().copied().reduce(both).unwrap_or_default()
        };
        let (most, least) = (bound(f64::max), bound(f64::min));
        let (mut dearest, mut spread) = (0.0_f64, 0.0_f64);
        for pool in self.pools.iter().filter(|pool| pool.cost.is_ready()) {
            let full = pool.cost.capacity_rps.max(pool.pinned.work);
            dearest = dearest.max(pool.cost.marginal_ms(full, most));
            spread = spread.max(pool.cost.cost_ms(full, most.beyond(least)));
        }
        let per_work = |edge: &Edge| (edge.cost_ms + edge.move_ms) / self.demands[edge.demand].request.work;
        let farthest = self.edges.iter().map(per_work).fold(0.0, f64::max);
        self.price_limit_ms = dearest + spread + (links + 1.0) * (farthest + spread) + 1.0;
        let mut priorities: Vec<u8> = self.demands.iter().map(|demand| demand.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        for demand in &mut self.demands {
            let later = priorities.iter().filter(|&&other| other >= demand.priority).count();
            demand.shed_price_ms = demand.request.work * self.price_limit_ms * (1 + later) as f64;
        }
    }

    /// Raises the allowed excess of each budget to the excess of the current weights: flows that
    /// may not move may stay.
    pub(crate) fn admit_held(&mut self) {
        let mut excess = vec![0.0; self.budgets.len()];
        for edge in &self.edges {
            if let Some(budget) = self.demands[edge.demand].budget {
                excess[budget] += edge.kept_rps * self.detour(edge);
            }
        }
        for (budget, current) in self.budgets.iter_mut().zip(excess) {
            budget.excess = budget.excess.max(current);
        }
    }
}

/// The current weights, indexed by route.
struct Current<'r> {
    routes: Vec<Option<&'r RouteWeights>>,
    classes: usize,
    pool_of: Vec<usize>,
    pools: usize,
}

impl<'r> Current<'r> {
    fn new(fleet: &Fleet, pools: &[Pool<'_>], current: Option<&'r [RouteWeights]>) -> Self {
        let classes = fleet.classes.len();
        let mut pool_of = vec![0; fleet.engines.len()];
        for (at, pool) in pools.iter().enumerate() {
            pool.members.iter().for_each(|member| pool_of[member.index()] = at);
        }
        let mut routes = vec![None; fleet.clusters.len() * classes];
        for route in current.into_iter().flatten().filter(|route| !route.weights.is_empty()) {
            routes[route.cluster.index() * classes + route.class.index()] = Some(route);
        }
        Self { routes, classes, pool_of, pools: pools.len() }
    }

    /// Splits `rps` over the pools as the current weights do, in requests/s; `None` for a route
    /// without current weights.
    fn kept_rps(&self, cluster: ClusterId, class: ClassId, rps: f64) -> Option<Vec<f64>> {
        let route = self.routes[cluster.index() * self.classes + class.index()]?;
        let mut kept = vec![0.0; self.pools];
        for &(engine, weight) in &route.weights {
            kept[self.pool_of[engine.index()]] += weight * rps;
        }
        Some(kept)
    }
}

/// Ready pools that are eligible for each class, round-trip caps aside. Members of a pool are
/// alike, so the first member stands for all.
fn usable_pools(fleet: &Fleet, pools: &[Pool<'_>]) -> Vec<Vec<usize>> {
    let of_class = |class: ClassId| {
        let usable = |&at: &usize| pools[at].cost.is_ready() && fleet.ineligible(class, pools[at].first()).is_none();
        (0..pools.len()).filter(usable).collect()
    };
    fleet.class_ids().map(of_class).collect()
}

/// Load of the pins on each engine, and its KV memory; in fleet order.
fn pinned(fleet: &Fleet, inputs: &Inputs) -> Vec<(Load, f64)> {
    let mut pinned = vec![(Load::default(), 0.0); fleet.engines.len()];
    let mut pins: Vec<_> = inputs.pins.iter().collect();
    let name = |pin: &crate::plan::Pin| (&fleet.clusters[pin.cluster.index()].name, &fleet.classes[pin.class.index()].name);
    pins.sort_by(|a, b| name(a).cmp(&name(b)));
    for pin in pins {
        let (rps, class) = (inputs.demand(pin.cluster, pin.class), &fleet.classes[pin.class.index()]);
        for (engine, share) in pin.shares() {
            let (load, memory) = &mut pinned[EngineId::index(engine)];
            load.add(Load::of(class).times(rps * share));
            *memory += rps * share * fleet.profile_of(engine).memory(class).unwrap_or(0.0);
        }
    }
    pinned
}

/// Ids in the order of their names.
fn by_name<'n, I: Copy>(ids: impl Iterator<Item = I>, name: impl Fn(I) -> &'n String) -> Vec<I> {
    let mut sorted: Vec<I> = ids.collect();
    sorted.sort_by(|&a, &b| name(a).cmp(name(b)));
    sorted
}
