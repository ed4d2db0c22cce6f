//! One input changed: what would be planned instead? Pure.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::model::Fleet;

use crate::plan::explain::report::{Solution, solution};
use crate::plan::{Inputs, Plan};

/// The forms a change may have, for messages.
const FORMS: &str = "engine.NAME.replicas=N, cluster.NAME.demand_rps.CLASS=VALUE, rtt_ms.REGION.REGION=VALUE or control.headroom=FRACTION, \
                     where VALUE is a number, +N, -N, +N% or -N%";

/// Differences of weights, loads and shed below these are not worth a line: a hundredth of a
/// percent, a hundredth of a request/s.
const WEIGHT_SHOWN: f64 = 1e-4;
const RPS_SHOWN: f64 = 1e-2;

/// A change of one input, as it is written on a command line: `engine.e2.replicas=0`,
/// `cluster.b.demand_rps.chat=+20%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    text: String,
    key: String,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Set(f64),
    Add(f64),
    Scale(f64),
}

/// Why a change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    #[error("{text:?} has no value; wanted {FORMS}")]
    NoValue { text: String },
    #[error("{value:?} in {text:?} is no number; wanted 120, +20, -20, +20% or -20%")]
    Number { text: String, value: String },
    #[error("{key:?} is no input that can be changed; wanted {FORMS}")]
    Key { key: String },
    #[error("{key:?} names the unknown {what}; wanted one of {known}")]
    Unknown { key: String, what: String, known: String },
    #[error("{text:?} gives {found}; wanted {wanted}")]
    Range { text: String, found: String, wanted: String },
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let (key, value) = text.split_once('=').ok_or_else(|| ChangeError::NoValue { text: text.to_owned() })?;
        let refuse = || ChangeError::Number { text: text.to_owned(), value: value.to_owned() };
        let number = |digits: &str| digits.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(refuse);
        let is_relative = value.starts_with(['+', '-']);
        let value = match value.strip_suffix('%') {
            Some(percent) if is_relative => Value::Scale(1.0 + number(percent)? / 100.0),
            Some(_) => return Err(refuse()),
            None if is_relative => Value::Add(number(value)?),
            None => Value::Set(number(value)?),
        };
        if !["engine.", "cluster.", "rtt_ms.", "control."].iter().any(|start| key.starts_with(start)) {
            return Err(ChangeError::Key { key: key.to_owned() });
        }
        Ok(Self { text: text.to_owned(), key: key.to_owned(), value })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Change {
    /// Applies the change to the inputs.
    ///
    /// Errors: a name that the fleet does not have, or a value out of range; the inputs are then as
    /// they were.
    pub fn apply(&self, fleet: &Fleet, inputs: &mut Inputs) -> Result<(), ChangeError> {
        let key = self.key.as_str();
        if let Some(name) = key.strip_prefix("engine.").and_then(|rest| rest.strip_suffix(".replicas")) {
            let names = || fleet.engines.iter().map(|engine| engine.name.as_str());
            let engine = fleet.engine(name).ok_or_else(|| self.unknown(format!("engine {name:?}"), names()))?;
            let (ready, replicas) = (&mut inputs.ready[engine.index()], fleet.engines[engine.index()].replicas);
            let value = self.value.of(f64::from(*ready));
            if value.fract() != 0.0 || !(0.0..=f64::from(replicas)).contains(&value) {
                return Err(self.range(value, format!("a whole number from 0 to its {replicas} replicas")));
            }
            *ready = value as u32; // checked just above
            return Ok(());
        }
        if let Some(rest) = key.strip_prefix("cluster.") {
            // Names may contain dots, so whole names are compared with parts of the key.
            let (name, class) = rest.split_once(".demand_rps.").ok_or_else(|| ChangeError::Key { key: key.to_owned() })?;
            let clusters = || fleet.clusters.iter().map(|cluster| cluster.name.as_str());
            let classes = || fleet.classes.iter().map(|class| class.name.as_str());
            let cluster = fleet.cluster(name).ok_or_else(|| self.unknown(format!("cluster {name:?}"), clusters()))?;
            let class = fleet.class(class).ok_or_else(|| self.unknown(format!("class {class:?}"), classes()))?;
            let demand = &mut inputs.demand_rps[cluster.index()][class.index()];
            *demand = self.not_negative(*demand, "requests/s")?;
            return Ok(());
        }
        if let Some(rest) = key.strip_prefix("rtt_ms.") {
            let pairs = fleet.cluster_ids().flat_map(|cluster| fleet.engine_ids().map(move |engine| (cluster, engine)));
            let pairs: Vec<_> = pairs.collect();
            let path = |&(cluster, engine): &(crate::model::ClusterId, crate::model::EngineId)| {
                format!("{}.{}", fleet.clusters[cluster.index()].region, fleet.engines[engine.index()].region)
            };
            let mut found = false;
            for (cluster, engine) in pairs.iter().copied().filter(|pair| path(pair) == rest) {
                let rtt = &mut inputs.rtt_ms[cluster.index()][engine.index()];
                *rtt = self.not_negative(*rtt, "ms")?;
                found = true;
            }
            let mut known: Vec<String> = pairs.iter().map(path).collect();
            known.sort();
            known.dedup();
            return if found { Ok(()) } else { Err(self.unknown(format!("way {rest:?}"), known.iter().map(String::as_str))) };
        }
        if key == "control.headroom" {
            let value = self.value.of(inputs.headroom_frac);
            if !(0.0..1.0).contains(&value) {
                return Err(self.range(value, "a fraction from 0 to below 1".to_owned()));
            }
            inputs.headroom_frac = value;
            return Ok(());
        }
        Err(ChangeError::Key { key: key.to_owned() })
    }

    fn not_negative(&self, now: f64, unit: &str) -> Result<f64, ChangeError> {
        let value = self.value.of(now);
        if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(self.range(value, format!("0 {unit} or more"))) }
    }

    fn range(&self, found: f64, wanted: String) -> ChangeError {
        ChangeError::Range { text: self.text.clone(), found: found.to_string(), wanted }
    }

    fn unknown<'n>(&self, what: String, known: impl Iterator<Item = &'n str>) -> ChangeError {
        ChangeError::Unknown { key: self.key.clone(), what, known: known.collect::<Vec<_>>().join(", ") }
    }
}

