//! Judgement of engines: health probes, outlier detection, stall and drift detection, and the
//! safeguards that limit the load of doubtful engines.

pub(crate) mod anomaly;
pub(crate) mod drift;
pub(crate) mod health;
pub(crate) mod outliers;
pub(crate) mod safeguards;
pub(crate) mod stall;
