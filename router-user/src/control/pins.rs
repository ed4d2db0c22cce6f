//! Weights an operator has set by hand: they hold until they expire or are taken back, also across a restart of the controller.

use std::path::{Path, PathBuf};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::model::{ClassId, ClusterId, Fleet, Ineligible};
use crate::plan::Pin;
use crate::publish::store::{StoreError, write_whole};

/// Farthest a sum of weights may be from 1: what typing decimals costs.
const SUM_TOLERANCE: f64 = 0.001;

/// Weights of one (cluster, class) as an operator writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    pub cluster: String,
    pub class: String,
    /// Engine name and weight; the weights sum to 1.
    #[serde(deserialize_with = "weights")]
    pub weights: Vec<(String, f64)>,
    /// When the pin ends, in ms since the Unix epoch; never, if it is missing.
    #[serde(default)]
    pub expires_unix_ms: Option<u64>,
}

/// Reads weights as JSON has them, where "not a number" and infinity become `null`.
fn weights<'de, D: Deserializer<'de>>(json: D) -> Result<Vec<(String, f64)>, D::Error> {
    let entries = Vec::<(String, serde_json::Value)>::deserialize(json)?;
    let number = |(engine, weight): (String, serde_json::Value)| match weight.as_f64() {
        Some(number) => Ok((engine, number)),
        None => Err(D::Error::custom(format!("weight {weight} of engine {engine:?}; wanted a number from 0 to 1"))),
    };
    entries.into_iter().map(number).collect()
}

/// Why a pin is refused.
#[derive(Debug, Error)]
pub enum PinError {
    #[error("unknown cluster {0:?}; wanted one of {1}")]
    Cluster(String, String),
    #[error("unknown class {0:?}; wanted one of {1}")]
    Class(String, String),
    #[error("unknown engine {0:?}; wanted one of {1}")]
    Engine(String, String),
    #[error("engine {engine:?} cannot serve class {class:?}: it {reason}")]
    NotEligible { engine: String, class: String, reason: Ineligible },
    #[error("engine {0:?} is given twice")]
    Twice(String),
    #[error("weight {weight} of engine {engine:?}; wanted a number from 0 to 1")]
    Weight { engine: String, weight: f64 },
    #[error("weights sum to {}; wanted 1", (.0 * 1e6).round() / 1e6)]
    Sum(f64),
    #[error("pins of the last leader: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// All pins, with the file that keeps them.
#[derive(Debug)]
pub(super) struct Pins {
    file: PathBuf,
    pins: Vec<PinRequest>,
}

impl Pins {
    /// Reads the pins that were set before. Those that no longer fit the fleet are dropped with a warning.
    pub(super) fn load(dir: &Path, fleet: &Fleet) -> Self {
        let file = dir.join("pins.json");
        let pins = match std::fs::read(&file) {
            Ok(json) => serde_json::from_slice::<Vec<PinRequest>>(&json).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "pins cannot be read; going on without them");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        };
        Self { file, pins: pins.into_iter().filter(|pin| is_legal(pin, fleet)).collect() }
    }

    /// All pins with `pin` in the place of an earlier one of the same cluster and class; to be [kept](Self::keep).
    ///
    /// Errors: it names something unknown or not eligible, or its weights are not weights.
    pub(super) fn with(&self, pin: PinRequest, fleet: &Fleet) -> Result<Vec<PinRequest>, PinError> {
        resolve(&pin, fleet)?;
        let mut pins = self.pins.clone();
        pins.retain(|p| (&p.cluster, &p.class) != (&pin.cluster, &pin.class));
        pins.push(pin);
        Ok(pins)
    }

    /// The pins that are left without those that match; `None` matches all.
    pub(super) fn without(&self, cluster: Option<&str>, class: Option<&str>) -> Vec<PinRequest> {
        let matches = |p: &PinRequest| cluster.is_none_or(|c| c == p.cluster) && class.is_none_or(|c| c == p.class);
        self.pins.iter().filter(|p| !matches(p)).cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.pins.len()
    }

    /// Pins in force at `now_unix_ms`; those that have expired are forgotten.
    pub(super) fn in_force(&mut self, now_unix_ms: u64, fleet: &Fleet) -> Vec<Pin> {
        self.pins.retain(|p| p.expires_unix_ms.is_none_or(|end| end > now_unix_ms));
        self.pins.iter().filter_map(|p| resolve(p, fleet).ok()).collect()
    }

    /// Puts `pins` in the place of all, and on disk.
    ///
    /// Errors: they cannot be stored; then nothing changes.
    pub(super) fn keep(&mut self, pins: Vec<PinRequest>) -> Result<(), PinError> {
        write_whole(&self.file, &to_json(&pins))?;
        self.pins = pins;
        Ok(())
    }

    /// Takes over the pins that another controller kept.
    ///
    /// Errors: they cannot be read or stored; then nothing changes.
    pub(super) fn adopt(&mut self, json: &[u8], fleet: &Fleet) -> Result<(), PinError> {
        let pins: Vec<PinRequest> = serde_json::from_slice(json)?;
        let pins: Vec<PinRequest> = pins.into_iter().filter(|pin| is_legal(pin, fleet)).collect();
        if pins != self.pins { self.keep(pins) } else { Ok(()) }
    }
}

