//! Weights of a route: the form that plans, snapshots and explanations share.

use super::{ClassId, ClusterId, EngineId};

/// Weights of one (cluster, class), whatever their origin.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteWeights {
    pub cluster: ClusterId,
    pub class: ClassId,
    /// Fraction of the demand that is shed, in [0, 1].
    pub shed_frac: f64,
    /// Fractions of the served requests, sum 1; empty if no request is served.
    pub weights: Vec<(EngineId, f64)>,
}

impl RouteWeights {
    /// The weight of an engine; 0 for one that is not listed.
    pub fn weight(&self, engine: EngineId) -> f64 {
        self.weights.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, weight)| weight)
    }

    /// Change of each weight from `self` to `new`; an engine of both routes occurs twice.
    pub(crate) fn changes_to<'r>(&'r self, new: &'r Self) -> impl Iterator<Item = (EngineId, f64)> + 'r {
        let engines = self.weights.iter().chain(&new.weights).map(|&(engine, _)| engine);
        engines.map(|engine| (engine, new.weight(engine) - self.weight(engine)))
    }
}
