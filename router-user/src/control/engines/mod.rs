//! Judgements of engines: health probes, outlier detection, stalls and drift from the profile.

pub(crate) mod anomaly;
pub(crate) mod drift;
pub(crate) mod health;
pub(crate) mod outliers;
pub(crate) mod safeguards;
pub(crate) mod stall;
