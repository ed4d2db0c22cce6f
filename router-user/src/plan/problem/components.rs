//! Connected components: parts of a problem that share no pool and no detour budget. Each is solved
//! on its own.

use crate::plan::problem::formulation::{Demand, Edge, Problem};

/// Disjoint sets of pools (union-find with path halving). The smallest index of a set is its root.
#[derive(Debug)]
struct Sets(Vec<usize>);

impl Sets {
    fn new(pools: usize) -> Self {
        Self((0..pools).collect())
    }

    fn find(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    /// Merges the set of `pool` with the set of the pool in `link`; an empty `link` takes `pool`.
    fn join(&mut self, link: &mut Option<usize>, pool: usize) {
        let first = *link.get_or_insert(pool);
        let (a, b) = (self.find(first), self.find(pool));
        self.0[a.max(b)] = a.min(b);
    }
}

/// Which part each pool and each demand belongs to.
#[derive(Debug)]
struct Parts {
    part_of_pool: Vec<usize>,
    /// A pool that each demand has an edge to; `None` for a demand without edges.
    pool_of_demand: Vec<Option<usize>>,
    /// Number of parts with edges. One part more, the last, takes the pools without edges and the
    /// demands without edges.
    count: usize,
}

impl Parts {
    fn of(problem: &Problem<'_>) -> Self {
        let pools = problem.pools.len();
        let mut sets = Sets::new(pools);
        let mut pool_of_demand = vec![None; problem.demands.len()];
        let mut is_used = vec![false; pools];
        for edge in &problem.edges {
            sets.join(&mut pool_of_demand[edge.demand], edge.pool);
            is_used[edge.pool] = true;
        }
        let mut pool_of_budget = vec![None; problem.budgets.len()];
        for (demand, &pool) in problem.demands.iter().zip(&pool_of_demand) {
            if let (Some(budget), Some(pool)) = (demand.budget, pool) {
                sets.join(&mut pool_of_budget[budget], pool);
            }
        }
        let (mut part_of_root, mut count) = (vec![None; pools], 0);
        let roots: Vec<usize> = (0..pools).map(|pool| sets.find(pool)).collect();
        for (pool, &root) in roots.iter().enumerate() {
            if is_used[pool] && part_of_root[root].is_none() {
                part_of_root[root] = Some(count);
                count += 1;
            }
        }
        let part_of_pool = roots.iter().zip(&is_used);
        let part_of_pool =
            part_of_pool.map(|(&root, &is_used)| part_of_root[root].filter(|_| is_used).unwrap_or(count)).collect();
        Self { part_of_pool, pool_of_demand, count }
    }
}

impl Problem<'_> {
    /// Splits the problem into its independent parts.
    ///
    /// Shape: each demand and each pool is in exactly one part; within a part the order is that of
    /// `self`. Pools and demands without edges form the last part.
    pub(crate) fn components(self) -> Vec<Self> {
        let parts_of = Parts::of(&self);
        let empty = || Self {
            demands: Vec::new(),
            edges: Vec::new(),
            pools: Vec::new(),
            price_limit_ms: self.price_limit_ms,
            budgets: Vec::new(),
            move_limit_rps: None,
        };
        let mut parts: Vec<Self> = (0..=parts_of.count).map(|_| empty()).collect();
        let mut pool_at = Vec::with_capacity(self.pools.len());
        for (pool, &part) in self.pools.into_iter().zip(&parts_of.part_of_pool) {
            pool_at.push(parts[part].pools.len());
            parts[part].pools.push(pool);
        }
        let mut demand_at = Vec::with_capacity(self.demands.len());
        for (demand, pool) in self.demands.into_iter().zip(parts_of.pool_of_demand) {
            let part = pool.map_or(parts_of.count, |pool| parts_of.part_of_pool[pool]);
            // A demand without a pool has no flow that a budget could count.
            let budget = demand.budget.filter(|_| part < parts_of.count).map(|budget| {
                let (budgets, budget) = (&mut parts[part].budgets, self.budgets[budget]);
                budgets.iter().position(|other| other.cluster == budget.cluster).unwrap_or_else(|| {
                    budgets.push(budget);
                    budgets.len() - 1
                })
            });
            demand_at.push((part, parts[part].demands.len()));
            parts[part].demands.push(Demand { budget, ..demand });
        }
        for edge in self.edges {
            let ((part, demand), pool) = (demand_at[edge.demand], pool_at[edge.pool]);
            parts[part].edges.push(Edge { demand, pool, ..edge });
        }
        parts.retain(|part| !part.demands.is_empty() || !part.pools.is_empty());
        parts
    }
}
