//! Logs and metrics as text.

mod exposition;
mod log_limit;
mod logs;

pub use exposition::{CONTENT_TYPE, Exposition, Family, Kind, Samples};
pub use log_limit::LogLimit;
pub(crate) use log_limit::limited;
pub use logs::start_logs;
