//! The tables of one data plane: the classes, candidates and slot tables of its cluster, built once
//! per snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use super::slots::{Candidate, SlotTable, engine_key};
use crate::model::{ClassId, ClusterId, EngineId};
use crate::publish::snapshot::{OrderKind, Snapshot};

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
    /// Every eligible engine that no operator has ejected, with its weight, 0 included. Eligibility
    /// is settled here and never relaxed later.
    pub candidates: Vec<Candidate>,
    /// Number of eligible engines, ejected ones included.
    pub eligible: usize,
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
            let eligible: Vec<EngineId> = (0..snapshot.engines.len())
                .map(EngineId::of)
                .filter(|&engine| snapshot.ineligible(class, engine).is_none() && !route.is_some_and(|r| r.is_too_far(engine)))
                .collect();
            let is_ordered = |engine: EngineId, kind| snapshot.engines[engine.index()].is_ordered(kind);
            let candidates: Vec<Candidate> = (eligible.iter().copied())
                .filter(|&engine| !is_ordered(engine, OrderKind::Eject))
                .map(|engine| {
                    let share = route.and_then(|r| r.weights.iter().find(|s| s.engine == engine));
                    // The weights may be older than the order.
                    let share = share.filter(|_| !is_ordered(engine, OrderKind::Drain));
                    Candidate { engine, key: keys[engine.index()], weight: share.map_or(0.0, |s| s.weight) }
                })
                .collect();
            let known = (before.into_iter().flat_map(|b| &b.classes)).chain(&classes).find(|c| c.candidates == candidates);
            let table = known.map_or_else(|| Arc::new(SlotTable::build(&candidates)), |c| Arc::clone(&c.table));
            let shed_frac = route.map_or(0.0, |r| r.shed_frac);
            classes.push(ClassRoute { class, candidates, eligible: eligible.len(), shed_frac, table });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Inputs, plan};
    use crate::publish::build;
    use crate::publish::snapshot::EngineOrder;

    #[test]
    fn an_ejected_engine_is_no_candidate_and_a_drained_one_comes_last() {
        let fleet = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal").fleet;
        let planned = plan(&fleet, &Inputs::from_fleet(&fleet), None).expect("a plan");
        let snapshot = build::snapshot(&fleet, &planned, 7, 0, "test");
        let routes = |kind: Option<OrderKind>| {
            let mut snapshot = snapshot.clone();
            snapshot.engines[0].order = kind.map(|kind| EngineOrder {
                kind,
                by: "test".to_owned(),
                reason: String::new(),
                since_unix_ms: 1,
                until_unix_ms: None,
            });
            Routes::build(Arc::new(snapshot), ClusterId(0), None)
        };
        let candidates = |kind| {
            let class = &routes(kind).classes[0];
            (class.eligible, class.candidates.iter().map(|c| (c.engine.0, c.weight > 0.0)).collect::<Vec<_>>())
        };
        let (usual, restored) = (candidates(None), candidates(Some(OrderKind::Restore)));
        assert_eq!((usual.0, usual.1[0]), (3, (0, true)));
        assert_eq!(restored, usual);
        assert_eq!(candidates(Some(OrderKind::Drain)), (3, vec![(0, false), usual.1[1], usual.1[2]]));
        assert_eq!(candidates(Some(OrderKind::Eject)), (3, vec![usual.1[1], usual.1[2]]));
    }
}
