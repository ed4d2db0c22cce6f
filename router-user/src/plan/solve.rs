//! Linear programs solved by HiGHS: beside `fit/quantile` the only file that names it.
//!
//! Dual simplex on one thread without presolve, on a model that is edited in place between rounds, so that each round starts from the
//! last basis. The status is believed only when it says "no"; a "yes" is checked by the caller (`check`), since a warm start can
//! report a worse point as optimal (ERGO-Code/HiGHS issue 3194).

use std::num::NonZeroU32;

use highs::{Col, HighsModelStatus, HighsSolutionStatus, Model, RowProblem, Sense};
use thiserror::Error;

use super::problem::LinearProgram;

/// Time that all solves of one model may take together. A control plane that misses it keeps the plan it has.
const BUDGET_S: f64 = 20.0;

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolveError {
    #[error("solver refused the program: {reason}")]
    Refused { reason: String },
    #[error("solver stopped with status {status}, wanted an optimal point within {BUDGET_S} s")]
    Stopped { status: String },
}

/// Values of the columns, and cost of one more unit on the right-hand side of each row.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) values: Vec<f64>,
    pub(super) duals: Vec<f64>,
}

/// A program on its way through several rounds.
#[derive(Debug)]
pub(super) struct Solver {
    model: Option<Model>,
    columns: Vec<Col>,
    program: LinearProgram,
}

impl Solver {
    /// Errors: [`SolveError::Refused`] for a program with a number the solver does not take.
    pub(super) fn new(program: LinearProgram) -> Result<Self, SolveError> {
        let mut problem = RowProblem::new();
        let columns: Vec<Col> =
            program.columns.iter().map(|column| problem.add_column(column.cost, 0.0..=column.upper)).collect();
        let mut rows: Vec<Vec<(Col, f64)>> = vec![Vec::new(); program.rhs.len()];
        for (&handle, column) in columns.iter().zip(&program.columns) {
            for &(row, coefficient) in &column.entries {
                rows[row].push((handle, coefficient));
            }
        }
        for (row, &rhs) in rows.into_iter().zip(&program.rhs) {
            problem.add_row(rhs..=rhs, row);
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
        set(&mut model, "time_limit", BUDGET_S)?;
        Ok(Self { model: Some(model), columns, program })
    }

    /// The program as it is now: what a solution has to be checked against.
    pub(super) fn program(&self) -> &LinearProgram {
        &self.program
    }

    /// Replaces costs and bounds by those of `program`, which must have the same shape, and keeps the basis.
    pub(super) fn edit(&mut self, program: LinearProgram) {
        assert_eq!(program.columns.len(), self.columns.len(), "an edit keeps the columns");
        if let Some(model) = &mut self.model {
            for ((&handle, old), new) in self.columns.iter().zip(&self.program.columns).zip(&program.columns) {
                if old.cost != new.cost {
                    model.change_column_cost(handle, new.cost);
                }
                if old.upper != new.upper {
                    model.change_column_bounds(handle, 0.0..=new.upper);
                }
            }
        }
        self.program = program;
    }

    /// Errors: [`SolveError::Stopped`] without an optimal point; the solver then has to be made anew.
    pub(super) fn solve(&mut self) -> Result<Solution, SolveError> {
        let model = self.model.take().ok_or_else(|| SolveError::Refused { reason: "it failed before".to_owned() })?;
        let solved = model.try_solve().map_err(|status| SolveError::Stopped { status: format!("{status:?}") })?;
        // A time-out is no error to HiGHS, and its status alone does not tell whether there is a point: both are asked.
        let (status, primal) = (solved.status(), solved.primal_solution_status());
        if status != HighsModelStatus::Optimal || primal != HighsSolutionStatus::Feasible {
            return Err(SolveError::Stopped { status: format!("{status:?}, {primal:?} point") });
        }
        let solution = solved.get_solution();
        self.model = Some(Model::from(solved));
        Ok(Solution { values: solution.columns().to_vec(), duals: solution.dual_rows().to_vec() })
    }
}

fn set<V: highs::HighsOptionValue>(model: &mut Model, option: &str, value: V) -> Result<(), SolveError> {
    model.try_set_option(option, value).map_err(|error| SolveError::Refused { reason: format!("option {option}: {error}") })
}

#[cfg(test)]
mod tests {
    use super::super::problem::Column;
    use super::*;

    fn column(cost: f64, upper: f64, entries: &[(usize, f64)]) -> Column {
        Column { cost, upper, entries: entries.to_vec() }
    }

    #[test]
    fn duals_are_the_cost_of_one_more_and_edits_keep_the_model() {
        // Ten units, of which the cheap column carries six at most.
        let program = |cheap, upper| LinearProgram {
            columns: vec![column(cheap, upper, &[(0, 1.0)]), column(5.0, 100.0, &[(0, 1.0)])],
            rhs: vec![10.0],
        };
        let mut solver = Solver::new(program(2.0, 6.0)).expect("a model");
        let solution = solver.solve().expect("a solution");
        assert_eq!((solution.values, solution.duals), (vec![6.0, 4.0], vec![5.0]));
        solver.edit(program(2.0, 50.0));
        let solution = solver.solve().expect("a solution");
        assert_eq!((solution.values, solution.duals), (vec![10.0, 0.0], vec![2.0]));
        solver.edit(program(7.0, 50.0));
        let solution = solver.solve().expect("a solution");
        assert_eq!((solution.values, solution.duals), (vec![0.0, 10.0], vec![5.0]));
    }

    #[test]
    fn a_program_without_a_point_is_an_error_and_stays_one() {
        let program = LinearProgram { columns: vec![column(1.0, 3.0, &[(0, 1.0)])], rhs: vec![10.0] };
        let mut solver = Solver::new(program).expect("a model");
        let error = solver.solve().expect_err("3 are not 10");
        assert!(error.to_string().contains("Infeasible"), "{error}");
        assert!(matches!(solver.solve(), Err(SolveError::Refused { .. })));
        let broken = LinearProgram { columns: vec![column(f64::NAN, 3.0, &[(0, 1.0)])], rhs: vec![10.0] };
        assert!(Solver::new(broken).and_then(|mut solver| solver.solve()).is_err());
    }
}
