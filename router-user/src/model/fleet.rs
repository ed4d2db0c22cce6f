//! The fleet: clusters, engines, classes and profiles, and which engines are eligible for which
//! classes.

use std::net::SocketAddr;

use super::eligibility::ineligible;
use super::{Class, ClassId, ClusterId, EngineId, Ineligible, Profile, Tags};

/// A front-end cluster, where requests enter.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub name: String,
    pub region: String,
    /// Demand by class, in requests/s; one entry per class of the fleet.
    pub demand_rps: Vec<f64>,
    /// Detour budget: upper bound on the mean round-trip time of its planned traffic, in ms; > 0.
    /// It is exceeded only where requests would be shed otherwise.
    pub detour_budget_ms: Option<f64>,
}

/// One inference server, or identical replicas behind one address.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    pub name: String,
    pub region: String,
    pub address: SocketAddr,
    pub models: Vec<String>,
    /// Index into [`Fleet::profiles`].
    pub profile: usize,
    /// Number of identical servers behind the address when all are ready; >= 1.
    pub replicas: u32,
    pub tags: Tags,
}

/// The fleet as configured; its lists are indexed by the ids of [`super::ids`].
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    pub clusters: Vec<Cluster>,
    pub engines: Vec<Engine>,
    pub classes: Vec<Class>,
    pub profiles: Vec<Profile>,
    /// Round-trip time, in ms; `[cluster][engine]`.
    pub rtt_ms: Vec<Vec<f64>>,
}

impl Fleet {
    pub fn cluster_ids(&self) -> impl Iterator<Item = ClusterId> + use<> {
        (0..self.clusters.len()).map(ClusterId::of)
    }

    pub fn engine_ids(&self) -> impl Iterator<Item = EngineId> + use<> {
        (0..self.engines.len()).map(EngineId::of)
    }

    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.classes.len()).map(ClassId::of)
    }

    pub fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.clusters.iter().position(|c| c.name == name).map(ClusterId::of)
    }

    pub fn engine(&self, name: &str) -> Option<EngineId> {
        self.engines.iter().position(|e| e.name == name).map(EngineId::of)
    }

    pub fn class(&self, name: &str) -> Option<ClassId> {
        self.classes.iter().position(|c| c.name == name).map(ClassId::of)
    }

    /// The profile of an engine, as measured with all replicas ready.
    pub fn profile_of(&self, engine: EngineId) -> &Profile {
        &self.profiles[self.engines[engine.index()].profile]
    }

    /// Why `engine` may not serve `class`, whatever the cluster; `None` if it may. Health and
    /// distance do not count.
    pub fn ineligible(&self, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let (class, engine) = (&self.classes[class.index()], &self.engines[engine.index()]);
        ineligible(&engine.models, &engine.tags, &class.model, &class.require)
    }

    /// Round-trip time between a cluster and an engine, in ms.
    pub fn rtt_ms(&self, cluster: ClusterId, engine: EngineId) -> f64 {
        self.rtt_ms[cluster.index()][engine.index()]
    }
}
