//! Weights that an operator has set by hand. They last until they expire or an operator removes
//! them, also across a restart of the controller.
//!
//! Within a process a pin's end is a time of the monotonic clock, so changes of the wall clock do
//! not matter. From one process to the next its end is a time of the wall clock, but a pin never
//! lasts longer than its remaining time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::model::{ClassId, ClusterId, Fleet, Ineligible};
use crate::plan::Pin;

/// Largest distance of a sum of weights from 1: the rounding error of typed decimals.
const SUM_TOLERANCE: f64 = 0.001;

/// Weights of one (cluster, class) as an operator writes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    pub cluster: String,
    pub class: String,
    /// Engine name and weight; the weights sum to 1.
    #[serde(deserialize_with = "weights")]
    pub weights: Vec<(String, f64)>,
    /// How long the pin lasts, in ms. Without it and the next field, it lasts until an operator
    /// removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When the pin ends, in ms since the Unix epoch. Where both are given, the earlier end counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

/// The present moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Monotonic time since the start of the process.
    pub(super) now: Duration,
    /// Wall-clock time in ms since the Unix epoch.
    pub(super) unix_ms: u64,
}

/// An active pin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldPin {
    /// Without its times.
    request: PinRequest,
    /// When it ends, by the monotonic clock.
    ends: Option<Duration>,
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
}

/// All pins, with the file that keeps them.
#[derive(Debug)]
pub(super) struct Pins {
    file: PathBuf,
    pins: Vec<HeldPin>,
}

impl Pins {
    /// Reads the pins that were set before. Those that no longer fit the fleet are dropped with a
    /// warning.
    pub(super) fn load(dir: &Path, fleet: &Fleet, moment: Moment) -> Self {
        let file = dir.join("pins.json");
        let pins = match std::fs::read(&file) {
            Ok(json) => serde_json::from_slice::<Vec<PinRequest>>(&json).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "pins cannot be read; going on without them");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        };
        Self { file, pins: legal(pins, fleet, moment) }
    }

    /// All pins with `pin` in the place of an earlier one of the same cluster and class; to be
    /// [set](Self::set).
    ///
    /// Errors: it names something unknown or not eligible, or its weights are not weights.
    pub(super) fn with(&self, pin: PinRequest, fleet: &Fleet, moment: Moment) -> Result<Vec<HeldPin>, PinError> {
        resolve(&pin, fleet)?;
        let mut pins = self.pins.clone();
        pins.retain(|p| (&p.request.cluster, &p.request.class) != (&pin.cluster, &pin.class));
        pins.push(HeldPin::of(pin, moment));
        Ok(pins)
    }

    /// The pins without those that match; `None` matches all.
    ///
    /// Errors: the fleet has no such cluster or class.
    pub(super) fn without(&self, cluster: Option<&str>, class: Option<&str>, fleet: &Fleet) -> Result<Vec<HeldPin>, PinError> {
        cluster.map(|name| find_cluster(fleet, name)).transpose()?;
        class.map(|name| find_class(fleet, name)).transpose()?;
        let matches = |p: &PinRequest| cluster.is_none_or(|c| c == p.cluster) && class.is_none_or(|c| c == p.class);
        Ok(self.pins.iter().filter(|p| !matches(&p.request)).cloned().collect())
    }

    pub(super) fn len(&self) -> usize {
        self.pins.len()
    }

    /// The pins that are active `now`; expired ones are deleted.
    pub(super) fn active(&mut self, now: Duration, fleet: &Fleet) -> Vec<Pin> {
        self.pins.retain(|pin| pin.ends.is_none_or(|end| end > now));
        self.pins.iter().filter_map(|pin| resolve(&pin.request, fleet).ok()).collect()
    }

    /// Where pins are kept on this disk.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn all(&self) -> &[HeldPin] {
        &self.pins
    }

    /// Puts `pins`, which are [kept](Self::file) already, in the place of all.
    pub(super) fn set(&mut self, pins: Vec<HeldPin>) {
        self.pins = pins;
    }

    /// Takes over the pins that another controller kept.
    ///
    /// Errors: they cannot be read; then nothing changes.
    pub(super) fn adopt(&mut self, json: &[u8], fleet: &Fleet, moment: Moment) -> Result<(), PinError> {
        let pins: Vec<PinRequest> = serde_json::from_slice(json)?;
        self.pins = legal(pins, fleet, moment);
        Ok(())
    }
}

impl HeldPin {
    pub(super) fn of(request: PinRequest, moment: Moment) -> Self {
        let left = time_left(request.ttl_ms, request.expires_unix_ms, moment.unix_ms);
        Self {
            ends: left.map(|left| moment.now.saturating_add(left)),
            request: PinRequest { ttl_ms: None, expires_unix_ms: None, ..request },
        }
    }

    /// The pin with what is left of it, for another process.
    fn to_request(&self, moment: Moment) -> PinRequest {
        let left_ms = self.ends.map(|end| u64::try_from(end.saturating_sub(moment.now).as_millis()).unwrap_or(u64::MAX));
        let expires_unix_ms = left_ms.map(|left| moment.unix_ms.saturating_add(left));
        PinRequest { ttl_ms: left_ms, expires_unix_ms, ..self.request.clone() }
    }
}

/// How long a pin lasts from now on that was asked for by a duration, an end by the wall clock, or
/// both; `None` for one without end.
pub(crate) fn time_left(ttl_ms: Option<u64>, expires_unix_ms: Option<u64>, unix_ms: u64) -> Option<Duration> {
    let until_end = expires_unix_ms.map(|end| end.saturating_sub(unix_ms));
    ttl_ms.into_iter().chain(until_end).min().map(Duration::from_millis)
}

