//! Latency profiles from measurements: windows of an engine at known loads become convex curves with a report.
//!
//! ```text
//! SAMPLES.csv -> table -> samples -> units -> fitting -> profile text, plot
//!                                              |-> regression (nnls), quantile (HiGHS), prior, report
//! TABLE.csv   -> table -> iteration -----------^        batch and prompt timings instead of loads
//! ```
//!
//! Everything but `quantile`, which calls a solver, is pure. docs/model.md, section 9, has the mathematics and the limits.

mod fitting;
pub(crate) mod input;
mod iteration;
mod plot;
mod profile_text;
pub(crate) mod regression;
mod report;
mod units;

pub use fitting::{Capacity, CapacitySource, Fit, FitError, FittedCurve, Options, Quantity, fit};
pub use input::recording::{HEADER, Moment, Recorded, Recording, Tokens};
pub use input::samples::{COLUMNS, Dropped, Samples, Window};
pub use input::table::{Column, Mistake, TableErrors};
pub use iteration::{Derived, IterationError, Iterations, Workload, derive};
pub use plot::{Panel, Plot};
pub use profile_text::profile_text;
pub use regression::quantile::QuantileError;
pub use report::{Agreement, BANDS, CurveReport, Refusal, Report};
