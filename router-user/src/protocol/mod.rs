//! What controllers and data planes of other processes say to each other: reports, paths and
//! limits, each in one place for both ends.
//!
//! [`report`] is what a data plane tells a controller. [`endpoint`] is how a data plane asks one
//! for snapshots over HTTP: paths, the entity tag, and how long either side waits.

pub(crate) mod endpoint;
pub mod report;

pub use endpoint::LONG_POLL;
pub use report::{DemandReport, EngineReport};