/// Pins in their stored form.
pub(super) fn to_json(pins: &[HeldPin], moment: Moment) -> Vec<u8> {
    let requests: Vec<PinRequest> = pins.iter().map(|pin| pin.to_request(moment)).collect();
    serde_json::to_vec_pretty(&requests).expect("pins have only strings and finite numbers")
}

/// Stored pins that still fit the fleet, for what is left of them.
fn legal(pins: Vec<PinRequest>, fleet: &Fleet, moment: Moment) -> Vec<HeldPin> {
    pins.into_iter().filter(|pin| is_legal(pin, fleet)).map(|pin| HeldPin::of(pin, moment)).collect()
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

fn find_cluster(fleet: &Fleet, name: &str) -> Result<ClusterId, PinError> {
    let unknown = || PinError::Cluster(name.to_owned(), names(fleet.clusters.iter().map(|cluster| &cluster.name)));
    fleet.cluster(name).ok_or_else(unknown)
}

fn find_class(fleet: &Fleet, name: &str) -> Result<ClassId, PinError> {
    let unknown = || PinError::Class(name.to_owned(), names(fleet.classes.iter().map(|class| &class.name)));
    fleet.class(name).ok_or_else(unknown)
}

fn names<'n>(names: impl Iterator<Item = &'n String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn resolve(pin: &PinRequest, fleet: &Fleet) -> Result<Pin, PinError> {
    let (cluster, class) = (find_cluster(fleet, &pin.cluster)?, find_class(fleet, &pin.class)?);
    let mut weights = Vec::with_capacity(pin.weights.len());
    for (name, weight) in &pin.weights {
        let engine =
            fleet.engine(name).ok_or_else(|| PinError::Engine(name.clone(), names(fleet.engines.iter().map(|e| &e.name))))?;
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
        PinRequest { cluster: "b".to_owned(), class: "chat".to_owned(), weights, ..PinRequest::default() }
    }

    /// Keeps pins as the controller does.
    fn keep(pins: &mut Pins, kept: Vec<HeldPin>, moment: Moment) {
        crate::publish::store::write_whole(pins.file(), &to_json(&kept, moment)).expect("stored");
        pins.set(kept);
    }

    fn at(now_ms: u64, unix_ms: u64) -> Moment {
        Moment { now: ms(now_ms), unix_ms }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pins_survive_a_restart_expire_and_are_taken_back() {
        let fleet = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut pins = Pins::load(dir.path(), &fleet, at(0, 0));
        let timed = PinRequest { expires_unix_ms: Some(1_000), ..pin(&[("e2", 0.5), ("e3", 0.5)]) };
        let kept = pins.with(timed, &fleet, at(0, 0)).expect("legal");
        keep(&mut pins, kept, at(0, 0));
        let mut pins = Pins::load(dir.path(), &fleet, at(0, 0));
        assert_eq!(pins.active(ms(999), &fleet)[0].weights.len(), 2);
        assert!(pins.active(ms(1_000), &fleet).is_empty());
        let kept = pins.with(pin(&[("e1", 1.0)]), &fleet, at(0, 0)).expect("legal");
        keep(&mut pins, kept, at(0, 0));
        assert_eq!(pins.without(Some("a"), None, &fleet).expect("known").len(), 1);
        let kept = pins.without(Some("b"), Some("chat"), &fleet).expect("known");
        keep(&mut pins, kept, at(0, 0));
        assert!(pins.active(ms(0), &fleet).is_empty());
    }

    #[test]
    fn a_pin_lasts_as_long_as_it_was_set_for_wherever_the_wall_clock_goes() {
        let fleet = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut pins = Pins::load(dir.path(), &fleet, at(0, 500_000));
        let timed = PinRequest { ttl_ms: Some(8_000), ..pin(&[("e1", 1.0)]) };
        let kept = pins.with(timed, &fleet, at(1_000, 500_000)).expect("legal");
        keep(&mut pins, kept, at(1_000, 500_000));
        assert_eq!(pins.active(ms(8_999), &fleet).len(), 1);
        // The next process starts 3 s later, by a wall clock that is right, was set back, or was
        // set forward.
        for (unix_ms, left_ms) in [(503_000, 5_000), (100_000, 8_000), (900_000, 0)] {
            let mut next = Pins::load(dir.path(), &fleet, at(0, unix_ms));
            assert!(left_ms == 0 || next.active(ms(left_ms - 1), &fleet).len() == 1, "{unix_ms}");
            assert!(next.active(ms(left_ms), &fleet).is_empty(), "{unix_ms}");
        }
        assert!(pins.active(ms(9_000), &fleet).is_empty());
    }

    #[test]
    fn what_is_taken_back_has_to_exist() {
        let fleet = config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let pins = Pins::load(dir.path(), &fleet, at(0, 0));
        let error = pins.without(None, Some("nope"), &fleet).expect_err("no such class");
        assert_eq!(error.to_string(), "unknown class \"nope\"; wanted one of chat");
        let error = pins.without(Some("z"), None, &fleet).expect_err("no such cluster");
        assert_eq!(error.to_string(), "unknown cluster \"z\"; wanted one of a, b, c");
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
        let pins = Pins::load(dir.path(), &fleet, at(0, 0));
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
            let error = pins.with(wrong, &fleet, at(0, 0)).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        }
    }
}
