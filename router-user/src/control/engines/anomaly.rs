//! Anomalies: measurements that are late, impossible or contradictory, in words for operators.

use serde::{Deserialize, Serialize};

use crate::model::{EngineId, Fleet};

/// A measurement that the plan does not use, or uses with a limit on its effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomaly {
    /// Subject of the measurement, such as `engine e2` or `cluster b`.
    pub subject: String,
    /// Description of the anomaly, and its effect on the plan.
    pub detail: String,
}

/// An anomaly of one engine.
pub(crate) fn anomaly_of(fleet: &Fleet, engine: EngineId, detail: String) -> Anomaly {
    Anomaly { subject: format!("engine {}", fleet.engines[engine.index()].name), detail }
}
