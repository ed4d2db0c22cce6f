//! The fleet: clusters, engines, classes and profiles, and who may serve whom.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use super::{ClassId, ClusterId, EngineId, Profile};

/// Properties of an engine that a class can require, such as `residency = "eu"`.
pub type Tags = BTreeMap<String, String>;

/// A front-end cluster: where requests enter.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub name: String,
    pub region: String,
    /// Demand by class, in requests/s; one entry per class of the fleet.
    pub demand_rps: Vec<f64>,
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
    /// Identical servers behind the address when all are ready; >= 1.
    pub replicas: u32,
    pub tags: Tags,
}

/// Requests that are interchangeable for routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    pub model: String,
    /// Mean output length, in tokens.
    pub output_tokens: f64,
    /// 0 is served first.
    pub priority: u8,
    /// Tags an engine must have.
    pub require: Tags,
    /// What a request loses, in ms, that goes elsewhere than the one before it: its prefill, as far as a cache had it.
    pub move_price_ms: f64,
}

/// Everything the configuration says of the world; lists are indexed by the ids of [`super::ids`].
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    pub clusters: Vec<Cluster>,
    pub engines: Vec<Engine>,
    pub classes: Vec<Class>,
    pub profiles: Vec<Profile>,
    /// Round-trip time, in ms; `[cluster][engine]`.
    pub rtt_ms: Vec<Vec<f64>>,
}

/// The constraint that keeps an engine from serving a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ineligible {
    /// The engine does not serve the model.
    Model { model: String },
    /// The engine lacks a required tag, or has another value for it.
    Tag { key: String, wanted: String, found: Option<String> },
}

impl fmt::Display for Ineligible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model { model } => write!(f, "does not serve model {model:?}"),
            Self::Tag { key, wanted, found: None } => write!(f, "has no tag {key}, wanted {key}={wanted}"),
            Self::Tag { key, wanted, found: Some(found) } => write!(f, "has {key}={found}, wanted {key}={wanted}"),
        }
    }
}

/// Why an engine with `models` and `tags` may not serve `model` with `require`; `None` when it may.
pub(crate) fn ineligible(models: &[String], tags: &Tags, model: &str, require: &Tags) -> Option<Ineligible> {
    if !models.iter().any(|m| m == model) {
        return Some(Ineligible::Model { model: model.to_owned() });
    }
    require.iter().find(|&(key, wanted)| tags.get(key) != Some(wanted)).map(|(key, wanted)| Ineligible::Tag {
        key: key.clone(),
        wanted: wanted.clone(),
        found: tags.get(key).cloned(),
    })
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

    /// Why `engine` may not serve `class`; `None` when it may. Health is no part of it.
    pub fn ineligible(&self, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let (class, engine) = (&self.classes[class.index()], &self.engines[engine.index()]);
        ineligible(&engine.models, &engine.tags, &class.model, &class.require)
    }

    /// Round-trip time between a cluster and an engine, in ms.
    pub fn rtt_ms(&self, cluster: ClusterId, engine: EngineId) -> f64 {
        self.rtt_ms[cluster.index()][engine.index()]
    }
}
