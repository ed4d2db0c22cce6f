//! The state of the controller, as views show it.

use serde::{Deserialize, Serialize};

use crate::control::engines::anomaly::Anomaly;
use crate::control::estimate::state::{ClusterDemand, EngineHealth};
use crate::plan::decide::regions::RegionLoss;
use crate::plan::{Inputs, Plan};
use crate::publish::Generation;

/// The state of the controller, for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// The reason for which this controller is a standby; `None` while it leads.
    #[serde(default)]
    pub standby_reason: Option<String>,
    /// Plans made since the start, and those that were published.
    pub plans: u64,
    pub published: u64,
    /// Plans that failed; the previous weights stayed each time.
    pub failures: u64,
    /// Why the last plan was published, kept back, or failed.
    pub last_decision: String,
    pub last_plan_ms: f64,
    /// Expected mean latency under the present weights and inputs, in ms.
    pub expected_ms: f64,
    /// The region check of the current weights, as of their publication.
    #[serde(default)]
    pub regions: Vec<RegionLoss>,
    pub clusters: Vec<ClusterDemand>,
    pub engines: Vec<EngineHealth>,
    /// The trial that a new plan is on in the canary's cluster.
    #[serde(default)]
    pub trial: Option<String>,
    /// Measurements that are not believed as they came.
    #[serde(default)]
    pub anomalies: Vec<Anomaly>,
}

/// The current plan and its inputs.
#[derive(Clone, Debug)]
pub struct Explained {
    pub generation: Generation,
    pub inputs: Inputs,
    pub plan: Plan,
}
