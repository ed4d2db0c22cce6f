//! Linear programs solved by HiGHS: beside `fit/quantile` the only file that names it.
//!
//! Dual simplex on one thread without presolve, on a model that is edited in place between rounds, so that each round starts from the
//! last basis; a new model starts from the basis of an older one where their parts are the same. The status is believed only when it
//! says "no"; a "yes" is checked by the caller (`check`), since a warm start can report a worse point as optimal (ERGO-Code/HiGHS
//! issue 3194).

use std::collections::HashMap;
use std::num::NonZeroU32;

use highs::{ColProblem, HighsModelStatus, HighsSolutionStatus, Model, Sense};
use highs_sys as sys;
use thiserror::Error;

use super::linear::{LinearProgram, Part};

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolveError {
    #[error("solver refused the program: {reason}")]
    Refused { reason: String },
    #[error("solver stopped with status {status}, wanted an optimal point within {budget_s} s")]
    Stopped { status: String, budget_s: f64 },
}

/// Values of the columns, and cost of one more unit on the right-hand side of each row.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) values: Vec<f64>,
    pub(super) duals: Vec<f64>,
}

/// Where a solve ended: what is basic or at an upper bound, by what it stands for. Everything else is at its lower bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Basis(HashMap<Part, sys::HighsInt>);

impl Basis {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// A program on its way through several rounds.
#[derive(Debug)]
pub(super) struct Solver {
    model: Option<Model>,
    program: LinearProgram,
    budget_s: f64,
}

impl Solver {
    /// `budget_s` is the time that all solves of the model may take together.
    ///
    /// Errors: [`SolveError::Refused`] for a program with a number the solver does not take.
    pub(super) fn new(program: LinearProgram, budget_s: f64) -> Result<Self, SolveError> {
        let mut problem = ColProblem::new();
        let rows: Vec<_> = program.rhs.iter().map(|&rhs| problem.add_row(rhs..=rhs)).collect();
        for column in 0..program.columns() {
            let entries = program.entries(column).iter().map(|&(row, coefficient)| (rows[row], coefficient));
            problem.add_column(program.cost[column], 0.0..=program.upper[column], entries);
        }
        let mut model = problem
            .try_optimise(Sense::Minimise)
            .map_err(|status| SolveError::Refused { reason: format!("{status:?} while it was loaded") })?;
        model.make_quiet();
        model.set_threads(NonZeroU32::MIN);
        for (option, value) in [("presolve", "off"), ("parallel", "off"), ("solver", "simplex")] {
            set(&mut model, option, value)?;
        }
        set(&mut model, "simplex_strategy", 1)?; // serial dual simplex
        set(&mut model, "time_limit", budget_s)?;
        Ok(Self { model: Some(model), program, budget_s })
    }

    /// The program as it is now: what a solution has to be checked against.
    pub(super) fn program(&self) -> &LinearProgram {
        &self.program
    }

    /// Replaces costs, bounds and right-hand sides by those of `program`, which must have the same shape, and keeps the basis.
    ///
    /// Errors: [`SolveError::Refused`] for a number the solver does not take.
    pub(super) fn edit(&mut self, program: LinearProgram) -> Result<(), SolveError> {
        assert!(self.program.has_shape_of(&program), "an edit keeps rows and columns");
        if let Some(model) = &mut self.model {
            let highs = model.as_mut_ptr();
            let last = |count: usize| count as sys::HighsInt - 1; // bounded by the fleet
            let lower = vec![0.0; program.columns()];
            let mut statuses = Vec::new();
            if program.columns() > 0 {
                let columns = last(program.columns());
                if program.cost != self.program.cost {
                    // SAFETY: `highs` is the live instance that `model` owns, used by this thread alone; the range is all of its
                    // columns, and the array has one finite or infinite number for each. The same holds for the next call.
                    statuses.push(unsafe { sys::Highs_changeColsCostByRange(highs, 0, columns, program.cost.as_ptr()) });
                }
                if program.upper != self.program.upper {
                    let upper = program.upper.as_ptr();
                    // SAFETY: as above.
                    statuses.push(unsafe { sys::Highs_changeColsBoundsByRange(highs, 0, columns, lower.as_ptr(), upper) });
                }
            }
            for (row, (&new, &old)) in program.rhs.iter().zip(&self.program.rhs).enumerate() {
                if new != old {
                    // SAFETY: the instance is live and unshared as above, and has a row for each right-hand side.
                    statuses.push(unsafe { sys::Highs_changeRowBounds(highs, row as sys::HighsInt, new, new) });
                }
            }
            // A warning is about numbers that it rounds, which `check` would find if it mattered.
            if statuses.contains(&sys::STATUS_ERROR) {
                self.model = None;
                return Err(SolveError::Refused { reason: "an edited number".to_owned() });
            }
        }
        self.program = program;
        Ok(())
    }