/// Pins in the form they are kept in.
pub(super) fn to_json(pins: &[PinRequest]) -> Vec<u8> {
    serde_json::to_vec_pretty(pins).expect("pins have only strings and finite numbers")
}

fn is_legal(pin: &PinRequest, fleet: &Fleet) -> bool {
    match resolve(pin, fleet) {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(cluster = pin.cluster, class = pin.class, %error, "dropping a stored pin");
            false
        }
    }
}

fn resolve(pin: &PinRequest, fleet: &Fleet) -> Result<Pin, PinError> {
    let names = |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let cluster: ClusterId = fleet
        .cluster(&pin.cluster)
        .ok_or_else(|| PinError::Cluster(pin.cluster.clone(), names(fleet.clusters.iter().map(|c| &c.name).collect())))?;
    let class: ClassId = fleet
        .class(&pin.class)
        .ok_or_else(|| PinError::Class(pin.class.clone(), names(fleet.classes.iter().map(|c| &c.name).collect())))?;
    let mut weights = Vec::with_capacity(pin.weights.len());
    for (name, weight) in &pin.weights {
        let engine = fleet
            .engine(name)
            .ok_or_else(|| PinError::Engine(name.clone(), names(fleet.engines.iter().map(|e| &e.name).collect())))?;
        if let Some(reason) = fleet.ineligible(class, engine) {
            return Err(PinError::NotEligible { engine: name.clone(), class: pin.class.clone(), reason });
        }
        if weights.iter().any(|(known, _)| *known == engine) {
            return Err(PinError::Twice(name.clone()));
        }
        if !(0.0..=1.0).contains(weight) {
            return Err(PinError::Weight { engine: name.clone(), weight: *weight });
        }
        // Adding 0 turns -0 into 0.
        weights.push((engine, *weight + 0.0));
    }
    // The sum of nothing is -0; adding 0 makes it 0.
    let sum = weights.iter().map(|(_, weight)| weight).sum::<f64>() + 0.0;
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(PinError::Sum(sum));
    }
    Ok(Pin { cluster, class, weights })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn pin(weights: &[(&str, f64)]) -> PinRequest {
        let weights = weights.iter().map(|(e, w)| ((*e).to_owned(), *w)).collect();
        PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, expires_unix_ms: None }
    }

    #[test]
    fn pins_survive_a_restart_expire_and_are_taken_back() {
        let fleet = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut pins = Pins::load(dir.path(), &fleet);
        let timed = PinRequest { expires_unix_ms: Some(1_000), ..pin(&[("e2", 0.5), ("e3", 0.5)]) };
        pins.keep(pins.with(timed, &fleet).expect("legal")).expect("stored");
        let mut pins = Pins::load(dir.path(), &fleet);
        assert_eq!(pins.in_force(999, &fleet)[0].weights.len(), 2);
        assert!(pins.in_force(1_000, &fleet).is_empty());
        pins.keep(pins.with(pin(&[("e1", 1.0)]), &fleet).expect("legal")).expect("stored");
        assert_eq!(pins.without(Some("a"), None).len(), 1);
        pins.keep(pins.without(Some("b"), Some("chat"))).expect("stored");
        assert!(pins.in_force(0, &fleet).is_empty());
    }

    #[test]
    fn a_weight_that_is_no_number_is_refused_in_words_that_name_its_engine() {
        for weight in ["null", "\"0.5\"", "[]"] {
            let json = format!(r#"{{"cluster":"b","class":"chat","weights":[["e1",{weight}]]}}"#);
            let error = serde_json::from_str::<PinRequest>(&json).expect_err(weight).to_string();
            let wanted = format!("weight {weight} of engine \"e1\"; wanted a number from 0 to 1");
            assert!(error.starts_with(&wanted), "{error:?} lacks {wanted:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_pin_and_changes_nothing() {
        let fleet = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let pins = Pins::load(dir.path(), &fleet);
        for (wrong, wanted) in [
            (pin(&[("e9", 1.0)]), "unknown engine \"e9\"; wanted one of e1, e2, e3"),
            (pin(&[("e2", 0.5)]), "sum to 0.5"),
            (pin(&[("e2", 0.5), ("e2", 0.5)]), "twice"),
            (pin(&[("e2", -1.0), ("e1", 2.0)]), "from 0 to 1"),
            (pin(&[("e2", f64::NAN)]), "from 0 to 1"),
            (pin(&[("e2", f64::INFINITY)]), "from 0 to 1"),
            (pin(&[("e2", 0.0), ("e1", 0.0)]), "weights sum to 0; wanted 1"),
            (pin(&[("e1", 0.1), ("e2", 0.2)]), "weights sum to 0.3; wanted 1"),
            (pin(&[]), "weights sum to 0; wanted 1"),
            (PinRequest { cluster: "z".to_owned(), ..pin(&[("e1", 1.0)]) }, "unknown cluster \"z\""),
            (PinRequest { class: "z".to_owned(), ..pin(&[("e1", 1.0)]) }, "unknown class \"z\""),
        ] {
            let error = pins.with(wrong, &fleet).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        }
    }
}
