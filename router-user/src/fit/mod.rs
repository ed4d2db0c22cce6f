//! Latency profiles from measurements: windows of an engine at known loads become convex curves with a report.
//!
//! ```text
//! SAMPLES.csv -> table -> samples -> fitting -> profile text, plot
//!                                     |-> regression (nnls), quantile (HiGHS), prior, report
//! TABLE.csv   -> table -> iteration --^        batch and prompt timings instead of loads
//! ```
//!
//! Everything but `quantile`, which calls a solver, is pure. docs/model.md, section 9, has the mathematics and the limits.

mod fitting;
mod iteration;
mod nnls;
mod plot;
mod prior;
mod profile_text;
mod quantile;
mod recording;
mod regression;
mod report;
mod samples;
mod table;

pub use fitting::{Capacity, CapacitySource, Fit, FitError, FittedCurve, Options, Quantity, fit};
pub use iteration::{Derived, IterationError, Iterations, Workload, derive};
pub use plot::{Panel, Plot};
pub use profile_text::profile_text;
pub use quantile::QuantileError;
pub use recording::{HEADER, Moment, Recorded, Recording};
pub use report::{Agreement, BANDS, CurveReport, Refusal, Report};
pub use samples::{COLUMNS, Dropped, Samples, Window};
pub use table::{Column, Mistake, TableErrors};
