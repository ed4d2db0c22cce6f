//! The changes of a snapshot against the one before it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::publish::snapshot::Snapshot;

/// Smallest change of a weight that is reported, as a fraction of its (cluster, class) demand.
const TOLD: f64 = 1e-4;

/// One share of a (cluster, class) demand that has moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub cluster: String,
    pub class: String,
    /// `None` for the share that is planned to be refused.
    pub engine: Option<String>,
    pub before: f64,
    pub after: f64,
}

/// The moves from one snapshot to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moves {
    /// Fraction of the fleet's demand that goes elsewhere.
    pub moved_frac: f64,
    /// The largest change in requests/s first.
    pub moves: Vec<Move>,
}

/// Compares two snapshots by name, so that fleets that changed in between compare too.
pub fn moves(before: &Snapshot, after: &Snapshot) -> Moves {
    let (old, new) = (shares(before), shares(after));
    let mut moves: Vec<(f64, Move)> = Vec::new();
    let (mut moved_rps, mut all_rps) = (0.0, 0.0);
    for (&(cluster, class), (demand_rps, shares)) in &new {
        all_rps += demand_rps;
        let none = BTreeMap::new();
        let current = old.get(&(cluster, class)).map_or(&none, |(_, shares)| shares);
        let engines: std::collections::BTreeSet<Option<&str>> = current.keys().chain(shares.keys()).copied().collect();
        for engine in engines {
            let share = |shares: &BTreeMap<Option<&str>, f64>| shares.get(&engine).copied().unwrap_or(0.0);
            let (before, after) = (share(current), share(shares));
            let change_rps = (after - before).abs() * demand_rps;
            // Demand that leaves one engine arrives at another, so half of the sum has moved.
            moved_rps += change_rps / 2.0;
            if (after - before).abs() > TOLD {
                let change = Move {
                    cluster: cluster.to_owned(),
                    class: class.to_owned(),
                    engine: engine.map(str::to_owned),
                    before,
                    after,
                };
                moves.push((change_rps, change));
            }
        }
    }
    moves.sort_by(|a, b| b.0.total_cmp(&a.0));
    let moved_frac = if all_rps > 0.0 { moved_rps / all_rps } else { 0.0 };
    Moves { moved_frac, moves: moves.into_iter().map(|(_, change)| change).collect() }
}

type Shares<'a> = BTreeMap<(&'a str, &'a str), (f64, BTreeMap<Option<&'a str>, f64>)>;

/// Demand of each (cluster, class), and its fraction for each engine; `None` stands for being
/// refused.
fn shares(snapshot: &Snapshot) -> Shares<'_> {
    let route = |route: &crate::publish::snapshot::Route| {
        let served = 1.0 - route.shed_frac;
        let name = |engine: crate::model::EngineId| Some(snapshot.engines[engine.index()].name.as_str());
        let mut shares: BTreeMap<_, _> = route.weights.iter().map(|s| (name(s.engine), s.weight * served)).collect();
        shares.insert(None, route.shed_frac);
        (route.demand_rps, shares)
    };
    (snapshot.routes.iter())
        .map(|r| {
            let key = (snapshot.clusters[r.cluster.index()].name.as_str(), snapshot.classes[r.class.index()].name.as_str());
            (key, route(r))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClassId, ClusterId, EngineId};
    use crate::publish::snapshot::{Route, Share};

    fn snapshot(weights: &[(u16, f64)], shed_frac: f64) -> Snapshot {
        let config = crate::config::parse(include_str!("../../../examples/three-regions.toml")).expect("legal");
        let weights = weights.iter().map(|&(engine, weight)| Share { engine: EngineId(engine), weight }).collect();
        let still = |cluster| Route {
            cluster: ClusterId(cluster),
            class: ClassId(0),
            demand_rps: 100.0,
            price_ms: 0.0,
            shed_frac: 0.0,
            pinned: false,
            too_far: Vec::new(),
            weights: vec![Share { engine: EngineId(0), weight: 1.0 }],
        };
        let routes = vec![still(0), Route { weights, shed_frac, ..still(1) }];
        Snapshot { routes, ..Snapshot::describe(&config.fleet) }
    }

    #[test]
    fn tells_who_lost_and_who_gained() {
        let found = moves(&snapshot(&[(1, 1.0)], 0.0), &snapshot(&[(1, 0.7), (2, 0.3)], 0.0));
        assert!((found.moved_frac - 0.15).abs() < 1e-12, "30 of 200 requests/s");
        let told: Vec<_> = found.moves.iter().map(|m| (m.engine.as_deref(), m.before, m.after)).collect();
        assert_eq!(told, [(Some("e2"), 1.0, 0.7), (Some("e3"), 0.0, 0.3)]);
        assert_eq!(moves(&snapshot(&[(1, 1.0)], 0.0), &snapshot(&[(1, 1.0)], 0.0)), Moves::default());
    }

    #[test]
    fn what_is_refused_counts_as_moved() {
        let found = moves(&snapshot(&[(1, 1.0)], 0.0), &snapshot(&[(1, 1.0)], 0.5));
        assert!((found.moved_frac - 0.25).abs() < 1e-12);
        assert!(found.moves.iter().any(|m| m.engine.is_none() && m.after == 0.5));
    }
}
