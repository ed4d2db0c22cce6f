//! The immutable published result of one plan.
//!
//! A snapshot is self-contained: a data plane needs nothing else to decide a request, so facts that must agree (who exists, who may
//! serve whom, with what weight) can never come from two different moments.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::model::{ClassId, ClusterId, EngineId, Fleet, Ineligible, Tags};

/// Version of the JSON form that is written: 3 has alternates and an audience. A data plane refuses a snapshot of a version it does not
/// know and keeps the one it has.
pub const FORMAT: u32 = 3;
/// Oldest version that is read: what 3 added is empty there.
const FORMAT_OLDEST: u32 = 2;
/// Most alternates: as many as are ever made, so that what is read is bounded, too.
const ALTERNATES_MOST: usize = crate::plan::decide::failover::LOSSES_MOST;
/// Length of a digest: SHA-256 in hexadecimal digits.
const DIGEST_LEN: usize = 64;

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
    /// SHA-256 of the JSON form with zeros in this place, in hexadecimal; see [`Snapshot::sealed`]. Empty until then.
    pub digest: String,
    /// A [`crate::publish::Generation`]; only grows. 0 is what a data plane plans for itself from its own configuration when it has never seen a published one.
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
    /// What routes become when engines are lost; a data plane that finds them gone puts it in force by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternates: Vec<Alternate>,
    /// Names of the clusters that are to apply it; the others keep what they have. Empty means all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
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
    /// What one more request/s would cost everybody else, in ms.
    pub price_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassEntry {
    pub name: String,
    pub model: String,
    pub output_tokens: f64,
    pub priority: u8,
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
    /// Weights > 0, in order of engine; they sum to 1. Eligible engines that are not listed have weight 0.
    pub weights: Vec<Share>,
    /// Engines that have the model and the tags, but are farther from the cluster than the class may go; in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_far: Vec<EngineId>,
}

/// The routes that change when engines are lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternate {
    /// One engine, or all of a region.
    pub lost: Vec<EngineId>,
    /// None has a weight on what is lost.
    pub routes: Vec<AlternateRoute>,
}

/// Where one cluster sends one class after a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlternateRoute {
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

/// Why a snapshot is refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SnapshotError {
    #[error("snapshot has format {found}; this ilb reads formats {FORMAT_OLDEST} to {FORMAT}")]
    Format { found: u32 },
    #[error("is not a snapshot: {message}")]
    Json { message: String },
    #[error("content has digest {found}; the snapshot says {wanted}")]
    Digest { found: String, wanted: String },
    #[error("snapshot generation {found} is not above {current}")]
    Stale { found: u64, current: u64 },
    #[error("route {route}: {what} number {number} does not exist")]
    Dangling { route: usize, what: &'static str, number: u16 },
    #[error("route {route}: weight {weight} of engine {engine:?}; wanted a number from 0 to 1")]
    Weight { route: usize, engine: String, weight: f64 },
    #[error("route {route}: weights sum to {sum}; wanted 1")]
    Sum { route: usize, sum: f64 },
    #[error("route {route}: engine {engine:?} {reason}")]
    NotEligible { route: usize, engine: String, reason: Ineligible },
    #[error("route {route}: engine {engine:?} is farther away than the class may go")]
    TooFar { route: usize, engine: String },
    #[error("route {route}: shed fraction {shed_frac}; wanted 0 to 1")]
    Shed { route: usize, shed_frac: f64 },
    #[error("alternate {alternate}: {source}")]
    Alternate { alternate: usize, source: Box<SnapshotError> },
    #[error("engine {engine:?} is lost and has a weight")]
    Lost { engine: String },
    #[error("says nothing of what is lost, or nothing of what it changes")]
    Empty,
    #[error("has {found} alternates; wanted at most {ALTERNATES_MOST}")]
    Alternates { found: usize },
    #[error("is for the unknown cluster {0:?}")]
    Audience(String),
}

impl Snapshot {
    /// The snapshot with its digest; nothing may be changed afterwards.
    pub fn sealed(mut self) -> Self {
        self.digest = "0".repeat(DIGEST_LEN);
        self.digest = hex(&Sha256::digest(self.to_json()));
        self
    }

