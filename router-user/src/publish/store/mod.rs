//! Where snapshots live between the controller and the data planes.
//!
//! [`DirStore`] keeps them on disk: the controller's own memory across restarts, and a data plane's when the controller is gone.
//! [`HttpSource`] waits for the next one at the controller's endpoint.

mod dir;
mod http;

pub(crate) use dir::write_whole;
pub use dir::{DirStore, StoreError};
pub use http::{DemandReport, HttpSource, LONG_POLL, SourceError};
