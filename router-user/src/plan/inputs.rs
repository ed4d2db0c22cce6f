//! The inputs of a plan besides the fleet: numbers that change from plan to plan.

use thiserror::Error;

use crate::model::{ClassId, ClusterId, EngineId, Fleet, Ineligible};

/// The varying inputs of one plan.
///
/// Shape: every list has one entry per id of the fleet it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Demand in requests/s, `[cluster][class]`; finite, >= 0.
    pub demand_rps: Vec<Vec<f64>>,
    /// Round-trip time in ms, `[cluster][engine]`; finite, >= 0.
    pub rtt_ms: Vec<Vec<f64>>,
    /// Ready replicas of each engine, 0 to its replicas.
    pub ready: Vec<u32>,
    /// Factor on the times of each engine's profile at its load; finite, >= 1.
    pub slowdown: Vec<f64>,
    /// Headroom: fraction of every capacity that stays free, in [0, 1).
    pub headroom_frac: f64,
    /// Move price: loss of a request of each class, in ms, if it goes to another engine than the
    /// active weights would send it to; finite, >= 0.
    pub move_price_ms: Vec<f64>,
    /// Largest fraction of the demand that one plan may move, in (0, 1]. It applies while the
    /// active weights break no rule.
    pub move_limit_frac: f64,
    /// Delay that bursts add to the TTFT of each engine at half of its profile's capacity, in ms;
    /// finite, >= 0. docs/model.md, section 10.
    pub burst_ms: Vec<f64>,
    /// Load limit of each engine below its capacity, in requests/s; finite, >= 0. `None` where only
    /// the capacity limits.
    pub load_limit_rps: Vec<Option<f64>>,
    /// Weights that operators have set; at most one pin per (cluster, class).
    pub pins: Vec<Pin>,
}

/// Default of [`Inputs::move_limit_frac`]: a tenth of the demand per plan. Whatever is wrong with
/// an input, most conversations keep their engine until the next plan.
pub const MOVE_LIMIT_FRAC: f64 = 0.1;

/// A pin: weights of one (cluster, class) that an operator has set. The plan takes them unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin {
    pub cluster: ClusterId,
    pub class: ClassId,
    /// Eligible engines only; weights >= 0, at least one above 0. The plan scales them to sum to 1.
    pub weights: Vec<(EngineId, f64)>,
}

/// Why inputs do not fit this fleet.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InputError {
    #[error("{what} has {found} entries, wanted {wanted}")]
    Shape { what: &'static str, found: usize, wanted: usize },
    #[error("demand of class {class:?} in cluster {cluster:?} is {found}, wanted a finite number >= 0")]
    Demand { cluster: String, class: String, found: f64 },
    #[error("round-trip time from cluster {cluster:?} to engine {engine:?} is {found}, wanted a finite number >= 0")]
    Rtt { cluster: String, engine: String, found: f64 },
    #[error("engine {engine:?} has {found} ready replicas, wanted 0 to {replicas}")]
    Ready { engine: String, found: u32, replicas: u32 },
    #[error("slowdown of engine {engine:?} is {found}, wanted a finite number >= 1")]
    Slowdown { engine: String, found: f64 },
    #[error("headroom is {found}, wanted a share of capacity in [0, 1)")]
    Headroom { found: f64 },
    #[error("price of moving class {class:?} is {found} ms, wanted a finite number >= 0")]
    MovePrice { class: String, found: f64 },
    #[error("limit of movement is {found}, wanted a share of demand in (0, 1]")]
    MoveLimit { found: f64 },
    #[error("what bursts add at engine {engine:?} is {found} ms, wanted a finite number >= 0")]
    Burst { engine: String, found: f64 },
    #[error("limit of the load of engine {engine:?} is {found} requests/s, wanted a finite number >= 0")]
    LoadLimit { engine: String, found: f64 },
    #[error("pin of class {class:?} in cluster {cluster:?} {problem}")]
    Pin { cluster: String, class: String, problem: String },
}

