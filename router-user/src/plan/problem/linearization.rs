//! Where a problem is linearised, and points on its true curves. Pure.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::load::Load;
use crate::plan::problem::formulation::{Edge, Problem};

/// Steps that are tried towards a new solution.
const STEPS: [f64; 8] = [1.0, 0.75, 0.5, 0.25, 0.125, 0.0625, 0.031_25, 0.015_625];

/// Half-width of the first refined breakpoints around the load that held weights make, as a share
/// of capacity: a few times what demand changes between two plans.
const HELD_WIDTH_FRAC: f64 = 0.02;

/// Least half-width of refined breakpoints, as a share of what can come to a pool: a part in 10^5,
/// to which profiles are never known.
const FINEST_FRAC: f64 = 1e-5;

/// The same in units of the program: ten times the solver's tolerance for a bound.
const FINEST_UNITS: f64 = 1e-6;

/// Where the program is linearised: one entry per pool.
#[derive(Clone, Debug)]
pub(crate) struct Linearization {
    /// What a unit of the pool's work consists of.
    pub(crate) mix: Vec<Load>,
    /// TTFT and TBOT, in ms, at which a class's difference from that mix is priced.
    pub(crate) times_ms: Vec<(f64, f64)>,
    /// Centre and half-width of the refined breakpoints, in requests/s.
    pub(crate) focus: Vec<(f64, f64)>,
    /// Most work that can come to each pool: its capacity, or everything that may flow there if
    /// that is less.
    reach_rps: Vec<f64>,
}

/// A solution in the fleet's terms.
#[derive(Clone, Debug)]
pub(crate) struct Iterate {
    /// Requests/s of each edge.
    pub(crate) flow_rps: Vec<f64>,
    /// Requests/s shed of each demand.
    pub(crate) shed_rps: Vec<f64>,
    /// Marginal cost of each demand, in ms.
    pub(crate) demand_price_ms: Vec<f64>,
    /// Marginal cost of load on each pool, in ms, per unit of work of the linearization's mix.
    pub(crate) pool_price_ms: Vec<f64>,
    /// What each pool is given, pins included.
    pub(crate) loads: Vec<Load>,
    /// Marginal cost of memory of each pool, in ms per unit of load, and of each budget, in ms per
    /// budget: 0 unless it binds.
    pub(crate) memory_price_ms: Vec<f64>,
    pub(crate) budget_price_ms: Vec<f64>,
    /// What one more moved request/s would save, in ms: 0 unless the limit of movement binds.
    pub(crate) move_limit_price_ms: f64,
}

impl Iterate {
    /// The iterate `step` of the way to `other`; the prices are `other`'s.
    fn towards(&self, other: &Self, step: f64) -> Self {
        let blend = |from: &[f64], to: &[f64]| from.iter().zip(to).map(|(a, b)| a + step * (b - a)).collect();
        Self {
            flow_rps: blend(&self.flow_rps, &other.flow_rps),
            shed_rps: blend(&self.shed_rps, &other.shed_rps),
            demand_price_ms: other.demand_price_ms.clone(),
            pool_price_ms: other.pool_price_ms.clone(),
            loads: self.loads.iter().zip(&other.loads).map(|(from, to)| from.towards(*to, step)).collect(),
            memory_price_ms: other.memory_price_ms.clone(),
            budget_price_ms: other.budget_price_ms.clone(),
            move_limit_price_ms: other.move_limit_price_ms,
        }
    }
}

