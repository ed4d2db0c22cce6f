//! The linear program of a problem at a linearization, and how its solution is read back. Pure and
//! independent of the solver.
//!
//! docs/model.md, sections 2 to 4. Columns, in this order: each edge beyond its current flow; shed
//! of each demand; curve segments of each pool; the current flow of each edge; slack of memory, of
//! budgets and of the limit on movement. Rows, in this order: demands, pools, memory, budgets, the
//! limit on movement.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::problem::formulation::{Edge, Problem};
use crate::plan::problem::linearization::{Iterate, Linearization};

/// A linear program in equality form: minimise cost; each column lies between 0 and its upper
/// bound; each row equals its entry of `rhs`.
#[derive(Clone, Debug)]
pub(crate) struct LinearProgram {
    /// Scale of the program: the amount that the solver sees as 1, in (0, 1]. With it the solver's
    /// absolute tolerances mean as much for rare requests as for frequent ones.
    pub(crate) unit: f64,
    pub(crate) cost: Vec<f64>,
    pub(crate) upper: Vec<f64>,
    /// Offset of each column's entries, plus the end; empty for a program without columns.
    starts: Vec<usize>,
    entries: Vec<(usize, f64)>,
    pub(crate) rhs: Vec<f64>,
}

impl Default for LinearProgram {
    /// A program without columns and rows, in units of 1.
    fn default() -> Self {
        Self { unit: 1.0, cost: Vec::new(), upper: Vec::new(), starts: Vec::new(), entries: Vec::new(), rhs: Vec::new() }
    }
}

impl LinearProgram {
    pub(crate) fn push(&mut self, cost: f64, upper: f64, entries: &[(usize, f64)]) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.cost.push(cost);
        self.upper.push(upper);
        self.entries.extend_from_slice(entries);
        self.starts.push(self.entries.len());
    }

    pub(crate) fn columns(&self) -> usize {
        self.cost.len()
    }

    /// `(row, coefficient)` of a column.
    pub(crate) fn entries(&self, column: usize) -> &[(usize, f64)] {
        &self.entries[self.starts[column]..self.starts[column + 1]]
    }

    /// Reduced cost of a column at the row prices `prices`.
    pub(crate) fn reduced_cost(&self, column: usize, prices: &[f64]) -> f64 {
        self.entries(column).iter().fold(self.cost[column], |cost, &(row, coefficient)| cost - coefficient * prices[row])
    }

    /// True if both programs have the same rows, columns and coefficients, so that they differ in
    /// costs, bounds and right-hand sides only.
    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        self.rhs.len() == other.rhs.len() && self.starts == other.starts && self.entries == other.entries
    }
}

/// First row of each kind; the limit on movement is the last row.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) pool: usize,
    /// Memory row of each pool; `None` where memory is no limit.
    memory_of: Vec<Option<usize>>,
    pub(crate) memory: usize,
    pub(crate) budget: usize,
    pub(crate) moved: usize,
}