impl Inputs {
    /// The configured demand and round-trip times, every replica ready and as fast as its profile,
    /// no headroom, no pins.
    pub fn from_fleet(fleet: &Fleet) -> Self {
        Self {
            demand_rps: fleet.clusters.iter().map(|cluster| cluster.demand_rps.clone()).collect(),
            rtt_ms: fleet.rtt_ms.clone(),
            ready: fleet.engines.iter().map(|engine| engine.replicas).collect(),
            slowdown: vec![1.0; fleet.engines.len()],
            headroom_frac: 0.0,
            move_price_ms: fleet.classes.iter().map(|class| class.move_price_ms).collect(),
            move_limit_frac: MOVE_LIMIT_FRAC,
            burst_ms: vec![0.0; fleet.engines.len()],
            load_limit_rps: vec![None; fleet.engines.len()],
            pins: Vec::new(),
        }
    }

    /// Why `engine` may not serve `class` of `cluster`, round-trip cap included; `None` if it may.
    /// Health does not count.
    pub fn ineligible(&self, fleet: &Fleet, cluster: ClusterId, class: ClassId, engine: EngineId) -> Option<Ineligible> {
        let too_far = || fleet.classes[class.index()].too_far(self.rtt_ms[cluster.index()][engine.index()]);
        fleet.ineligible(class, engine).or_else(too_far)
    }

    /// Capacity: the load that an engine may be given, in requests/s, within its load limit; 0 if
    /// no replica is ready.
    pub fn capacity_rps(&self, fleet: &Fleet, engine: EngineId) -> f64 {
        let ready = f64::from(self.ready[engine.index()]) / f64::from(fleet.engines[engine.index()].replicas);
        let capacity_rps = fleet.profile_of(engine).capacity_rps * ready * (1.0 - self.headroom_frac);
        self.load_limit_rps[engine.index()].map_or(capacity_rps, |limit| capacity_rps.min(limit))
    }

    /// Drops pins with an engine that is no longer eligible, such as one whose measured round-trip
    /// time now exceeds the cap; returns the number of dropped pins.
    pub fn drop_far_pins(&mut self, fleet: &Fleet) -> usize {
        let pins = std::mem::take(&mut self.pins);
        let count = pins.len();
        let is_near =
            |pin: &Pin| pin.weights.iter().all(|&(engine, _)| self.ineligible(fleet, pin.cluster, pin.class, engine).is_none());
        self.pins = pins.into_iter().filter(is_near).collect();
        count - self.pins.len()
    }

