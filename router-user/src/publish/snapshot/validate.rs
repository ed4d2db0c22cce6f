//! Validation of a snapshot: every invariant that a data plane relies on, and the errors.

use thiserror::Error;

use super::types::{FORMAT, FORMAT_OLDEST, Failover, Route, Share, Snapshot};
use crate::model::{ClassId, ClusterId, Ineligible};
use crate::plan::decide::failover::LOSSES_MOST;

/// Most failover weights of a snapshot, so that what is read is bounded. It is a bound of the wire
/// format, and as large as what a planner ever makes.
pub(super) const FAILOVERS_MOST: usize = 64;
const _: () = assert!(LOSSES_MOST <= FAILOVERS_MOST, "a planner makes more failover weights than a snapshot may have");

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
    #[error("failover weights {failover}: {source}")]
    Failover { failover: usize, source: Box<SnapshotError> },
    #[error("engine {engine:?} is lost and has a weight")]
    Lost { engine: String },
    #[error("says nothing of what is lost, or nothing of what it changes")]
    Empty,
    #[error("has {found} sets of failover weights; wanted at most {FAILOVERS_MOST}")]
    Failovers { found: usize },
    #[error("is for the unknown cluster {0:?}")]
    TargetClusters(String),
}

impl Snapshot {
    /// Checks every invariant a data plane relies on; a snapshot from outside is never used before
    /// this.
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
        if self.failovers.len() > FAILOVERS_MOST {
            return Err(SnapshotError::Failovers { found: self.failovers.len() });
        }
        for (index, failover) in self.failovers.iter().enumerate() {
            let wrong = |source| SnapshotError::Failover { failover: index, source: Box::new(source) };
            self.check_failover(failover).map_err(wrong)?;
        }
        match self.target_clusters.iter().find(|name| self.cluster(name).is_none()) {
            Some(unknown) => Err(SnapshotError::TargetClusters(unknown.clone())),
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
        // A route without any engine has no weights; all its demand is shed.
        if !weights.is_empty() && (sum - 1.0).abs() > 1e-6 {
            return Err(SnapshotError::Sum { route, sum });
        }
        Ok(())
    }

    /// An engine that is too far for the planned route is too far for its failover weights, too.
    fn check_distance(&self, route: usize, planned: &Route, weights: &[Share]) -> Result<(), SnapshotError> {
        match weights.iter().find(|share| planned.is_too_far(share.engine)) {
            Some(share) => Err(SnapshotError::TooFar { route, engine: self.engines[share.engine.index()].name.clone() }),
            None => Ok(()),
        }
    }

    fn check_failover(&self, failover: &Failover) -> Result<(), SnapshotError> {
        if failover.lost.is_empty() || failover.routes.is_empty() || failover.routes.iter().any(|r| r.weights.is_empty()) {
            return Err(SnapshotError::Empty);
        }
        if let Some(unknown) = failover.lost.iter().find(|engine| engine.index() >= self.engines.len()) {
            return Err(SnapshotError::Dangling { route: 0, what: "engine", number: unknown.0 });
        }
        for (index, route) in failover.routes.iter().enumerate() {
            self.check_route(index, route.cluster, route.class, route.shed_frac, &route.weights)?;
            if let Some(planned) = self.routes.iter().find(|r| (r.cluster, r.class) == (route.cluster, route.class)) {
                self.check_distance(index, planned, &route.weights)?;
            }
            if let Some(share) = route.weights.iter().find(|share| failover.lost.contains(&share.engine)) {
                return Err(SnapshotError::Lost { engine: self.engines[share.engine.index()].name.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EngineId;
    use crate::publish::snapshot::FailoverRoute;

    fn with_objective(objective_ms: f64, reason: &str) -> Snapshot {
        let config = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        let plan = Snapshot { objective_ms, reason: reason.to_owned(), ..Snapshot::describe(&config.fleet) };
        plan.sealed()
    }

    #[test]
    fn failover_weights_obey_the_rules_of_weights() {
        let legal = Failover {
            lost: vec![EngineId(1)],
            routes: vec![FailoverRoute {
                cluster: ClusterId(0),
                class: ClassId(0),
                shed_frac: 0.0,
                weights: vec![Share { engine: EngineId(0), weight: 1.0 }],
            }],
        };
        let found = |change: &dyn Fn(&mut Failover)| {
            let mut failover = legal.clone();
            change(&mut failover);
            Snapshot { failovers: vec![failover], ..with_objective(1.0, "") }.validate()
        };
        assert_eq!(found(&|_| {}), Ok(()));
        let wrong = |change: &dyn Fn(&mut Failover)| match found(change) {
            Err(SnapshotError::Failover { failover: 0, source }) => *source,
            other => panic!("{other:?}"),
        };
        assert_eq!(wrong(&|a| a.routes[0].weights[0].engine = EngineId(1)), SnapshotError::Lost { engine: "e2".to_owned() });
        assert!(matches!(wrong(&|a| a.routes[0].weights[0].weight = 0.5), SnapshotError::Sum { .. }));
        assert!(matches!(wrong(&|a| a.routes[0].weights[0].engine = EngineId(9)), SnapshotError::Dangling { .. }));
        assert!(matches!(wrong(&|a| a.lost[0] = EngineId(9)), SnapshotError::Dangling { .. }));
        assert!(matches!(wrong(&|a| a.routes[0].shed_frac = 2.0), SnapshotError::Shed { .. }));
        assert_eq!(wrong(&|a| a.lost.clear()), SnapshotError::Empty);
        assert_eq!(wrong(&|a| a.routes[0].weights.clear()), SnapshotError::Empty);
        let unknown = Snapshot { target_clusters: vec!["z".to_owned()], ..with_objective(1.0, "") }.validate();
        assert_eq!(unknown, Err(SnapshotError::TargetClusters("z".to_owned())));
    }
}