    /// The JSON form: what stores keep and data planes receive.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a snapshot has only string keys and finite numbers")
    }

    /// Reads the JSON form: what is torn, altered, of another format or illegal is refused.
    ///
    /// Errors: the first thing that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let not_json = |error: serde_json::Error| SnapshotError::Json { message: error.to_string() };
        let Head { format } = serde_json::from_slice(json).map_err(not_json)?;
        if !(FORMAT_OLDEST..=FORMAT).contains(&format) {
            return Err(SnapshotError::Format { found: format });
        }
        let snapshot: Self = serde_json::from_slice(json).map_err(not_json)?;
        // The digest is of these very bytes: nothing that reading might repair or drop escapes it.
        let start = format!("{{\"format\":{format},\"digest\":\"").len();
        let found = match json.get(start..start + DIGEST_LEN) {
            Some(digits) if digits == snapshot.digest.as_bytes() => {
                let (before, after) = (&json[..start], &json[start + DIGEST_LEN..]);
                let hash = Sha256::new().chain_update(before).chain_update([b'0'; DIGEST_LEN]).chain_update(after);
                hex(&hash.finalize())
            }
            _ => "none in its place".to_owned(),
        };
        if found != snapshot.digest {
            return Err(SnapshotError::Digest { found, wanted: snapshot.digest });
        }
        snapshot.validate()?;
        Ok(snapshot)
    }

    /// Checks every invariant a data plane relies on; a snapshot from outside is never used before this.
    ///
    /// Errors: the first broken invariant.
    pub fn validate(&self) -> Result<(), SnapshotError> {
        if !(FORMAT_OLDEST..=FORMAT).contains(&self.format) {
            return Err(SnapshotError::Format { found: self.format });
        }
        for (index, route) in self.routes.iter().enumerate() {
            self.check_route(index, route.cluster, route.class, route.shed_frac, &route.weights)?;
            self.check_distance(index, route, &route.weights)?;
        }
        if self.alternates.len() > ALTERNATES_MOST {
            return Err(SnapshotError::Alternates { found: self.alternates.len() });
        }
        for (index, alternate) in self.alternates.iter().enumerate() {
            let wrong = |source| SnapshotError::Alternate { alternate: index, source: Box::new(source) };
            self.check_alternate(alternate).map_err(wrong)?;
        }
        match self.audience.iter().find(|name| self.cluster(name).is_none()) {
            Some(unknown) => Err(SnapshotError::Audience(unknown.clone())),
            None => Ok(()),
        }
    }

    fn check_route(
        &self,
        route: usize,
        cluster: ClusterId,
        class: ClassId,
        shed_frac: f64,
        weights: &[Share],
    ) -> Result<(), SnapshotError> {
        let dangling = |what, number| SnapshotError::Dangling { route, what, number };
        if cluster.index() >= self.clusters.len() {
            return Err(dangling("cluster", cluster.0));
        }
        if class.index() >= self.classes.len() {
            return Err(dangling("class", class.0));
        }
        if !(0.0..=1.0).contains(&shed_frac) {
            return Err(SnapshotError::Shed { route, shed_frac });
        }
        for share in weights {
            let engine = self.engines.get(share.engine.index()).ok_or(dangling("engine", share.engine.0))?;
            if !(0.0..=1.0 + 1e-9).contains(&share.weight) {
                return Err(SnapshotError::Weight { route, engine: engine.name.clone(), weight: share.weight });
            }
            if let Some(reason) = self.ineligible(class, share.engine) {
                return Err(SnapshotError::NotEligible { route, engine: engine.name.clone(), reason });
            }
        }
        let sum: f64 = weights.iter().map(|s| s.weight).sum();
        // A route whose engines are all gone has no weights; everything of it is shed.
        if !weights.is_empty() && (sum - 1.0).abs() > 1e-6 {
            return Err(SnapshotError::Sum { route, sum });
        }
        Ok(())
    }

    /// What is too far for the planned route is so for whatever takes its place.
    fn check_distance(&self, route: usize, planned: &Route, weights: &[Share]) -> Result<(), SnapshotError> {
        match weights.iter().find(|share| planned.is_too_far(share.engine)) {
            Some(share) => Err(SnapshotError::TooFar { route, engine: self.engines[share.engine.index()].name.clone() }),
            None => Ok(()),
        }
    }

    fn check_alternate(&self, alternate: &Alternate) -> Result<(), SnapshotError> {
        if alternate.lost.is_empty() || alternate.routes.is_empty() || alternate.routes.iter().any(|r| r.weights.is_empty()) {
            return Err(SnapshotError::Empty);
        }
        if let Some(unknown) = alternate.lost.iter().find(|engine| engine.index() >= self.engines.len()) {
            return Err(SnapshotError::Dangling { route: 0, what: "engine", number: unknown.0 });
        }
        for (index, route) in alternate.routes.iter().enumerate() {
            self.check_route(index, route.cluster, route.class, route.shed_frac, &route.weights)?;
            if let Some(planned) = self.routes.iter().find(|r| (r.cluster, r.class) == (route.cluster, route.class)) {
                self.check_distance(index, planned, &route.weights)?;
            }
            if let Some(share) = route.weights.iter().find(|share| alternate.lost.contains(&share.engine)) {
                return Err(SnapshotError::Lost { engine: self.engines[share.engine.index()].name.clone() });
            }
        }
        Ok(())
    }

    /// Why `engine` may not serve `class` of any cluster; `None` when it may. Neither health nor distance is part of it.
    pub fn ineligible(&self, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let (class, engine) = (&self.classes[class.index()], &self.engines[engine.index()]);
        crate::model::ineligible(&engine.models, &engine.tags, &class.model, &class.require)
    }

    /// Whether the cluster is to apply it.
    pub fn is_for(&self, cluster: &str) -> bool {
        self.audience.is_empty() || self.audience.iter().any(|name| name == cluster)
    }

    pub fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.clusters.iter().position(|c| c.name == name).map(ClusterId::of)
    }

    pub fn route(&self, cluster: ClusterId, class: ClassId) -> Option<&Route> {
        self.routes.iter().find(|r| r.cluster == cluster && r.class == class)
    }

    /// The parts of a snapshot that come from the fleet alone; loads and routes are the plan's to fill in.
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
                })
                .collect(),
            classes: (fleet.classes.iter())
                .map(|c| ClassEntry {
                    name: c.name.clone(),
                    model: c.model.clone(),
                    output_tokens: c.output_tokens,
                    priority: c.priority,
                    require: c.require.clone(),
                })
                .collect(),
            routes: Vec::new(),
            alternates: Vec::new(),
            audience: Vec::new(),
        }
    }
}

