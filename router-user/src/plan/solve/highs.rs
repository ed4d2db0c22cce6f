//! Linear programs solved by HiGHS. Only this file and `fit/quantile` name it.
//!
//! The primal simplex method runs on one thread without presolve, from a feasible basis
//! (`warm_start`), on the columns that may pay (`columns`). After a new column or a refined curve
//! it needs a few steps; the dual simplex method needs dual feasibility and would start anew. A
//! status that reports failure is believed. The caller checks every reported optimum
//! (`verify::certificate`), since a warm start can report a worse point as optimal (ERGO-Code/HiGHS
//! issue 3194). After a failure the whole program is solved once more, cold, by the dual simplex
//! method.

use std::num::NonZeroU32;

use highs::{ColProblem, HighsModelStatus, HighsSolutionStatus, Model, Sense};
use highs_sys as sys;
use thiserror::Error;

use crate::plan::problem::lp::LinearProgram;
use crate::plan::solve::columns::Selection;
use crate::plan::solve::warm_start::{BasisStatus, Start};

/// Tolerance of pricing: a hidden column enters only if its reduced cost pays more than this
/// fraction of the largest price. It is a tenth of the certificate's tolerance, so the certificate
/// accepts the columns that stay hidden.
const PRICE_TOLERANCE: f64 = 1e-7;

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolveError {
    #[error("solver refused the program: {reason}")]
    Refused { reason: String },
    #[error("solver stopped with status {status}, wanted an optimal point within {budget_s} s")]
    Stopped { status: String, budget_s: f64 },
}

/// Primal values of the columns, and duals of the rows: the cost of one more unit on each
/// right-hand side.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    pub(crate) values: Vec<f64>,
    pub(crate) duals: Vec<f64>,
}

/// A program that is solved, edited and solved again over several rounds.
#[derive(Debug)]
pub(crate) struct Solver {
    model: Option<Model>,
    program: LinearProgram,
    selection: Selection,
    budget_s: f64,
}

impl Solver {
    /// `budget_s` is the time that all solves of the model may take together.
    ///
    /// Errors: [`SolveError::Refused`] for a program with a number the solver does not take.
    pub(crate) fn new(program: LinearProgram, start: &Start, budget_s: f64) -> Result<Self, SolveError> {
        let selection = Selection::first(&program, start);
        let mut solver = Self::with(program, selection, budget_s)?;
        solver.start_from(&start.columns, &start.rows);
        Ok(solver)
    }

    /// A solver for the whole program: all columns, no initial basis, dual simplex.
    pub(crate) fn whole(program: LinearProgram, budget_s: f64) -> Result<Self, SolveError> {
        let selection = Selection::all(&program);
        let mut solver = Self::with(program, selection, budget_s)?;
        if let Some(model) = &mut solver.model {
            set(model, "simplex_strategy", DUAL)?;
        }
        Ok(solver)
    }

    fn with(program: LinearProgram, selection: Selection, budget_s: f64) -> Result<Self, SolveError> {
        let mut problem = ColProblem::new();
        let rhs = selection.rhs(&program).into_iter().map(|rhs| rhs / program.unit);
        let rows: Vec<_> = rhs.map(|rhs| problem.add_row(rhs..=rhs)).collect();
        for &column in selection.shown() {
            let entries = program.entries(column).iter().map(|&(row, coefficient)| (rows[row], coefficient));
            problem.add_column(program.cost[column], 0.0..=program.upper[column] / program.unit, entries);
        }
        let mut model = problem
            .try_optimise(Sense::Minimise)
            .map_err(|status| SolveError::Refused { reason: format!("{status:?} while it was loaded") })?;
        model.make_quiet();
        model.set_threads(NonZeroU32::MIN);
        for (option, value) in [("presolve", "off"), ("parallel", "off"), ("solver", "simplex")] {
            set(&mut model, option, value)?;
        }
        set(&mut model, "simplex_strategy", PRIMAL)?;
        set(&mut model, "time_limit", budget_s)?;
        Ok(Self { model: Some(model), program, selection, budget_s })
    }

