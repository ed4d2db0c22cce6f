//! The immutable published result of one plan.
//!
//! A snapshot is self-contained: a data plane needs nothing else to decide a request, so facts that
//! must agree (who exists, who may serve whom, with what weight) can never come from two different
//! moments.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::order::{EngineOrder, OrderKind};
use crate::model::{Class, ClassId, ClusterId, Curve, EngineId, Fleet, Ineligible, Profile, Tags};

/// Version of the JSON form that is written: 3 has failover weights and target clusters. A data
/// plane refuses a snapshot of a version it does not know and keeps the one it has.
pub const FORMAT: u32 = 3;
/// Oldest version that is read: what 3 added is empty there.
pub(super) const FORMAT_OLDEST: u32 = 2;

/// How far a plan got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All demand is routed at the least cost.
    Optimal,
    /// Some demand is planned to be shed, because no legal weights carry all of it.
    Degraded,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub format: u32,
    /// SHA-256 of the JSON form with zeros in this place, in hexadecimal; see [`Snapshot::sealed`].
    /// Empty until then.
    pub digest: String,
    /// A [`crate::publish::Generation`]; only grows. 0 is what a data plane plans for itself from
    /// its own configuration when it has never seen a published one.
    pub generation: u64,
    /// When it was published, in ms since the Unix epoch.
    pub published_unix_ms: u64,
    /// Why it was published.
    pub reason: String,
    pub status: Status,
    /// Expected mean latency of a served request, network included, in ms.
    pub objective_ms: f64,
    pub clusters: Vec<ClusterEntry>,
    pub engines: Vec<EngineEntry>,
    pub classes: Vec<ClassEntry>,
    /// One per (cluster, class).
    pub routes: Vec<Route>,
    /// Failover weights. A data plane that finds the engines down uses them by itself.
    #[serde(rename = "alternates", default, skip_serializing_if = "Vec::is_empty")]
    pub failovers: Vec<Failover>,
    /// Names of the clusters that apply it; the others keep the weights that they have. Empty means
    /// all clusters.
    #[serde(rename = "audience", default, skip_serializing_if = "Vec::is_empty")]
    pub target_clusters: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterEntry {
    pub name: String,
    pub region: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineEntry {
    pub name: String,
    pub region: String,
    pub address: SocketAddr,
    pub models: Vec<String>,
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Load it may be given, in requests/s; 0 when no replica is ready.
    pub capacity_rps: f64,
    /// Load the plan gives it, in requests/s.
    pub load_rps: f64,
    /// Expected time from arrival at the engine to the last token at that load, in ms.
    pub latency_ms: f64,
    /// Cost of one more request/s for all other requests, in ms.
    pub price_ms: f64,
    /// Expected TTFT and TBOT of an engine that is full, in ms; 0 where the publisher does not say.
    #[serde(default)]
    pub full_ttft_ms: f64,
    #[serde(default)]
    pub full_tbot_ms: f64,
    /// An operator's last word on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<EngineOrder>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassEntry {
    pub name: String,
    pub model: String,
    pub output_tokens: f64,
    pub priority: u8,
    /// TTFT that clients accept, in ms.
    #[serde(default = "ttft_budget_unsaid_ms")]
    pub ttft_budget_ms: f64,
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub require: Tags,
}

/// Where one cluster sends one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    pub cluster: ClusterId,
    pub class: ClassId,
    /// Demand the plan was made for, in requests/s.
    pub demand_rps: f64,
    /// Marginal cost of one more request, in ms.
    pub price_ms: f64,
    /// Fraction of the demand that is planned to be refused, 0 to 1.
    pub shed_frac: f64,
    /// True when an operator set these weights by hand.
    #[serde(default)]
    pub pinned: bool,
    /// Weights > 0, in order of engine; they sum to 1. Eligible engines that are not listed have
    /// weight 0.
    pub weights: Vec<Share>,
    /// Engines that have the model and the tags, but are farther from the cluster than the class
    /// may go; in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_far: Vec<EngineId>,
}