impl Route {
    /// Whether the class may not go as far as `engine` is from the cluster.
    pub fn is_too_far(&self, engine: EngineId) -> bool {
        self.too_far.binary_search(&engine).is_ok()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_objective(objective_ms: f64, reason: &str) -> Snapshot {
        let config = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        let plan = Snapshot { objective_ms, reason: reason.to_owned(), ..Snapshot::describe(&config.fleet) };
        plan.sealed()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_written_reads_back_and_prints_the_same(bits in any::<u64>(), reason in ".{0,40}") {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            let snapshot = with_objective(value, &reason);
            let read = Snapshot::from_json(&snapshot.to_json()).expect("as written");
            prop_assert_eq!(read.to_json(), snapshot.to_json());
            prop_assert_eq!(read, snapshot);
        }

        #[test]
        fn no_cut_and_no_flipped_bit_is_read(at in any::<prop::sample::Index>(), bit in 0_u8..8, cut in any::<bool>()) {
            let mut json = with_objective(118.9, "better").to_json();
            let at = at.index(json.len());
            if cut { json.truncate(at) } else { json[at] ^= 1 << bit };
            prop_assert!(Snapshot::from_json(&json).is_err());
        }
    }

    #[test]
    fn the_format_before_is_read_and_prints_the_same() {
        let old = Snapshot { format: FORMAT_OLDEST, ..with_objective(118.9, "as it was written then") }.sealed();
        let json = old.to_json();
        assert!(json.starts_with(b"{\"format\":2,"));
        assert_eq!(Snapshot::from_json(&json).expect("read"), old);
    }

    #[test]
    fn alternates_are_held_to_the_rules_of_weights() {
        let legal = Alternate {
            lost: vec![EngineId(1)],
            routes: vec![AlternateRoute {
                cluster: ClusterId(0),
                class: ClassId(0),
                shed_frac: 0.0,
                weights: vec![Share { engine: EngineId(0), weight: 1.0 }],
            }],
        };
        let found = |change: &dyn Fn(&mut Alternate)| {
            let mut alternate = legal.clone();
            change(&mut alternate);
            Snapshot { alternates: vec![alternate], ..with_objective(1.0, "") }.validate()
        };
        assert_eq!(found(&|_| {}), Ok(()));
        let wrong = |change: &dyn Fn(&mut Alternate)| match found(change) {
            Err(SnapshotError::Alternate { alternate: 0, source }) => *source,
            other => panic!("{other:?}"),
        };
        assert_eq!(wrong(&|a| a.routes[0].weights[0].engine = EngineId(1)), SnapshotError::Lost { engine: "e2".to_owned() });
        assert!(matches!(wrong(&|a| a.routes[0].weights[0].weight = 0.5), SnapshotError::Sum { .. }));
        assert!(matches!(wrong(&|a| a.routes[0].weights[0].engine = EngineId(9)), SnapshotError::Dangling { .. }));
        assert!(matches!(wrong(&|a| a.lost[0] = EngineId(9)), SnapshotError::Dangling { .. }));
        assert!(matches!(wrong(&|a| a.routes[0].shed_frac = 2.0), SnapshotError::Shed { .. }));
        assert_eq!(wrong(&|a| a.lost.clear()), SnapshotError::Empty);
        assert_eq!(wrong(&|a| a.routes[0].weights.clear()), SnapshotError::Empty);
        let unknown = Snapshot { audience: vec!["z".to_owned()], ..with_objective(1.0, "") }.validate();
        assert_eq!(unknown, Err(SnapshotError::Audience("z".to_owned())));
    }

    #[test]
    fn another_format_is_told_apart_from_damage() {
        let error = Snapshot::from_json(br#"{"format":1,"generation":9}"#).expect_err("an older one");
        assert_eq!(error, SnapshotError::Format { found: 1 });
    }
}