impl Problem<'_> {
    pub(crate) fn rows(&self) -> Rows {
        let (pool, memory) = (self.demands.len(), self.demands.len() + self.pools.len());
        let mut budget = memory;
        let mut next = |pool: &crate::plan::problem::pools::Pool<'_>| {
            let is_limit = !pool.memory.is_empty();
            budget += usize::from(is_limit);
            is_limit.then_some(budget - 1)
        };
        let memory_of = self.pools.iter().map(&mut next).collect();
        Rows { pool, memory_of, memory, budget, moved: budget + self.budgets.len() }
    }

    /// Scale of the program: its largest demand, at most 1 request/s.
    pub(crate) fn unit(&self) -> f64 {
        let largest = self.demands.iter().map(|demand| demand.rps - demand.shed_rps).fold(0.0, f64::max);
        if largest > 0.0 { largest.min(1.0) } else { 1.0 }
    }

    /// Coefficients of one request of `edge` in the rows of its demand, pool, memory and budget.
    pub(crate) fn entries(&self, rows: &Rows, edge: &Edge, entries: &mut Vec<(usize, f64)>) {
        entries.clear();
        let demand = &self.demands[edge.demand];
        entries.extend([(edge.demand, 1.0), (rows.pool + edge.pool, demand.request.work)]);
        if let Some(row) = rows.memory_of[edge.pool] {
            entries.push((row, self.memory(edge)));
        }
        if let Some(budget) = demand.budget {
            entries.push((rows.budget + budget, self.detour(edge)));
        }
    }

    /// Adds the slack columns and the right-hand sides of the memory rows.
    pub(crate) fn push_memory(&self, rows: &Rows, program: &mut LinearProgram) {
        for (at, row) in rows.memory_of.iter().enumerate() {
            if let Some(row) = *row {
                program.push(0.0, f64::INFINITY, &[(row, 1.0)]);
                program.rhs.push(self.memory_room(at));
            }
        }
    }

    pub(crate) fn program(&self, linearization: &Linearization) -> LinearProgram {
        let rows = self.rows();
        let mut program = LinearProgram { unit: self.unit(), ..LinearProgram::default() };
        let mut entries = Vec::new();
        for edge in &self.edges {
            self.entries(&rows, edge, &mut entries);
            if self.move_limit_rps.is_some() && self.demands[edge.demand].has_current {
                entries.push((rows.moved, 1.0));
            }
            let upper = if edge.is_pruned { 0.0 } else { f64::INFINITY };
            program.push(self.edge_cost_ms(linearization, edge) + edge.move_ms, upper, &entries);
        }
        for (row, demand) in self.demands.iter().enumerate() {
            program.push(demand.shed_price_ms, demand.shed_most_rps, &[(row, 1.0)]);
        }
        for (at, pool) in self.pools.iter().enumerate() {
            let (around, half_width) = linearization.focus[at];
            for segment in pool.cost.segments(pool.pinned.work, linearization.mix[at], around, half_width) {
                program.push(segment.slope_ms, segment.width_rps, &[(rows.pool + at, -1.0)]);
            }
        }
        for edge in self.edges.iter().filter(|edge| edge.kept_rps > 0.0) {
            self.entries(&rows, edge, &mut entries);
            program.push(self.edge_cost_ms(linearization, edge), if edge.is_pruned { 0.0 } else { edge.kept_rps }, &entries);
        }
        program.rhs = self.demands.iter().map(|demand| demand.rps - demand.shed_rps).collect();
        program.rhs.resize(rows.memory, 0.0);
        self.push_memory(&rows, &mut program);
        for (at, budget) in self.budgets.iter().enumerate() {
            program.push(0.0, f64::INFINITY, &[(rows.budget + at, 1.0)]);
            program.rhs.push(budget.excess);
        }
        if let Some(limit) = self.move_limit_rps {
            program.push(0.0, f64::INFINITY, &[(rows.moved, 1.0)]);
            program.rhs.push(limit);
        }
        program
    }

    /// Reads a solution of [`Self::program`]: column values, and row duals as costs of one more
    /// unit on the right-hand side.
    pub(crate) fn iterate(&self, linearization: &Linearization, values: &[f64], duals: &[f64]) -> Iterate {
        let segments: usize = self.pools.iter().map(|pool| pool.cost.segment_count()).sum();
        let mut flow_rps: Vec<f64> = values[..self.edges.len()].iter().map(|value| value.max(0.0)).collect();
        let kept = values[self.edges.len() + self.demands.len() + segments..].iter();
        let current = self.edges.iter().enumerate().filter(|(_, edge)| edge.kept_rps > 0.0);
        for ((at, _), value) in current.zip(kept) {
            flow_rps[at] += value.max(0.0);
        }
        let shed = values[self.edges.len()..][..self.demands.len()].iter().zip(&self.demands);
        let shed_rps = shed.map(|(value, demand)| demand.shed_rps + value.max(0.0)).collect();
        let loads = self.loads(&flow_rps);
        let mut pool_price_ms: Vec<f64> = duals[self.demands.len()..][..self.pools.len()].iter().map(|dual| -dual).collect();
        for ((pool, price), (load, &mix)) in self.pools.iter().zip(&mut pool_price_ms).zip(loads.iter().zip(&linearization.mix)) {
            // The dual of a pool without free load is not unique. Its price is the true cost of the
            // first request.
            let pinned_rps = pool.pinned.work;
            let is_idle = load.work - pinned_rps <= NEGLIGIBLE_RPS;
            if is_idle && pool.cost.capacity_rps > pinned_rps {
                *price = pool.cost.marginal_ms(pinned_rps, mix);
            }
        }
        let demand_price_ms = duals[..self.demands.len()].to_vec();
        // Relaxing a limit never raises the optimum, so these prices are not negative.
        let rows = self.rows();
        let price = |row: usize| (-duals[row]).max(0.0);
        let memory_price_ms = rows.memory_of.iter().map(|row| row.map_or(0.0, price)).collect();
        let budget_price_ms = (rows.budget..rows.moved).map(price).collect();
        let move_limit_price_ms = duals.get(rows.moved).map_or(0.0, |dual| (-dual).max(0.0));
        Iterate {
            flow_rps,
            shed_rps,
            demand_price_ms,
            pool_price_ms,
            loads,
            memory_price_ms,
            budget_price_ms,
            move_limit_price_ms,
        }
    }
}
