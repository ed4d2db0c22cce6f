//! Estimates of demand, burstiness and distance from the reports of data planes.

pub(crate) mod arrivals;
pub(crate) mod bursts;
pub mod deadband;
pub(crate) mod demand;
pub(crate) mod dispersion;
pub(crate) mod distances;
pub(crate) mod state;
