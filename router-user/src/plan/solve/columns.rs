//! Column generation: which columns of a program the solver sees. Pure.
//!
//! A large fleet has a hundred times more flow columns than any plan uses, and the simplex method
//! pays for each of them in every step. So the solver first sees the columns that may pay at the
//! initial prices. After each solve, every other column is priced at the row prices that the solver
//! found, and those with a negative reduced cost enter. When none has one, the solution is optimal
//! for the whole program; the certificate checks every column once more with arithmetic of its own.
//! This file does not depend on the meaning of columns and rows.

use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::warm_start::{BasisStatus, Start};

/// Number of columns below which the solver sees all of them: selection would take longer than it
/// saves.
const SMALL_COLUMNS: usize = 2_000;

/// Most columns per row: flows that the first selection takes, curve segments that every start
/// takes, and columns of either kind that enter after one solve. Few columns keep the program
/// small, and more of them save rounds; the optimum does not depend on these numbers.
const FIRST_FLOWS: usize = 16;
const SEGMENTS_PER_START: usize = 6;
const ENTERING_COLUMNS: usize = 24;

/// The columns that the solver sees, and the bounds at which the others are fixed.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// In the order in which they were added to the solver's model.
    shown: Vec<usize>,
    is_shown: Vec<bool>,
    /// True if a hidden column is fixed at its upper bound; otherwise it is fixed at 0.
    is_full: Vec<bool>,
}

impl Selection {
    pub(crate) fn all(program: &LinearProgram) -> Self {
        let columns = program.columns();
        Self { shown: (0..columns).collect(), is_shown: vec![true; columns], is_full: vec![false; columns] }
    }

    /// The first selection: every column that must be in the model, the basic columns of `start`,
    /// and for each row the columns whose reduced costs are nearest to paying.
    pub(crate) fn first(program: &LinearProgram, start: &Start) -> Self {
        if program.columns() < SMALL_COLUMNS {
            return Self::all(program);
        }
        let columns = program.columns();
        let mut first = Self { shown: Vec::new(), is_shown: vec![false; columns], is_full: vec![false; columns] };
        first.follow(program, start, FIRST_FLOWS);
        first
    }

    pub(crate) fn shown(&self) -> &[usize] {
        &self.shown
    }

    /// Takes a new start after an edit of the program, and adds the columns that it needs.
    pub(crate) fn restart(&mut self, program: &LinearProgram, start: &Start) {
        self.follow(program, start, 0);
    }

    /// Takes a new start after an edit of the program. Adds the columns that it needs, and up to
    /// `flows` flow columns per row.
    fn follow(&mut self, program: &LinearProgram, start: &Start, flows: usize) {
        if self.shown.len() == self.is_shown.len() {
            return;
        }
        let mut near = Nearest::new(program.rhs.len());
        // One wide segment per pool, so that its load can fall by more than the segments near it
        // hold.
        let mut widest = Nearest::new(program.rhs.len());
        let mut new = Vec::new();
        for column in (0..program.columns()).filter(|&column| !self.is_shown[column]) {
            let (wait, status) = (wait(program, column), start.columns[column]);
            self.is_full[column] = status == BasisStatus::Upper;
            let reduced = program.reduced_cost(column, &start.prices);
            let pays = if self.is_full[column] { reduced > 0.0 } else { reduced < 0.0 };
            if matches!(wait, Wait::AtEither) && self.is_full[column] {
                widest.offer(program, column, -program.upper[column], 1);
            }
            match wait {
                Wait::Never => new.push(column),
                _ if status == BasisStatus::Basic => new.push(column),
                Wait::AtEither if pays || is_edge(program, start, column) => new.push(column),
                Wait::AtEither => near.offer(program, column, reduced.abs(), SEGMENTS_PER_START),
                Wait::AtZero => near.offer(program, column, reduced, flows),
            }
        }
        new.extend(near.columns());
        new.extend(widest.columns());
        self.show(new);
    }

