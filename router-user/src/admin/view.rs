//! The views of a running ilb, as plain data; `--json` prints exactly this JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::control::ControlStatus;
use crate::plan::explain::weights::Explanation;
use crate::policy::outlier::{EngineState, Evidence};
use crate::probe::EngineSignals;
use crate::publish::Generation;
use crate::publish::history::Moves;
use crate::publish::snapshot::{EngineOrder, Status};

/// `ilb status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusView {
    pub version: String,
    pub uptime_s: f64,
    /// `yes`, or `no` and the reason, as `/readyz` says it.
    #[serde(default)]
    pub ready: String,
    /// Of the snapshot in use; `None` before the first one.
    pub generation: Option<Generation>,
    pub snapshot_age_s: Option<f64>,
    pub status: Option<Status>,
    pub objective_ms: Option<f64>,
    pub control: Option<ControlStatus>,
    pub proxy: Option<ProxyView>,
    /// The kernel plane's status, as `ilb kernel status --json` prints it.
    pub kernel: Option<serde_json::Value>,
    /// Why there is no kernel plane although it is enabled.
    pub kernel_error: Option<String>,
}

/// One data plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProxyView {
    pub cluster: String,
    pub listen: Vec<SocketAddr>,
    /// The IO driver in use.
    pub io: String,
    /// Requests by how they ended; each is counted once.
    pub outcomes: Vec<(String, u64)>,
    /// Requests sent to an engine once more, by reason.
    pub retries: Vec<(String, u64)>,
    /// Requests that wait because no engine has room for them, by priority.
    #[serde(default)]
    pub waiting: Vec<usize>,
    /// Engines that are full, each with the most requests that may wait there for their first
    /// token.
    #[serde(default)]
    pub full_engines: Vec<(String, usize)>,
    /// Last failure to reach the controller, while it lasts.
    pub controller_error: Option<String>,
    /// A snapshot that was not addressed to this cluster, if it is newer than the one in use.
    pub not_addressed: Option<Generation>,
    /// Engines that cannot be reached from here and whose failover weights are in use.
    pub failover: Vec<String>,
    /// Share of the plan that still counts, 0 to 1: below 1 once the controller has been silent for
    /// `store.stale_after`.
    pub plan_share: f64,
}

/// The request of `ilb explain` to a running ilb: everything, or only the named cluster, class and
/// engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExplainQuery {
    pub cluster: Option<String>,
    pub class: Option<String>,
    pub engine: Option<String>,
}

/// `ilb explain` without a file: the current plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainView {
    pub generation: Generation,
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// `ilb engines`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnginesView(pub Vec<EngineView>);

/// One engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineView {
    pub engine: String,
    pub region: String,
    pub address: SocketAddr,
    /// Its profile; `None` without a controller in this process.
    pub profile: Option<String>,
    /// Load that it may be given, in requests/s. A controller in this process tells capacity, load,
    /// utilisation and latency of the present; without one they are those of the snapshot.
    pub capacity_rps: f64,
    /// Load under the weights in use.
    pub load_rps: f64,
    pub utilisation: f64,
    /// Expected time in the engine at that load.
    pub latency_ms: f64,
    pub price_ms: f64,
    /// The controller's verdict; `None` without one in this process.
    pub ready: Option<bool>,
    /// Replicas that are planned with, and what the engine said last, by its own account; `None`
    /// without one.
    pub ready_replicas: Option<u32>,
    pub signals: Option<EngineSignals>,
    /// When it said so, since the control plane's start.
    pub signals_at_s: Option<f64>,
    /// Why the last attempt to ask the engine failed.
    pub signals_error: Option<String>,
    /// An operator's last word on it.
    #[serde(default)]
    pub order: Option<EngineOrder>,
    /// Seen by this process's data plane; `None` without one.
    pub live: Option<LiveEngine>,
}

/// One engine as one data plane sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveEngine {
    pub in_flight: u64,
    pub picks: u64,
    pub failures: u64,
    /// Mean over all its requests since the start.
    pub ttft_ms: Option<f64>,
    /// Between two events of an event stream (TBOT, also called ITL or TPOT).
    #[serde(default)]
    pub itl_ms: Option<f64>,
    /// End to end.
    pub latency_ms: Option<f64>,
    /// Whether it is picked.
    pub available: bool,
    /// What the data plane thinks of it: the state, the factor on its share of requests (0 to 1),
    /// and why it has less than its share.
    #[serde(default)]
    pub state: EngineState,
    #[serde(default = "whole")]
    pub multiplier: f64,
    #[serde(default)]
    pub reason: Option<Evidence>,
    /// The sums and counts of answers behind those means.
    #[serde(default)]
    pub ttft_ms_sum: f64,
    #[serde(default)]
    pub ttft_count: u64,
    #[serde(default)]
    pub itl_ms_sum: f64,
    #[serde(default)]
    pub itl_count: u64,
    #[serde(default)]
    pub latency_ms_sum: f64,
    #[serde(default)]
    pub latency_count: u64,
    /// Events of event streams.
    #[serde(default)]
    pub events: u64,
}

fn whole() -> f64 {
    1.0
}

/// `ilb weights`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WeightsView {
    pub generation: Generation,
    /// As in [`ProxyView`]: engines whose failover weights the routes of this process's cluster
    /// have.
    pub failover: Vec<String>,
    pub routes: Vec<RouteView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteView {
    pub cluster: String,
    pub class: String,
    /// Demand that the plan was made for, in requests/s; the controller's present estimate, `None`
    /// without a controller.
    pub demand_rps: f64,
    pub present_demand_rps: Option<f64>,
    pub shed_frac: f64,
    pub pinned: bool,
    pub weights: Vec<WeightView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WeightView {
    pub engine: String,
    pub weight: f64,
    /// Requests this process's data plane sent there since its start; `None` for other clusters'
    /// routes.
    pub picks: Option<u64>,
}

/// `ilb snapshots`: what this process keeps, the newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotsView(pub Vec<SnapshotView>);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotView {
    pub generation: Generation,
    pub is_current: bool,
    pub age_s: f64,
    /// The fields from here on are missing if the file is damaged.
    pub status: Option<Status>,
    pub objective_ms: Option<f64>,
    pub reason: Option<String>,
    /// Clusters it is for; empty means all.
    #[serde(default)]
    pub target_clusters: Vec<String>,
    /// Why it cannot be read.
    pub error: Option<String>,
    /// Against the one before it; `None` for the oldest.
    pub moved: Option<Moves>,
}

/// Body of a request to go back to an old generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// As `ilb snapshots` shows it.
    pub generation: String,
    /// How long the weights hold, in ms. Without it and the next field, they hold until they are
    /// taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When the weights stop to hold, in ms since the Unix epoch. Where both are given, the earlier
    /// end counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

/// The new generation that has the old content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RollbackView {
    pub generation: Generation,
}

/// Body of a request to take back pins; what is missing matches all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpinRequest {
    pub cluster: Option<String>,
    pub class: Option<String>,
}
