//! Latency profiles from measurements: windows of an engine at known loads become convex curves
//! with a report.
//!
//! ```text
//! a running fleet -> recording -> SAMPLES.csv
//! SAMPLES.csv -> input -> units -> fitting -> report, profile_text, plot
//!                                     |-> regression: convex (nnls), quantile (HiGHS), prior
//! TABLE.csv   -> input -> iteration --^    timings of batches and prompts in place of loads
//! ```
//!
//! `types` has the words that these share. Everything is pure but `regression::quantile`, which
//! calls a solver. docs/model.md, section 9, has the mathematics and the limits.

mod fitting;
pub(crate) mod input;
mod iteration;
mod plot;
mod profile_text;
pub(crate) mod regression;
mod report;
mod types;
mod units;

pub use fitting::{Fit, FitError, FittedCurve, Options, fit};
pub use input::recording::{HEADER, Moment, Recorded, Recording, Tokens};
pub use input::samples::{COLUMNS, Dropped, Samples, Window};
pub use input::table::{Column, Mistake, TableErrors};
pub use iteration::{Derived, IterationError, Iterations, Workload, derive};
pub use plot::{Panel, Plot};
pub use profile_text::profile_text;
pub use regression::quantile::QuantileError;
pub use report::{Agreement, CurveReport, Refusal, Report};
pub use types::{BANDS, Capacity, CapacitySource, Quantity};