/// The routes that change when engines are lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failover {
    /// One engine, or all of a region.
    pub lost: Vec<EngineId>,
    /// None has a weight on what is lost.
    pub routes: Vec<FailoverRoute>,
}

/// Where one cluster sends one class after a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailoverRoute {
    pub cluster: ClusterId,
    pub class: ClassId,
    pub shed_frac: f64,
    /// As those of a [`Route`]; never empty.
    pub weights: Vec<Share>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub engine: EngineId,
    pub weight: f64,
}

impl Snapshot {
    /// Why `engine` may not serve `class` of any cluster; `None` when it may. Neither health nor
    /// distance is part of it.
    pub fn ineligible(&self, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let (class, engine) = (&self.classes[class.index()], &self.engines[engine.index()]);
        crate::model::ineligible(&engine.models, &engine.tags, &class.model, &class.require)
    }

    /// True if the cluster is to apply it.
    pub fn is_for(&self, cluster: &str) -> bool {
        self.target_clusters.is_empty() || self.target_clusters.iter().any(|name| name == cluster)
    }

    pub fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.clusters.iter().position(|c| c.name == name).map(ClusterId::of)
    }

    pub fn route(&self, cluster: ClusterId, class: ClassId) -> Option<&Route> {
        self.routes.iter().find(|r| r.cluster == cluster && r.class == class)
    }

    /// The parts of a snapshot that come from the fleet alone; loads and routes are the plan's to
    /// fill in.
    pub fn describe(fleet: &Fleet) -> Self {
        Self {
            format: FORMAT,
            digest: String::new(),
            generation: 0,
            published_unix_ms: 0,
            reason: String::new(),
            status: Status::Optimal,
            objective_ms: 0.0,
            clusters: fleet.clusters.iter().map(|c| ClusterEntry { name: c.name.clone(), region: c.region.clone() }).collect(),
            engines: (fleet.engines.iter())
                .map(|e| EngineEntry {
                    name: e.name.clone(),
                    region: e.region.clone(),
                    address: e.address,
                    models: e.models.clone(),
                    tags: e.tags.clone(),
                    capacity_rps: fleet.profiles[e.profile].capacity_rps,
                    load_rps: 0.0,
                    latency_ms: 0.0,
                    price_ms: 0.0,
                    full_ttft_ms: at_capacity(&fleet.profiles[e.profile], |profile| &profile.ttft_ms),
                    full_tbot_ms: at_capacity(&fleet.profiles[e.profile], |profile| &profile.tbot_ms),
                    order: None,
                })
                .collect(),
            classes: (fleet.classes.iter())
                .map(|c| ClassEntry {
                    name: c.name.clone(),
                    model: c.model.clone(),
                    output_tokens: c.output_tokens,
                    priority: c.priority,
                    ttft_budget_ms: c.ttft_budget_ms,
                    require: c.require.clone(),
                })
                .collect(),
            routes: Vec::new(),
            failovers: Vec::new(),
            target_clusters: Vec::new(),
        }
    }
}

/// Where the publisher does not say it: the default of the configuration.
fn ttft_budget_unsaid_ms() -> f64 {
    Class::default().ttft_budget_ms
}

fn at_capacity(profile: &Profile, curve: impl Fn(&Profile) -> &Curve) -> f64 {
    curve(profile).value(profile.capacity_rps)
}

impl EngineEntry {
    /// True if an operator has given the order last.
    pub fn is_ordered(&self, kind: OrderKind) -> bool {
        self.order.as_ref().is_some_and(|order| order.kind == kind)
    }
}

impl Route {
    /// True if `engine` is farther from the cluster than the class may go.
    pub fn is_too_far(&self, engine: EngineId) -> bool {
        self.too_far.binary_search(&engine).is_ok()
    }
}
