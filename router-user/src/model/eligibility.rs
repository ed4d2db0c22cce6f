//! Eligibility: which engines may serve which classes, whatever they cost.

use std::collections::BTreeMap;
use std::fmt;

/// Properties of an engine that a class can require, such as `residency = "eu"`.
pub type Tags = BTreeMap<String, String>;

/// The constraint that keeps an engine from serving a class.
#[derive(Clone, Debug, PartialEq)]
pub enum Ineligible {
    /// The engine does not serve the model.
    Model { model: String },
    /// The engine lacks a required tag, or has another value for it.
    Tag { key: String, wanted: String, found: Option<String> },
    /// The engine is beyond the class's round-trip cap from the cluster.
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

/// Why an engine with `models` and `tags` may not serve `model` with `require`; `None` if it may.
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
