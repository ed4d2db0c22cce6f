//! The weights of a route: the one form in which plans, snapshots and explanations pass them on.

use super::{ClassId, ClusterId, EngineId};

/// Weights of one (cluster, class), from wherever they come.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteWeights {
    pub cluster: ClusterId,
    pub class: ClassId,
    /// Share of the demand that is refused, in [0, 1].
    pub shed_frac: f64,
    /// Shares of the rest, sum 1; empty if nothing is served.
    pub weights: Vec<(EngineId, f64)>,
}

impl RouteWeights {
    /// The weight of an engine; 0 for one that is not listed.
    pub fn weight(&self, engine: EngineId) -> f64 {
        self.weights.iter().find(|&&(other, _)| other == engine).map_or(0.0, |&(_, weight)| weight)
    }

    /// What each weight changes by from here to `new`; an engine of both is named twice.
    pub(crate) fn changes_to<'r>(&'r self, new: &'r Self) -> impl Iterator<Item = (EngineId, f64)> + 'r {
        let engines = self.weights.iter().chain(&new.weights).map(|&(engine, _)| engine);
        engines.map(|engine| (engine, new.weight(engine) - self.weight(engine)))
    }
}
