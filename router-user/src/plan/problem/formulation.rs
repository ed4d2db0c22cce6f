//! The fleet and its inputs as demands, pools and what may flow between them. Pure: it knows no
//! solver.
//!
//! docs/model.md, section 3. Everything is laid out in the order of names, never of indices, so
//! that neither the order of a file nor a new entry in it decides between equal plans.

use crate::model::{ClassId, ClusterId, EngineId, Fleet};

use crate::plan::load::Load;
use crate::plan::problem::cooldown::Cooldown;
use crate::plan::problem::pools::{Pool, pools};
use crate::plan::{Inputs, NEGLIGIBLE_RPS, RouteWeights};

/// Largest cost, in ms, that the order of names adds to a flow: far below any latency, so that it
/// only decides between equals.
const TIE_MS: f64 = 1e-3;

/// A (cluster, class) with demand that the program distributes.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) cluster: ClusterId,
    pub(crate) class: ClassId,
    pub(crate) rps: f64,
    /// What one of its requests is to an engine.
    pub(crate) request: Load,
    /// Part of it that no plan can serve, decided before the program.
    pub(crate) shed_rps: f64,
    pub(crate) shed_price_ms: f64,
    /// Most that the program may shed beyond that, in requests/s; infinite unless it is known what
    /// can be served.
    pub(crate) shed_most_rps: f64,
    /// 0 is served first.
    pub(crate) priority: u8,
    /// Index into [`Problem::budgets`].
    pub(crate) budget: Option<usize>,
    /// Whether it has weights already, from which moving has a price.
    pub(crate) is_held: bool,
}

/// A flow the program may choose: a demand to an eligible, ready pool.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// Index into [`Problem::demands`].
    pub(crate) demand: usize,
    /// Index into [`Problem::pools`].
    pub(crate) pool: usize,
    /// Round-trip time, in ms, and what it and the tie-break cost.
    pub(crate) rtt_ms: f64,
    pub(crate) cost_ms: f64,
    /// What the held weights would send here of the present demand, in requests/s.
    pub(crate) kept_rps: f64,
    /// Price of each request/s beyond that, in ms.
    pub(crate) move_ms: f64,
    /// Kept at 0: the demand had a sliver, and is held to its other pools.
    pub(crate) is_pruned: bool,
}

/// The mean round-trip time that a cluster's planned traffic is to stay within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) cluster: ClusterId,
    pub(crate) mean_ms: f64,
    /// By how much it has to be exceeded, in requests/s x budgets: 0 unless it cannot be kept.
    pub(crate) excess: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) demands: Vec<Demand>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) pools: Vec<Pool<'a>>,
    /// No price that latency alone makes is above this, in ms per unit of work.
    pub(crate) price_limit_ms: f64,
    pub(crate) budgets: Vec<Budget>,
    /// Requests/s that may go elsewhere than before; `None` where movement has a price only.
    pub(crate) move_limit_rps: Option<f64>,
}

impl<'a> Problem<'a> {
    /// The problem of the whole fleet. Requests that stay where the `held` weights send them pay no
    /// price of moving.
    pub(crate) fn new(fleet: &'a Fleet, inputs: &Inputs, held: Option<&[RouteWeights]>, cooldown: &Cooldown) -> Self {
        let pools = pools(fleet, inputs, &pinned(fleet, inputs));
        let held = Held::new(fleet, &pools, held);
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
                let kept_rps = held.kept_rps(cluster, class, rps);
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
                    is_held: kept_rps.is_some(),
                });
            }
        }
        problem.price_shed();
        problem
    }

    /// Adds the edges of the demand that is pushed next: to each usable pool that is near enough.
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

    /// Prices shed so high that capacity alone forces it, and the more the earlier a class is
    /// served.
    ///
    /// In units of work: serving one more can at worst push flows along a chain of engines that
    /// visits each demand and each engine once, and ends where there is room; no such chain costs
    /// more than the limit. So a price above it never sheds early, and as large a difference
    /// between priorities never sheds the wrong one: the exact penalty of docs/model.md, section 4.
    fn price_shed(&mut self) {
        let links = self.demands.len().min(self.pools.len()) as f64;
        // Pinned requests are not in the program, but slowing them down is part of what it pays.
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

    /// Lets budgets be exceeded as far as the held weights do: what may not be moved may stay.
    pub(crate) fn admit_held(&mut self) {
        let mut excess = vec![0.0; self.budgets.len()];
        for edge in &self.edges {
            if let Some(budget) = self.demands[edge.demand].budget {
                excess[budget] += edge.kept_rps * self.detour(edge);
            }
        }
        for (budget, held) in self.budgets.iter_mut().zip(excess) {
            budget.excess = budget.excess.max(held);
        }
    }
}

/// The held weights, by route.
struct Held<'r> {
    routes: Vec<Option<&'r RouteWeights>>,
    classes: usize,
    pool_of: Vec<usize>,
    pools: usize,
}

impl<'r> Held<'r> {
    fn new(fleet: &Fleet, pools: &[Pool<'_>], held: Option<&'r [RouteWeights]>) -> Self {
        let classes = fleet.classes.len();
        let mut pool_of = vec![0; fleet.engines.len()];
        for (at, pool) in pools.iter().enumerate() {
            pool.members.iter().for_each(|member| pool_of[member.index()] = at);
        }
        let mut routes = vec![None; fleet.clusters.len() * classes];
        for route in held.into_iter().flatten().filter(|route| !route.weights.is_empty()) {
            routes[route.cluster.index() * classes + route.class.index()] = Some(route);
        }
        Self { routes, classes, pool_of, pools: pools.len() }
    }

    /// What the held weights send of `rps` to each pool, in requests/s; `None` for a route without
    /// held weights.
    fn kept_rps(&self, cluster: ClusterId, class: ClassId, rps: f64) -> Option<Vec<f64>> {
        let route = self.routes[cluster.index() * self.classes + class.index()]?;
        let mut kept = vec![0.0; self.pools];
        for &(engine, weight) in &route.weights {
            kept[self.pool_of[engine.index()]] += weight * rps;
        }
        Some(kept)
    }
}

/// The ready pools that may serve each class, distance apart. Members of a pool are alike, so one
/// stands for all.
fn usable_pools(fleet: &Fleet, pools: &[Pool<'_>]) -> Vec<Vec<usize>> {
    let of_class = |class: ClassId| {
        let usable = |&at: &usize| pools[at].cost.is_ready() && fleet.ineligible(class, pools[at].first()).is_none();
        (0..pools.len()).filter(usable).collect()
    };
    fleet.class_ids().map(of_class).collect()
}

/// What pins put on each engine, and the memory it takes; fleet order.
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
