//! Measurements: [`recording`] makes windows of a running fleet's counters, [`table`] reads CSV and
//! names every mistake, [`samples`] makes windows of its rows and says which of them show a steady
//! state.

pub(crate) mod recording;
pub(crate) mod samples;
pub(crate) mod table;