    /// The pin of a (cluster, class), if there is one.
    pub fn pin(&self, cluster: ClusterId, class: ClassId) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.cluster == cluster && pin.class == class)
    }

    /// Demand of a (cluster, class), in requests/s.
    pub fn demand(&self, cluster: ClusterId, class: ClassId) -> f64 {
        self.demand_rps[cluster.index()][class.index()]
    }

    /// Errors: the first [`InputError`] found, in the order of its variants.
    pub(crate) fn validate(&self, fleet: &Fleet) -> Result<(), InputError> {
        let (clusters, engines, classes) = (fleet.clusters.len(), fleet.engines.len(), fleet.classes.len());
        shape("demand", self.demand_rps.len(), clusters)?;
        shape("round-trip time", self.rtt_ms.len(), clusters)?;
        shape("ready replicas", self.ready.len(), engines)?;
        for (cluster, (demand, rtt)) in fleet.clusters.iter().zip(self.demand_rps.iter().zip(&self.rtt_ms)) {
            shape("demand of a cluster", demand.len(), classes)?;
            shape("round-trip time of a cluster", rtt.len(), engines)?;
            for (class, &found) in fleet.classes.iter().zip(demand) {
                if !is_amount(found) {
                    return Err(InputError::Demand { cluster: cluster.name.clone(), class: class.name.clone(), found });
                }
            }
            for (engine, &found) in fleet.engines.iter().zip(rtt) {
                if !is_amount(found) {
                    return Err(InputError::Rtt { cluster: cluster.name.clone(), engine: engine.name.clone(), found });
                }
            }
        }
        for (engine, &found) in fleet.engines.iter().zip(&self.ready) {
            if found > engine.replicas {
                return Err(InputError::Ready { engine: engine.name.clone(), found, replicas: engine.replicas });
            }
        }
        shape("slowdown", self.slowdown.len(), engines)?;
        for (engine, &found) in fleet.engines.iter().zip(&self.slowdown) {
            if !(found.is_finite() && found >= 1.0) {
                return Err(InputError::Slowdown { engine: engine.name.clone(), found });
            }
        }
        if !(0.0..1.0).contains(&self.headroom_frac) {
            return Err(InputError::Headroom { found: self.headroom_frac });
        }
        shape("price of moving", self.move_price_ms.len(), classes)?;
        for (class, &found) in fleet.classes.iter().zip(&self.move_price_ms) {
            if !is_amount(found) {
                return Err(InputError::MovePrice { class: class.name.clone(), found });
            }
        }
        if !(self.move_limit_frac > 0.0 && self.move_limit_frac <= 1.0) {
            return Err(InputError::MoveLimit { found: self.move_limit_frac });
        }
        shape("what bursts add", self.burst_ms.len(), engines)?;
        shape("limits of load", self.load_limit_rps.len(), engines)?;
        for (engine, (&burst, limit)) in fleet.engines.iter().zip(self.burst_ms.iter().zip(&self.load_limit_rps)) {
            if !is_amount(burst) {
                return Err(InputError::Burst { engine: engine.name.clone(), found: burst });
            }
            if let Some(found) = limit.filter(|&limit| !is_amount(limit)) {
                return Err(InputError::LoadLimit { engine: engine.name.clone(), found });
            }
        }
        self.validate_pins(fleet)
    }

    fn validate_pins(&self, fleet: &Fleet) -> Result<(), InputError> {
        for (at, pin) in self.pins.iter().enumerate() {
            let cluster = fleet.clusters.get(pin.cluster.index()).map(|cluster| cluster.name.clone());
            let class = fleet.classes.get(pin.class.index()).map(|class| class.name.clone());
            let known = cluster.is_some() && class.is_some();
            let (cluster, class) = (
                cluster.unwrap_or_else(|| format!("number {}", pin.cluster.0)),
                class.unwrap_or_else(|| format!("number {}", pin.class.0)),
            );
            let refuse = |problem: String| Err(InputError::Pin { cluster: cluster.clone(), class: class.clone(), problem });
            if !known {
                return refuse("names what the fleet does not have".to_owned());
            }
            if self.pins[..at].iter().any(|other| other.cluster == pin.cluster && other.class == pin.class) {
                return refuse("is set twice, wanted one pin".to_owned());
            }
            let total = pin.weights.iter().fold(0.0, |sum, &(_, weight)| sum + weight);
            if pin.weights.iter().any(|&(_, weight)| !is_amount(weight)) || !(total > 0.0 && total.is_finite()) {
                return refuse(format!("has weights that sum to {total}, wanted finite numbers >= 0 and a sum above 0"));
            }
            for (nth, &(engine, _)) in pin.weights.iter().enumerate() {
                if engine.index() >= fleet.engines.len() {
                    return refuse(format!("names engine number {}, wanted one of {}", engine.0, fleet.engines.len()));
                }
                let name = &fleet.engines[engine.index()].name;
                if pin.weights[..nth].iter().any(|&(other, _)| other == engine) {
                    return refuse(format!("names engine {name:?} twice, wanted it once"));
                }
                // Residency, models and distances are never relaxed, not even for an operator.
                if let Some(why) = self.ineligible(fleet, pin.cluster, pin.class, engine) {
                    return refuse(format!("names engine {name:?}, which {why}"));
                }
            }
        }
        Ok(())
    }
}

impl Pin {
    /// The pinned weights, scaled to sum to 1.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (EngineId, f64)> + '_ {
        let total: f64 = self.weights.iter().map(|&(_, weight)| weight).sum();
        self.weights.iter().filter(|&&(_, weight)| weight > 0.0).map(move |&(engine, weight)| (engine, weight / total))
    }
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

fn shape(what: &'static str, found: usize, wanted: usize) -> Result<(), InputError> {
    if found == wanted { Ok(()) } else { Err(InputError::Shape { what, found, wanted }) }
}
