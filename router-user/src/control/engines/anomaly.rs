//! What is wrong with a measurement, in words.

use serde::{Deserialize, Serialize};

use crate::model::{EngineId, Fleet};

/// Something that was measured and is not believed, or believed with a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomaly {
    /// What it is about, such as `engine e2` or `cluster b`.
    pub subject: String,
    /// What is wrong with it, and what the plan makes of it.
    pub finding: String,
}

/// An anomaly of one engine.
pub(crate) fn anomaly_of(fleet: &Fleet, engine: EngineId, finding: String) -> Anomaly {
    Anomaly { subject: format!("engine {}", fleet.engines[engine.index()].name), finding }
}
