//! Warm start: a feasible point and its initial basis. Pure.
//!
//! The active weights applied to the current demand give flows. As long as the weights are legal,
//! these flows are a feasible point of the program: each demand keeps its flows, and each pool has
//! the sum of them as its load. So a small change of the inputs needs few simplex steps, and a plan
//! depends on its arguments alone, not on earlier plans. Demand that the current weights cannot
//! serve starts as shed, and is improved first.

use crate::plan::NEGLIGIBLE_RPS;
use crate::plan::problem::formulation::Problem;
use crate::plan::problem::linearization::Linearization;
use crate::plan::problem::lp::LinearProgram;

/// Distance from a breakpoint within which a load counts as on it, as a fraction of the pool's
/// capacity: it absorbs rounding of sums.
const AT_BREAKPOINT_FRAC: f64 = 1e-9;

/// Basis status of a column, or of the logical variable of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BasisStatus {
    Lower,
    Basic,
    Upper,
}

/// A start for a program: the basis status of each column and row, and an initial price per row.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) columns: Vec<BasisStatus>,
    pub(crate) rows: Vec<BasisStatus>,
    pub(crate) prices: Vec<f64>,
}

impl Problem<'_> {
    /// The current weights as a start for `program`, which must be this problem's at
    /// `linearization`.
    pub(crate) fn start(&self, program: &LinearProgram, linearization: &Linearization) -> Start {
        let mut columns = vec![BasisStatus::Lower; program.columns()];
        let mut rows = vec![BasisStatus::Basic; program.rhs.len()];
        let mut load: Vec<f64> = vec![0.0; self.pools.len()];
        let mut kept: Vec<(f64, f64, Option<usize>)> = vec![(0.0, 0.0, None); self.demands.len()];
        let first_kept = self.edges.len() + self.demands.len() + self.segment_count();
        let current = self.edges.iter().filter(|edge| edge.kept_rps > 0.0);
        for (edge, column) in current.zip(first_kept..) {
            let rps = program.upper[column];
            columns[column] = BasisStatus::Upper;
            load[edge.pool] += rps * self.demands[edge.demand].request.work;
            let (sum, most, largest) = &mut kept[edge.demand];
            *sum += rps;
            if rps > *most {
                (*most, *largest) = (rps, Some(column));
            }
        }
        for (at, &(sum, _, largest)) in kept.iter().enumerate() {
            let misses = program.rhs[at] - sum > NEGLIGIBLE_RPS;
            let basic = largest.filter(|_| !misses).unwrap_or(self.edges.len() + at);
            columns[basic] = BasisStatus::Basic;
            rows[at] = BasisStatus::Lower;
        }
        for (at, pool) in self.pools.iter().enumerate() {
            if pool.cost.segment_count() > 0 {
                rows[self.demands.len() + at] = BasisStatus::Lower;
            }
        }
        self.stand_segments(program, &load, &vec![1; self.pools.len()], &mut columns);
        // Every other row has a slack column. The slack columns come after all flows, in the order
        // of the rows.
        let first_limit = self.demands.len() + self.pools.len();
        let first_room = columns.len() - (rows.len() - first_limit);
        columns[first_room..].fill(BasisStatus::Basic);
        rows[first_limit..].fill(BasisStatus::Lower);
        let prices = self.guessed_prices(linearization, rows.len());
        Start { columns, rows, prices }
    }

    /// Adapts the columns of a basis from another linearization to `program`, with the loads
    /// `work_rps`.
    pub(crate) fn restart(&self, program: &LinearProgram, work_rps: &[f64], columns: &mut [BasisStatus]) {
        let mut at = self.edges.len() + self.demands.len();
        let mut basics = Vec::with_capacity(self.pools.len());
        let mut free = Vec::with_capacity(self.pools.len());
        for (pool, load) in self.pools.iter().zip(work_rps) {
            let segments = &columns[at..at + pool.cost.segment_count()];
            basics.push(segments.iter().filter(|&&status| status == BasisStatus::Basic).count());
            free.push(load - pool.pinned.work);
            at += segments.len();
        }
        self.stand_segments(program, &free, &basics, columns);
    }

    /// Sets the status of the segments: full below a load, empty above it. From the load upwards
    /// `basics` says how many are basic.
    fn stand_segments(&self, program: &LinearProgram, load: &[f64], basics: &[usize], columns: &mut [BasisStatus]) {
        let mut first = self.edges.len() + self.demands.len();
        for (at, pool) in self.pools.iter().enumerate() {
            let segments = first..first + pool.cost.segment_count();
            first = segments.end;
            let rounding = pool.cost.capacity_rps * AT_BREAKPOINT_FRAC;
            let (mut full, mut end) = (segments.start, 0.0);
            while full < segments.end && end + program.upper[full] <= load[at] + rounding {
                end += program.upper[full];
                full += 1;
            }
            // A load inside a segment is at neither of its bounds, so the segment must be basic.
            let basics = basics[at].max(usize::from(load[at] - end > rounding)).min(segments.len());
            let basic_from = full.min(segments.end - basics);
            for column in segments {
                columns[column] = if column < basic_from {
                    BasisStatus::Upper
                } else if column < basic_from + basics {
                    BasisStatus::Basic
                } else {
                    BasisStatus::Lower
                };
            }
        }
    }

    fn segment_count(&self) -> usize {
        self.pools.iter().map(|pool| pool.cost.segment_count()).sum()
    }

    /// Initial row prices, before any solve. A pool has the slope at its load under the current
    /// weights, or else at a common utilisation. A demand has the delivered price at its cheapest
    /// pool, and at most its shed price. Limits have price 0.
    fn guessed_prices(&self, linearization: &Linearization, rows: usize) -> Vec<f64> {
        let has_current = !self.demands.is_empty() && self.demands.iter().all(|demand| demand.has_current);
        let demand: f64 = self.demands.iter().map(|demand| (demand.rps - demand.shed_rps) * demand.request.work).sum();
        let capacity: f64 = self.pools.iter().map(|pool| pool.cost.capacity_rps).sum();
        let utilisation = if capacity > 0.0 { (demand / capacity).min(1.0) } else { 0.0 };
        let price = |at: usize| {
            let cost = &self.pools[at].cost;
            let load = if has_current { linearization.focus[at].0 } else { utilisation * cost.capacity_rps };
            if cost.is_ready() { cost.marginal_ms(load, linearization.mix[at]) } else { 0.0 }
        };
        let pool_ms: Vec<f64> = (0..self.pools.len()).map(price).collect();
        let mut prices: Vec<f64> = self.demands.iter().map(|demand| demand.shed_price_ms).collect();
        for edge in &self.edges {
            let delivered = self.edge_cost_ms(linearization, edge)
                + edge.move_ms
                + self.demands[edge.demand].request.work * pool_ms[edge.pool];
            prices[edge.demand] = prices[edge.demand].min(delivered);
        }
        prices.extend(pool_ms.iter().map(|price| -price));
        prices.resize(rows, 0.0);
        prices
    }
}