    /// Starts the next solve from `basis` as far as it knows the parts, in the order of columns and rows of the program.
    ///
    /// The solver repairs what does not make a basis; a start it cannot use is no start, and costs nothing but time.
    pub(super) fn start_from(&mut self, basis: &Basis, (columns, rows): &(Vec<Part>, Vec<Part>)) {
        let Some(model) = &mut self.model else { return };
        assert!(columns.len() == self.program.columns() && rows.len() == self.program.rhs.len(), "one part each");
        let status = |part: &Part| basis.0.get(part).copied();
        let column_status: Vec<sys::HighsInt> = (columns.iter().zip(&self.program.upper))
            .map(|(part, &upper)| match status(part) {
                Some(AT_UPPER) if upper == f64::INFINITY => AT_LOWER,
                status => status.unwrap_or(AT_LOWER),
            })
            .collect();
        // A row that is new enters with its own logical, which is always a basis for it.
        let row_status: Vec<sys::HighsInt> = rows.iter().map(|part| status(part).unwrap_or(BASIC)).collect();
        // SAFETY: the instance is live and owned by `model`; both arrays have one entry per column and per row.
        unsafe { sys::Highs_setBasis(model.as_mut_ptr(), column_status.as_ptr(), row_status.as_ptr()) };
    }

    /// Where the last solve ended; `None` if there was none.
    pub(super) fn basis(&self, (columns, rows): &(Vec<Part>, Vec<Part>)) -> Option<Basis> {
        let model = self.model.as_ref()?;
        assert!(columns.len() == self.program.columns() && rows.len() == self.program.rhs.len(), "one part each");
        let (mut of_columns, mut of_rows) = (vec![AT_LOWER; columns.len()], vec![AT_LOWER; rows.len()]);
        // SAFETY: the instance is live and owned by `model`; the call writes one status per column and per row.
        let status = unsafe { sys::Highs_getBasis(model.as_ptr(), of_columns.as_mut_ptr(), of_rows.as_mut_ptr()) };
        let parts = columns.iter().zip(of_columns).filter(|&(_, status)| status != AT_LOWER);
        let rows = rows.iter().zip(of_rows);
        (status != sys::STATUS_ERROR).then(|| Basis(parts.chain(rows).map(|(&part, status)| (part, status)).collect()))
    }

    /// Errors: [`SolveError::Stopped`] without an optimal point; the solver then has to be made anew.
    pub(super) fn solve(&mut self) -> Result<Solution, SolveError> {
        let stopped = |status| SolveError::Stopped { status, budget_s: self.budget_s };
        let model = self.model.take().ok_or_else(|| SolveError::Refused { reason: "it failed before".to_owned() })?;
        let solved = model.try_solve().map_err(|status| stopped(format!("{status:?}")))?;
        // A time-out is no error to HiGHS, and its status alone does not tell whether there is a point: both are asked.
        let (status, primal) = (solved.status(), solved.primal_solution_status());
        if status != HighsModelStatus::Optimal || primal != HighsSolutionStatus::Feasible {
            return Err(stopped(format!("{status:?}, {primal:?} point")));
        }
        let solution = solved.get_solution();
        self.model = Some(Model::from(solved));
        Ok(Solution { values: solution.columns().to_vec(), duals: solution.dual_rows().to_vec() })
    }
}

const AT_LOWER: sys::HighsInt = 0;
const BASIC: sys::HighsInt = 1;
const AT_UPPER: sys::HighsInt = 2;

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
        let mut solver = Solver::new(program([2.0, 5.0], [6.0, 100.0], 10.0), 10.0).expect("a model");
        let solution = solver.solve().expect("a solution");
        assert_eq!((solution.values, solution.duals), (vec![6.0, 4.0], vec![5.0]));
        let mut edited = |costs, upper, rhs| {
            solver.edit(program(costs, upper, rhs)).expect("numbers");
            let solution = solver.solve().expect("a solution");
            (solution.values, solution.duals)
        };
        assert_eq!(edited([2.0, 5.0], [50.0, 100.0], 10.0), (vec![10.0, 0.0], vec![2.0]));
        assert_eq!(edited([7.0, 5.0], [50.0, 100.0], 10.0), (vec![0.0, 10.0], vec![5.0]));
        assert_eq!(edited([7.0, 5.0], [50.0, 100.0], 12.0), (vec![0.0, 12.0], vec![5.0]), "another demand");
    }

    #[test]
    fn a_basis_starts_another_model_even_if_it_fits_in_part() {
        let parts = (vec![Part::Arc(0, 0, 0), Part::Arc(0, 0, 1)], vec![Part::DemandRow(0, 0)]);
        let mut solver = Solver::new(program([2.0, 5.0], [6.0, f64::INFINITY], 10.0), 10.0).expect("a model");
        let first = solver.solve().expect("a solution").values;
        let basis = solver.basis(&parts).expect("a basis");
        assert_eq!([&parts.0[0], &parts.0[1]].map(|part| basis.0[part]), [AT_UPPER, BASIC]);
        assert_ne!(basis.0[&parts.1[0]], BASIC);
        let others = (vec![Part::Arc(0, 0, 1), Part::Arc(0, 0, 9)], vec![Part::DemandRow(0, 1)]);
        for (parts, wanted) in [(&parts, first), (&others, vec![6.0, 4.0])] {
            let mut next = Solver::new(program([2.0, 5.0], [6.0, f64::INFINITY], 10.0), 10.0).expect("a model");
            next.start_from(&basis, parts);
            assert_eq!(next.solve().expect("a solution").values, wanted);
        }
    }

    #[test]
    fn a_program_without_a_point_is_an_error_and_stays_one() {
        let mut solver = Solver::new(program([1.0, 1.0], [3.0, 3.0], 10.0), 10.0).expect("a model");
        let error = solver.solve().expect_err("6 are not 10");
        assert!(error.to_string().contains("Infeasible"), "{error}");
        assert!(matches!(solver.solve(), Err(SolveError::Refused { .. })));
    }
}
