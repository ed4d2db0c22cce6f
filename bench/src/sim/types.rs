//! Types that the parts of a simulated life share.

use std::sync::Arc;

use router_user::model::EngineId;
use router_user::plan::RouteWeights;
use router_user::publish::snapshot::Snapshot;

/// Weights as data planes get them.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) generation: u64,
    /// The whole snapshot; `None` from other planners than production's.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) weights: Vec<RouteWeights>,
}

/// The engines that the requests of one class go to in one second, as shares of the requests.
#[derive(Debug, Default)]
pub(super) struct Split {
    pub(super) sent: Vec<(EngineId, f64)>,
    /// Shares refused by the plan, refused because every engine is full, and refused because no
    /// engine can be reached.
    pub(super) shed: f64,
    pub(super) full: f64,
    pub(super) unreachable: f64,
    /// Share that went to another engine because the planned one was full or out.
    pub(super) redirected: f64,
}

/// State of an engine as a data plane sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    Fit,
    Full,
    Out,
}
