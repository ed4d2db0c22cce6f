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
    /// The whole fleet. `held` are the weights in force, if any: what is not moved from them costs
    /// nothing extra.
    pub(crate) fn new(fleet: &'a Fleet, inputs: &Inputs, held: Option<&[RouteWeights]>, rest: &Cooldown) -> Self {
        let pinned = pinned(fleet, inputs);
        let pools = pools(fleet, inputs, &pinned);
        let mut pool_of = vec![0; fleet.engines.len()];
        for (at, pool) in pools.iter().enumerate() {
            for member in &pool.members {
                pool_of[member.index()] = at;
            }
        }
        let mut held_of = vec![None; fleet.clusters.len() * fleet.classes.len()];
        for route in held.into_iter().flatten().filter(|route| !route.weights.is_empty()) {
            held_of[route.cluster.index() * fleet.classes.len() + route.class.index()] = Some(route);
        }
        let class_order = by_name(fleet.class_ids(), |class| &fleet.classes[class.index()].name);
        // Eligibility is the same for all members of a pool; but for distance, for all clusters
        // too.
        let usable_of: Vec<Vec<usize>> = fleet
            .class_ids()
            .map(|class| {
                let usable = |&at: &usize| pools[at].cost.is_ready() && fleet.ineligible(class, pools[at].first()).is_none();
                (0..pools.len()).filter(usable).collect()
            })
            .collect();
        let (mut demands, mut edges, mut budgets) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept_rps = vec![0.0; pools.len()];
        for cluster in by_name(fleet.cluster_ids(), |cluster| &fleet.clusters[cluster.index()].name) {
            let budget_ms = fleet.clusters[cluster.index()].detour_budget_ms;
            let budget = budget_ms.map(|mean_ms| {
                budgets.push(Budget { cluster, mean_ms, excess: 0.0 });
                budgets.len() - 1
            });
            for &class in &class_order {
                let (rps, kind) = (inputs.demand(cluster, class), &fleet.classes[class.index()]);
                if inputs.pin(cluster, class).is_some() || rps <= NEGLIGIBLE_RPS {
                    continue;
                }
                let request = Load::of(kind);
                let held = held_of[cluster.index() * fleet.classes.len() + class.index()];
                kept_rps.iter_mut().for_each(|kept| *kept = 0.0);
                for &(engine, weight) in held.into_iter().flat_map(|route: &RouteWeights| &route.weights) {
                    kept_rps[pool_of[engine.index()]] += weight * rps;
                }
                let move_ms = inputs.move_price_ms[class.index()] * rest.factor(cluster, class);
                let move_ms = if held.is_some() { move_ms } else { 0.0 };
                for &pool in &usable_of[class.index()] {
                    let rtt_ms = inputs.rtt_ms[cluster.index()][pools[pool].first().index()];
                    if kind.too_far(rtt_ms).is_some() {
                        continue;
                    }
                    let tie_ms = TIE_MS * pool as f64 / pools.len() as f64;
                    edges.push(Edge {
                        demand: demands.len(),
                        pool,
                        rtt_ms,
                        cost_ms: request.ttft * rtt_ms + tie_ms,
                        kept_rps: kept_rps[pool],
                        move_ms,
                        is_pruned: false,
                    });
                }
                let is_held = held.is_some();
                demands.push(Demand {
                    cluster,
                    class,
                    rps,
                    request,
                    shed_rps: 0.0,
                    shed_price_ms: 0.0,
                    shed_most_rps: f64::INFINITY,
                    priority: kind.priority,
                    budget,
                    is_held,
                });
            }
        }
        let mut problem = Self { demands, edges, pools, price_limit_ms: 0.0, budgets, move_limit_rps: None };
        problem.price_shed();
        problem
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

    /// The problem as the independent problems it consists of: what no flow connects cannot change
    /// each other's answer.
    ///
    /// Shape: each demand and each pool is in exactly one of them, in the order it has here; what
    /// no flow touches comes last.
    pub(crate) fn components(self) -> Vec<Self> {
        let mut root: Vec<usize> = (0..self.pools.len()).collect();
        let mut first_pool = vec![None; self.demands.len()];
        for edge in &self.edges {
            match first_pool[edge.demand] {
                None => first_pool[edge.demand] = Some(edge.pool),
                Some(other) => {
                    let (a, b) = (find(&mut root, other), find(&mut root, edge.pool));
                    root[a.max(b)] = a.min(b);
                }
            }
        }
        // Who shares a budget depends on each other.
        let mut pool_of_budget = vec![None; self.budgets.len()];
        for (demand, &pool) in self.demands.iter().zip(&first_pool) {
            let (Some(budget), Some(pool)) = (demand.budget, pool) else { continue };
            match pool_of_budget[budget] {
                None => pool_of_budget[budget] = Some(pool),
                Some(other) => {
                    let (a, b) = (find(&mut root, other), find(&mut root, pool));
                    root[a.max(b)] = a.min(b);
                }
            }
        }
        let mut is_used = vec![false; self.pools.len()];
        self.edges.iter().for_each(|edge| is_used[edge.pool] = true);
        // The last part takes what has no flow: pools without demand, demands without a pool.
        let mut part_of_root = vec![usize::MAX; self.pools.len()];
        let mut count = 0;
        for (pool, &is_used) in is_used.iter().enumerate() {
            let root = find(&mut root, pool);
            if is_used && part_of_root[root] == usize::MAX {
                part_of_root[root] = count;
                count += 1;
            }
        }
        let empty = || Self {
            demands: Vec::new(),
            edges: Vec::new(),
            pools: Vec::new(),
            price_limit_ms: self.price_limit_ms,
            budgets: Vec::new(),
            move_limit_rps: None,
        };
        let mut parts: Vec<Self> = (0..=count).map(|_| empty()).collect();
        let (mut pool_at, mut demand_at) = (Vec::with_capacity(is_used.len()), Vec::with_capacity(first_pool.len()));
        for (at, pool) in self.pools.into_iter().enumerate() {
            let part = if is_used[at] { part_of_root[find(&mut root, at)] } else { count };
            pool_at.push((part, parts[part].pools.len()));
            parts[part].pools.push(pool);
        }
        for (demand, pool) in self.demands.into_iter().zip(first_pool) {
            let part = pool.map_or(count, |pool| pool_at[pool].0);
            demand_at.push((part, parts[part].demands.len()));
            // One without a pool has no flow that a budget could count.
            let budget = demand.budget.filter(|_| part < count).map(|budget| {
                let (budgets, budget) = (&mut parts[part].budgets, self.budgets[budget]);
                budgets.iter().position(|other| other.cluster == budget.cluster).unwrap_or_else(|| {
                    budgets.push(budget);
                    budgets.len() - 1
                })
            });
            parts[part].demands.push(Demand { budget, ..demand });
        }
        for edge in self.edges {
            let ((part, demand), (_, pool)) = (demand_at[edge.demand], pool_at[edge.pool]);
            parts[part].edges.push(Edge { demand, pool, ..edge });
        }
        parts.retain(|part| !part.demands.is_empty() || !part.pools.is_empty());
        parts
    }
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

fn find(root: &mut [usize], mut at: usize) -> usize {
    while root[at] != at {
        root[at] = root[root[at]];
        at = root[at];
    }
    at
}

/// Ids in the order of their names.
fn by_name<'n, I: Copy>(ids: impl Iterator<Item = I>, name: impl Fn(I) -> &'n String) -> Vec<I> {
    let mut sorted: Vec<I> = ids.collect();
    sorted.sort_by(|&a, &b| name(a).cmp(name(b)));
    sorted
}