    /// Adds the columns whose reduced cost at `prices` pays by more than `tolerance`; returns
    /// whether there were any.
    pub(crate) fn extend(&mut self, program: &LinearProgram, prices: &[f64], tolerance: f64) -> bool {
        if self.shown.len() == self.is_shown.len() {
            return false;
        }
        let mut near = Nearest::new(program.rhs.len());
        for column in (0..program.columns()).filter(|&column| !self.is_shown[column]) {
            let reduced = program.reduced_cost(column, prices);
            let loss = if self.is_full[column] { -reduced } else { reduced };
            if loss < -tolerance && program.upper[column] > 0.0 {
                near.offer(program, column, loss, ENTERING_COLUMNS);
            }
        }
        let more = near.columns();
        let has_more = !more.is_empty();
        self.show(more);
        has_more
    }

    /// Adds every curve segment; returns whether any was hidden.
    pub(crate) fn extend_by_pieces(&mut self, program: &LinearProgram) -> bool {
        let waits = |&column: &usize| !self.is_shown[column] && matches!(wait(program, column), Wait::AtEither);
        let new: Vec<usize> = (0..program.columns()).filter(waits).collect();
        let has_more = !new.is_empty();
        self.show(new);
        has_more
    }

    /// Value at which a hidden column is fixed; 0 for a column of the model.
    pub(crate) fn stays_at(&self, program: &LinearProgram, column: usize) -> f64 {
        if self.is_full[column] && !self.is_shown[column] { program.upper[column] } else { 0.0 }
    }

    /// True if a column was at its upper bound before it entered the model.
    pub(crate) fn was_full(&self, column: usize) -> bool {
        self.is_full[column]
    }

    /// Right-hand sides for the columns of the model: `program`'s, less the contribution of the
    /// columns that are fixed at their upper bounds.
    pub(crate) fn rhs(&self, program: &LinearProgram) -> Vec<f64> {
        let mut rhs = program.rhs.clone();
        for column in 0..program.columns() {
            let value = self.stays_at(program, column);
            if value > 0.0 {
                program.entries(column).iter().for_each(|&(row, coefficient)| rhs[row] -= coefficient * value);
            }
        }
        rhs
    }

    fn show(&mut self, mut new: Vec<usize>) {
        new.sort_unstable();
        new.dedup();
        new.iter().for_each(|&column| self.is_shown[column] = true);
        self.shown.extend(new);
    }
}

/// Bound at which a column may be fixed while it is hidden, so that the reduced program is feasible
/// whenever the whole program is.
enum Wait {
    /// The column is always in the model: held flows, which are bounded, and unbounded slack, which
    /// makes every row feasible.
    Never,
    /// Fixed at 0: an unbounded column in several rows, which is a new flow.
    AtZero,
    /// Fixed at either bound: a bounded column in one row, which is a curve segment, empty or full.
    AtEither,
}

fn wait(program: &LinearProgram, column: usize) -> Wait {
    match (program.entries(column).len(), program.upper[column] == f64::INFINITY) {
        (1, false) => Wait::AtEither,
        (2.., true) => Wait::AtZero,
        _ => Wait::Never,
    }
}

/// True if a segment is next to one with another basis status. The load moves there first.
fn is_edge(program: &LinearProgram, start: &Start, column: usize) -> bool {
    let row = |column: usize| program.entries(column)[0].0;
    let differs = |other: usize| row(other) == row(column) && start.columns[other] != start.columns[column];
    (column > 0 && differs(column - 1)) || (column + 1 < program.columns() && differs(column + 1))
}

/// The columns of least distance per row, where the row of a column is its first.
struct Nearest(Vec<Vec<(f64, usize)>>);

impl Nearest {
    fn new(rows: usize) -> Self {
        Self(vec![Vec::new(); rows])
    }

    fn offer(&mut self, program: &LinearProgram, column: usize, distance: f64, most: usize) {
        let row = &mut self.0[program.entries(column)[0].0];
        if row.len() == most {
            if most == 0 || distance >= row[most - 1].0 {
                return;
            }
            row.pop();
        }
        let place = row.partition_point(|&(other, _)| other <= distance);
        row.insert(place, (distance, column));
    }

    fn columns(self) -> Vec<usize> {
        self.0.into_iter().flatten().map(|(_, column)| column).collect()
    }
}
