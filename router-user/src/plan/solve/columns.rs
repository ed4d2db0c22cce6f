//! Which columns of a program the solver is shown. Pure.
//!
//! A fleet of many engines has a hundred times more flows than any plan uses, and the simplex
//! method pays for each of them in every step. So the solver is shown those that the prices at hand
//! make worth a look; once it is done, the prices it found are asked of all others, and those that
//! would pay to move enter. When none would, the point is optimal for the whole program: the
//! certificate (`check`) asks every column again, with arithmetic of its own. Nothing here knows
//! what columns and rows stand for.

use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::warm_start::{BasisStatus, Start};

/// Columns below which all are shown: choosing would take longer than it saves.
const SMALL_COLUMNS: usize = 2_000;

/// Most columns that each row is shown at first, and given at a time afterwards: flows, and pieces
/// of a curve.
const FIRST: usize = 16;
const FIRST_PIECES: usize = 6;
const MORE: usize = 24;

/// The columns shown so far, and where the others stay.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// In the order in which they were shown.
    shown: Vec<usize>,
    is_shown: Vec<bool>,
    /// Whether a column that is not shown stays at its upper bound; else it stays at 0.
    is_full: Vec<bool>,
}

impl Selection {
    pub(crate) fn all(program: &LinearProgram) -> Self {
        let columns = program.columns();
        Self { shown: (0..columns).collect(), is_shown: vec![true; columns], is_full: vec![false; columns] }
    }

    /// Every column that may not be left out, and of the others those that `start` has in use or
    /// that are nearest to it for their row.
    pub(crate) fn first(program: &LinearProgram, start: &Start) -> Self {
        if program.columns() < SMALL_COLUMNS {
            return Self::all(program);
        }
        let columns = program.columns();
        let mut first = Self { shown: Vec::new(), is_shown: vec![false; columns], is_full: vec![false; columns] };
        first.follow(program, start, FIRST);
        first
    }

    pub(crate) fn shown(&self) -> &[usize] {
        &self.shown
    }

    /// Takes a new start after an edit of the program; shows what it needs besides.
    pub(crate) fn restart(&mut self, program: &LinearProgram, start: &Start) {
        self.follow(program, start, 0);
    }

    /// Takes a new start, after an edit of the program; shows what it needs besides.
    fn follow(&mut self, program: &LinearProgram, start: &Start, flows: usize) {
        if self.shown.len() == self.is_shown.len() {
            return;
        }
        let mut near = Nearest::new(program.rhs.len());
        // A way down for every load, in case what follows takes from it more than the pieces near
        // it hold.
        let mut widest = Nearest::new(program.rhs.len());
        let mut new = Vec::new();
        for column in (0..program.columns()).filter(|&column| !self.is_shown[column]) {
            let (wait, standing) = (wait(program, column), start.columns[column]);
            self.is_full[column] = standing == BasisStatus::Upper;
            let reduced = program.reduced_cost(column, &start.prices);
            let pays = if self.is_full[column] { reduced > 0.0 } else { reduced < 0.0 };
            if matches!(wait, Wait::AtEither) && self.is_full[column] {
                widest.offer(program, column, -program.upper[column], 1);
            }
            match wait {
                Wait::Never => new.push(column),
                _ if standing == BasisStatus::Basic => new.push(column),
                Wait::AtEither if pays || is_edge(program, start, column) => new.push(column),
                Wait::AtEither => near.offer(program, column, reduced.abs(), FIRST_PIECES),
                Wait::AtZero => near.offer(program, column, reduced, flows),
            }
        }
        new.extend(near.columns());
        new.extend(widest.columns());
        self.show(new);
    }

    /// Shows the columns that would pay at `prices`, by more than `tolerance`; returns whether
    /// there were any.
    pub(crate) fn extend(&mut self, program: &LinearProgram, prices: &[f64], tolerance: f64) -> bool {
        if self.shown.len() == self.is_shown.len() {
            return false;
        }
        let mut near = Nearest::new(program.rhs.len());
        for column in (0..program.columns()).filter(|&column| !self.is_shown[column]) {
            let reduced = program.reduced_cost(column, prices);
            let loss = if self.is_full[column] { -reduced } else { reduced };
            if loss < -tolerance && program.upper[column] > 0.0 {
                near.offer(program, column, loss, MORE);
            }
        }
        let more = near.columns();
        let has_more = !more.is_empty();
        self.show(more);
        has_more
    }

    /// Shows every piece of a curve; returns whether that was anything new.
    pub(crate) fn extend_by_pieces(&mut self, program: &LinearProgram) -> bool {
        let waits = |&column: &usize| !self.is_shown[column] && matches!(wait(program, column), Wait::AtEither);
        let new: Vec<usize> = (0..program.columns()).filter(waits).collect();
        let has_more = !new.is_empty();
        self.show(new);
        has_more
    }

    /// Where a column stays that is not shown; 0 for one that is.
    pub(crate) fn stays_at(&self, program: &LinearProgram, column: usize) -> f64 {
        if self.is_full[column] && !self.is_shown[column] { program.upper[column] } else { 0.0 }
    }

    /// Whether a column was at its upper bound before it was shown.
    pub(crate) fn was_full(&self, column: usize) -> bool {
        self.is_full[column]
    }

    /// What the shown columns have to make of each row, the others being where they stay.
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

/// Where a column may wait until it is shown, so that the program has a point without it if it has
/// one at all.
enum Wait {
    /// What is there already: flows that are bounded; and unbounded slack, which gives every row
    /// its point.
    Never,
    /// Unbounded, and in several rows: a flow that may start.
    AtZero,
    /// Bounded, and in one row: a piece of a curve, empty or full.
    AtEither,
}

fn wait(program: &LinearProgram, column: usize) -> Wait {
    match (program.entries(column).len(), program.upper[column] == f64::INFINITY) {
        (1, false) => Wait::AtEither,
        (2.., true) => Wait::AtZero,
        _ => Wait::Never,
    }
}

/// Whether a piece of a curve is next to one that stands differently: there the load may go at
/// once.
fn is_edge(program: &LinearProgram, start: &Start, column: usize) -> bool {
    let row = |column: usize| program.entries(column)[0].0;
    let differs = |other: usize| row(other) == row(column) && start.columns[other] != start.columns[column];
    (column > 0 && differs(column - 1)) || (column + 1 < program.columns() && differs(column + 1))
}

/// The columns of least distance for each first row.
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