impl Value {
    fn of(self, now: f64) -> f64 {
        match self {
            Self::Set(value) => value,
            Self::Add(more) => now + more,
            Self::Scale(factor) => now * factor,
        }
    }
}

/// Two plans and what differs, as `ilb solve --what-if … --json` prints them. Units: requests/s,
/// ms, shares of 1.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub changes: Vec<String>,
    pub before: Solution,
    pub after: Solution,
    pub differences: Differences,
}

/// The differences between two plans of one fleet, largest first.
#[derive(Clone, Debug, Serialize)]
pub struct Differences {
    pub objective_ms: f64,
    pub shed_rps: f64,
    pub weights: Vec<WeightDifference>,
    pub engines: Vec<EngineDifference>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightDifference {
    pub cluster: String,
    pub class: String,
    pub engine: String,
    pub before: f64,
    pub after: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineDifference {
    pub engine: String,
    pub load_before_rps: f64,
    pub load_after_rps: f64,
    pub price_before_ms: f64,
    pub price_after_ms: f64,
}

/// Compares two plans of `fleet`, each with the inputs it was made for.
pub fn compare(fleet: &Fleet, changes: &[Change], before: (&Inputs, &Plan), after: (&Inputs, &Plan)) -> Comparison {
    let ((inputs_before, before), (inputs_after, after)) = (before, after);
    let shed = |plan: &Plan| plan.routes.iter().map(|route| route.shed_rps).sum::<f64>();
    let mut weights = Vec::new();
    for (old, new) in before.routes.iter().zip(&after.routes) {
        for engine in fleet.engine_ids() {
            let weight = |route: &crate::plan::Route| {
                route.weights.iter().find(|share| share.engine == engine).map_or(0.0, |share| share.weight)
            };
            let (before, after) = (weight(old), weight(new));
            if (after - before).abs() >= WEIGHT_SHOWN {
                weights.push(WeightDifference {
                    cluster: fleet.clusters[old.cluster.index()].name.clone(),
                    class: fleet.classes[old.class.index()].name.clone(),
                    engine: fleet.engines[engine.index()].name.clone(),
                    before,
                    after,
                });
            }
        }
    }
    weights.sort_by(|a, b| (b.after - b.before).abs().total_cmp(&(a.after - a.before).abs()));
    let pairs = before.engines.iter().zip(&after.engines).zip(&fleet.engines);
    let mut engines: Vec<EngineDifference> = pairs
        .filter(|((old, new), _)| (new.load_rps - old.load_rps).abs() >= RPS_SHOWN)
        .map(|((old, new), engine)| EngineDifference {
            engine: engine.name.clone(),
            load_before_rps: old.load_rps,
            load_after_rps: new.load_rps,
            price_before_ms: old.price_ms,
            price_after_ms: new.price_ms,
        })
        .collect();
    let by = |row: &EngineDifference| (row.load_after_rps - row.load_before_rps).abs();
    engines.sort_by(|a, b| by(b).total_cmp(&by(a)));
    Comparison {
        changes: changes.iter().map(Change::to_string).collect(),
        before: solution(fleet, inputs_before, before),
        after: solution(fleet, inputs_after, after),
        differences: Differences {
            objective_ms: after.objective_ms - before.objective_ms,
            shed_rps: shed(after) - shed(before),
            weights,
            engines,
        },
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mean latency of a served request: {:+.1} ms", self.objective_ms)?;
        writeln!(f, "shed: {:+.1} requests/s", self.shed_rps)?;
        if self.weights.is_empty() {
            writeln!(f, "no weight changes")?;
        }
        for row in &self.weights {
            let (before, after) = (row.before * 100.0, row.after * 100.0);
            writeln!(f, "  {} {} -> {}: {before:.2} % becomes {after:.2} %", row.cluster, row.class, row.engine)?;
        }
        for row in &self.engines {
            let (before, after) = (row.load_before_rps, row.load_after_rps);
            let prices = format!("price {:.1} becomes {:.1} ms", row.price_before_ms, row.price_after_ms);
            writeln!(f, "  engine {}: {before:.1} requests/s become {after:.1}, {prices}", row.engine)?;
        }
        Ok(())
    }
}
