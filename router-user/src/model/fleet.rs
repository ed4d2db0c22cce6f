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
    /// Mean round-trip time, in ms, that its traffic is to stay within as long as nothing has to be shed for it; > 0.
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
    /// Identical servers behind the address when all are ready; >= 1.
    pub replicas: u32,
    pub tags: Tags,
}

/// Requests that are interchangeable for routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    pub model: String,
    /// Mean prompt length, in tokens; 0 where nobody said.
    pub prompt_tokens: f64,
    /// Mean output length, in tokens.
    pub output_tokens: f64,
    /// Share of the prompt's tokens that a request finds in the prefix cache of the engine it is sent to, 0 to 1.
    pub prefix_hit_frac: f64,
    /// Load that one request is, in requests of the kind that profiles were measured with; > 0.
    pub work: f64,
    /// What a ms of TTFT (and of network), and a ms of decoding, count for in the objective; >= 0.
    pub ttft_weight: f64,
    pub decode_weight: f64,
    /// Engines farther away than this, in ms of round trip, may not serve it.
    pub rtt_cap_ms: Option<f64>,
    /// 0 is served first.
    pub priority: u8,
    /// Tags an engine must have.
    pub require: Tags,
    /// What a request loses, in ms, that goes elsewhere than the one before it: its prefill, as far as a cache had it.
    pub move_price_ms: f64,
}

/// A class without a name or a model: one reference request at a time, every ms counts the same, no distance is too far.
impl Default for Class {
    fn default() -> Self {
        Self {
            name: String::new(),
            model: String::new(),
            prompt_tokens: 0.0,
            output_tokens: 0.0,
            prefix_hit_frac: 0.0,
            work: 1.0,
            ttft_weight: 1.0,
            decode_weight: 1.0,
            rtt_cap_ms: None,
            priority: 0,
            require: Tags::new(),
            move_price_ms: 0.0,
        }
    }
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
#[derive(Clone, Debug, PartialEq)]
pub enum Ineligible {
    /// The engine does not serve the model.
    Model { model: String },
    /// The engine lacks a required tag, or has another value for it.
    Tag { key: String, wanted: String, found: Option<String> },
    /// It is farther from the cluster than the class may go.
    TooFar { rtt_ms: f64, cap_ms: f64 },
}

impl fmt::Display for Ineligible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model { model } => write!(f, "does not serve model {model:?}"),
            Self::Tag { key, wanted, found: None } => write!(f, "has no tag {key}, wanted {key}={wanted}"),
            Self::Tag { key, wanted, found: Some(found) } => write!(f, "has {key}={found}, wanted {key}={wanted}"),
            Self::TooFar { rtt_ms, cap_ms } => write!(f, "is {rtt_ms} ms away, cap {cap_ms} ms"),
        }
    }
}

impl Class {
    /// Whether an engine at this round-trip time is too far away; `None` when it may serve the class.
    pub fn too_far(&self, rtt_ms: f64) -> Option<Ineligible> {
        self.rtt_cap_ms.filter(|&cap_ms| rtt_ms > cap_ms).map(|cap_ms| Ineligible::TooFar { rtt_ms, cap_ms })
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

    /// Why `engine` may not serve `class` wherever a request comes from; `None` when it may. Neither health nor distance is part of it.
    pub fn ineligible(&self, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let (class, engine) = (&self.classes[class.index()], &self.engines[engine.index()]);
        ineligible(&engine.models, &engine.tags, &class.model, &class.require)
    }

    /// Round-trip time between a cluster and an engine, in ms.
    pub fn rtt_ms(&self, cluster: ClusterId, engine: EngineId) -> f64 {
        self.rtt_ms[cluster.index()][engine.index()]
    }
}