    /// The current program, against which the caller checks a solution.
    pub(crate) fn program(&self) -> &LinearProgram {
        &self.program
    }

    /// Replaces costs, bounds and right-hand sides by those of `program`, which must have the same
    /// shape. The next solve starts from `start`, or else from the last basis.
    ///
    /// Errors: [`SolveError::Refused`] for a number the solver does not take.
    pub(crate) fn edit(&mut self, program: LinearProgram, start: Option<&Start>) -> Result<(), SolveError> {
        assert!(self.program.has_shape_of(&program), "an edit keeps rows and columns");
        self.program = program;
        let known = self.selection.shown().len();
        if let Some(start) = start {
            self.selection.restart(&self.program, start);
        }
        let Some(model) = &mut self.model else { return Ok(()) };
        let (highs, shown) = (model.as_mut_ptr(), &self.selection.shown()[..known]);
        let mut statuses = Vec::new();
        if !shown.is_empty() {
            let last = shown.len() as sys::HighsInt - 1; // bounded by the fleet
            let cost: Vec<f64> = shown.iter().map(|&column| self.program.cost[column]).collect();
            let upper: Vec<f64> = shown.iter().map(|&column| self.program.upper[column] / self.program.unit).collect();
            let lower = vec![0.0; shown.len()];
            // SAFETY: `highs` is the live instance that `model` owns, used by this thread alone;
            // the range is all of its columns, and the array has one finite or infinite number for
            // each. The same holds for the next call.
            statuses.push(unsafe { sys::Highs_changeColsCostByRange(highs, 0, last, cost.as_ptr()) });
            // SAFETY: as above.
            statuses.push(unsafe { sys::Highs_changeColsBoundsByRange(highs, 0, last, lower.as_ptr(), upper.as_ptr()) });
        }
        // A warning means rounded numbers; the check of the solution finds them if they matter.
        if statuses.contains(&sys::STATUS_ERROR) {
            self.model = None;
            return Err(SolveError::Refused { reason: "an edited number".to_owned() });
        }
        self.show(known)?;
        if let Some(start) = start {
            self.start_from(&start.columns, &start.rows);
        }
        Ok(())
    }

    /// Sets the basis from which the next solve starts: one status per column and per row of the
    /// program.
    ///
    /// The solver repairs a singular basis. If it rejects the basis, the next solve starts
    /// elsewhere, which costs time only.
    fn start_from(&mut self, columns: &[BasisStatus], rows: &[BasisStatus]) {
        let Some(model) = &mut self.model else { return };
        let columns: Vec<sys::HighsInt> = self.selection.shown().iter().map(|&column| status(columns[column])).collect();
        let rows: Vec<sys::HighsInt> = rows.iter().map(|&row| status(row)).collect();
        // SAFETY: the instance is live and owned by `model`; both arrays have one entry per column
        // and per row.
        unsafe { sys::Highs_setBasis(model.as_mut_ptr(), columns.as_ptr(), rows.as_ptr()) };
    }

    /// The basis after the last solve, as statuses of all columns and rows; `None` if there is
    /// none.
    pub(crate) fn basis(&self) -> Option<(Vec<BasisStatus>, Vec<BasisStatus>)> {
        let model = self.model.as_ref()?;
        let shown = self.selection.shown();
        let stays = |column: usize| if self.selection.was_full(column) { BasisStatus::Upper } else { BasisStatus::Lower };
        // Columns that are selected but not yet in the model keep the status of their fixed bound.
        let mut of_columns: Vec<sys::HighsInt> = shown.iter().map(|&column| status(stays(column))).collect();
        let mut of_rows = vec![AT_LOWER; self.program.rhs.len()];
        // SAFETY: the instance is live and owned by `model`; the call writes one status for each of
        // its columns, of which there are at most as many as are shown, and of its rows.
        let result = unsafe { sys::Highs_getBasis(model.as_ptr(), of_columns.as_mut_ptr(), of_rows.as_mut_ptr()) };
        let status_of = |status: sys::HighsInt| match status {
            BASIC => BasisStatus::Basic,
            AT_UPPER => BasisStatus::Upper,
            _ => BasisStatus::Lower,
        };
        let mut columns: Vec<BasisStatus> = (0..self.program.columns()).map(stays).collect();
        for (&column, status) in shown.iter().zip(of_columns) {
            columns[column] = status_of(status);
        }
        (result != sys::STATUS_ERROR).then(|| (columns, of_rows.into_iter().map(status_of).collect()))
    }

