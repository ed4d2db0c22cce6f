//! The tables of one data plane: the classes, candidates and slot tables of its cluster, built once
//! per snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use super::slots::{Candidate, SlotTable, engine_key};
use crate::model::{ClassId, ClusterId, EngineId};
use crate::publish::snapshot::Snapshot;

/// The routes of one cluster. Immutable; a request loads it once and reads nothing else.
pub struct Routes {
    pub snapshot: Arc<Snapshot>,
    pub cluster: ClusterId,
    /// Indexed by [`ClassId`].
    pub classes: Vec<ClassRoute>,
    by_model: HashMap<String, Vec<ClassId>>,
}

/// The engines and weights of one class in this cluster.
pub struct ClassRoute {
    pub class: ClassId,
    /// Every eligible engine, with its weight, 0 included. Eligibility is settled here and never
    /// relaxed later.
    pub candidates: Vec<Candidate>,
    /// Fraction of keys to refuse, 0 to 1, by the plan.
    pub shed_frac: f64,
    /// Shared by classes with equal candidates and weights.
    pub table: Arc<SlotTable>,
}

impl Routes {
    /// Builds the routes of `cluster` from a validated snapshot.
    ///
    /// Tables of `before` are used again where candidates and weights are unchanged. This saves the
    /// rebuild and keeps CPU caches warm.
    pub fn build(snapshot: Arc<Snapshot>, cluster: ClusterId, before: Option<&Self>) -> Self {
        let keys: Vec<u64> = snapshot.engines.iter().map(|e| engine_key(&e.name)).collect();
        let mut classes: Vec<ClassRoute> = Vec::with_capacity(snapshot.classes.len());
        let mut by_model: HashMap<String, Vec<ClassId>> = HashMap::new();
        for (index, entry) in snapshot.classes.iter().enumerate() {
            let class = ClassId::of(index);
            by_model.entry(entry.model.clone()).or_default().push(class);
            let route = snapshot.route(cluster, class);
            let candidates: Vec<Candidate> = (0..snapshot.engines.len())
                .map(EngineId::of)
                .filter(|&engine| snapshot.ineligible(class, engine).is_none() && !route.is_some_and(|r| r.is_too_far(engine)))
                .map(|engine| {
                    let weight = route.and_then(|r| r.weights.iter().find(|s| s.engine == engine)).map_or(0.0, |s| s.weight);
                    Candidate { engine, key: keys[engine.index()], weight }
                })
                .collect();
            let known = (before.into_iter().flat_map(|b| &b.classes)).chain(&classes).find(|c| c.candidates == candidates);
            let table = known.map_or_else(|| Arc::new(SlotTable::build(&candidates)), |c| Arc::clone(&c.table));
            classes.push(ClassRoute { class, candidates, shed_frac: route.map_or(0.0, |r| r.shed_frac), table });
        }
        Self { snapshot, cluster, classes, by_model }
    }

    /// Classes of a model, in the order of the configuration; `None` for an unknown model.
    pub fn classes_of(&self, model: &str) -> Option<&[ClassId]> {
        self.by_model.get(model).map(Vec::as_slice)
    }

    /// Models that clients can ask for, sorted.
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = self.by_model.keys().map(String::as_str).collect();
        models.sort_unstable();
        models
    }
}
