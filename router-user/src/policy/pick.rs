//! The choice of an engine for one attempt: the first in the key's rank order that can take the
//! request.

use router_common::slot::NO_ENGINE;

use crate::model::EngineId;

/// Whether an engine can take a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Available,
    /// It has its maximum of requests in flight.
    Full,
    /// It could not be reached, and is not due for a probe.
    Out,
}

/// The outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    Engine(EngineId),
    /// Candidates are left, but all of them are full.
    Full,
    /// Every candidate has been tried.
    None,
}

/// Picks an engine for a key. `ranks` are the best engines of its slot; `rest` gives all candidates
/// in rank order, and is called only when those cannot take the request.
///
/// Engines in `tried` are never picked. An engine that is out is picked when no other is left,
/// because a failure some time ago must not refuse a request that could be served now. A full
/// engine is never picked: the bound protects it.
pub fn pick(
    ranks: &[u16],
    rest: impl FnOnce() -> Vec<EngineId>,
    tried: &[EngineId],
    availability: impl Fn(EngineId) -> Availability,
) -> Pick {
    for &number in ranks {
        let engine = EngineId(number);
        if number != NO_ENGINE && !tried.contains(&engine) && availability(engine) == Availability::Available {
            return Pick::Engine(engine);
        }
    }
    let (mut out, mut is_full) = (None, false);
    for engine in rest() {
        if tried.contains(&engine) {
            continue;
        }
        match availability(engine) {
            Availability::Available => return Pick::Engine(engine),
            Availability::Full => is_full = true,
            Availability::Out => out = out.or(Some(engine)),
        }
    }
    match out {
        Some(engine) => Pick::Engine(engine),
        None if is_full => Pick::Full,
        None => Pick::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Availability::{Available, Full, Out};

    fn check(tried: &[u16], engines: [Availability; 5], expected: Pick) {
        let ranks = [3, 1, 4, 0];
        let rest = || [3, 1, 4, 0, 2].map(EngineId).to_vec();
        let tried: Vec<EngineId> = tried.iter().copied().map(EngineId).collect();
        assert_eq!(pick(&ranks, rest, &tried, |e| engines[e.index()]), expected, "{tried:?} {engines:?}");
    }

    #[test]
    fn first_fit_engine_in_rank_order() {
        let engine = |n| Pick::Engine(EngineId(n));
        check(&[], [Available; 5], engine(3));
        check(&[3], [Available; 5], engine(1));
        check(&[], [Available, Available, Available, Out, Available], engine(1));
        check(&[], [Available, Full, Available, Out, Available], engine(4));
        check(&[3, 1, 4, 0], [Available; 5], engine(2));
        check(&[], [Out, Out, Available, Out, Out], engine(2));
        // Nothing fit: the best-ranked that is merely out, before giving up.
        check(&[], [Out; 5], engine(3));
        check(&[], [Out, Out, Out, Full, Out], engine(1));
        check(&[3, 1], [Full, Out, Full, Out, Full], Pick::Full);
        check(&[], [Full; 5], Pick::Full);
        check(&[0, 1, 2, 3, 4], [Available; 5], Pick::None);
    }

    #[test]
    fn no_candidates() {
        assert_eq!(pick(&[NO_ENGINE; 4], Vec::new, &[], |_| Available), Pick::None);
    }
}
