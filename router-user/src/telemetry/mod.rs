//! Logs and metrics as text.

mod exposition;
mod logs;

pub use exposition::{CONTENT_TYPE, Exposition, Family, Kind, Samples};
pub use logs::start_logs;