    /// Solves on the selected columns, and adds columns until no other column would pay.
    ///
    /// Errors: [`SolveError::Stopped`] without an optimal point; the solver then has to be made
    /// anew.
    pub(crate) fn solve(&mut self) -> Result<Solution, SolveError> {
        loop {
            let found = self.solve_shown();
            let known = self.selection.shown().len();
            let has_more = match &found {
                Ok((_, prices)) => {
                    let largest = prices.iter().fold(1.0_f64, |most, price| most.max(price.abs()));
                    self.selection.extend(&self.program, prices, PRICE_TOLERANCE * largest)
                }
                // A hidden segment may be the reason for the infeasibility.
                Err(_) => self.selection.extend_by_pieces(&self.program),
            };
            if !has_more {
                let (values, duals) = found?;
                let stays = |column| self.selection.stays_at(&self.program, column);
                let mut whole: Vec<f64> = (0..self.program.columns()).map(stays).collect();
                for (&column, value) in self.selection.shown().iter().zip(values) {
                    whole[column] = value * self.program.unit;
                }
                return Ok(Solution { values: whole, duals });
            }
            let basis = self.basis();
            self.show(known)?;
            if let Some((columns, rows)) = basis {
                self.start_from(&columns, &rows);
            }
        }
    }

    /// Values of the selected columns, in units of the program, and duals of the rows.
    fn solve_shown(&mut self) -> Result<(Vec<f64>, Vec<f64>), SolveError> {
        let stopped = |status| SolveError::Stopped { status, budget_s: self.budget_s };
        let model = self.model.take().ok_or_else(|| SolveError::Refused { reason: "it failed before".to_owned() })?;
        let solved = model.try_solve().map_err(|status| stopped(format!("{status:?}")))?;
        // HiGHS reports a time-out without an error, and its model status alone does not tell
        // whether the point is feasible. So both statuses are read.
        let (status, primal) = (solved.status(), solved.primal_solution_status());
        let solution = solved.get_solution();
        if status == HighsModelStatus::Optimal && primal == HighsSolutionStatus::Feasible {
            self.model = Some(Model::from(solved));
            return Ok((solution.columns().to_vec(), solution.dual_rows().to_vec()));
        }
        if status == HighsModelStatus::Infeasible {
            self.model = Some(Model::from(solved));
        }
        Err(stopped(format!("{status:?}, {primal:?} point")))
    }

