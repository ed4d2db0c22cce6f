//! Weights that have just moved are left alone for a while. Pure.
//!
//! Demand wanders and comes back, and a plan that follows it there and back moves the same
//! conversations twice for nothing: two prefills, and weights that nobody can read. So a (cluster,
//! class) that has just moved rests: for the next plans its requests pay a multiple of the price of
//! moving. It is a price like every other, in ms, so that what is worth more moves all the same,
//! and nothing that has to move is kept from it. Where a plan would nevertheless turn a weight back
//! that has just moved, it says so, and the planner asks more of it. What is remembered is lost
//! with the process; then a weight may once turn round early.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{ClassId, ClusterId, EngineId};

use crate::plan::RouteWeights;

/// Plans for which a route rests: about as long as a deviation of demand lasts.
const REST_PLANS: u8 = 10;

/// Times the price of moving that requests of a route pay which rests: most of what noise of demand
/// is worth is less, and what follows from a loss of engines is more. docs/model.md, section 8, has
/// what it does.
const REST_FACTOR: f64 = 50.0;

/// Change of a weight that counts as a move: half of what anybody would call a change of direction.
const MOVE_FRAC: f64 = 0.005;

/// Change of a weight that is a change of direction if it goes back.
const TURN_FRAC: f64 = 0.01;

/// A weight that a plan would turn back although it went the other way within the last
/// [`REST_PLANS`] plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reversal {
    pub cluster: ClusterId,
    pub class: ClassId,
    pub engine: EngineId,
    /// What the plan would change the weight by.
    pub by: f64,
}

/// What rests, seen in the weights in force from plan to plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cooldown {
    held: Vec<RouteWeights>,
    /// What was in force before it.
    before: Vec<RouteWeights>,
    /// Plans left of each route that rests.
    left: BTreeMap<(ClusterId, ClassId), u8>,
    /// Changes of weights by more than [`TURN_FRAC`] in the last plans.
    moves: VecDeque<BTreeMap<(ClusterId, ClassId, EngineId), f64>>,
}

impl Cooldown {
    /// One more plan is to be made, from the `held` weights.
    pub(crate) fn observe(&mut self, held: Option<&[RouteWeights]>) {
        self.left.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let held = held.unwrap_or_default();
        if self.moves.len() >= usize::from(REST_PLANS) {
            self.moves.pop_front();
        }
        self.moves.push_back(BTreeMap::new());
        if self.held == held {
            return;
        }
        // A move that was undone as a whole, as when a trial fails or an operator goes back, was
        // none.
        let is_undone = self.before == held;
        let before: BTreeMap<_, &RouteWeights> = self.held.iter().map(|route| ((route.cluster, route.class), route)).collect();
        let mut moves = BTreeMap::new();
        for route in held {
            let id = (route.cluster, route.class);
            if let Some(before) = before.get(&id) {
                let large = before.changes_to(route).filter(|(_, by)| by.abs() > TURN_FRAC);
                moves.extend(large.map(|(engine, by)| ((route.cluster, route.class, engine), by)));
            }
            if before.get(&id).is_some_and(|before| largest_change(before, route) > MOVE_FRAC) {
                if is_undone {
                    self.left.remove(&id);
                } else {
                    self.left.insert(id, REST_PLANS);
                }
            }
        }
        if is_undone {
            self.moves.clear();
        } else if let Some(last) = self.moves.back_mut() {
            *last = moves;
        }
        self.before = std::mem::replace(&mut self.held, held.to_vec());
    }

    /// The largest change of direction that `next` would make of the weights in force; `None` if it
    /// makes none.
    pub(crate) fn turn(&self, next: &[RouteWeights]) -> Option<Reversal> {
        if self.moves.iter().all(BTreeMap::is_empty) {
            return None;
        }
        let before: BTreeMap<_, &RouteWeights> = self.held.iter().map(|route| ((route.cluster, route.class), route)).collect();
        let turns = next.iter().flat_map(|route| {
            let before = before.get(&(route.cluster, route.class)).copied();
            let changes = before.into_iter().flat_map(|before| before.changes_to(route)).filter(|(_, by)| by.abs() > TURN_FRAC);
            let back = changes.filter(|&(engine, by)| {
                let key = (route.cluster, route.class, engine);
                self.moves.iter().any(|moves| moves.get(&key).is_some_and(|before| before.signum() != by.signum()))
            });
            back.map(|(engine, by)| Reversal { cluster: route.cluster, class: route.class, engine, by })
        });
        turns.max_by(|a, b| a.by.abs().total_cmp(&b.by.abs()))
    }

    /// By how much the price of moving a route is multiplied.
    pub(crate) fn factor(&self, cluster: ClusterId, class: ClassId) -> f64 {
        if self.left.contains_key(&(cluster, class)) { REST_FACTOR } else { 1.0 }
    }
}

/// Largest change of a weight between two routes of one (cluster, class), as a share of what is
/// served.
fn largest_change(old: &RouteWeights, new: &RouteWeights) -> f64 {
    old.changes_to(new).map(|(_, by)| by.abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::EngineId;

    #[test]
    fn what_moved_rests_for_ten_plans_and_what_did_not_does_not() {
        let route = |class: u16, share: f64| RouteWeights {
            cluster: ClusterId(0),
            class: ClassId(class),
            shed_frac: 0.0,
            weights: vec![(EngineId(0), share), (EngineId(1), 1.0 - share)],
        };
        let (before, after) = ([route(0, 0.5), route(1, 0.5)], [route(0, 0.52), route(1, 0.504)]);
        let mut rest = Cooldown::default();
        let factors = |rest: &Cooldown| [0, 1].map(|class| rest.factor(ClusterId(0), ClassId(class)));
        rest.observe(None);
        rest.observe(Some(&before));
        assert_eq!(factors(&rest), [1.0, 1.0], "what is first in force has not moved");
        for nth in 0..REST_PLANS {
            rest.observe(Some(&after));
            assert_eq!(factors(&rest), [REST_FACTOR, 1.0], "plan {nth} after the move");
        }
        rest.observe(Some(&after));
        assert_eq!(factors(&rest), [1.0, 1.0]);
        rest.observe(Some(&before));
        assert_eq!(factors(&rest), [1.0, 1.0], "undone");
        assert_eq!(rest.turn(&after), None, "what was undone has no direction");
    }

    #[test]
    fn a_weight_that_goes_back_within_ten_plans_is_a_turn() {
        let route = |share: f64| RouteWeights {
            cluster: ClusterId(0),
            class: ClassId(0),
            shed_frac: 0.0,
            weights: vec![(EngineId(0), share), (EngineId(1), 1.0 - share)],
        };
        let mut rest = Cooldown::default();
        rest.observe(Some(&[route(0.5)]));
        rest.observe(Some(&[route(0.53)]));
        assert_eq!(rest.turn(&[route(0.56)]), None, "onwards");
        assert_eq!(rest.turn(&[route(0.525)]), None, "too little to be seen");
        let turn = rest.turn(&[route(0.51)]).expect("back");
        assert!((turn.by.abs() - 0.02).abs() < 1e-9, "{turn:?}");
        for _ in 1..REST_PLANS {
            rest.observe(Some(&[route(0.53)]));
            assert!(rest.turn(&[route(0.51)]).is_some());
        }
        rest.observe(Some(&[route(0.53)]));
        assert_eq!(rest.turn(&[route(0.51)]), None, "long ago");
    }
}