impl Problem<'_> {
    /// The first linearisation. Around the loads that held weights make of the demand, or else of
    /// everything: every pool with the mix of all that may reach it.
    pub(crate) fn first_linearization(&self) -> Linearization {
        let is_held = !self.demands.is_empty() && self.demands.iter().all(|demand| demand.is_held);
        let mut loads: Vec<Load> = self.pools.iter().map(|pool| pool.pinned).collect();
        for edge in &self.edges {
            let demand = &self.demands[edge.demand];
            let amount = if is_held { edge.kept_rps } else { demand.rps };
            loads[edge.pool].add(demand.request.times(amount));
        }
        let reach_rps = self.reach_rps();
        let around = |at: usize| {
            let (capacity, reach) = (self.pools[at].cost.capacity_rps, reach_rps[at]);
            if is_held { (loads[at].work.min(capacity), reach * HELD_WIDTH_FRAC) } else { (reach / 2.0, reach / 2.0) }
        };
        let focus: Vec<(f64, f64)> = (0..self.pools.len()).map(around).collect();
        Linearization {
            mix: loads.iter().map(|load| load.mix().unwrap_or(Load { work: 1.0, ..Load::default() })).collect(),
            times_ms: self.pools.iter().zip(&focus).map(|(pool, &(load, _))| pool.cost.times_ms(load)).collect(),
            focus,
            reach_rps,
        }
    }

    /// Most work that can come to each pool, pins included, in requests/s of its profile.
    fn reach_rps(&self) -> Vec<f64> {
        let mut reach: Vec<f64> = self.pools.iter().map(|pool| pool.pinned.work).collect();
        for edge in &self.edges {
            let demand = &self.demands[edge.demand];
            reach[edge.pool] += demand.rps * demand.request.work;
        }
        reach.iter().zip(&self.pools).map(|(reach, pool)| reach.min(pool.cost.capacity_rps)).collect()
    }

    /// What `flow_rps`, one per edge, and the pins put on each pool.
    pub(crate) fn loads(&self, flow_rps: &[f64]) -> Vec<Load> {
        let mut loads: Vec<Load> = self.pools.iter().map(|pool| pool.pinned).collect();
        for (edge, &flow) in self.edges.iter().zip(flow_rps) {
            loads[edge.pool].add(self.demands[edge.demand].request.times(flow));
        }
        loads
    }

    /// The linearization at `iterate`: its own mix, and breakpoints a quarter as far apart, or
    /// following a load that left them.
    pub(crate) fn refined(&self, linearization: &Linearization, iterate: &Iterate) -> Linearization {
        let mut next = linearization.clone();
        let finest_rps = self.unit() * FINEST_UNITS;
        for (at, pool) in self.pools.iter().enumerate() {
            let load = iterate.loads[at].work;
            if load > NEGLIGIBLE_RPS
                && let Some(mix) = iterate.loads[at].mix()
            {
                next.mix[at] = mix;
            }
            next.times_ms[at] = pool.cost.times_ms(load);
            let (centre, half_width) = linearization.focus[at];
            let moved = (load - centre).abs();
            let narrow = if moved > half_width * 0.5 { moved } else { half_width / 4.0 };
            next.focus[at] = (load, narrow.max(linearization.reach_rps[at] * FINEST_FRAC).max(finest_rps));
        }
        next
    }

    /// Cost of `iterate` on the true curves, in ms x requests/s, shed and movement included.
    pub(crate) fn cost(&self, iterate: &Iterate) -> f64 {
        let network: f64 = self.edges.iter().zip(&iterate.flow_rps).map(|(edge, flow)| edge.cost_ms * flow).sum();
        let in_engines = self.pools.iter().zip(&iterate.loads).map(|(pool, &load)| pool.cost.cost_ms(load.work, load));
        network + in_engines.sum::<f64>() + self.move_cost(iterate) + self.shed_cost(iterate)
    }

    /// The part of [`Self::cost`] that stands for what is shed.
    pub(crate) fn shed_cost(&self, iterate: &Iterate) -> f64 {
        self.demands.iter().zip(&iterate.shed_rps).map(|(demand, shed)| demand.shed_price_ms * shed).sum()
    }

    /// The part of [`Self::cost`] that stands for requests that go elsewhere than before.
    pub(crate) fn move_cost(&self, iterate: &Iterate) -> f64 {
        self.edges.iter().zip(&iterate.flow_rps).map(|(edge, flow)| edge.move_ms * (flow - edge.kept_rps).max(0.0)).sum()
    }

    /// Requests/s that go elsewhere than held weights would send them.
    pub(crate) fn moved_rps(&self, iterate: &Iterate) -> f64 {
        let held = self.edges.iter().zip(&iterate.flow_rps).filter(|(edge, _)| self.demands[edge.demand].is_held);
        held.map(|(edge, flow)| (flow - edge.kept_rps).max(0.0)).sum()
    }

    /// The iterate from `from` towards `to` with the least true cost, by halving steps; `from`
    /// itself if none is better.
    pub(crate) fn descended(&self, from: Iterate, to: &Iterate) -> Iterate {
        let steps = STEPS.iter().map(|&step| from.towards(to, step));
        let (mut least, mut best) = (self.cost(&from), None);
        for iterate in steps {
            let cost = self.cost(&iterate);
            if cost < least {
                (least, best) = (cost, Some(iterate));
            }
        }
        best.unwrap_or(from)
    }

    /// Largest change in the price of a request, in ms, if `linearization` took the engines' times
    /// of `iterate`.
    pub(crate) fn mix_shift_ms(&self, linearization: &Linearization, iterate: &Iterate) -> f64 {
        let shift = |edge: &Edge| {
            let extra = self.demands[edge.demand].request.beyond(linearization.mix[edge.pool]);
            let ((ttft_ms, tbot_ms), then) = (linearization.times_ms[edge.pool], iterate.loads[edge.pool].work);
            let (ttft_then, tbot_then) = self.pools[edge.pool].cost.times_ms(then);
            extra.cost(ttft_then - ttft_ms, tbot_then - tbot_ms).abs()
        };
        self.edges.iter().map(shift).fold(0.0, f64::max)
    }

    /// KV memory of one request/s of `edge`, in units of load; 0 where memory is no limit.
    pub(crate) fn memory(&self, edge: &Edge) -> f64 {
        self.pools[edge.pool].memory.get(self.demands[edge.demand].class.index()).copied().unwrap_or(0.0)
    }

    /// By how much one request of `edge` exceeds the budget of its cluster, in budgets; 0 where
    /// there is none.
    pub(crate) fn detour(&self, edge: &Edge) -> f64 {
        self.demands[edge.demand].budget.map_or(0.0, |budget| edge.rtt_ms / self.budgets[budget].mean_ms - 1.0)
    }

    /// What one request of `edge` costs because memory or a budget binds, in ms.
    pub(crate) fn limits_ms(&self, iterate: &Iterate, edge: &Edge) -> f64 {
        let budget_ms = self.demands[edge.demand].budget.map_or(0.0, |budget| iterate.budget_price_ms[budget]);
        self.memory(edge) * iterate.memory_price_ms[edge.pool] + self.detour(edge) * budget_ms
    }

    /// Memory that requests may take of a pool, in units of load.
    pub(crate) fn memory_room(&self, pool: usize) -> f64 {
        (self.pools[pool].cost.capacity_rps - self.pools[pool].pinned_memory).max(0.0)
    }

    /// What one request of `edge` costs besides its share of the pool's load and besides moving, in
    /// ms.
    pub(crate) fn edge_cost_ms(&self, linearization: &Linearization, edge: &Edge) -> f64 {
        edge.cost_ms + self.mix_ms(linearization, edge.pool, self.demands[edge.demand].request)
    }

    /// The correction for a request that is another than its work of the pool's mix, in ms.
    pub(crate) fn mix_ms(&self, linearization: &Linearization, pool: usize, request: Load) -> f64 {
        let (ttft_ms, tbot_ms) = linearization.times_ms[pool];
        request.beyond(linearization.mix[pool]).cost(ttft_ms, tbot_ms)
    }
}