    /// Adds the selected columns from index `known` on to the model, and updates the right-hand
    /// sides for the columns that stay hidden.
    fn show(&mut self, known: usize) -> Result<(), SolveError> {
        let Some(model) = &mut self.model else { return Ok(()) };
        let new = &self.selection.shown()[known..];
        let cost: Vec<f64> = new.iter().map(|&column| self.program.cost[column]).collect();
        let upper: Vec<f64> = new.iter().map(|&column| self.program.upper[column] / self.program.unit).collect();
        let lower = vec![0.0; new.len()];
        let (mut starts, mut rows, mut coefficients) = (Vec::new(), Vec::new(), Vec::new());
        for &column in new {
            starts.push(rows.len() as sys::HighsInt);
            for &(row, coefficient) in self.program.entries(column) {
                rows.push(row as sys::HighsInt);
                coefficients.push(coefficient);
            }
        }
        let (highs, columns, entries) = (model.as_mut_ptr(), new.len() as sys::HighsInt, rows.len() as sys::HighsInt);
        let mut statuses = Vec::new();
        if columns > 0 {
            // SAFETY: the instance is live and owned by `model`; the arrays have the lengths that
            // are given beside them, starts grow and lie within the entries, and rows are rows of
            // the model.
            statuses.push(unsafe {
                sys::Highs_addCols(
                    highs,
                    columns,
                    cost.as_ptr(),
                    lower.as_ptr(),
                    upper.as_ptr(),
                    entries,
                    starts.as_ptr(),
                    rows.as_ptr(),
                    coefficients.as_ptr(),
                )
            });
        }
        let rhs: Vec<f64> = self.selection.rhs(&self.program).into_iter().map(|rhs| rhs / self.program.unit).collect();
        if !rhs.is_empty() {
            let last = rhs.len() as sys::HighsInt - 1;
            // SAFETY: the instance is live and unshared as above; the range is all of its rows,
            // each with a number in the array.
            statuses.push(unsafe { sys::Highs_changeRowsBoundsByRange(highs, 0, last, rhs.as_ptr(), rhs.as_ptr()) });
        }
        if statuses.contains(&sys::STATUS_ERROR) {
            self.model = None;
            return Err(SolveError::Refused { reason: "a number of a column or row".to_owned() });
        }
        Ok(())
    }
}

/// Values of the HiGHS option `simplex_strategy`.
const DUAL: i32 = 1;
const PRIMAL: i32 = 4;

/// Values of `HighsBasisStatus` in the C interface of HiGHS.
const AT_LOWER: sys::HighsInt = 0;
const BASIC: sys::HighsInt = 1;
const AT_UPPER: sys::HighsInt = 2;

fn status(of: BasisStatus) -> sys::HighsInt {
    match of {
        BasisStatus::Lower => AT_LOWER,
        BasisStatus::Basic => BASIC,
        BasisStatus::Upper => AT_UPPER,
    }
}

fn set<V: highs::HighsOptionValue>(model: &mut Model, option: &str, value: V) -> Result<(), SolveError> {
    model.try_set_option(option, value).map_err(|error| SolveError::Refused { reason: format!("option {option}: {error}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(costs: [f64; 2], upper: [f64; 2], rhs: f64) -> LinearProgram {
        let mut program = LinearProgram::default();
        program.rhs = vec![rhs];
        costs.iter().zip(upper).for_each(|(&cost, upper)| program.push(cost, upper, &[(0, 1.0)]));
        program
    }

    #[test]
    fn duals_are_the_cost_of_one_more_and_edits_keep_the_model() {
        // Ten units, of which the cheap column carries six at most.
        let mut solver = Solver::whole(program([2.0, 5.0], [6.0, 100.0], 10.0), 10.0).expect("a model");
        let solution = solver.solve().expect("a solution");
        assert_eq!((solution.values, solution.duals), (vec![6.0, 4.0], vec![5.0]));
        let mut edited = |costs, upper, rhs| {
            solver.edit(program(costs, upper, rhs), None).expect("numbers");
            let solution = solver.solve().expect("a solution");
            (solution.values, solution.duals)
        };
        assert_eq!(edited([2.0, 5.0], [50.0, 100.0], 10.0), (vec![10.0, 0.0], vec![2.0]));
        assert_eq!(edited([7.0, 5.0], [50.0, 100.0], 10.0), (vec![0.0, 10.0], vec![5.0]));
        assert_eq!(edited([7.0, 5.0], [50.0, 100.0], 12.0), (vec![0.0, 12.0], vec![5.0]), "another demand");
    }

    #[test]
    fn a_program_without_a_point_is_an_error_and_stays_one() {
        let mut solver = Solver::whole(program([1.0, 1.0], [3.0, 3.0], 10.0), 10.0).expect("a model");
        let error = solver.solve().expect_err("6 are not 10");
        assert!(error.to_string().contains("Infeasible"), "{error}");
        assert!(solver.solve().is_err());
    }
}
