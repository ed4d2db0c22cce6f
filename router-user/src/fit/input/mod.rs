//! Measured windows: tables as files, windows as samples, recordings of a running fleet.

pub(crate) mod recording;
pub(crate) mod samples;
pub(crate) mod table;
