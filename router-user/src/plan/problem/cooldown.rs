//! Cooldown (hysteresis): a route whose weights have just moved pays a higher price for moving
//! again. Pure.
//!
//! Demand fluctuates. A plan that follows every fluctuation moves the same conversations there and
//! back: two prefills for no gain, and weights that nobody can read. So a route (cluster, class)
//! whose weights have moved is in cooldown for the next plans, and its move price is multiplied.
//! The price is in ms like every other, so a gain above it still moves the weights, and a forced
//! move is never prevented. A plan that would nevertheless reverse a recent move reports a
//! [`Reversal`], and the publish gate demands a larger gain for it. The state lives in memory only:
//! after a restart a weight may reverse early once.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{ClassId, ClusterId, EngineId};

use crate::plan::RouteWeights;

/// Length of a cooldown, in plans: about as long as a deviation of demand lasts.
const COOLDOWN_PLANS: u8 = 10;

/// Factor on the move price of a route in cooldown. It exceeds most of the gain that noise of
/// demand offers, and stays below the gain after a loss of engines: bench/results/plan-notes.md has
/// the measurements.
const COOLDOWN_FACTOR: f64 = 50.0;

/// Smallest change of a weight, as a fraction of the route, that starts a cooldown: half of
/// [`REVERSAL_FRAC`], so that every change that can be reversed also starts one.
const MOVE_FRAC: f64 = 0.005;

/// Smallest change of a weight, as a fraction of the route, that counts for a reversal, both in the
/// first direction and back: smaller changes move too few conversations to matter.
const REVERSAL_FRAC: f64 = 0.01;

/// A change of a weight against a change in the opposite direction within the last
/// [`COOLDOWN_PLANS`] plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reversal {
    pub cluster: ClusterId,
    pub class: ClassId,
    pub engine: EngineId,
    /// Signed change of the weight that the plan proposes.
    pub by: f64,
}

/// Routes in cooldown and recent moves, derived from the active weights at each plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cooldown {
    current: Vec<RouteWeights>,
    /// Active weights before `current`.
    before: Vec<RouteWeights>,
    /// Remaining plans of each route in cooldown.
    left: BTreeMap<(ClusterId, ClassId), u8>,
    /// Changes larger than [`REVERSAL_FRAC`], one map per plan, newest last, at most
    /// [`COOLDOWN_PLANS`] maps.
    moves: VecDeque<BTreeMap<(ClusterId, ClassId, EngineId), f64>>,
}

impl Cooldown {
    /// Advances by one plan; `current` are the weights that are active when it starts.
    pub(crate) fn observe(&mut self, current: Option<&[RouteWeights]>) {
        self.left.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let current = current.unwrap_or_default();
        if self.moves.len() >= usize::from(COOLDOWN_PLANS) {
            self.moves.pop_front();
        }
        self.moves.push_back(BTreeMap::new());
        if self.current == current {
            return;
        }
        // A move that was undone as a whole does not count: a trial failed, or an operator went
        // back.
        let is_undone = self.before == current;
        let before: BTreeMap<_, &RouteWeights> = self.current.iter().map(|route| ((route.cluster, route.class), route)).collect();
        let mut moves = BTreeMap::new();
        for route in current {
            let id = (route.cluster, route.class);
            if let Some(before) = before.get(&id) {
                let large = before.changes_to(route).filter(|(_, by)| by.abs() > REVERSAL_FRAC);
                moves.extend(large.map(|(engine, by)| ((route.cluster, route.class, engine), by)));
            }
            if before.get(&id).is_some_and(|before| largest_change(before, route) > MOVE_FRAC) {
                if is_undone {
                    self.left.remove(&id);
                } else {
                    self.left.insert(id, COOLDOWN_PLANS);
                }
            }
        }
        if is_undone {
            self.moves.clear();
        } else if let Some(last) = self.moves.back_mut() {
            *last = moves;
        }
        self.before = std::mem::replace(&mut self.current, current.to_vec());
    }

    /// The largest reversal that `next` would make of the active weights; `None` if it makes no
    /// reversal.
    pub(crate) fn reversal(&self, next: &[RouteWeights]) -> Option<Reversal> {
        if self.moves.iter().all(BTreeMap::is_empty) {
            return None;
        }
        let before: BTreeMap<_, &RouteWeights> = self.current.iter().map(|route| ((route.cluster, route.class), route)).collect();
        let reversals = next.iter().flat_map(|route| {
            let before = before.get(&(route.cluster, route.class)).copied();
            let changes =
                before.into_iter().flat_map(|before| before.changes_to(route)).filter(|(_, by)| by.abs() > REVERSAL_FRAC);
            let back = changes.filter(|&(engine, by)| {
                let key = (route.cluster, route.class, engine);
                self.moves.iter().any(|moves| moves.get(&key).is_some_and(|before| before.signum() != by.signum()))
            });
            back.map(|(engine, by)| Reversal { cluster: route.cluster, class: route.class, engine, by })
        });
        reversals.max_by(|a, b| a.by.abs().total_cmp(&b.by.abs()))
    }

    /// Factor on the move price of a route: 1 outside a cooldown.
    pub(crate) fn factor(&self, cluster: ClusterId, class: ClassId) -> f64 {
        if self.left.contains_key(&(cluster, class)) { COOLDOWN_FACTOR } else { 1.0 }
    }
}

/// Largest absolute change of a weight between two versions of one route, as a fraction of its
/// served requests.
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
        let mut cooldown = Cooldown::default();
        let factors = |cooldown: &Cooldown| [0, 1].map(|class| cooldown.factor(ClusterId(0), ClassId(class)));
        cooldown.observe(None);
        cooldown.observe(Some(&before));
        assert_eq!(factors(&cooldown), [1.0, 1.0], "the first weights have not moved");
        for nth in 0..COOLDOWN_PLANS {
            cooldown.observe(Some(&after));
            assert_eq!(factors(&cooldown), [COOLDOWN_FACTOR, 1.0], "plan {nth} after the move");
        }
        cooldown.observe(Some(&after));
        assert_eq!(factors(&cooldown), [1.0, 1.0]);
        cooldown.observe(Some(&before));
        assert_eq!(factors(&cooldown), [1.0, 1.0], "undone");
        assert_eq!(cooldown.reversal(&after), None, "what was undone has no direction");
    }

    #[test]
    fn a_weight_that_goes_back_within_ten_plans_is_a_turn() {
        let route = |share: f64| RouteWeights {
            cluster: ClusterId(0),
            class: ClassId(0),
            shed_frac: 0.0,
            weights: vec![(EngineId(0), share), (EngineId(1), 1.0 - share)],
        };
        let mut cooldown = Cooldown::default();
        cooldown.observe(Some(&[route(0.5)]));
        cooldown.observe(Some(&[route(0.53)]));
        assert_eq!(cooldown.reversal(&[route(0.56)]), None, "onwards");
        assert_eq!(cooldown.reversal(&[route(0.525)]), None, "too little to be seen");
        let reversal = cooldown.reversal(&[route(0.51)]).expect("back");
        assert!((reversal.by.abs() - 0.02).abs() < 1e-9, "{reversal:?}");
        for _ in 1..COOLDOWN_PLANS {
            cooldown.observe(Some(&[route(0.53)]));
            assert!(cooldown.reversal(&[route(0.51)]).is_some());
        }
        cooldown.observe(Some(&[route(0.53)]));
        assert_eq!(cooldown.reversal(&[route(0.51)]), None, "long ago");
    }
}
